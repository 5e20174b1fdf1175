"""Commands of one batch about one key are decided together, with the same outcomes as one by one."""

from __future__ import annotations

import os
import random
from time import thread_time

import pytest
from msgspec.structs import replace

from holdfast import commands as c
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, Label, LockRecord, decode, encode

from .harness import HOUR, SECOND, T0, TTL

HISTORIES = int(os.environ.get("HOLDFAST_HISTORIES", "300"))
CHUNKS = 4
ME = Label("me")
EVERY_ANSWER = {
    "Granted", "Queued", "Busy", "Renewed", "Released", "Abandoned", "Transferred", "NotHolder", "TargetHolds",
    "Mismatch", "TooHeavy", "Gone", "ForceReleased", "Settled", "LockSeen", "PassedOver", "woken", "hinted",
}  # fmt: skip


class OnlyApplies(c.LockCommand, frozen=True, kw_only=True):
    """A command that implements only `apply`, as another package might write it."""

    def apply(self, record, now):
        return replace(record, fence=max(record.fence, now), version=record.version + 1), out.Settled()


class History:
    """Batches about one key that often make sense."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.kind, self.permits = self.random.choice([("mutex", 1), ("semaphore", 3), ("rw", 4), ("lease", 1)])
        self.ids = [f"a.{n}" for n in range(self.random.choice([3, 6, 12]))]
        self.record: LockRecord = EMPTY

    def batch(self) -> list[c.LockCommand]:
        return [self.command() for _ in range(self.random.choice([1, 2, 5, 20]))]

    def token(self, id: str) -> int | None:
        """Mostly that of the record before the batch."""
        held = [one.token for one in self.record.holders if one.id == id]
        return self.random.choice([*held * 8, T0, None])

    def command(self) -> c.LockCommand:
        pick = self.random
        holding = [one.id for one in self.record.holders]
        me, holder = pick.choice(self.ids), pick.choice([*holding * 3, *self.ids])
        ttl = pick.choice([None, SECOND, 3 * SECOND, TTL])
        makers = {
            self.acquire: 40,
            lambda: c.Renew(key="k", id=holder, token=self.token(holder), ttl=ttl): 14,
            lambda: c.Release(key="k", id=holder, token=self.token(holder)): 14,
            lambda: c.PassOver(key="k", id=holder, token=self.token(holder) or 0): 8,
            lambda: c.Abandon(key="k", id=me, ttl=pick.choice([0, SECOND])): 4,
            lambda: c.Transfer(key="k", id=holder, token=self.token(holder), to_id=me, to_label=ME, ttl=ttl): 6,
            lambda: c.ForceRelease(key="k", by="me", reason="why not"): 1,
            lambda: c.Settle(key="k", leaving=pick.random() < 0.5): 3,
            lambda: c.Inspect(key="k"): 3,
            lambda: OnlyApplies(key="k"): 1,
        }
        return pick.choices(list(makers), weights=list(makers.values()))[0]()

    def acquire(self) -> c.Acquire:
        pick = self.random
        return c.Acquire(
            key="k",
            id=pick.choice(self.ids),
            label=ME,
            kind=self.kind if pick.random() < 0.97 else "hold",
            permits=self.permits if pick.random() < 0.95 else pick.randint(1, 4),
            weight=pick.choice([1, 1, 1, 2]),
            ttl=pick.choice([None, SECOND, 3 * SECOND, TTL, 0]),
            queue=pick.random() < 0.8,
            waiter_ttl=pick.choice([None, SECOND, 10 * SECOND, 10 * SECOND, 0]),
            delay=pick.choice([0] * 8 + [SECOND]),
            listens=pick.random() < 0.5,
        )


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_batch_has_the_outcomes_and_the_record_of_its_commands_one_by_one(chunk):
    seen: set[str] = set()
    for seed in range(chunk, HISTORIES, CHUNKS):
        history, now = History(seed), T0
        for _ in range(20):
            now += history.random.choice([0, 1, SECOND // 2, SECOND, 2 * SECOND, 5 * SECOND, -3 * SECOND, HOUR])
            batch, before = history.batch(), history.record
            after, outcomes = c.decide_all(before, batch, now)
            record, expected = before, []
            for command in batch:
                record, outcome = command.apply(record, now)
                expected.append(outcome)
            assert [*map(_unversioned, outcomes)] == [*map(_unversioned, expected)], (seed, batch)
            assert replace(after, version=0) == replace(record, version=0), (seed, batch)
            assert (after is before) == (after == before)
            assert after.version > before.version or after is before
            assert (after is before) or record is not before
            seen |= {type(outcome).__name__ for outcome in outcomes}
            seen |= {name for outcome in outcomes for name in ("woken", "hinted") if getattr(outcome, name)}
            history.record = decode("k", encode(after))
    assert seen >= EVERY_ANSWER


def _unversioned(outcome: out.Outcome) -> out.Outcome:
    if isinstance(outcome, out.LockSeen) and outcome.record is not None:
        return replace(outcome, record=replace(outcome.record, version=0))
    return outcome


def test_the_version_increases_once_per_batch():
    take = [c.Acquire(key="k", id=f"a.{n}", label=ME, kind="semaphore", permits=9, ttl=TTL) for n in range(9)]
    after, _ = c.decide_all(EMPTY, take, T0)
    assert (len(after.holders), after.version) == (9, 1)


def test_a_batch_that_changes_nothing_returns_the_same_record_object():
    record, (granted,) = c.decide_all(EMPTY, [c.Acquire(key="k", id="a", label=ME, ttl=TTL)], T0)
    looks = [c.Inspect(key="k"), c.Settle(key="k"), c.Renew(key="k", id="a", token=granted.token, ttl=TTL)]
    assert c.decide_all(record, looks, T0)[0] is record


def test_a_bad_command_fails_the_batch_so_that_the_store_decides_one_by_one():
    good, bad = (c.Acquire(key="k", id="a", label=ME, ttl=ttl) for ttl in (TTL, "soon"))
    with pytest.raises(TypeError):
        c.decide_all(EMPTY, [good, bad], T0)


def seconds_for(holders: int, make) -> float:
    taken = [
        c.Acquire(key="k", id=f"a.{n}", label=ME, kind="semaphore", permits=holders, ttl=TTL) for n in range(holders)
    ]
    record, outcomes = c.decide_all(EMPTY, taken, T0)
    batch = [make(n, outcome) for n, outcome in enumerate(outcomes)]
    fastest = float("inf")
    for _ in range(5):
        started = thread_time()
        c.decide_all(record, batch, T0 + SECOND)
        fastest = min(fastest, thread_time() - started)
    return fastest


@pytest.mark.parametrize(
    "make",
    [
        lambda n, held: c.Renew(key="k", id=f"a.{n}", token=held.token, ttl=TTL),
        lambda n, held: c.Release(key="k", id=f"a.{n}", token=held.token),
        lambda n, held: c.Acquire(
            key="k", id=f"w.{n}", label=ME, kind="semaphore", permits=held.permits_before or 1, ttl=TTL
        ),
        lambda n, held: c.Acquire(
            key="k", id=f"w.{n}", label=ME, kind="semaphore", permits=2, ttl=TTL, queue=True, waiter_ttl=TTL
        ),
    ],
    ids=["renew", "release", "refuse", "enqueue"],
)
def test_a_batch_costs_about_as_much_per_command_whatever_its_size(make):
    """Ten times as many commands on ten times as many holders: a hundred times the work if each looked at them all."""
    assert seconds_for(5_000, make) < 40 * seconds_for(500, make)
