"""Cases for the tests that no command is half done in a Redis: a prepared namespace, and every kind of command on it.

`Stage` prepares a store and the rules in the same way, and compares their outcomes.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import redis

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.lock_outcomes import Outcome
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.locks import notify_offered
from holdfast.rules.runs.record import Finish, NewRun, Park, RunEvent
from holdfast.rules.runs.repository import RunFilter
from holdfast.rules.slot import Swap
from holdfast.stores.memory.records import MemoryRecords
from holdfast.stores.memory.runs import MemoryRunRepository
from holdfast.stores.redis import permissions as redis_rights
from holdfast.testing.builders import (
    SECOND,
    SLOT,
    START,
    abandon,
    acquire,
    read,
    release,
    renew,
    swap,
    transfer,
    wait,
)
from holdfast.testing.lock_histories import LockModel
from holdfast.testing.run_histories import RunModel
from holdfast.testing.suite.comparison import unversioned
from holdfast.testing.suite.run_locks import give, take
from holdfast.testing.suite.runs import signal, start
from holdfast.testing.tally import CountRun, EndTally, LeaveTally, PokeTally, SeeTally, add
from stores.runs_asking import claim, lease

LIMITED = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"), Limit(name="pace", max=1, per=SECOND)))
PLACES = (LimitKey("all"), LimitKey("pace"))
RUNS = ("limited", "queued", "r", "kid", "ended", "idle", "holder", "wants", "orphan")


class Rules(RunModel, LockModel):
    """The rules for locks, slots, runs and records in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.typed = MemoryRecords()
        self.repo = MemoryRunRepository(self.records.get, self.records.__setitem__, self.slots, self.typed)

    def _answer(self, command: c.Command, now: int) -> Outcome:
        if isinstance(command, c.RecordCommand):
            return self.typed.decide([command], now)[0]
        if (listed := self.typed.look(command, now)) is not None:
            return listed
        if isinstance(command, r.RunCommand | c.SlotCommand | c.LockCommand):
            return RunModel._answer(self, command, now)
        outcome = LockModel._answer(self, command, now)
        notify_offered(self.repo, now, outcome.woken)
        return outcome


def record_of(run: str, *entries: str, at: int = 1, seen: int = 0, **more) -> r.RecordRun:
    """A record by the driver of a run of the stage."""
    asked = {"request": f"{run} {entries} {sorted(more)}"} | more
    return r.RecordRun(run=run, fence=START, at=at, seen=seen, entries=entries, **asked)


