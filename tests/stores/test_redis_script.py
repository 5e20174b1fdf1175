"""The script and its layout: what is stored where, what the fast path decides, and that a bad command fails alone."""

from __future__ import annotations

import json

import pytest
import redis
from providers import PROVIDERS, redis_layout

from holdfast import commands as c
from holdfast.errors import InvalidOption, RecordUnreadable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import Label, decode, encode
from holdfast.stores.redis.keys import Layout
from holdfast.stores.redis.record_source import RedisSource
from holdfast.testing.builders import ME, SECOND, START, acquire, read, release, renew, swap, wait
from stores.runs_asking import by_the_rules

KINDS = ["valkey", "redis"]


@pytest.fixture(params=KINDS)
def url(request, tmp_path):
    return PROVIDERS[request.param].url(tmp_path)


@pytest.fixture
def server(url):
    with redis.Redis.from_url(url.partition("?")[0], decode_responses=True) as client:
        yield client


def names(server, url, namespace="default"):
    base = redis_layout(url, namespace).base
    return {name.removeprefix(base): server.type(name) for name in server.keys("*") if name.startswith(base)}


# ---------------------------------------------------------------- layout


def test_the_layout_is_this_one(url, server, connection):
    """A stored format: changing it needs a migration."""
    connection.execute(
        [acquire(), wait(), acquire("idle"), swap("a.1", value='{"n": 1}', address=("workflow", "w", "s"))]
    )
    base = redis_layout(url, "default").base
    assert base.endswith(":{default}:")
    assert names(server, url) == {
        "keys": "zset",
        "due": "zset",
        "lock:k": "string",
        "lock:idle": "string",
        "slot:workflow:w:s": "hash",
    }
    assert server.zrange(base + "keys", 0, -1, withscores=True) == [("idle", 0), ("k", 0)]
    assert server.zrange(base + "due", 0, -1, withscores=True) == [("k", START + 10 * SECOND)]
    assert server.get(base + "lock:k") == (
        '{"fence":1790000000000000,"version":2,"holders":[{"id":"a.1","label":{"name":"me","host":"here","pid":1},'
        '"token":1790000000000000,"since":1790000000000000,"ttl":30000000,"expires_at":1790000030000000}],'
        '"waiters":[{"id":"b.1","label":{"name":"me","host":"here","pid":1},"since":1790000000000000,"ttl":10000000,'
        '"expires_at":1790000010000000}],"due_at":1790000010000000}'
    )
    assert server.hgetall(base + "slot:workflow:w:s") == {
        "version": "1",
        "value": '{"n": 1}',
        "past": '{"last":"a.1","writers":[["a",0,[1],1]]}',
    }
    assert {server.ttl(base + name) for name in names(server, url)} == {-1}, "a fence must not vanish"


def test_redis_keys_consist_of_a_prefix_a_hash_tag_and_the_rest():
    layout = Layout("holdfast", "orders")
    assert layout.index == "holdfast:{orders}:keys"
    assert layout.due == "holdfast:{orders}:due"
    assert layout.lock("invoice:42") == "holdfast:{orders}:lock:invoice:42"
    assert layout.slot(("global", "", "seats")) == "holdfast:{orders}:slot:global::seats"
    assert layout.record("inbox", "a:b") == "holdfast:{orders}:record:inbox:a:b"
    assert layout.record_keys("inbox") == "holdfast:{orders}:records:keys:inbox"
    assert layout.due_records("inbox") == "holdfast:{orders}:records:due:inbox"
    assert layout.run("order-42") == "holdfast:{orders}:run:order-42"
    assert layout.journal("order-42") == "holdfast:{orders}:journal:order-42"
    assert layout.inbox("order-42") == "holdfast:{orders}:inbox:order-42"
    assert layout.channel("c0ffee") == "holdfast:{orders}:wake:c0ffee"


@pytest.mark.parametrize("namespace", ["a", "a}b", "{a", "}", "{", "{}", "a%7Db", "a%", "äß 😀", "a:b", "a{b}c"])
def test_a_namespace_has_one_hash_tag_whatever_is_in_it(namespace):
    base = Layout("holdfast", namespace).base
    tag = base[base.index("{") + 1 : base.index("}")]
    assert tag
    assert base == f"holdfast:{{{tag}}}:"


