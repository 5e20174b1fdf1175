"""The fence on Redis and Valkey: a key that is set, and a script of the user. Sync and async clients, both servers."""

import asyncio
import random
import secrets
import threading
from types import SimpleNamespace

import pytest
import real_servers
import redis
import redis.asyncio
from redis.exceptions import DataError, RedisClusterException, RedisError, ResponseError
from waiting import PATIENCE, eventually

from holdfast.errors import InvalidDuration, InvalidKey, InvalidOption, StaleToken, StoreUnusable
from holdfast.fencing import AsyncFencedScript, FencedScript, fenced_set, fenced_set_async
from holdfast.fencing.redis import fence_key
from holdfast.testing.ports import HeldPort

T0 = 1_790_000_000_000_000

APPEND = 'redis.call("RPUSH", KEYS[1], ARGV[1]) return redis.call("LRANGE", KEYS[1], 0, -1)'


class Sync:
    """The calls of the sync client; `Async` has the same methods."""

    def __init__(self, url, *, cluster=False, **options):
        kind = redis.RedisCluster if cluster else redis.Redis
        self.client = kind.from_url(url, **options)

    def set(self, name, value, token, **options):
        fenced_set(self.client, name, value, token, **options)

    def script(self, source):
        return FencedScript(self.client, source)

    def close(self):
        self.client.close()


class Async:
    def __init__(self, url, *, cluster=False, **options):
        self._loop = asyncio.new_event_loop()
        kind = redis.asyncio.RedisCluster if cluster else redis.asyncio.Redis
        self.client = kind.from_url(url, **options)

    def do(self, coroutine):
        return self._loop.run_until_complete(coroutine)

    def set(self, name, value, token, **options):
        self.do(fenced_set_async(self.client, name, value, token, **options))

    def script(self, source):
        script = AsyncFencedScript(self.client, source)
        return lambda *arguments, **options: self.do(script(*arguments, **options))

    def close(self):
        self.do(self.client.aclose())
        self._loop.close()


@pytest.fixture(params=["valkey", "redis"], scope="module")
def server(request):
    return real_servers.shared(request.param)


