"""The search for cycles of waiting runs, on prepared records: which runs are part of one, and which are not."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec.structs import replace

from holdfast.commands import Inspect
from holdfast.commands.runs import PostEvent, ReadRun
from holdfast.rules.lock_outcomes import LockSeen
from holdfast.rules.lock_record import Holder, Label, LockRecord, Overflow, Waiter
from holdfast.rules.runs.lock_requests import attempt_of
from holdfast.rules.runs.outcomes import Claim, Posted, RunSeen
from holdfast.rules.runs.record import LockWait, Run, Stuck
from holdfast.workflow.deadlock import CycleFound, resolve

ME = Label(name="me")


def run(name, *locks, **more):
    return Run(id=name, type="t", created_at=more.pop("age", 1), locks=locks, **({"stuck": Stuck(0)} | more))


def lock(holders, waiters, *, permits=1, weight=1, expires_at=None):
    return LockRecord(
        permits=permits,
        holders=tuple(Holder(id=who, label=ME, token=7, since=1, ttl=None, expires_at=expires_at) for who in holders),
        waiters=tuple(Waiter(id=who, label=ME, since=1, ttl=None, expires_at=None, weight=weight) for who in waiters),
    )


def of(name, number):
    return attempt_of(name, number)


RUNS = {"x": run("x", (1, "a"), (2, "b")), "y": run("y", (1, "b"), (2, "a"))}
LOCKS = {"a": lock([of("x", 1)], [of("y", 2)]), "b": lock([of("y", 1)], [of("x", 2)])}


class Store:
    """Answers queries, and stores what is posted. From the query `changes` on, runs have changed."""

    def __init__(self, runs=RUNS, locks=LOCKS, *, changes=None):
        self.runs, self.locks, self.changes = runs, locks, changes
        self.posted, self.looks = [], 0

    async def __call__(self, command):
        if isinstance(command, ReadRun):
            self.looks += 1
            found = self.runs[command.run]
            if self.changes is not None and self.looks > self.changes:
                found = replace(found, length=9)
            return RunSeen(claim=Claim(run=found, entries=(), events=()), holder="", expires_at=None, now=1)
        if isinstance(command, Inspect):
            return LockSeen(record=self.locks[command.key], now=1)
        assert isinstance(command, PostEvent)
        fresh = command.run not in [run for run, *_ in self.posted]
        self.posted.append((command.run, command.event.kind, command.event.name, command.event.payload))
        return Posted(number=1, fresh=fresh, run=self.runs[command.run])


def cycle(runs, locks, first="x"):
    """The runs of the cycle that is reported to the youngest of them."""
    store = Store(runs, locks)
    asyncio.run(resolve(store, first))
    return sorted(set(re.findall("([a-z]) holds [^;]* waits for", "".join(payload for *_, payload in store.posted))))


def test_two_runs_that_wait_for_each_other_are_a_cycle():
    assert cycle(RUNS, LOCKS) == ["x", "y"]


def test_a_run_that_waits_behind_a_cycle_is_not_part_of_it():
    runs = RUNS | {"z": run("z", (1, "a"))}
    locks = LOCKS | {"a": lock([of("x", 1)], [of("y", 2), of("z", 1)])}
    assert cycle(runs, locks, "z") == ["x", "y"]


@pytest.mark.parametrize(
    "changed", [{"stuck": None}, {"posted": 1}, {"status": "completed"}], ids=["not stuck", "an event", "ended"]
)
def test_a_run_that_can_continue_breaks_the_cycle(changed):
    assert cycle(RUNS | {"y": replace(RUNS["y"], **changed)}, LOCKS) == []


def test_a_client_that_holds_a_lock_breaks_the_cycle_and_a_lease_of_a_run_does_not():
    assert cycle(RUNS, LOCKS | {"b": lock(["4f.1"], [of("x", 2)])}) == []
    assert cycle(RUNS, LOCKS | {"b": lock([of("y", 1)], [of("x", 2)], expires_at=99)}) == ["x", "y"], "it is renewed"


def test_every_holder_of_a_semaphore_must_be_in_the_cycle():
    runs = RUNS | {"z": run("z", (1, "b"), stuck=None)}
    both = lock([of("y", 1), of("z", 1)], [of("x", 2)], permits=2)
    assert cycle(runs, LOCKS | {"b": both}) == []
    waiting = {"a": lock([of("x", 1)], [of("y", 2), of("z", 2)]), "b": both}
    assert cycle(runs | {"z": run("z", (1, "b"), (2, "a"))}, waiting) == ["x", "y", "z"]


def test_earlier_waiters_block_a_run_only_if_there_are_free_permits():
    """A client that waits before it does not make a full lock free; but if permits are left, that client may give
    up."""
    full = lock([of("y", 1)], ["4f.1", of("x", 2)])
    assert cycle(RUNS, LOCKS | {"b": full}) == ["x", "y"]
    room = lock([of("y", 1)], ["4f.1", of("x", 2)], permits=2)
    assert cycle(RUNS, LOCKS | {"b": room}) == []


def test_a_run_that_the_lock_does_not_list_waits_for_the_holders():
    runs = {"x": RUNS["x"], "y": run("y", (1, "b"), (2, "a"), waits=(LockWait("a", 40, 2, 1),))}
    locks = LOCKS | {"a": replace(lock([of("x", 1)], [of("z", 1)]), overflow=Overflow(1, 40, 40))}
    assert cycle(runs, locks) == ["x", "y"]


def test_a_run_that_the_lock_does_not_list_waits_for_listed_waiters_if_there_are_free_permits():
    runs = {"x": RUNS["x"], "y": run("y", (1, "b"), (2, "a"), waits=(LockWait("a", 40, 2, 1),))}
    first = lock([of("x", 1)], [of("z", 1)], permits=2, weight=2)
    locks = LOCKS | {"a": replace(first, overflow=Overflow(1, 40, 40))}
    assert cycle(runs | {"z": run("z", (1, "a"))}, locks) == ["x", "y"]
    assert cycle(runs | {"z": run("z", (1, "a"), stuck=None)}, locks) == [], "one of those before it can go on"


def test_the_youngest_run_gets_one_event_about_its_wait():
    store = Store()
    assert asyncio.run(resolve(store, "x")) == CycleFound("y", fresh=True, again=["x"])
    ((*notified, payload),) = store.posted
    assert notified == ["y", "deadlock", "2"]
    assert payload == "\"x holds 'a' and waits for 'b'; y holds 'b' and waits for 'a'\""
    assert asyncio.run(resolve(store, "x")) == CycleFound("y", fresh=False, again=["x"])


def test_a_cycle_that_changed_between_two_reads_is_ignored():
    store = Store(changes=2)
    assert asyncio.run(resolve(store, "x")) is None
    assert store.posted == []


def test_a_key_in_its_lock_delay_is_no_deadlock():
    closed = replace(LOCKS["b"], closed_until=99)
    assert cycle(RUNS, LOCKS | {"b": closed}) == []


def test_many_runs_behind_one_that_can_continue_cost_three_reads():
    runs = {f"r{n}": run(f"r{n}", (1, "k")) for n in range(500)} | {"h": run("h", (1, "k"), stuck=None)}
    store = Store(runs, {"k": lock([of("h", 1)], [of(f"r{n}", 1) for n in range(500)])})
    assert asyncio.run(resolve(store, "r499")) is None
    assert store.looks == 2


def test_a_parent_that_waits_for_its_child_may_block_it():
    runs = {"p": run("p", (1, "a"), stuck=Stuck(0, ("c",))), "c": run("c", (1, "a"), age=2)}
    store = Store(runs, {"a": lock([of("p", 1)], [of("c", 1)])})
    assert asyncio.run(resolve(store, "p")) == CycleFound("c", fresh=True, again=["p"])
    ((*_, payload),) = store.posted
    assert payload == "\"c waits for 'a'; p holds 'a' and waits for the child c\""


def test_of_a_parent_and_its_child_the_one_that_waits_for_a_lock_gets_the_error():
    """By age it would be the parent, but the parent waits for no lock."""
    runs = {"p": run("p", (1, "a"), stuck=Stuck(0, ("c",)), age=3), "c": run("c", (1, "a"))}
    store = Store(runs, {"a": lock([of("p", 1)], [of("c", 1)])})
    assert asyncio.run(resolve(store, "c")) == CycleFound("c", fresh=True, again=["p"])


def test_one_child_that_can_continue_breaks_the_cycle():
    runs = {
        "p": run("p", (1, "a"), stuck=Stuck(0, ("c", "d"))),
        "c": run("c", (1, "a")),
        "d": run("d", stuck=None),
    }
    locks = {"a": lock([of("p", 1)], [of("c", 1)])}
    for first in runs:
        assert asyncio.run(resolve(Store(runs, locks), first)) is None
    found = asyncio.run(
        resolve(Store(runs | {"d": run("d", (2, "a"))}, {"a": lock([of("p", 1)], [of("c", 1), of("d", 2)])}), "p")
    )
    assert found == CycleFound("d", fresh=True, again=["p"])


def test_many_children_of_which_the_first_continues_cost_two_reads():
    children = tuple(f"c{n}" for n in range(900))
    runs = {name: run(name, stuck=None) for name in children} | {"p": run("p", (1, "a"), stuck=Stuck(0, children))}
    store = Store(runs, {"a": lock([of("p", 1)], [])})
    assert asyncio.run(resolve(store, "p")) is None
    assert store.looks == 5


def test_a_stuck_run_that_lost_a_lock_can_continue():
    """Its lease has expired while it had no driver: as soon as it is driven it gets the error, and leaves its block."""
    runs = {"p": run("p", (1, "a"), (2, "b"), stuck=Stuck(0, ("c",))), "c": run("c", (1, "b"))}
    locks = {"a": lock([of("p", 1)], []), "b": lock([of("p", 2)], [of("c", 1)])}
    assert asyncio.run(resolve(Store(runs, locks), "c")) is not None
    assert asyncio.run(resolve(Store(runs, locks | {"a": lock([], [])}), "c")) is None


def test_a_run_behind_a_cycle_that_waits_for_one_of_two_children_is_not_part_of_it():
    """When x and y no longer block each other one child ends, and its parent releases what the other requests."""
    runs = RUNS | {
        "p": run("p", (1, "k"), stuck=Stuck(0, ("c", "d")), age=2),
        "c": run("c", (1, "k"), age=9),
        "d": run("d", (1, "a"), age=9),
    }
    locks = LOCKS | {"k": lock([of("p", 1)], [of("c", 1)]), "a": lock([of("x", 1)], [of("y", 2), of("d", 1)])}
    for first in runs:
        assert cycle(runs, locks, first) == ["x", "y"]


def test_runs_that_wait_only_for_each_others_ends_get_no_error():
    runs = {"p": run("p", stuck=Stuck(0, ("q",))), "q": run("q", stuck=Stuck(0, ("p",)))}
    assert asyncio.run(resolve(Store(runs, {}), "p")) is None


def test_the_message_of_a_large_cycle_names_the_run_and_those_that_block_it():
    children = tuple(f"c{n:03}" for n in range(300))
    runs = {name: run(name, (1, "a"), age=n) for n, name in enumerate(children)}
    runs["p"] = run("p", (1, "a"), stuck=Stuck(0, children))
    store = Store(runs, {"a": lock([of("p", 1)], [of(name, 1) for name in children])})
    asyncio.run(resolve(store, "p"))
    ((notified, *_, payload),) = store.posted
    assert notified == "c299"
    assert "c299 waits for 'a'; p holds 'a' and waits for the child c" in payload
    assert "and 590 more such waits" in payload
    assert len(payload) < 1_000