def test_no_two_namespaces_share_a_name():
    spaces = ["a", "a}b", "a%7Db", "a%257Db", "a{b", "a%7Bb", "a:b", "%", "%25"]
    assert len({Layout("holdfast", namespace).base for namespace in spaces}) == len(spaces)


def test_no_two_slots_share_a_name():
    addresses = [("global", "", "a:b"), ("global", "a", "b"), ("global", "a:b", "c"), ("global", "a", "b:c"),
                 ("global", "a%3Ab", "c"), ("workflow", "a", "b")]  # fmt: skip
    layout = Layout("holdfast", "n")
    assert len({layout.slot(address) for address in addresses}) == len(addresses)


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "a b", "a\nb", "x" * 101])
def test_a_prefix_that_would_break_the_hash_tag_is_refused(prefix):
    with pytest.raises(InvalidOption, match="prefix"):
        Layout(prefix, "default")


@pytest.mark.parametrize(
    "key", ['"', "\\", "{", "}", "a}b{c", "*", "[a-z]", "é😀", "a\u2028b", "\x7f", "%", "'", " ", "\n"]
)
def test_any_text_may_be_a_key_an_id_a_label_and_a_reason(key, opened, url, clock):
    connection = opened(url, clock=clock, namespace=key if key.isprintable() else "n").connect("commands")
    me = Label(name=key, host=key, pid=3)
    one, two = c.Acquire(key=key, id=key, label=me, ttl=SECOND), c.Acquire(key=key, id="b.1", label=me, ttl=SECOND)
    granted, busy, forced, seen = connection.execute(
        [one, two, c.ForceRelease(key=key, by=key, reason=key), c.Inspect(key=key)]
    )
    assert (granted.token, busy.holders[0].id, busy.holders[0].label) == (clock.now, key, me)
    assert forced.holders == busy.holders
    assert (seen.record.forced.by, seen.record.forced.reason, seen.record.forced.holders) == (key, key, (str(me),))
    (page,) = connection.execute([c.ListLocks()])
    assert [item.key for item in page.items] == [key]


# ---------------------------------------------------------------- numbers


def test_tokens_of_one_moment_are_distinct_to_the_last_digit(url, server, connection, clock):
    """Fourteen digits, as Lua writes numbers by itself, would make them equal."""
    batch = []
    for n in range(5):
        batch += [acquire(id=f"a.{n}"), c.Abandon(key="k", id=f"a.{n}", ttl=1)]
    tokens = [outcome.token for outcome in connection.execute(batch)[::2]]
    assert tokens == [clock.now + n for n in range(5)]
    assert decode("k", server.get(redis_layout(url, "default").lock("k"))).fence == clock.now + 4


def test_the_fast_path_writes_every_digit_too(url, server, connection, clock):
    clock.now += 123_457
    token = connection.execute([acquire()])[0].token
    assert connection.execute([renew(token=token, ttl=40)]) == [
        out.Renewed(floor=token, expires_at=clock.now + 40 * SECOND)
    ]
    connection.execute([release(token=token)])
    (again,) = connection.execute([acquire(id="b.1")])
    assert again.token == token + 1 == clock.now + 1
    text = server.get(redis_layout(url, "default").lock("k"))
    for number in (again.token, clock.now, clock.now + 30 * SECOND):
        assert str(number) in text
    assert encode(decode("k", text)) == text.encode()


def test_the_largest_numbers_are_kept_and_larger_ones_refused(connection, clock):
    longest = 2**53 - 1 - clock.now
    granted, refused = connection.execute(
        [
            c.Acquire(key="long", id="a.1", label=ME, ttl=longest),
            c.Acquire(key="longer", id="a.1", label=ME, ttl=longest + 1),
        ]
    )
    assert granted.expires_at == 2**53 - 1
    assert isinstance(refused, c.Failed)


# ---------------------------------------------------------------- what the script decides, and how