@pytest.fixture
def observer(server):
    """A second connection, which reads what is stored."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def name():
    return f"stock:{secrets.token_hex(6)}"


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def mode(request):
    return request.param


@pytest.fixture
def writer(server, mode):
    made = mode(server.url)
    yield made
    made.close()


# -- a key ------------------------------------------------------------------------------------------------------


def test_a_higher_token_and_the_same_pass_and_the_floor_is_remembered(writer, observer, name):
    for token, value in ((T0, "a"), (T0 + 1, "b"), (T0 + 1, "c")):
        writer.set(name, value, token)
    assert observer.get(name) == "c"
    assert observer.get(fence_key(name)) == str(T0 + 1)


def test_a_lower_token_is_refused_and_nothing_was_written(writer, observer, name):
    writer.set(name, "newer", T0)
    with pytest.raises(StaleToken) as caught:
        writer.set(name, "older", T0 - 1)
    assert (caught.value.resource, caught.value.offered, caught.value.highest) == (name, T0 - 1, T0)
    assert observer.get(name) == "newer"
    assert observer.get(fence_key(name)) == str(T0)


def test_current_tokens_that_differ_by_one_are_distinguished(writer, observer, name):
    """By default Lua writes a number of 16 digits with only 14 of them."""
    for token in range(T0 + 1, T0 + 12):
        writer.set(name, token, token)
        assert observer.get(fence_key(name)) == str(token)
        with pytest.raises(StaleToken) as caught:
            writer.set(name, "older", token - 1)
        assert caught.value.highest == token
        writer.set(name, token, token)
    assert observer.get(name) == str(T0 + 11)


def test_tokens_are_compared_as_numbers_and_the_largest_fits(writer, observer, name):
    writer.set(name, "a", 99)
    writer.set(name, "b", 100)
    with pytest.raises(StaleToken):
        writer.set(name, "c", 99)
    writer.set(name, "d", 2**53 - 1)
    with pytest.raises(StaleToken) as caught:
        writer.set(name, "e", 2**53 - 2)
    assert caught.value.highest == 2**53 - 1
    assert observer.get(name) == "d"


def test_holders_of_a_semaphore_do_not_refuse_each_other(writer, observer, name):
    writer.set(name, "b", SimpleNamespace(token=200, floor=100))
    writer.set(name, "a", SimpleNamespace(token=100, floor=100))
    assert (observer.get(name), observer.get(fence_key(name))) == ("a", "100")


def test_a_holder_below_the_floor_is_refused_and_an_older_floor_lowers_nothing(writer, observer, name):
    writer.set(name, "c", SimpleNamespace(token=300, floor=200))
    writer.set(name, "b", SimpleNamespace(token=200, floor=100))
    with pytest.raises(StaleToken):
        writer.set(name, "a", SimpleNamespace(token=199, floor=100))
    assert (observer.get(name), observer.get(fence_key(name))) == ("b", "200")


@pytest.mark.parametrize(("value", "stored"), [("é", "é"), (b"\x00x", "\x00x"), (7, "7"), (0.5, "0.5"), ("", "")])
def test_every_type_of_value_of_redis_py_can_be_set(writer, observer, name, value, stored):
    writer.set(name, value, T0)
    assert observer.get(name) == stored


def test_the_time_to_live_is_set_kept_or_removed(writer, observer, name):
    writer.set(name, "a", T0, ex="5 minutes")
    assert 200_000 < observer.pttl(name) <= 300_000
    writer.set(name, "b", T0, keepttl=True)
    assert 200_000 < observer.pttl(name) <= 300_000
    writer.set(name, "c", T0)
    assert observer.pttl(name) == -1
    writer.set(name, "d", T0, ex=0.001)
    eventually(lambda: observer.get(name) is None)
    assert observer.ttl(fence_key(name)) == -1, "the fence must not expire with the value"
    with pytest.raises(StaleToken):
        writer.set(name, "older", T0 - 1)


def test_deleting_the_value_does_not_delete_the_fence(writer, observer, name):
    writer.set(name, "a", T0)
    observer.delete(name)
    with pytest.raises(StaleToken):
        writer.set(name, "older", T0 - 1)


@pytest.mark.parametrize("answers", [{"decode_responses": True}, {"protocol": 3}, {"encoding": "latin-1"}])
def test_the_clients_decoding_options_have_no_effect(server, mode, observer, name, answers):
    writer = mode(server.url, **answers)
    writer.set(name, "new", T0)
    with pytest.raises(StaleToken) as caught:
        writer.set(name, "old", T0 - 1)
    assert caught.value.highest == T0
    writer.close()


def test_scripts_are_loaded_again_after_the_server_has_lost_them(writer, observer, name):
    for step in range(3):
        observer.script_flush()
        writer.set(name, step, T0 + step)
    assert observer.get(name) == "2"


@pytest.mark.parametrize(
    "damage", ["", "12x", "-5", "0", "1e15", "0x10", "1790000000000000.5", "99999999999999999", " 7"]
)
def test_a_damaged_fence_is_refused_with_what_to_do_and_never_passes(writer, observer, name, damage):
    observer.set(name, "old")
    observer.set(fence_key(name), damage)
    with pytest.raises(StoreUnusable, match=r"cannot be read.*delete that key"):
        writer.set(name, "new", T0)
    assert (observer.get(name), observer.get(fence_key(name))) == ("old", damage)


def test_a_fence_of_another_type_is_refused_too(writer, observer, name):
    observer.rpush(fence_key(name), str(T0))
    with pytest.raises(StoreUnusable, match=r"cannot be read.*WRONGTYPE"):
        writer.set(name, "new", T0)
    assert observer.get(name) is None


@pytest.mark.parametrize("token", [True, 0, -1, 2**53, "100", None])
def test_a_bad_token_is_refused(writer, observer, name, token):
    with pytest.raises(InvalidOption):
        writer.set(name, "new", token)
    assert not observer.exists(name, fence_key(name))


@pytest.mark.parametrize("wrong", ["", "a\nb", "x" * 513, 7, b"bytes"])
def test_a_bad_name_is_refused(writer, wrong):
    with pytest.raises(InvalidKey):
        writer.set(wrong, "new", T0)


def test_a_bad_time_to_live_or_value_is_refused_before_the_fence_is_changed(writer, observer, name):
    for wrong in (0, 0.0001, -1, "soon"):
        with pytest.raises(InvalidDuration):
            writer.set(name, "new", T0, ex=wrong)
    with pytest.raises(InvalidOption, match="either ex or keepttl"):
        writer.set(name, "new", T0, ex=1, keepttl=True)
    with pytest.raises(DataError):
        writer.set(name, {"a": 1}, T0)
    assert not observer.exists(name, fence_key(name))


# -- a script ---------------------------------------------------------------------------------------------------


def test_a_script_gets_its_keys_and_arguments_and_its_result_is_returned(writer, observer, name):
    script = writer.script("return {#KEYS, #ARGV, KEYS[1], ARGV[1], ARGV[2]}")
    answer = script(name, T0, keys=["a"], args=["b", 3])
    assert answer == [1, 2, b"a", b"b", b"3"]
    assert script(name, T0) == [0, 0]


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("", None),
        ("return nil", None),
        ("return false", None),
        ("return 7", 7),
        ("return {}", []),
        ('return {1, {"x", {2}}}', [1, [b"x", [2]]]),
        ('return redis.status_reply("FINE")', b"FINE"),
        ("-- nothing but a comment", None),
        ("local x = 1\nif x == 1 then return 'one' end -- and a comment at the end", b"one"),
    ],
)
def test_a_script_returns_the_same_result_as_without_the_fence(server, writer, name, source, answer):
    with redis.Redis.from_url(server.url) as alone:
        assert alone.eval(source, 0) == answer
    assert writer.script(source)(name, T0) == answer


def test_the_script_of_an_older_holder_is_not_executed(writer, observer, name):
    script = writer.script(APPEND)
    assert script(name, T0, keys=[name], args=["a"]) == [b"a"]
    assert script(name, T0, keys=[name], args=["b"]) == [b"a", b"b"]
    with pytest.raises(StaleToken) as caught:
        script(name, T0 - 1, keys=[name], args=["c"])
    assert (caught.value.resource, caught.value.highest) == (name, T0)
    assert observer.lrange(name, 0, -1) == ["a", "b"]


def test_a_script_that_only_reads_also_refuses_older_writers_from_then_on(writer, observer, name):
    """Otherwise a late write between a successor's reading and writing would be accepted and then overwritten."""
    writer.set(name, "0", T0)
    read = writer.script('return redis.call("GET", KEYS[1])')
    assert read(name, T0 + 2, keys=[name]) == b"0"
    with pytest.raises(StaleToken):
        writer.set(name, "late", T0 + 1)
    writer.set(name, "1", T0 + 2)
    assert observer.get(name) == "1"


