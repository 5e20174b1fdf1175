"""Random histories of runs: a model (the rules on a repository in memory) and a generator of plausible commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec.structs import replace

from .. import commands as c
from ..commands import purging as p
from ..commands import runs as r
from ..commands.answers import AnswerApproval, PostUpdate, WatchUpdate
from ..rules.lock_outcomes import Granted, Outcome
from ..rules.lock_record import EMPTY, LockRecord
from ..rules.runs import record as rule
from ..rules.runs.heartbeat_records import AttemptEnd, first_expiry
from ..rules.runs.lock_queue import reader_of
from ..rules.runs.locks import notify_offered
from ..rules.runs.outcomes import (
    ApprovalSeen,
    Blocked,
    Claimed,
    Posted,
    PurgeStep,
    Recorded,
    RunRefused,
    Started,
    UpdateSeen,
)
from ..rules.runs.record import Continue, Ending, Finish, NewRun, OnExisting, Parent, Park, Past, Run, RunEvent, Scalar
from ..rules.runs.repository import RunFilter
from ..rules.runs.requests import NO_REQUESTS, NewApproval, Reply, RunRequests
from ..rules.runs.stream_records import CodeItems
from ..rules.slot import EMPTY_SLOT, Address, Conflict, Slot, SlotSeen, Swap
from ..stores.common import decided_alone
from ..stores.memory.runs import MemoryRunRepository
from .builders import ME, SECOND

WORKFLOWS = ("order", "mail", "order@2")
SLOTS: tuple[Address, ...] = (("workflow", "order", "total"), ("execution", "run-0", "seats: é"))
TYPES = ("order", "mail", "order@2", "order@*")
ENGINES = ("e1", "e2")
UPDATES = ("u1", "u2", "u3")
APPROVALS = ("refund", "refund#2", "pay")
STEPS = ("a", "b", "é#2")
VALUES = (None, "1", '{"a":[1,2.50]}', '"\\u0000 é 😀"')


class CheckedRunRepository(MemoryRunRepository):
    """A repository that checks every run that is written."""

    def save(self, run: Run) -> None:
        """Write a run. Only a run that is driven has heartbeats that expire, and the first of them is its due time."""
        expiry, steps = first_expiry(run.heartbeats), [one.step for one in run.heartbeats]
        assert expiry == (run.due_at if run.status == "running" else None), f"{run} is due at another time"
        assert len(set(steps)) == len(steps), f"{run} has two heartbeats of one step"
        assert run.living or not steps, f"{run} has ended, and has heartbeats"
        super().save(run)


class RunModel:
    """The rules on a run repository in memory, with the locks. Every store must give the same outcomes and records."""

    def __init__(self) -> None:
        self.records: dict[str, LockRecord] = {}
        self.slots: dict[Address, Slot] = {}
        self.repo = CheckedRunRepository(self.records.get, self.records.__setitem__, self.slots)

    def execute(self, commands: Sequence[c.Command], now: int) -> list[Outcome]:
        """The outcomes of a batch at that moment."""
        return [self._answer(command, now) for command in commands]

    def _answer(self, command: c.Command, now: int) -> Outcome:
        if isinstance(command, r.RunCommand):
            return command.apply(self.repo, now)
        if isinstance(command, c.SlotCommand):
            slot, outcome = command.apply(self.slots.get(command.address, EMPTY_SLOT), now)
            self.slots[command.address] = slot
            return outcome
        assert isinstance(command, c.LockCommand)
        before = self.records.get(command.key, EMPTY)
        reader = reader_of(self.repo, command.key, before)
        record, outcome = decided_alone(before, command, now, reader)
        if record is not EMPTY:
            self.records[command.key] = record
        if reader is not None:
            reader.save()
        notify_offered(self.repo, now, outcome.notified)
        return outcome


class RunHistoryGenerator:
    """Generates commands about a few runs of a few workers, based on the outcomes so far."""

    def __init__(self, seed: int, *, second: int = SECOND) -> None:
        self.random = random.Random(seed)
        self.second = second
        self.moments: list[int] = [0]
        self.over: list[str] = ["nobody"]  # runs that have ended, the latest last
        self.begun: p.PurgeTree | None = None  # the next step of a purge
        self.workers = [f"{channel}.{n}" for channel in "abc" for n in (1, 2)]
        self.ids = [f"run-{n}" for n in range(8)]
        self.known: dict[str, Run] = {}
        self.replaced: dict[str, None] = {}
        self.leases: dict[str, int] = {}
        self.sent: list[c.Command] = []
        self.seen: dict[Address, Conflict | SlotSeen] = {}
        self._requests = 0

    def batch(self) -> list[c.Command]:
        """The next commands. The first batch registers all workers."""
        if not self.sent:
            batch: list[c.Command] = []
            for worker in self.workers[:4]:
                batch += [self._lease(worker), self._enlist(worker)]
            self.sent += batch
            return batch
        if self.random.random() < 0.1:
            return [self._slot()]
        return [self._command() for _ in range(self.random.choice([1, 1, 1, 2, 3, 8]))]

    def observe(self, commands: Sequence[c.Command], outcomes: Sequence[Outcome]) -> None:
        """Store what the next commands depend on."""
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(now := getattr(outcome, "now", None), int):
                self.moments = [*self.moments[-3:], now]
            if isinstance(command, p.PurgeTree) and isinstance(outcome, PurgeStep):
                self.begun = None
                if outcome.state in ("marked", "hidden"):
                    self.begun = replace(command, step="hide" if outcome.state == "marked" else "remove")
            if isinstance(command, c.Acquire) and isinstance(outcome, Granted):
                self.leases[command.key] = outcome.token
            elif isinstance(outcome, SlotSeen) and isinstance(command, c.SlotCommand):
                self.seen[command.address] = outcome
            elif isinstance(outcome, Conflict) and isinstance(command, r.RecordRun) and command.swap is not None:
                self.seen[command.swap.address] = outcome
            elif isinstance(outcome, Started | Posted | Blocked | UpdateSeen | ApprovalSeen):
                self._note(outcome.run)
            elif isinstance(outcome, Claimed):
                self.known.update({claim.run.id: claim.run for claim in outcome.claims})
            elif isinstance(outcome, RunRefused) and outcome.run is not None:
                self.known[outcome.run.id] = outcome.run
            elif isinstance(command, r.RecordRun) and isinstance(outcome, Recorded):
                if outcome.done and isinstance(command.then, Finish):
                    self.over = [*self.over[-2:], command.run]
                known = self.known.get(command.run)
                if known is not None and known.fence == command.fence:
                    seen = max([command.seen, *(event.number for event in outcome.events)])
                    self.known[command.run] = Run(
                        id=known.id,
                        type=known.type,
                        created_at=known.created_at,
                        worker=known.worker,
                        fence=known.fence,
                        length=command.at + len(command.entries),
                        posted=seen,
                    )

    def _note(self, run: Run) -> None:
        """Store a run, and the id under which the run is kept that it has replaced."""
        self.known[run.id] = run
        self.replaced |= {run.replaces: None} if run.replaces else {}

    def time_passes(self) -> float:
        """Time until the next batch, in seconds of the history; sometimes the clock is set back a little."""
        return self.random.choice([0, 0.000_001, 0.001, 0.001, 0.5, 1, 2, 5, -3, -0.001])

    def clock_jumps(self) -> float:
        """A step of the clock: rarely an hour forward or back, otherwise none."""
        return self.random.choice([0] * 30 + [3_600, -3_600])

    def _lease(self, worker: str) -> c.Command:
        ttl = self.random.choice([2, 5, 30]) * self.second
        return c.Acquire(key=rule.worker_key(worker), id=worker, label=ME, kind="worker", ttl=ttl)

    def _enlist(self, worker: str) -> c.Command:
        types = tuple(self.random.sample(TYPES, self.random.choice([1, 2, 4])))
        engine = self.random.choice(["", *ENGINES])
        return r.RegisterWorker(worker=worker, name=f"worker {worker}", types=types, engine=engine)

    def _request(self) -> str:
        self._requests += 1
        return f"q.{self._requests}"

    def _new(self, *, parent: str = "") -> NewRun:
        pick = self.random
        return NewRun(
            id=pick.choice(self.ids),
            type=pick.choice(TYPES),
            input=f'"in {self._requests} é"',
            request=self._request(),
            key=pick.choice(["", "", "k1", "k2"]),
            parent=parent or pick.choice(["", pick.choice(self.ids)]),
            root=pick.choice(["", "run-0"]),
            attributes=self._attributes(),
            timeout=pick.choice([None, None, None, 7]),
            on_parent_end=pick.choice(["", "", "cancel", "abandon"]),
        )

    def _first(self) -> NewRun:
        """A run without a parent in the command, with any answer to a run that is there."""
        how: OnExisting = self.random.choice(["error", "error", "error", "use", "replace_ended", "replace_ended"])
        return replace(self._new(), on_existing=how, delay=self._delay())

    def _delay(self) -> int:
        return round(self.random.choice([0, 0, 0, 0, 0.5, 2, 5]) * self.second)

    def _start_or_signal(self) -> c.Command:
        pick = self.random
        event = RunEvent(kind="signal", name="said", payload="[1]", key=pick.choice(["", "k1", "k2", self._request()]))
        worker = pick.choice(["", "", pick.choice(self.workers)])
        return r.StartOrSignal(new=replace(self._new(), delay=self._delay()), event=event, worker=worker)

    def _any_id(self) -> str:
        """The id of a run; seldom of one that was replaced."""
        if self.replaced and self.random.random() < 0.1:
            return self.random.choice(list(self.replaced))
        return self.random.choice(self.ids)

    def _attributes(self) -> dict[str, Scalar]:
        return self.random.choice([{}, {}, {"customer": "acme", "n": 1}, {"n": True}, {"customer": "", "big": 2**53}])

    def _then(self) -> Ending | None:
        pick = self.random
        length = pick.choice([0, 0.5, 5]) * self.second
        known = [run.created_at for run in self.known.values()] or [0]
        return pick.choice(
            [
                None,
                None,
                Park(None),
                Park(max(known) + round(length)),
                Park(0),
                Finish("completed", '{"total":1.50}'),
                Finish("failed", '{"type":"ValueError","message":"no"}'),
                Finish("timed_out", "null"),
                Finish("completed", "1", cancels=tuple(pick.sample(self.ids, 4))),
                self._continue(),
            ]
        )

    def _continue(self) -> Ending:
        pick = self.random
        return Continue(
            '"next é"',
            '{"kind":"continued","at":1}',
            keep=pick.choice([(), (1,), (1, 2, 3, 4)]),
            locks=pick.choice([(), (1,), (1, 2)]),
        )

    def _record(self) -> r.RecordRun:
        pick = self.random
        run = self.known.get(pick.choice(self.ids)) or Run(id="nobody", type="order", created_at=0)
        return r.RecordRun(
            run=run.id,
            fence=run.fence + pick.choice([0] * 12 + [1, -1]),
            at=run.length + pick.choice([0] * 12 + [1]),
            request=self._request(),
            entries=tuple(f'["{pick.random()}"]' for _ in range(pick.choice([0, 1, 1, 2, 5]))),
            seen=pick.choice([run.posted, run.posted, run.posted, 0]),
            then=self._then(),
            children=tuple(
                replace(self._new(parent=run.id), delay=self._delay()) for _ in range(pick.choice([0, 0, 0, 0, 1, 2]))
            ),
            attributes=pick.choice([None, None, None, self._attributes()]),
            swap=pick.choice([None, None, self._swap()]),
            streams=pick.choice([(), (), (), self._code_items()]),
            requests=pick.choice([NO_REQUESTS] * 7 + [self._requests_of_a_record()]),
            attempt_ends=pick.choice([(), (), (), self._attempt_ends()]),
        )

    def _attempt_ends(self) -> tuple[AttemptEnd, ...]:
        pick = self.random
        return tuple(AttemptEnd(step, pick.random() < 0.5) for step in pick.sample(STEPS, pick.choice([1, 2])))

    def _heartbeat(self) -> c.Command:
        """A step that shows that it works, or a worker that has lost the run."""
        pick = self.random
        run = self.known.get(self._any_id()) or Run(id="nobody", type="order", created_at=0)
        return r.RecordHeartbeat(
            run=run.id,
            fence=run.fence + pick.choice([0] * 12 + [1, -1]),
            step=pick.choice(STEPS),
            attempt=pick.choice([1, 2]),
            lasts=pick.choice([None, 0, self.second // 2, self.second, 4 * self.second, 2**60]),
            details=pick.choice([None, None, "1", '{"é":[1.50,null]}', "null"]),
        )

    def _code_items(self) -> tuple[CodeItems, ...]:
        pick = self.random
        return tuple(
            CodeItems(name=name, index=pick.choice([0, 3]), values=self._values(), max_bytes=pick.choice([300, 10**6]))
            for name in pick.choice([("s",), ("s", "é")])
        )

    def _values(self) -> tuple[str, ...]:
        return tuple(self.random.choice(['"é"', "1", "null"]) for _ in range(self.random.choice([1, 2, 40, 130])))

    def _stream(self) -> c.Command:
        """An attempt of a step that writes, or a reader."""
        pick = self.random
        run = self.known.get(self._any_id()) or Run(id="nobody", type="order", created_at=0)
        name, after, first = (
            pick.choice(["s", "é"]),
            pick.choice([None, -1, 0, 3, 63, 200]),
            pick.choice([run.first, 2]),
        )
        chunk = pick.choice([-1, 0, 5, 64])
        if (what := pick.random()) < 0.2:
            return r.ReadStream(
                run=run.id, name=name, after=after, limit=pick.choice([1, 99]), first=first, chunk=chunk
            )
        if what < 0.4:
            reader = f"{pick.choice('xyz')}.{pick.randrange(3)}"
            return r.WatchStream(run=run.id, name=name, id=reader, after=after, first=first, chunk=chunk)
        return r.WriteStream(
            run=run.id,
            fence=run.fence + pick.choice([0] * 12 + [1]),
            first=first,
            name=name,
            step=pick.choice(["a", "b"]),
            attempt=1,
            serial=pick.choice([1, 1, 2, 3]),
            number=pick.choice([0, 0, 0, 1, 2, 40]),
            values=pick.choice([(), self._values(), self._values()]),
            over=pick.random() < 0.2,
            max_bytes=pick.choice([300, 10**6]),
        )

    def _requests_of_a_record(self) -> RunRequests:
        """Answers to updates, and approvals that are opened and closed."""
        pick = self.random
        names = pick.sample(APPROVALS, pick.choice([0, 1, 1, 2]))
        replies = [
            Reply(key=key, answer=str(pick.random()), refused=pick.random() < 0.3)
            for key in pick.sample(UPDATES, pick.choice([0, 1, 1, 2]))
        ]
        opens = (NewApproval(id=one, name=one.partition("#")[0], data='"é"', at=pick.choice([1, 2])) for one in names)
        closes = tuple(pick.sample(APPROVALS, pick.choice([0, 0, 1])))
        return RunRequests(replies=tuple(replies), opens=tuple(opens), closes=closes)

    def _request_of_a_client(self) -> c.Command:
        """A request to a run, or the answer to one of its requests."""
        pick = self.random
        run, watcher = self._any_id(), f"{pick.choice('xyz')}.{pick.randrange(3)}"
        name = pick.choice(["add", "add", "add", "remove"])
        event = RunEvent(kind="update", name=name, payload="[7]", key=pick.choice(UPDATES))
        return pick.choice(
            [
                PostUpdate(run=run, event=event, watcher=watcher),
                WatchUpdate(run=run, first=pick.choice([1, 1, 2]), key=event.key, watcher=watcher),
                AnswerApproval(
                    run=run,
                    name=pick.choice([*APPROVALS, "refund#1"]),
                    approved=pick.random() < 0.5,
                    by="ann",
                    request=self._request(),
                ),
            ]
        )

    def _swap(self) -> Swap:
        address = self.random.choice(SLOTS)
        seen = self.seen.get(address) or SlotSeen(version=0, last="", value=None)
        return Swap(address, seen.last, seen.version, self.random.choice(VALUES))

    def _slot(self) -> c.Command:
        """A client without a run that reads or writes a slot."""
        swap = self._swap()
        if self.random.random() < 0.5:
            return c.ReadSlot(address=swap.address)
        return c.SwapSlot(
            address=swap.address,
            request=self._request(),
            expected=swap.expected,
            version=swap.version,
            value=swap.value,
            reserve=self.random.choice([0, 50_000]),
        )

    def _claim(self) -> c.Command:
        pick = self.random
        types = tuple((kind, pick.choice([kind, "order@2"]) if kind.endswith("*") else kind) for kind in TYPES)
        return r.ClaimRuns(
            worker=pick.choice(self.workers),
            types=types[: pick.choice([1, 2, 4, 4])],
            limit=pick.choice([1, 2, 100]),
            suspects=pick.choice([0, 1]),
            runs=pick.choice([(), (), (), tuple(pick.sample(self.ids, 2))]),
            engine=pick.choice(["", *ENGINES]),
            opened=pick.choice([0, 2**50]),
            code=pick.choice(["", "1.2"]),
            untried=pick.random() < 0.2,
        )

    def _block(self) -> c.Command:
        pick = self.random
        run = self.known.get(pick.choice(self.ids)) or Run(id="nobody", type="order", created_at=0)
        return r.BlockRun(
            run=run.id,
            fence=run.fence,
            reason='{"type":"NonDeterminismError","message":"é"}',
            engine=pick.choice(ENGINES),
            code=pick.choice(["", "1.2"]),
            before=pick.choice([None, run.block]),
            request=self._request(),
        )

    def _unblock(self) -> c.Command:
        pick = self.random
        run = self.known.get(pick.choice(self.ids)) or Run(id="nobody", type="order", created_at=0)
        if pick.random() < 0.5:
            return r.UnblockRun(run=run.id, fence=run.fence, request=self._request())
        entry = pick.choice(["", '["left"]'])
        cancels = pick.choice([(), tuple(self.ids[:4])])
        return r.FailRun(
            run=run.id,
            fence=run.fence,
            last=pick.choice([None, run.last]),
            reason='{"type":"x"}',
            entry=entry,
            request=self._request(),
            cancels=cancels,
        )

    def _post(self) -> c.Command:
        pick = self.random
        event = RunEvent(
            kind=pick.choice(["signal", "signal", "signal", "cancel"]),
            name=pick.choice(["paid", "sent"]),
            payload=pick.choice(["null", '{"reason":"no \\u0000 é 😀"}', '{"a":[1,2.50]}', '"\\u0000 é 😀"']),
            key=pick.choice(["", "", "k1", "k2"]),
        )
        parent = pick.choice([None, None, None, Parent(pick.choice(self.ids), pick.choice([1, 1, 2]))])
        return r.PostEvent(run=pick.choice([self._any_id(), self._any_id(), "nobody"]), event=event, parent=parent)

    def _revive(self) -> c.Command:
        pick = self.random
        run = self.known.get(self._any_id()) or Run(id="nobody", type="order", created_at=0)
        return r.ReviveRun(
            run=run.id,
            fence=run.fence,
            keep=pick.choice([1, 1, 2, 50]),
            request=self._request(),
            forget=pick.choice([(), (1,), (1, 2, 7)]),
            fresh=pick.random() < 0.5,
        )

    def _fork(self) -> c.Command:
        pick = self.random
        entries = tuple(f'["{pick.random()}"]' for _ in range(pick.choice([0, 1, 5])))
        events = self._past_events()
        posted = max((event.number for event in events), default=0) + pick.choice([0, 3])
        return r.ForkRun(new=self._new(), past=Past(entries=entries, events=events, posted=posted))

    def _past_events(self) -> tuple[RunEvent, ...]:
        """Events whose numbers have gaps."""
        pick = self.random
        return tuple(
            RunEvent(
                number=number, kind="signal", name="paid", payload='"é"', key=pick.choice(["", f"k{number}"]), at=7
            )
            for number in sorted(pick.sample(range(1, 6), pick.choice([0, 1, 3])))
        )

    def _import(self) -> c.Command:
        pick = self.random
        new, events = self._new(), self._past_events()
        times = [run.created_at for run in self.known.values()] or [1]
        ended = Run(
            id=new.id,
            type=new.type,
            status=pick.choice(["completed", "failed", "cancelled"]),
            created_at=pick.choice(times) - 1,
            fence=pick.choice([0, 5]),
            length=2,
            posted=7,
            claims=2,
            request=new.request,
            key=new.key,
            parent=new.parent,
            root=new.root or new.id,
            ended_at=max(times),
            result='{"total":1.50}',
            attributes=new.attributes,
        )
        return r.ImportRun(imported=ended, entries=(new.input, '["entry"]'), events=events)

    def _list(self) -> c.Command:
        pick = self.random
        times = [run.created_at for run in self.known.values()] or [0]
        wanted = RunFilter(
            statuses=pick.choice([(), (), ("running",), ("blocked",), ("completed", "failed")]),
            workflow=pick.choice(["", "", "order"]),
            prefix=pick.choice(["", "", "run-1", "run-", "x"]),
            since=pick.choice([None, None, min(times)]),
            until=pick.choice([None, None, max(times)]),
            attributes=pick.choice([{}, {}, {"n": 1}, {"n": True}, {"customer": "acme", "n": 1}, {"customer": ""}]),
        )
        after = pick.choice([None, None, (pick.choice(times), pick.choice(self.ids))])
        return r.ListRuns(wanted=wanted, after=after, limit=pick.choice([1, 3, 100]))

    def _purge(self) -> c.Command:
        pick = self.random
        if self.begun is not None and pick.random() < 0.7:
            return self.begun
        latest = max(self.moments) + self.second
        before = pick.choice([pick.choice(self.moments), latest, latest, latest])
        names = [*self.ids, "nobody"]
        roots = tuple(pick.sample(names, min(len(names), pick.choice([1, 2, 4, 8]))))
        roots = pick.choice([roots, (pick.choice(self.over),)])
        steps: list[Literal["mark", "hide", "remove"]] = ["mark", "mark", "hide", "hide", "remove"]
        step = pick.choice(steps)
        after = pick.choice([None, None, (pick.choice(self.moments), pick.choice(self.ids))])
        return pick.choice(
            [
                p.PurgeRuns(roots=roots, before=before),
                p.PurgeRuns(roots=roots, before=before),
                p.CountPurgeable(roots=roots, before=before),
                p.LookAtTree(root=roots[0], before=before, limit=pick.choice([1, 100])),
                p.PurgeTree(root=roots[0], before=before, purge=pick.choice(["p1", "p1", "p2"]), step=step),
                p.PurgeTree(root=roots[0], before=before, purge="p1", step=step),
                p.ListEndedRuns(
                    workflow=pick.choice(["order", "mail"]),
                    status=pick.choice(["completed", "failed", "cancelled", "purged"]),
                    before=before,
                    after=after,
                    limit=pick.choice([1, 100]),
                ),
            ]
        )

    def _command(self) -> c.Command:
        pick = self.random
        if pick.random() < 0.1:
            return pick.choice(self.sent)  # a reply was lost
        worker = pick.choice(self.workers)
        key = rule.worker_key(worker)
        run = self._any_id()
        makers: list[tuple[int, Callable[[], c.Command]]] = [
            (14, lambda: r.StartRun(new=self._first(), worker=pick.choice(["", "", worker]))),
            (4, self._start_or_signal),
            (14, self._claim),
            (30, self._record),
            (10, self._post),
            (4, self._revive),
            (8, self._request_of_a_client),
            (2, self._fork),
            (1, self._import),
            (3, self._block),
            (2, self._unblock),
            (4, lambda: self._lease(worker)),
            (4, lambda: self._enlist(worker)),
            (2, lambda: c.Release(key=key, id=worker, token=self.leases.get(key, 0))),
            (2, lambda: r.UnregisterWorker(worker=worker)),
            (3, lambda: r.WatchRun(run=run, id=f"{pick.choice('xyz')}.{pick.randrange(3)}")),
            (4, lambda: r.ReadRun(run=run, history=pick.random() < 0.5)),
            (5, self._list),
            (2, r.CountRuns),
            (2, lambda: r.ListOwnedRuns(worker=worker)),
            (2, lambda: r.ReadNextDue(types=tuple(pick.sample(TYPES, 2)))),
            (2, r.ListWorkers),
            (2, lambda: self._lock_run(run)),
            (9, self._purge),
            (14, self._stream),
            (9, self._heartbeat),
            *self._more(),
        ]
        (command,) = pick.choices([maker for _, maker in makers], weights=[weight for weight, _ in makers])
        made = command()
        self.sent.append(made)
        return made

    def _more(self) -> list[tuple[int, Callable[[], c.Command]]]:
        """Further commands of subclasses, each with its weight."""
        return []

    def _lock_run(self, run: str) -> c.Command:
        """Lock a run by its key, as a client with another workflow engine does."""
        key = rule.run_key(self.random.choice(["order", "mail"]), run)
        ttl = self.random.choice([1, 5]) * self.second
        return c.Acquire(key=key, id=f"z.{self._requests}", label=ME, kind="run", ttl=ttl)