def test_the_most_frequent_commands_use_the_fast_path(url, server, opened, clock, monkeypatch):
    """Otherwise no test would notice that it is never used: the rules have the same outcomes."""
    monkeypatch.setattr(RedisSource, "read", by_the_rules)
    connection = opened(url, clock=clock).connect("commands")
    me = Label(name="worker-7 (eu)", host="web-1.example", pid=4711)
    for kind, permits in (("mutex", 1), ("lease", 1), ("semaphore", 3), ("run", 1)):
        take = c.Acquire(key=kind, id="c0ffee.1", label=me, kind=kind, permits=permits, ttl=30 * SECOND)
        for _ in range(2):
            (granted,) = connection.execute([take])
            clock.pass_by(1)
            keep = c.Renew(key=kind, id="c0ffee.1", token=granted.token, ttl=30 * SECOND)
            assert isinstance(connection.execute([keep])[0], out.Renewed)
            assert connection.execute([release(kind, "c0ffee.1", token=granted.token)]) == [out.Released()]
    listener = server.pubsub()  # otherwise the script checks whether the waiters are gone
    listener.subscribe(redis_layout(url, "default").channel("c0ffee"))
    assert listener.get_message(timeout=5)
    attempts = [
        c.Acquire(key="handed", id=f"c0ffee.{n}", label=me, ttl=30 * SECOND, queue=True, waiter_ttl=10 * SECOND)
        for n in range(6)
    ]
    (granted,) = connection.execute(attempts[:1])
    for place, outcome in enumerate(connection.execute(attempts[1:3])):
        assert isinstance(outcome, out.Queued)
        assert outcome.position == place
    for holder, waiter, late in zip(attempts, attempts[1:], attempts[3:], strict=False):
        clock.pass_by(1)
        released = connection.execute([release("handed", holder.id, token=granted.token)])
        assert released == [out.Released(woken=(waiter.id,))]
        assert isinstance(connection.execute([late])[0], out.Queued)
        (granted,) = connection.execute([waiter])
        assert isinstance(granted, out.Granted)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"top": {"new": 1}},
        {"holder": {"new": [1, {"a": None}]}},
        {"label": {"new": "x"}},
        {"label": {"host": ""}},
        {"label": {"pid": 0}},
        {"label": {"name": "é"}},
        {"label": {"name": 'a"b\\c'}},
        {"holder": {"offered": False}},
        {"holder": {"offered": True}},
        {"top": {"waiters": []}},
        {"top": {"due_at": None}},
        {"top": {"closed_until": 0}},
        {"top": {"kind": "mutex", "permits": 1}},
        {"top": {"kind": "semaphore", "permits": 3}},
        {"top": {"kind": "lease"}},
        {"top": {"fence": 0}},
        {"top": {"fence": 2**53 + 1}},
        {"holder": {"weight": 1, "delay": 5, "via": "z"}},
        {"holder": {"expires_at": 1}},
        {"holder": {"expires_at": None, "ttl": None}},
        {"holder": {"expires_at": START + 10**15}},
        {"holder": {"since": 2**53 + 1}},
        {"top": {"forced": {"at": 1, "by": "o", "reason": "r"}}},
        {"top": {"tombstones": [{"id": "z.1", "ttl": 5, "expires_at": START + 5 * SECOND}]}},
        {"top": {"tombstones": [{"id": "z.1", "ttl": 5, "expires_at": 5}]}},
    ],
    ids=lambda extra: json.dumps(extra)[:60],
)
@pytest.mark.parametrize("command", [renew, release, acquire], ids=lambda command: command.__name__)
def test_the_fast_path_equals_the_rules_for_records_of_every_shape(*, url, server, connection, clock, extra, command):
    """Also for fields of another version, for defaults that were written out, and for numbers of another form."""
    (grant,) = connection.execute([acquire()])
    name = redis_layout(url, "default").lock("k")
    value = json.loads(server.get(name))
    value.update(extra.get("top", {}))
    value["holders"][0].update(extra.get("holder", {}))
    value["holders"][0]["label"].update(extra.get("label", {}))
    planted = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    server.set(name, planted)
    clock.pass_by(1)
    asked = command() if command is acquire else command(token=grant.token)
    expected, answer = asked.apply(decode("k", planted), clock.now)
    assert connection.execute([asked]) == [answer]
    assert decode("k", server.get(name)) == expected


def test_a_damaged_label_is_refused_also_by_the_fast_path(url, server, connection):
    (held,) = connection.execute([acquire()])
    name = redis_layout(url, "default").lock("k")
    planted = server.get(name).replace('"pid":1', '"pid":"one"')
    server.set(name, planted)
    for command in (renew(token=held.token), release(token=held.token)):
        (outcome,) = connection.execute([command])
        assert isinstance(outcome, c.Failed)
        assert isinstance(outcome.error, RecordUnreadable)
    assert server.get(name) == planted