STAGE: list[list[c.Command]] = [
    [lease(), r.RegisterWorker(worker="w.1", name="w", types=("order", "mail"))],
    [lease("v.1", 0.5), r.RegisterWorker(worker="v.1", name="v", types=("order",))],
    [r.PublishLimits(workflow="mail", terms=LIMITED)],
    [start("limited", type="mail", places=PLACES, terms=LIMITED.digest, worker="w.1")],
    [start("queued", type="mail", places=PLACES, terms=LIMITED.digest)],
    [start(run, worker="w.1") for run in ("r", "ended", "holder", "wants")],
    [start("kid", parent="r", worker="w.1"), start("idle"), start("orphan", worker="v.1")],
    [signal("ended", key="k"), record_of("ended", "a", seen=1, then=Finish("failed", "1"))],
    [acquire(), wait(), acquire("solo"), acquire("for-run"), acquire("idle"), release("idle", token=START)],
    [acquire("due"), wait("due", waiter_ttl=SECOND // 2), acquire("solo", "x.1", queue=True)],
    [
        record_of("holder", lock_requests=(take(1, "owned"),)),
        record_of("wants", lock_requests=(take(1, "owned"), take(2, "for-run"))),
    ],
    [add(), add("b.1"), add(key="due", ttl=0)],
    [r.WatchRun(run="r", id="x.1"), swap("a.1"), swap("a.2", address=("global", "", "other"))],
]
"""What is there when a command is sent: something of everything that a command can meet. Then a second passes."""

CHILD = NewRun(id="child", type="order", input="2", request="q.2", parent="r", key="k", attributes={"n": 1})
LOCKS: dict[str, list[c.Command]] = {
    "Acquire": [acquire("new")],
    "Acquire-again": [acquire("idle", "b.1")],
    "Acquire-queue": [wait(id="c.1")],
    "Acquire-first-waiter": [wait("for-run", "c.1", ttl=None)],
    "Renew": [renew(token=START, ttl=60)],
    "Release": [release("solo", token=START)],
    "Release-to-waiter": [release(token=START)],
    "Release-to-run": [release("for-run", token=START)],
    "Abandon": [abandon()],
    "Transfer": [transfer("solo", token=START)],
    "ForceRelease": [c.ForceRelease(key="k", by="me", reason="why not")],
    "ForceRelease-to-run": [c.ForceRelease(key="owned", by="me", reason="why not")],
    "Settle": [c.Settle(key="due")],
    "SettleDue": [c.SettleDue()],
    "Cleanup": [c.Cleanup(retention=-SECOND)],
    "Inspect": [c.Inspect(key="k")],
    "ListLocks": [c.ListLocks()],
}
SLOTS: dict[str, list[c.Command]] = {
    "ReadSlot": [read()],
    "SwapSlot": [swap("b.1", "a.1", 1, "2")],
    "SwapSlot-new": [swap("b.1", address=("global", "", "new"))],
    "SwapSlot-delete": [swap("b.1", "a.1", 1, None)],
    "SwapSlot-reserve": [swap("b.1", "x.1", 0, "2", reserve=SECOND)],
}
OF_RUNS: dict[str, list[c.Command]] = {
    "StartRun": [start("new", worker="w.1", key="k", attributes={"n": 1, "s": "x"})],
    "StartRun-unclaimed": [start("new")],
    "StartRun-queued": [start("new", type="mail", places=PLACES, terms=LIMITED.digest)],
    "RecordRun": [record_of("r", "x", "y")],
    "RecordRun-attributes": [record_of("r", "x", attributes={"a": 1})],
    "RecordRun-Park": [record_of("r", "x", then=Park(0))],
    "RecordRun-Park-long": [record_of("r", "x", then=Park(START + 60 * SECOND))],
    "RecordRun-Finish": [record_of("r", "x", then=Finish("failed", "{}"))],
    "RecordRun-Finish-of-child": [record_of("kid", "x", then=Finish("completed", "{}"))],
    "RecordRun-Finish-promotes": [record_of("limited", "x", then=Finish("completed", "{}"))],
    "RecordRun-children": [record_of("r", "x", children=(CHILD,))],
    "RecordRun-swap": [record_of("r", "x", swap=Swap(SLOT, "a.1", 1, "2"))],
    "RecordRun-swap-delete": [record_of("r", "x", swap=Swap(SLOT, "a.1", 1, None), then=Park(None))],
    "RecordRun-asks": [record_of("r", "x", lock_requests=(take(1), take(2, "free")), stuck=())],
    "RecordRun-gives": [record_of("holder", "x", lock_requests=(give(1, "owned"),), request="gives")],
    "RecordRun-Finish-gives": [record_of("holder", "x", request="ends", then=Finish("completed", "1"))],
    "PostEvent": [signal(key="k")],
    "PostEvent-parked": [signal("idle", key="k")],
    "PostEvent-cancel": [r.PostEvent(run="idle", event=RunEvent(kind="cancel", key="cancel"))],
    "PostEvent-cancel-queued": [r.PostEvent(run="queued", event=RunEvent(kind="cancel", key="cancel"))],
    "ReviveRun": [r.ReviveRun(run="ended", fence=START, keep=1, request="q.3", forget=(1,))],
    "PublishLimits": [r.PublishLimits(workflow="import", terms=LIMITED)],
    "PublishTerms-promotes": [r.PublishLimits(workflow="mail", terms=WorkflowLimits(version=1))],
    "WatchRun": [r.WatchRun(run="r", id="x.2")],
    "RegisterWorker": [r.RegisterWorker(worker="w.1", name="w", types=("order",))],
    "UnregisterWorker": [r.UnregisterWorker(worker="w.1")],
    "ClaimRuns": [claim()],
    "ClaimRuns-named": [claim(runs=("r", "idle"))],
    "ReadRun": [r.ReadRun(run="ended", history=True)],
    "ReadLimits": [r.ReadLimits(workflow="mail")],
    "ListRuns": [r.ListRuns()],
    "ListRuns-filter": [
        r.ListRuns(wanted=RunFilter(statuses=("failed", "pending"), prefix="e"), after=(START + 1, ""))
    ],
    "CountRuns": [r.CountRuns()],
    "ListOwnedRuns": [r.ListOwnedRuns(worker="w.1")],
    "ReadNextDue": [r.ReadNextDue(types=("order",))],
    "ListWorkers": [r.ListWorkers()],
}
RECORDS: dict[str, list[c.Command]] = {
    "AddToTally": [add("c.1", "r")],
    "AddToTally-new": [add(key="new", ttl=SECOND)],
    "AddToTally-later": [add("c.1", "r", key="due", ttl=SECOND)],
    "LeaveTally": [LeaveTally(key="k", id="b.1")],
    "LeaveTally-removes": [LeaveTally(key="due", id="a.1")],
    "EndTally": [EndTally(key="due")],
    "PokeTally": [PokeTally(key="k")],
    "SeeTally": [SeeTally(key="k")],
    "CountRun": [CountRun(run="r", key="k")],
    "ListRecords": [c.ListRecords(kind="tally")],
    "ListDueRecords": [c.ListDueRecords(kind="tally")],
}
CASES = LOCKS | SLOTS | OF_RUNS | RECORDS
LOOKS: list[c.Command] = [
    c.ListLocks(limit=1_000),
    read(),
    read(("global", "", "other")),
    read(("global", "", "new")),
    *(r.ReadRun(run=run, history=True) for run in (*RUNS, "new", "child")),
    c.ListRecords(kind="tally"),
    c.ListDueRecords(kind="tally"),
    r.ListRuns(limit=1_000),
    r.CountRuns(),
    r.ListOwnedRuns(worker="w.1"),
    r.ListOwnedRuns(worker="v.1"),
    r.ReadNextDue(types=("order", "mail")),
    r.ListWorkers(),
    r.ReadLimits(workflow="mail"),
    r.ReadLimits(workflow="import"),
]
"""Everything that a client can see of the stage."""


class Stage:
    """A prepared namespace and the same state of the rules. `connect` opens a connection of the tested user."""

    def __init__(self, connect, operator: redis.Redis, base: str, clock, raw: redis.Redis) -> None:
        self.connect, self.operator, self.base, self.clock, self._raw = connect, operator, base, clock, raw
        self._prepared: dict[bytes, tuple[bytes, int]] = {}

    def prepare(self) -> Rules:
        """Put the namespace into the state of `STAGE`, a second later. Returns the rules in the same state."""
        rules, self.clock.now = Rules(), START
        if self._prepared:
            self.operator.flushall()
            with self._raw.pipeline(transaction=False) as pipe:
                for name, (value, ttl) in self._prepared.items():
                    pipe.restore(name, ttl, value)
                pipe.execute()
            for batch in STAGE:
                rules.execute(batch, START)
        else:
            with self.connecting() as connection:
                for batch in STAGE:
                    assert connection.execute(batch) == rules.execute(batch, START)
            names = self._raw.keys("*")
            self._prepared = {name: (self._raw.dump(name), max(0, self._raw.pttl(name))) for name in names}
        self.clock.now = START + SECOND
        return rules

    def send(self, commands: list[c.Command]) -> list[Outcome]:
        """Send a batch over a new connection."""
        with self.connecting() as connection:
            return connection.execute(commands)

    def equals(self, rules: Rules, commands: list[c.Command]) -> bool:
        """Whether the store has the same outcomes for this batch as the rules, and the same records afterwards."""
        now = self.clock.now
        pairs = ((self.send(some), rules.execute(some, now)) for some in (commands, LOOKS))
        return all(list(map(unversioned, answers)) == list(map(unversioned, expected)) for answers, expected in pairs)

    def connecting(self):
        """A connection that is closed in the end."""
        return closing(self.connect())

    def stored(self) -> dict[str, object]:
        """Everything that is stored, byte for byte; of a run only the fields with a value."""
        with self.operator.pipeline(transaction=False) as pipe:
            names = sorted(name for name in self.operator.keys("*") if name.startswith(self.base))
            for name in names:
                pipe.type(name)
            kinds = pipe.execute()
            for name, kind in zip(names, kinds, strict=True):
                {
                    "string": lambda: pipe.get(name),  # noqa: B023
                    "hash": lambda: pipe.hgetall(name),  # noqa: B023
                    "list": lambda: pipe.lrange(name, 0, -1),  # noqa: B023
                    "set": lambda: pipe.smembers(name),  # noqa: B023
                    "zset": lambda: pipe.zrange(name, 0, -1, withscores=True),  # noqa: B023
                }[kind]()
            values = pipe.execute()
        found = {name.removeprefix(self.base): value for name, value in zip(names, values, strict=True)}
        for name, value in found.items():
            if name.startswith("run:"):  # an empty field equals a missing one
                found[name] = {field: text for field, text in value.items() if text or field == "result"}
        keys = [(key, score) for key, score in found.get("keys", ()) if f"lock:{key}" in found]
        of_type = "records:keys:tally"
        counts = [(key, score) for key, score in found.get(of_type, ()) if f"record:tally:{key}" in found]
        return found | {"keys": keys, of_type: counts}  # a name without a record is skipped


SENDERS = ("lua/*.lua", "reading.py", "writing.py", "lists.py", "source.py")


def commands_of_the_scripts(operator: redis.Redis) -> set[str]:
    """Every Redis command that is sent. READONLY is among the answers; it is no command that is sent."""
    known = {name.upper() for name in operator.command()} - {"READONLY"}
    folder = Path(redis_rights.__file__).parent
    texts = [path.read_text() for pattern in SENDERS for path in folder.glob(pattern) if "rights" not in path.name]
    return known & set(re.findall(r'"([A-Z]+)"', "".join(texts)))
