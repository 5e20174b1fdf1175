"""Commands whose replies are lost, on stores of single records, and what must be true of their effects."""

from __future__ import annotations

from holdfast import commands as c
from holdfast.errors import StoreUnavailable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.slot import SlotSeen, Swapped
from holdfast.testing.builders import abandon, acquire, read, release, renew, swap, transfer, wait
from holdfast.testing.tally import Counted, SeeTally, add

WEEKS = 30 * 86_400 * 1_000_000


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


READS = ("ReadSlot", "Inspect")
BESIDE_ANOTHER = [name for name in COMMANDS if name not in ("SettleDue", "Cleanup", "ListLocks")]


def check_beside_another_writer(name, connection, other, lose):
    """The reply to a write is lost, and before the client can look, another client has written the same record."""
    command, kind = COMMANDS[name]
    sent = command(prepared(connection))
    write = connection._adapter.write
    meddled = []

    def write_and_meddle(writes):
        try:
            results = write(writes)
        except StoreUnavailable:  # some adapters raise, others answer None for each write
            meddle()
            raise
        if None in results:
            meddle()
        return results

    def meddle():
        if meddled:
            return
        meddled.append(True)
        for key in ("k", "other"):
            ask(other, abandon(key, "x.1"))
        slot = ask(other, read())
        ask(other, swap("x.2", slot.last, slot.version, "7"))
        ask(other, add("x.1", "q", "t", by=100))

    connection._adapter.write = write_and_meddle
    lose()
    (outcome,) = connection.execute([sent])
    assert meddled or name in READS, "no reply was lost"
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