@pytest.mark.parametrize(
    "failing",
    [
        'redis.call("SET", KEYS[1], "half") return redis.call("INCR", KEYS[1])',
        'redis.call("SET", KEYS[1], "half") return redis.error_reply("ERR no more")',
        'redis.call("SET", KEYS[1], "half") error("no more")',
    ],
    ids=["call", "returned", "raised"],
)
def test_what_a_failing_script_has_written_is_protected_from_older_holders(writer, observer, name, failing):
    """Redis does not roll back: a part of a newer write is stored, and no older holder may overwrite it."""
    writer.set(name, "before", T0)
    with pytest.raises(ResponseError, match=r"not an integer|no more"):
        writer.script(failing)(name, T0 + 2, keys=[name])
    with pytest.raises(StaleToken):
        writer.set(name, "older", T0 + 1)
    assert observer.get(name) == "half"


def test_a_script_that_cannot_be_compiled_leaves_the_fence_as_it_was(writer, observer, name):
    with pytest.raises(ResponseError, match=r"[Cc]ompil"):
        writer.script("this is no Lua")(name, T0)
    assert not observer.exists(fence_key(name))


def test_an_error_in_a_script_has_the_line_number_of_the_users_source(writer, name):
    with pytest.raises(ResponseError, match=r"user_script:3: .*oh"):
        writer.script('local a = 1\nlocal b = 2\nerror("oh")')(name, T0)


def test_script_flags_stay_in_the_first_line(mode, name):
    """Only newer servers know them."""
    made = mode(real_servers.shared("valkey").url)
    assert made.script("#!lua flags=no-cluster\nreturn KEYS[1]")(name, T0, keys=["a"]) == b"a"
    with pytest.raises(ResponseError, match=r"[Ww]rite"):
        made.script("#!lua flags=no-writes\nreturn 1")(name, T0 + 1)
    made.close()


def test_bad_scripts_and_bad_lists_are_refused(writer, name):
    with pytest.raises(InvalidOption, match="a script must be text, not int"):
        writer.script(7)
    for wrong in ({"keys": "abc"}, {"args": b"abc"}):
        with pytest.raises(InvalidOption, match="must be a list"):
            writer.script("return 1")(name, T0, **wrong)
    with pytest.raises(InvalidKey):
        writer.script("return 1")("", T0)
    with pytest.raises(InvalidOption):
        writer.script("return 1")(name, None)


# -- the client -------------------------------------------------------------------------------------------------


def test_a_client_of_the_other_mode_gets_an_error_with_the_right_name(server, name):
    sync, other = Sync(server.url), Async(server.url)
    with pytest.raises(InvalidOption, match=r"is async.*fenced_set_async.*AsyncFencedScript"):
        fenced_set(other.client, name, "a", T0)
    with pytest.raises(InvalidOption, match=r"is async"):
        FencedScript(other.client, "return 1")
    with pytest.raises(InvalidOption, match=r"is sync: .*FencedScript"):
        asyncio.run(fenced_set_async(sync.client, name, "a", T0))
    with pytest.raises(InvalidOption, match=r"is sync: "):
        AsyncFencedScript(sync.client, "return 1")
    sync.close()
    other.close()