def test_a_release_with_another_token_hands_nothing_over(connection):
    (held,) = connection.execute([acquire()])
    connection.execute([wait(id="b.1")])
    assert connection.execute([release(token=held.token - 1)]) == [out.NotHolder()]
    assert connection.execute([release(token=held.token)]) == [out.Released(woken=("b.1",))]


def test_a_hand_over_keeps_the_index_of_due_records(url, server, connection, clock):
    layout = redis_layout(url, "default")

    def due():
        record = decode("k", server.get(layout.lock("k")))
        assert server.zscore(layout.due, "k") == record.due_at
        return record.due_at

    (held,) = connection.execute([acquire(ttl=30)])
    assert due() is None
    connection.execute([wait(id="b.1", waiter_ttl=10 * SECOND), wait(id="c.1", waiter_ttl=20 * SECOND)])
    assert due() == START + 10 * SECOND
    connection.execute([release(token=held.token)])
    assert due() is not None
    (held,) = connection.execute([wait(id="b.1", ttl=60)])
    assert due() == START + 20 * SECOND
    connection.execute([release(id="b.1", token=held.token)])
    assert due() is None


def test_an_expired_offer_is_not_confirmed(connection, clock):
    (held,) = connection.execute([acquire()])
    connection.execute([wait(id="b.1", waiter_ttl=1_000_000), release(token=held.token)])
    offered = connection.execute([c.Inspect(key="k")])[0].record.fence
    clock.pass_by(1.5)
    (granted,) = connection.execute([wait(id="b.1")])
    assert granted.token > offered


def test_an_offer_with_fields_of_a_newer_version_keeps_them_when_it_is_confirmed(url, server, connection):
    (held,) = connection.execute([acquire()])
    connection.execute([wait(id="b.1"), wait(id="b.2"), release(token=held.token)])
    name = redis_layout(url, "default").lock("k")
    server.set(name, server.get(name).replace('"offered":true', '"offered":true,"newer":[7]'))
    assert isinstance(connection.execute([wait(id="b.1")])[0], out.Granted)
    assert '"newer":[7]' in server.get(name)


def test_a_waiter_with_fields_of_a_newer_version_keeps_them_while_it_waits_and_when_it_is_offered_the_lock(
    url, server, connection, clock
):
    (held,) = connection.execute([acquire(ttl=60)])
    connection.execute([wait(id="a.2"), wait(id="b.1")])
    name = redis_layout(url, "default").lock("k")
    text = server.get(name)
    server.set(name, text.replace(',"number":1}', ',"number":1,"newer":7}'))
    assert server.get(name) != text
    clock.pass_by(5)
    connection.execute([wait(id="b.1")])
    assert decode("k", server.get(name)).waiters[1].unknown == {"newer": 7}
    connection.execute([c.Abandon(key="k", id="a.2", ttl=SECOND)])
    assert connection.execute([release(token=held.token)])[0].woken == ("b.1",)
    assert decode("k", server.get(name)).holders[0].unknown == {"newer": 7}


def test_a_release_makes_no_offer_to_an_expired_waiter(connection, clock):
    (held,) = connection.execute([acquire(ttl=60)])
    connection.execute([wait(id="b.1", waiter_ttl=SECOND), wait(id="b.2", waiter_ttl=50 * SECOND)])
    clock.pass_by(2)
    assert connection.execute([release(token=held.token)]) == [out.Released(woken=("b.2",))]


def test_a_newer_record_that_changes_during_a_decision_is_decided_again(url, server, opened, clock, monkeypatch):
    """Between the read and the compare-and-swap another client releases it: the second read finds it free."""
    store = opened(url, clock=clock)
    connection, other = store.connect("commands"), store.connect("commands")
    (held,) = connection.execute([acquire()])
    name = redis_layout(url, "default").lock("k")
    server.set(name, server.get(name).replace('"fence"', '"newer":[],"fence"', 1))
    apply, seen = c.Acquire.apply, []

    def slow(self, record, now):
        seen.append(record)
        if len(seen) == 1:
            other.execute([release(token=held.token)])
        return apply(self, record, now)

    monkeypatch.setattr(c.Acquire, "apply", slow)
    (granted,) = connection.execute([acquire(id="b.1", queue=True)])
    assert isinstance(granted, out.Granted)
    assert len(seen) == 2
    record = decode("k", server.get(name))
    assert [holder.id for holder in record.holders] == ["b.1"]
    assert record.unknown == {"newer": []}


