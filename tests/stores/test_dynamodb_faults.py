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
from holdfast.rules.slot import SlotSeen, Swapped
from holdfast.testing.builders import abandon, acquire, read, release, renew, swap, transfer, wait
from holdfast.testing.tally import Counted, SeeTally, add

WEEKS = 30 * 86_400 * 1_000_000


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


def ask(connection, command):
    (outcome,) = connection.execute([command])
    return outcome


def state(connection):
    """Who holds what under which token, who waits, and what the values are."""
    page, slot, tally = connection.execute([c.ListLocks(), read(), SeeTally(key="t")])
    locks = [
        (item.key, [(one.id, one.token) for one in item.record.holders], [one.id for one in item.record.waiters])
        for item in page.items
    ]
    return locks, slot, tally.tally


COMMANDS = {
    "Acquire": (lambda token: acquire("other"), out.Granted),
    "Acquire that waits": (lambda token: wait(), out.Queued),
    "Renew": (lambda token: renew(token=token), out.Renewed),
    "Release": (lambda token: release(token=token), out.Released),
    "Transfer": (lambda token: transfer(token=token), out.Transferred),
    "Abandon": (lambda token: abandon(), out.Abandoned),
    "ForceRelease": (lambda token: c.ForceRelease(key="k", by="me", reason="test"), out.ForceReleased),
    "SwapSlot": (lambda token: swap("a.1"), Swapped),
    "ReadSlot": (lambda token: read(), SlotSeen),
    "Inspect": (lambda token: c.Inspect(key="k"), out.LockSeen),
    "ListLocks": (lambda token: c.ListLocks(), c.LockPage),
    "SettleDue": (lambda token: c.SettleDue(), c.Swept),
    "Cleanup": (lambda token: c.Cleanup(retention=-WEEKS), c.Swept),
    "a command of a record type": (lambda token: add("a.1", "q", "t", by=5), Counted),
}


def prepared(connection):
    granted = ask(connection, acquire(ttl=600))
    old = ask(connection, acquire("old", ttl=600))
    ask(connection, release("old", token=old.token))
    return granted.token


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


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("SettleDue", "Cleanup", "ListLocks")])
def test_nor_with_another_writer_in_between(proxy, through, direct, opened, name):
    """The reply to a write is lost, and before the client can look, another client has written the same record."""
    command, kind = COMMANDS[name]
    connection, other = opened(through).connect(), opened(direct).connect()
    sent = command(prepared(connection))
    write = connection._adapter.write
    meddled = []

    def write_and_meddle(writes):
        results = write(writes)
        if not meddled and None in results:
            meddled.append(True)
            for key in ("k", "other"):
                ask(other, abandon(key, "x.1"))
            slot = ask(other, read())
            ask(other, swap("x.2", slot.last, slot.version, "7"))
            ask(other, add("x.1", "q", "t", by=100))
        return results

    connection._adapter.write = write_and_meddle
    proxy.drop_next_reply(b"PutItem")
    (outcome,) = connection.execute([sent])
    if isinstance(outcome, c.Failed):
        assert isinstance(outcome.error, StoreUnavailable)
        assert outcome.error.ambiguous, "a command that was carried out is reported as not carried out"
    else:
        assert isinstance(outcome, kind)
    held = {item.key: [(one.id, one.token) for one in item.record.holders] for item in ask(other, c.ListLocks()).items}
    waiters = [one.id for one in ask(other, c.Inspect(key="k")).record.waiters]
    if name == "Acquire":
        assert held["other"] == [("a.1", outcome.token)], "granted twice, or not at all"
    elif name == "Transfer":
        assert [id for id, _ in held["k"]] == ["c.1"]
    elif name in ("Release", "Abandon", "ForceRelease"):
        assert held["k"] == []
    elif name == "Acquire that waits":
        assert waiters == ["b.1"]
    elif name == "a command of a record type":
        assert ask(other, SeeTally(key="t")).tally.total == 105, "counted twice, or not at all"
    elif name == "SwapSlot":
        assert ask(other, read()).value == "7"


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
