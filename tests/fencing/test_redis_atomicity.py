"""A fenced write on Redis and Valkey is done once or not at all, whatever the server refuses in its middle.

Each write is sent while the user lacks the right to one Redis command, or while the memory is full. It raises, and
value and fence are unchanged. Then the cause is removed and the same write is sent again.
"""

import pytest
import real_servers
import redis
from redis.exceptions import RedisError

from fencing.test_redis import APPEND, T0, Async, Sync
from holdfast.fencing.redis import fence_key

NAME = "stock"
RIGHTS = ("EVALSHA", "EVAL", "GET", "SET")
"""What docs/fencing.md says that a user needs. A script of the user's own needs the rights to its own commands too."""


def set_it(writer):
    writer.set(NAME, "new", T0)


def append_it(writer):
    writer.script(APPEND)(NAME, T0, keys=[NAME], args=["new"])


@pytest.fixture(scope="module", params=["valkey", "redis"])
def own(request):
    with real_servers.server(request.param, settings={"appendonly": "no", "save": ""}) as server:
        yield server


@pytest.fixture
def operator(own):
    with redis.Redis.from_url(own.url, decode_responses=True) as client:
        client.flushall()
        client.script_flush()
        rights = [f"+{name}" for name in (*RIGHTS, "RPUSH", "LRANGE")]
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", *rights)
        yield client
        client.config_set("maxmemory", "0")


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def writer(request, own, operator):
    made = request.param(own.url.replace("redis://", "redis://app:pw@"))
    yield made
    made.close()


def stored(operator):
    """The value and the fence."""
    value = operator.lrange(NAME, 0, -1) if operator.type(NAME) == "list" else operator.get(NAME)
    return value, operator.get(fence_key(NAME))


def prepare(operator, write, floor):
    """Store an older value and an older fence, or neither."""
    if floor is not None:
        operator.set(fence_key(NAME), floor)
        operator.set(NAME, "old") if write is set_it else operator.rpush(NAME, "old")
    return stored(operator)


def expected(write, floor):
    """What is stored after the write was done once."""
    if write is set_it:
        return "new", str(T0)
    return (["new"] if floor is None else ["old", "new"]), str(T0)


@pytest.mark.parametrize("write", [set_it, append_it])
@pytest.mark.parametrize("floor", [None, T0 - 1], ids=["no fence", "an older fence"])
@pytest.mark.parametrize("right", RIGHTS)
def test_with_any_right_missing_nothing_is_written_and_a_resend_is_done_once(operator, writer, write, floor, right):
    before = prepare(operator, write, floor)
    operator.execute_command("ACL", "SETUSER", "app", f"-{right}")
    with pytest.raises(RedisError, match=r"(?i)permission|can't run this command"):
        write(writer)
    assert stored(operator) == before
    operator.execute_command("ACL", "SETUSER", "app", f"+{right}")
    write(writer)
    assert stored(operator) == expected(write, floor)


def test_a_script_that_lacks_a_right_has_written_nothing_and_refuses_older_holders(operator, writer):
    """The fence is stored before the script runs, because the script may have written something before it failed."""
    prepare(operator, append_it, T0 - 1)
    operator.execute_command("ACL", "SETUSER", "app", "-RPUSH")
    with pytest.raises(RedisError, match=r"(?i)permission|can't run this command"):
        append_it(writer)
    assert stored(operator) == (["old"], str(T0))
    operator.execute_command("ACL", "SETUSER", "app", "+RPUSH")
    append_it(writer)
    assert stored(operator) == expected(append_it, T0 - 1)


@pytest.mark.parametrize("write", [set_it, append_it])
@pytest.mark.parametrize("floor", [None, T0 - 1, T0], ids=["no fence", "an older fence", "the same fence"])
def test_with_full_memory_nothing_is_written_and_a_resend_is_done_once(operator, writer, write, floor):
    before = prepare(operator, write, floor)
    operator.config_set("maxmemory-policy", "noeviction")
    operator.config_set("maxmemory", "1")
    with pytest.raises(RedisError, match="maxmemory"):
        write(writer)
    assert stored(operator) == before
    operator.config_set("maxmemory", "0")
    write(writer)
    assert stored(operator) == expected(write, floor)
