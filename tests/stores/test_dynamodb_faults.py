"""The DynamoDB store on a network that loses replies, and on a server that is killed: no effect is lost or doubled."""

from __future__ import annotations

import pytest
import real_servers
from providers import dynamodb_proxy, dynamodb_url
from waiting import eventually

from holdfast import Client
from holdfast import commands as c
from holdfast.errors import StoreUnavailable
from holdfast.rules import lock_outcomes as out
from holdfast.testing.builders import acquire, release, renew
from stores.lossy_commands import BESIDE_ANOTHER, COMMANDS, ask, check_beside_another_writer, prepared, state


@pytest.fixture
def direct():
    return dynamodb_url()


@pytest.fixture
def proxy(direct):
    with dynamodb_proxy(direct) as made:
        yield made


@pytest.fixture
def through(direct, proxy):
    return proxy.url_for(direct)


def lost_once(proxy, connection, operation, command):
    """The outcome of a command that loses a reply on the way; whether one was lost."""
    proxy.drop_next_reply(operation)
    before = proxy.replies_dropped
    outcome = ask(connection, command)
    return outcome, proxy.replies_dropped > before


@pytest.mark.parametrize(
    "operation", [b"PutItem", b"DeleteItem", b".GetItem", b"BatchGetItem", b"Query"], ids=bytes.decode
)
def test_a_reply_that_is_lost_changes_no_effect(proxy, through, direct, opened, operation):
    lost = []
    for number, (name, (command, kind)) in enumerate(COMMANDS.items()):
        namespace = f"case {number}"
        connection, eye = opened(through, namespace=namespace).connect(), opened(direct, namespace=namespace).connect()
        undisturbed = opened(direct, namespace=f"undisturbed {number}").connect()
        outcome, was_lost = lost_once(proxy, connection, operation, command(prepared(connection)))
        expected = ask(undisturbed, command(prepared(undisturbed)))
        assert isinstance(outcome, kind), name
        assert type(outcome) is type(expected), name
        (locks, *values), (locks_there, *values_there) = state(eye), state(undisturbed)
        assert [(key, [id for id, _ in held], waiters) for key, held, waiters in locks] == [
            (key, [id for id, _ in held], waiters) for key, held, waiters in locks_there
        ], name
        assert values == values_there, name
        if isinstance(outcome, out.Granted | out.Transferred):
            assert outcome.token in [token for _, held, _ in locks for _, token in held], name
        lost += [name] if was_lost else []
        proxy.go_on()
    assert lost, "no reply was lost"


@pytest.mark.parametrize("name", BESIDE_ANOTHER)
def test_nor_with_another_writer_in_between(proxy, through, direct, opened, name):
    """The reply to a write is lost, and before the client can look, another client has written the same record."""
    connection, other = opened(through).connect(), opened(direct).connect()
    check_beside_another_writer(name, connection, other, lambda: proxy.drop_next_reply(b"PutItem"))


def test_the_flow_of_a_client_asks_again_by_itself(proxy, through):
    with Client(through) as hf:
        hf.lock("warm").acquire().release()
        proxy.drop_next_reply(b"PutItem")
        lease = hf.lock("k", wait=5).acquire()
        assert proxy.replies_dropped == 1
        assert [holder.token for holder in hf.locks.inspect("k").holders] == [lease.token]
        proxy.drop_next_reply(b"PutItem")
        lease.release()
        assert proxy.replies_dropped == 2
        assert not hf.locks.inspect("k").held


def test_a_lease_outlives_a_stall_that_is_longer_than_the_timeout(proxy, through):
    with Client(f"{through}&read_timeout=0.3&connect_timeout=0.3") as hf:
        lease = hf.lock("k", ttl=10).acquire()
        proxy.stall()
        with pytest.raises(StoreUnavailable):
            hf.lock("other", wait=0).acquire()
        proxy.go_on()
        eventually(lambda: hf.lock("other", wait=1).acquire().release() is None)
        assert lease.valid
        lease.release()


def test_a_client_continues_after_the_server_was_killed_and_its_locks_are_there():
    with real_servers.server("dynamodb") as server, Client(server.url) as hf:
        kept = hf.lock("k", ttl=60).acquire()
        hf.state("count").set(41)
        server.kill()
        with pytest.raises(StoreUnavailable):
            hf.lock("other", wait=0).acquire()
        server.restart()
        eventually(lambda: hf.lock("other", wait=1).acquire().release() is None)
        assert [one.token for one in hf.locks.inspect("k").holders] == [kept.token]
        kept.check()
        assert hf.state("count").get() == 41
        kept.release()


# ---------------------------------------------------------------- what it costs


def requests_of(proxy, connection, *commands):
    before = proxy.requests
    outcomes = connection.execute(commands)
    return proxy.requests - before, outcomes


def test_a_pair_without_contention_takes_three_requests(proxy, through, opened):
    connection = opened(through).connect()
    connection.execute([c.Inspect(key="warm")])
    asked, (granted,) = requests_of(proxy, connection, acquire())
    released, (done,) = requests_of(proxy, connection, release(token=granted.token))
    assert isinstance(done, out.Released)
    assert (asked, released) == (2, 1)


def test_a_renewal_of_a_hundred_leases_takes_one_request_each(proxy, through, opened):
    """They are sent at the same time, eight at once; none of them reads first."""
    connection = opened(through).connect()
    grants = connection.execute([acquire(f"k{n}") for n in range(100)])
    asked, outcomes = requests_of(
        proxy, connection, *(renew(f"k{n}", token=grant.token) for n, grant in enumerate(grants))
    )
    assert all(isinstance(one, out.Renewed) for one in outcomes)
    assert asked == 100


def test_a_look_takes_one_request_and_a_list_two(proxy, through, opened):
    connection = opened(through).connect()
    connection.execute([acquire(f"k{n}") for n in range(50)])
    assert requests_of(proxy, connection, c.Inspect(key="k1"))[0] == 1
    assert requests_of(proxy, connection, *(c.Inspect(key=f"k{n}") for n in range(50)))[0] == 1
    assert requests_of(proxy, connection, c.ListLocks())[0] == 2
