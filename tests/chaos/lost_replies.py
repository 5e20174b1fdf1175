"""Replies are lost between store and caller: no caller is locked out by its own grant, and no lock is left over.

First the reply of every kind of command is lost once, and the effect must be the same as without the loss. Then threads
and tasks acquire, transfer, await, give up and release locks and permits while one in twenty replies is lost at random,
and again while every second reply is lost, on every kind of store. Leases last for a minute and callers wait for half
of that: a grant that its caller does not know of would show as a caller that times out. At the end nothing may be held
or queued anywhere.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.common import Report, main, until

import holdfast.runtime.base
from holdfast import AsyncClient, Client, HoldfastError, LeaseLost, LockTimeout, StoreUnavailable
from holdfast.commands import (
    Abandon,
    Acquire,
    Cleanup,
    Command,
    ForceRelease,
    Inspect,
    ListLocks,
    Release,
    Renew,
    Settle,
    SettleDue,
    Transfer,
)
from holdfast.stores import open_store
from support.faults import FaultyConnection, FaultyStore, Plan, planned

TTL = 60.0
PATIENCE = 30.0
"""No caller waits longer than this, unless a grant was left over that only its ttl would end."""
OFTEN = (Acquire, Release, Abandon)
"""Kinds of command whose replies must be lost many times in the random part."""


@dataclass(frozen=True)
class Size:
    threads: int
    tasks: int
    takes: int
    """How often each thread and each task acquires a lock, on each store."""

    def in_storm(self) -> Size:
        """Fewer callers where most commands must be sent again."""
        return Size(threads=self.threads, tasks=self.tasks // 3, takes=self.takes // 3)


SMALL = Size(threads=4, tasks=12, takes=12)
FULL = Size(threads=12, tasks=60, takes=90)
LOSS_RATES = {"drizzle": 0.05, "storm": 0.5}
"""The share of batches whose replies are lost."""


# -- every kind of command, once ------------------------------------------------------------------------


def lost_once(url: str, kind: type[Command]) -> str:
    """Lose the reply of one command of this kind. Returns what went wrong, or an empty string."""
    with planned() as plan, Client(url) as hf:
        EFFECTS[kind](hf, plan)
        if plan.lost != [kind.__name__]:
            return f"the reply of {kind.__name__} was not lost: {plan.lost}"
        left = hf.locks.list()
        return f"left in the store after a lost reply of {kind.__name__}: {left}" if left else ""


def _arm(plan: Plan, kind: type[Command]) -> None:
    plan.lose_reply_of = kind


def _acquire(hf: Client, plan: Plan) -> None:
    _arm(plan, Acquire)
    with hf.lock("once", ttl=TTL, wait=PATIENCE) as lease:
        assert [holder.token for holder in hf.locks.inspect("once").holders] == [lease.token]


def _release(hf: Client, plan: Plan) -> None:
    lease = hf.lock("once", ttl=TTL).acquire()
    _arm(plan, Release)
    lease.release()
    hf.lock("once", ttl=TTL).acquire(wait=PATIENCE).release()


def _renew(hf: Client, plan: Plan) -> None:
    with hf.lock("once", ttl=TTL) as lease:
        before = lease.expires_at
        _arm(plan, Renew)
        lease.renew()
        assert lease.expires_at > before


def _abandon(hf: Client, plan: Plan) -> None:
    with hf.semaphore("once", permits=1, ttl=TTL):
        _arm(plan, Abandon)
        with pytest.raises(LockTimeout):
            hf.semaphore("once", permits=1, ttl=TTL).acquire(wait=0.05)
        assert not hf.locks.inspect("once").waiters


def _transfer(hf: Client, plan: Plan) -> None:
    lease = hf.lock("once", ttl=TTL).acquire()
    _arm(plan, Transfer)
    successor = lease.transfer("bob")
    assert [(h.owner, h.token) for h in hf.locks.inspect("once").holders] == [("bob", successor.token)]
    successor.release()


def _force_release(hf: Client, plan: Plan) -> None:
    """The one command that is never sent again automatically: it would also remove a new holder."""
    lease = hf.lock("once", ttl=TTL).acquire()
    _arm(plan, ForceRelease)
    with pytest.raises(StoreUnavailable) as raised:
        hf.locks.force_release("once", reason="campaign")
    assert raised.value.ambiguous
    assert plan.count(ForceRelease) == 1
    with pytest.raises(LeaseLost):
        lease.release()


def _inspect(hf: Client, plan: Plan) -> None:
    _arm(plan, Inspect)
    assert hf.locks.inspect("once").holders == ()


def _list(hf: Client, plan: Plan) -> None:
    _arm(plan, ListLocks)
    assert hf.locks.list() == []


def _cleanup(hf: Client, plan: Plan) -> None:
    _arm(plan, Cleanup)
    hf.locks.cleanup()


def _settle(kind: type[Command], command: Command) -> Callable[[Client, Plan], None]:
    """Commands that clients do not send on their own. Sent again, they change nothing."""

    def effect(hf: Client, plan: Plan) -> None:
        batcher = hf.runtime.batchers["commands"]
        _arm(plan, kind)
        try:
            batcher.run(command)
        except StoreUnavailable:
            batcher.run(command)

    return effect


EFFECTS: dict[type[Command], Callable[[Client, Plan], None]] = {
    Acquire: _acquire,
    Release: _release,
    Renew: _renew,
    Abandon: _abandon,
    Transfer: _transfer,
    ForceRelease: _force_release,
    Inspect: _inspect,
    ListLocks: _list,
    Cleanup: _cleanup,
    Settle: _settle(Settle, Settle(key="once")),
    SettleDue: _settle(SettleDue, SettleDue()),
}


# -- many commands, at random -------------------------------------------------------------------------


class Unreliable(FaultyConnection):
    """A connection that loses replies at random."""

    def __init__(self, connection: Any, plan: Plan, losses: Losses) -> None:
        super().__init__(connection, plan)
        self._losses = losses

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        outcomes = self._connection.execute(commands)
        self._losses.pass_or_lose(commands)
        return outcomes


class UnreliableStore(FaultyStore):
    def __init__(self, store: Any, plan: Plan, losses: Losses) -> None:
        super().__init__(store, plan)
        self._losses = losses

    def connect(self, role: Any) -> Unreliable:
        return Unreliable(self._store.connect(role), self._plan, self._losses)


class Losses:
    """Decides which replies are lost, and counts them by the kinds of command in the batch."""

    def __init__(self, chance: random.Random, rate: float) -> None:
        self._chance, self.rate = chance, rate
        self._lock = threading.Lock()
        self.sent: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def pass_or_lose(self, commands: Sequence[Command]) -> None:
        kinds = Counter(type(command).__name__ for command in commands)
        with self._lock:
            self.sent += kinds
            if self._chance.random() >= self.rate:
                return
            self.lost += kinds
        raise StoreUnavailable("the campaign lost the reply: the commands were executed", ambiguous=True)


@contextmanager
def unreliable(losses: Losses) -> Iterator[None]:
    """Clients that are created in the block lose replies."""
    plan = Plan()
    holdfast.runtime.base.open_store = lambda url, **options: UnreliableStore(open_store(url, **options), plan, losses)
    try:
        yield
    finally:
        holdfast.runtime.base.open_store = open_store
    assert plan.open_connections == 0, "connections to the store were not closed"


@dataclass
class HolderCounts:
    """Counts the holders of each key, independently of the store."""

    report: Report
    inside: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, key: str, limit: int) -> None:
        with self.lock:
            self.inside[key] += 1
            self.done["taken"] += 1
            self.report.demand(f"{self.inside[key]} holders of {key} at once", kept=self.inside[key] <= limit)

    def leave(self, key: str) -> None:
        with self.lock:
            self.inside[key] -= 1

    def count(self, what: str) -> None:
        with self.lock:
            self.done[what] += 1

    def failed(self, error: BaseException, key: str) -> None:
        """The only error that a caller may get is that the store did not reply. Any other error is a lost lock."""
        if isinstance(error, StoreUnavailable):
            self.count("errors: the store did not reply")
        elif isinstance(error, LockTimeout):
            self.report.broken(f"locked out: {error}")
        else:
            self.report.broken(f"{type(error).__name__} on {key}: {error}")


def _choose(chance: random.Random) -> tuple[str, int]:
    """A key and its permits. Of a mutex one caller per process waits in the store, of a semaphore a few do."""
    return chance.choice((("mutex-a", 1), ("mutex-b", 1), ("one-permit", 1), ("permits", 3)))


def _lock(hf: Any, key: str, permits: int) -> Any:
    return hf.lock(key, ttl=TTL) if key.startswith("mutex") else hf.semaphore(key, permits=permits, ttl=TTL)


def in_thread(hf: Client, takes: int, chance: random.Random, holder_counts: HolderCounts) -> None:
    for _ in range(takes):
        key, permits = _choose(chance)
        lock, action = _lock(hf, key, permits), chance.random()
        try:
            if action < 0.2:
                impatient(lock, chance, holder_counts)
                continue
            with lock_for(lock, PATIENCE) as lease:
                holder_counts.enter(key, permits)
                try:
                    be_inside(hf, lease, action, key)
                finally:
                    holder_counts.leave(key)
                if 0.7 < action < 0.8:
                    lease.transfer("next").release()
                    holder_counts.count("transferred")
        except HoldfastError as error:
            holder_counts.failed(error, key)


@contextmanager
def lock_for(lock: Any, wait: float) -> Iterator[Any]:
    """A lease that is released at the end, unless it was transferred."""
    lease = lock.acquire(wait=wait)
    try:
        yield lease
    except HoldfastError:
        with suppress(HoldfastError):
            lease.release()
        raise
    lease.release()


def be_inside(hf: Client, lease: Any, action: float, key: str) -> None:
    if action > 0.9:
        lease.renew()
    elif action > 0.87:
        holders = hf.locks.inspect(key).holders
        assert lease.token in [holder.token for holder in holders], "a holder is missing in its own lock record"
    elif action > 0.84:
        hf.locks.list()
    elif action > 0.8:
        hf.locks.cleanup()
    lease.check()


def impatient(lock: Any, chance: random.Random, holder_counts: HolderCounts) -> None:
    """Wait for too short a time, and give up."""
    try:
        lease = lock.acquire(wait=chance.choice((0, 0.001, 0.005, 0.02)))
    except LockTimeout:
        holder_counts.count("timed out")
    else:
        holder_counts.count("acquired just before giving up")
        lease.release()


async def in_task(hf: AsyncClient, takes: int, chance: random.Random, holder_counts: HolderCounts) -> None:
    for _ in range(takes):
        key, permits = _choose(chance)
        lock = _lock(hf, key, permits)
        try:
            if chance.random() < 0.3:
                await cancelled_caller(lock, chance, holder_counts)
                continue
            lease = await lock.acquire(wait=PATIENCE)
            holder_counts.enter(key, permits)
            await asyncio.sleep(chance.uniform(0, 0.002))
            holder_counts.leave(key)
            await lease.release()
        except HoldfastError as error:
            holder_counts.failed(error, key)


async def cancelled_caller(lock: Any, chance: random.Random, holder_counts: HolderCounts) -> None:
    """Be cancelled at a random point of an acquisition."""
    task = asyncio.create_task(lock.acquire())
    await asyncio.sleep(chance.uniform(0, 0.02))
    task.cancel()
    try:
        lease = await task
    except asyncio.CancelledError:
        holder_counts.count("cancelled")
    else:
        holder_counts.count("acquired just before giving up")
        await lease.release()


def run_callers(url: str, size: Size, chance: random.Random, holder_counts: HolderCounts, losses: Losses) -> None:
    """Run all callers at once; then check that nothing is left in the store."""

    async def tasks() -> None:
        async with AsyncClient(url) as hf, asyncio.TaskGroup() as group:
            for _ in range(size.tasks):
                group.create_task(in_task(hf, size.takes, random.Random(chance.random()), holder_counts))

    with unreliable(losses), Client(url) as hf, Client(url) as other:
        threads = [threading.Thread(target=lambda: asyncio.run(tasks()))]
        threads += [
            threading.Thread(target=in_thread, args=(client, size.takes, random.Random(chance.random()), holder_counts))
            for client in (hf, other)
            for _ in range(size.threads // 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        losses.rate = 0.0
        clean = until(lambda: not hf.locks.list(), within=8)  # sooner than any waiting lease or ttl expires
        holder_counts.report.demand(f"left over on {url}: {hf.locks.list()}", kept=clean)


def with_lost_replies(name: str, url: str, size: Size, *, weather: str, seed: int, report: Report) -> None:
    chance = random.Random(f"{seed}{name}{weather}")
    rate, size = LOSS_RATES[weather], size.in_storm() if weather == "storm" else size
    holder_counts, losses = HolderCounts(report), Losses(chance, rate)
    run_callers(url, size, chance, holder_counts, losses)
    callers, takes, head = size.threads + size.tasks, size.takes, f"{name}, {weather}:"
    report.at_least(f"{head} acquired and released", holder_counts.done["taken"], callers * takes // 3)
    report.at_least(f"{head} cancelled", holder_counts.done["cancelled"], size.tasks * takes // 25)
    for what in ("timed out", "acquired just before giving up", "transferred", "errors: the store did not reply"):
        report.figure(f"{head} {what}", holder_counts.done[what])
    report.at_least(f"{head} commands", losses.sent.total(), callers * takes)
    report.at_least(f"{head} replies lost", losses.lost.total(), int(losses.sent.total() * rate / 5))
    report.figure(f"{head} of them", ", ".join(f"{kind} {times}" for kind, times in sorted(losses.lost.items())))
    for kind in OFTEN if weather == "storm" else ():
        report.at_least(f"{head} of {kind.__name__}", losses.lost[kind.__name__], takes // 5)


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    urls = {"memory": "memory://campaign", "sqlite": f"sqlite:///{folder}/locks.db"}
    for kind in EFFECTS:
        for url in urls.values():
            trouble = lost_once(url, kind)
            report.demand(trouble, kept=not trouble)
    report.at_least("kinds of command whose reply was lost once", len(EFFECTS), 11)
    for name, url in urls.items():
        for weather in LOSS_RATES:
            with_lost_replies(name, url, size, weather=weather, seed=seed, report=report)


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL)