NOT_UTF8 = (
    b'{"fence":1,"holders":[{"id":"\xc3(","label":{"name":"m"},"token":1,"since":1,"ttl":null,"expires_at":null}]}'
)


@pytest.mark.parametrize(
    "bad", [b"\xff", NOT_UTF8, b'{"fence":1,"version":1,"forced":7}', b'{"fence":1,"version":1.0}', b"null", b"7"]
)
def test_a_value_that_is_no_text_is_refused_by_name_and_unchanged(url, server, connection, bad):
    name = redis_layout(url, "default").lock("bad")
    connection.execute([acquire("good"), acquire("bad")])
    server.set(name, bad)
    failed, fine, listed = connection.execute([acquire("bad", "b.1"), acquire("fine"), c.ListLocks()])
    assert isinstance(failed.error, RecordUnreadable)
    assert isinstance(fine, out.Granted)
    assert [(item.key, bool(item.error)) for item in listed.items] == [("bad", True), ("fine", False), ("good", False)]
    with redis.Redis.from_url(url.partition("?")[0]) as raw:
        assert raw.get(name) == bad


def test_a_foreign_value_at_the_key_of_a_record_is_unchanged(url, server, connection):
    layout = redis_layout(url, "default")
    server.rpush(layout.lock("list"), "mine")
    server.set(layout.slot(("global", "", "text")), "mine")
    outcomes = connection.execute(
        [acquire("list"), acquire("a"), acquire("b"), acquire("c"), read(("global", "", "text")), acquire("d")]
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Failed",
        "Granted",
        "Granted",
        "Granted",
        "Failed",
        "Granted",
    ]
    assert all(isinstance(outcomes[place].error, RecordUnreadable) for place in (0, 4))
    assert server.lrange(layout.lock("list"), 0, -1) == ["mine"]
    server.zadd(layout.index, {"list": 0})
    server.zadd(layout.due, {"list": 1})
    assert connection.execute([c.SettleDue(), c.Cleanup(retention=-(10**15))])[0] == c.Swept(seen=0, changed=0)
    assert server.lrange(layout.lock("list"), 0, -1) == ["mine"]


def test_an_index_entry_without_a_record_is_skipped_and_removed_by_cleanup(url, server, connection, clock):
    connection.execute([acquire(ttl=1), wait(waiter_ttl=60 * SECOND), acquire("other")])
    layout = redis_layout(url, "default")
    server.delete(layout.lock("k"))
    (page,) = connection.execute([c.ListLocks()])
    assert [item.key for item in page.items] == ["other"]
    clock.pass_by(2)
    assert connection.execute([c.SettleDue()]) == [c.Swept(seen=0, changed=0)]
    assert server.zrange(layout.due, 0, -1) == []
    assert server.zrange(layout.index, 0, -1) == ["other"]


def test_one_bad_command_changes_nothing_and_does_not_affect_the_others(url, server, connection):
    bad = c.Acquire(key="k", id="b.1", label=ME, ttl=SECOND, permits=2.5)  # type: ignore[arg-type]
    before, failed, after = connection.execute([acquire(), bad, renew(token=START)])
    assert isinstance(before, out.Granted)
    assert isinstance(failed, c.Failed)
    assert "Nothing was changed for it" in str(failed.error)
    assert isinstance(after, out.Renewed)
    assert decode("k", server.get(redis_layout(url, "default").lock("k"))).permits == 1


def test_a_batch_that_changes_nothing_writes_nothing(url, server, connection):
    connection.execute([acquire()])
    before = server.info("persistence")["aof_current_size"]
    looks = [acquire(id="b.1"), renew(id="b.1", token=1), c.Settle(key="k"), c.Inspect(key="k"), c.ListLocks(), read()]
    connection.execute(looks)
    connection.execute([renew(token=START)])
    assert server.info("persistence")["aof_current_size"] == before


def test_a_page_may_have_any_length(connection):
    connection.execute([acquire(f"key:{n:05}") for n in range(9_000)])
    (page,) = connection.execute([c.ListLocks(limit=20_000)])
    assert len(page.items) == 9_000
    assert page.next is None