def test_a_pipeline_is_refused_because_its_result_comes_too_late(writer, name):
    writer.client, client = writer.client.pipeline(), writer.client
    with pytest.raises(InvalidOption, match="returns results later"):
        writer.script("return 1")
    with pytest.raises(InvalidOption, match="returns results later"):
        writer.set(name, "a", T0)
    writer.client = client


@pytest.mark.parametrize("wrong", [None, object(), "redis://localhost"])
def test_an_object_that_is_no_client_is_refused(wrong, name):
    with pytest.raises(InvalidOption, match="is not a client of redis-py"):
        fenced_set(wrong, name, "a", T0)
    with pytest.raises(InvalidOption, match="is not a client of redis-py"):
        AsyncFencedScript(wrong, "return 1")


def test_an_unreachable_server_is_the_drivers_own_error(mode, name):
    port = HeldPort()
    writer = mode(f"redis://127.0.0.1:{port.number}", socket_connect_timeout=5)
    with pytest.raises(redis.ConnectionError):
        writer.set(name, "a", T0)
    writer.close()
    port.close()


# -- races ------------------------------------------------------------------------------------------------------


def test_concurrent_writers_with_random_tokens_pass_in_rising_order_only(server, observer, name):
    rounds, racers, seed = 150, 4, random.randrange(10**6)
    together, counts, failed = threading.Barrier(racers), [], []

    def race(number):
        chance, accepted, refused = random.Random(seed + number), 0, 0
        with redis.Redis.from_url(server.url) as client:
            script = FencedScript(client, APPEND)
            together.wait(PATIENCE)
            for _ in range(rounds):
                token = T0 + chance.randint(1, 10_000)
                try:
                    script(name, token, keys=[name], args=[token])
                    accepted += 1
                except StaleToken:
                    refused += 1
        counts.append((accepted, refused))

    def run(number):
        try:
            race(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failed == []
    written = [int(token) for token in observer.lrange(name, 0, -1)]
    assert len(written) == sum(accepted for accepted, _ in counts)
    assert sum(refused for _, refused in counts) > 0, "too quiet to show anything"
    assert written == sorted(written), f"an older token came after a newer one (seed {seed})"


def test_a_stored_floor_survives_a_crash_of_the_server(mode, name):
    """With settings that write every change to disk."""
    with real_servers.server("valkey") as server:
        writer = mode(server.url)
        writer.set(name, "a", T0)
        writer.close()
        server.kill()
        server.restart()
        writer = mode(server.url)
        with pytest.raises(StaleToken):
            writer.set(name, "b", T0 - 1)
        writer.set(name, "c", T0)
        writer.close()


# -- a cluster --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one node, which has all slots."""
    port = HeldPort()
    settings = {"cluster-enabled": "yes", "cluster-port": str(port.number), "appendonly": "no"}
    with real_servers.server("valkey", settings=settings) as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        yield server
    port.close()


@pytest.fixture
def node(cluster, mode):
    made = mode(cluster.url, cluster=True)
    yield made
    made.close()


@pytest.mark.parametrize("form", ["stock:{}", "{{shop:{}}}:stock", "a{{{}}}{{b}}", "open{{{}", "{{{}}}"])
def test_in_a_cluster_the_fence_is_in_the_slot_of_its_key(cluster, node, name, form):
    key = form.format(name)
    node.set(key, "a", T0)
    with pytest.raises(StaleToken):
        node.set(key, "b", T0 - 1)
    assert node.script('return redis.call("GET", KEYS[1])')(key, T0, keys=[key]) == b"a"
    with redis.Redis.from_url(cluster.url) as client:
        slots = {client.execute_command("CLUSTER", "KEYSLOT", one) for one in (key, fence_key(key))}
        assert len(slots) == 1


def test_in_a_cluster_keys_in_another_slot_are_the_drivers_own_error(node, name):
    with pytest.raises((RedisError, RedisClusterException), match=r"(?i)slot"):
        node.script("return 1")(name, T0, keys=["elsewhere"])


def test_in_a_cluster_a_pipeline_is_refused_too(cluster, name):
    writer = Sync(cluster.url, cluster=True)
    with pytest.raises(InvalidOption, match="returns results later"):
        fenced_set(writer.client.pipeline(), name, "a", T0)
    writer.close()


@pytest.mark.parametrize("resource", ["a}b", "}", "{}a", "a}{b", "{}"])
def test_a_name_for_which_no_fence_key_is_possible_is_refused(writer, resource):
    with pytest.raises(InvalidKey, match="no hash tag"):
        writer.set(resource, "a", T0)


def test_two_names_never_share_a_fence():
    names = ["a", "{a}", "{a}:a", "a:a", "{a}:{a}:a", "x{a}", "{a", "b{a}c", "holdfast:fence:{a}:a"]
    assert len({fence_key(name) for name in names}) == len(names)
