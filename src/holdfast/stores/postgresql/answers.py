"""Builds a snapshot from the rows of one reading round trip, with the rows that this transaction has locked.

A row that may be written, exists, and could not be locked is locked by another transaction: its answer is `RowLocked`,
never an empty record. A row that does not exist is answered with None. A count whose lock another transaction has is
`RowLocked` as well: nothing is counted without its lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from ...errors import RecordUnreadable
from ...rules.lock_record import LockRecord
from ...rules.runs.record import Run, WorkerRecord, run_key, worker_key
from ...rules.slot import Slot, WriteHistory
from .. import questions as q
from ..questions import Question, RowLocked, Snapshot
from .records import events_of, lock_of, run_of, unreadable, worker_of
from .session import Rows, Statement

_json = msgspec.json.Encoder()
_ids = msgspec.json.Decoder(list[str])
_past = msgspec.json.Decoder(WriteHistory)

Parse = Callable[[Rows], object]


def encoded(value: Any) -> bytes:
    """A value as JSON."""
    return _json.encode(value)


class Answers:
    """Questions, and the answers from the rows that were read."""

    def __init__(self, questions: Collection[Question], changing: Collection[Question]) -> None:
        self._by: defaultdict[type[Question], list[Any]] = defaultdict(list)
        for question in questions:
            self._by[type(question)].append(question)
        self._changing = changing
        self._steps: list[tuple[Statement, Parse]] = []
        self._answers: list[tuple[Question, Any]] = []
        self._now = 0
        self._claims: dict[str, int] = {}
        self._owned: set[Question] = set()
        self._locked_workers: set[str] = set()
        self._runs: dict[str, Run | RecordUnreadable] = {}
        self._claimed: list[str] = []
        self._texts: dict[str, tuple[bytes, bytes | None]] = {}
        self._due: dict[tuple[type[Question], str], list[tuple[int, str]]] = defaultdict(list)
        self._registered: list[WorkerRecord] = []
        self._counted: list[tuple[int, Question, Question]] = []
        """Questions whose answers need an advisory lock: its number, the name for messages, and the question."""
        self._missed: set[int] = set()
        """The numbers of the advisory locks that another transaction has."""

    @property
    def owned(self) -> set[Question]:
        """The questions whose rows this transaction has locked."""
        return self._owned

    @property
    def damaged(self) -> set[str]:
        """The unreadable runs among those that are about to be claimed."""
        return {name for name in self._claimed if isinstance(self._runs[name], RecordUnreadable)}

    def stored_lock(self, key: str) -> bytes | None:
        """The text of a lock's record as it was read."""
        found = self._texts.get(key)
        return None if found is None else found[0]

    def snapshot(self, results: Sequence[Rows]) -> Snapshot:
        """The answers, from the rows of the statements."""
        for (_, parse), rows in zip(self._steps, results, strict=True):
            parse(rows)
        snapshot = Snapshot(self._now)
        for question, answer in self._answers:
            snapshot.put(question, answer)
        if self._changing:
            asked = {one.key for one in self._by[q.LockByKey]}
            had = self._locked_workers
            snapshot.forgotten = {
                one.id for one in self._registered if one.id not in had and worker_key(one.id) in asked
            }
        self._put_runs(snapshot)
        self._put_locks(snapshot)
        self._put_due(snapshot)
        self._put_missed(snapshot)
        return snapshot

    def _had(self, kind: type[q.RunById | q.LockByKey]) -> Parse:
        return lambda rows: self._owned.update(kind(text_of(row[0])) for row in rows)

    def _had_slots(self, rows: Rows) -> None:
        self._owned.update(q.SlotAt(tuple(map(text_of, row))) for row in rows)  # type: ignore[arg-type]  # three texts

    def _had_records(self, rows: Rows) -> None:
        self._owned.update(q.RecordAt(text_of(kind), text_of(key)) for kind, key in rows)

    def _take_missed(self, rows: Rows) -> None:
        self._missed.update(whole(row[0]) for row in rows)

    def _had_workers(self, rows: Rows) -> None:
        self._locked_workers.update(text_of(row[0]) for row in rows)

    # -- rows to answers ----------------------------------------------------------------------------------------

    def _take_time(self, rows: Rows) -> None:
        self._now = whole(rows[0][0])

    def _each(
        self, what: str, asked: Iterable[Question], question: Callable[..., Question], answer: Callable[..., Any]
    ) -> Parse:
        """At most one row for each question; None where there is none."""

        def take(rows: Rows) -> None:
            found: dict[Question, Any] = {}
            for row in rows:
                try:
                    found[question(row)] = answer(row)
                except msgspec.MsgspecError as error:
                    found[question(row)] = unreadable(what, text_of(row[0]), error)
            self._answers += [(one, found.get(one)) for one in asked]

        return take

    def _all(
        self, asked: Iterable[Question], question: Callable[..., Question], answer: Callable[[Any, Rows], Any]
    ) -> Parse:
        """Any number of rows for each question."""

        def take(rows: Rows) -> None:
            found: defaultdict[Question, Rows] = defaultdict(list)
            for row in rows:
                found[question(row)].append(row)
            self._answers += [(one, answer(one, found[one])) for one in asked]

        return take

    def _beginning(self, kind: Any, name: Callable[..., tuple[Any, ...]], size: int) -> Parse:
        """The beginnings of ordered lists: numbers, and one text at the end."""

        def take(rows: Rows) -> None:
            found: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
            for row in rows:
                found[name(row)].append((*map(whole, row[size:-1]), text_of(row[-1])))
            for one in self._by[kind]:
                self._answers.append((one, found[msgspec.structs.astuple(one)[1:]][: one.limit]))

        return take

    def _list(self, question: q.Range) -> Parse:
        def take(rows: Rows) -> None:
            items = [text_of(row[0]) if len(row) == 1 else (whole(row[0]), text_of(row[1])) for row in rows]
            self._answers.append((question, items))

        return take

    def _take_runs(self, rows: Rows) -> list[tuple[str, Run | RecordUnreadable]]:
        found = [run_of(row[0] or b"") for row in rows]
        self._runs.update(found)
        return found

    def _take_runs_of(self, rows: Rows) -> None:
        names: defaultdict[str, list[str]] = defaultdict(list)
        for name, run in self._take_runs(rows):
            if isinstance(run, Run):
                names[run.worker].append(name)
        for one in self._by[q.RunsOf]:
            self._answers.append((one, names[one.worker]))

    def _take_claimed(self, rows: Rows) -> None:
        for name, _ in self._take_runs(rows):
            self._owned.add(q.RunById(name))
            self._claimed.append(name)

    def _take_claimed_entries(self, rows: Rows) -> None:
        found: dict[str, list[str]] = {name: [] for name in self._claimed}
        for name, entry in rows:
            found[text_of(name)].append(text_of(entry))
        self._answers += [(q.Entries(name, whole=True), tuple(entries)) for name, entries in found.items()]

    def _take_claimed_events(self, rows: Rows) -> None:
        """A run with unreadable events cannot be claimed: it counts as unreadable itself."""
        found: dict[str, Rows] = {name: [] for name in self._claimed}
        for run, *event in rows:
            found[text_of(run)].append(tuple(event))
        for name, some in found.items():
            events = events_of(name, some)
            self._answers.append((q.RunEvents(name, 0), events))
            if isinstance(events, RecordUnreadable):
                self._runs[name] = events

    def _take_slots(self, rows: Rows) -> None:
        found = {}
        for scope, owner, key, version, value, past in rows:
            slot: Slot | RecordUnreadable
            try:
                slot = Slot(whole(version), None if value is None else text_of(value), _past.decode(past or b""))
            except msgspec.MsgspecError as error:
                slot = unreadable("state", text_of(key), error)
            found[text_of(scope), text_of(owner), text_of(key)] = slot
        for one in self._by[q.SlotAt]:
            self._answers.append((one, self._free(one, found.get(one.address))))

    def _take_records(self, rows: Rows) -> None:
        found = {q.RecordAt(text_of(kind), text_of(key)): text_of(text) for kind, key, text in rows}
        for one in self._by[q.RecordAt]:
            self._answers.append((one, self._free(one, found.get(one))))

    def _take_listed(self, question: q.RecordsAfter | q.DueRecords) -> Parse:
        """A list of records: the items, and each record, which the rule asks for next."""

        def take(rows: Rows) -> None:
            items: list[Any] = []
            for *due_at, key, text in rows:
                name = text_of(key)
                items.append((whole(due_at[0]), name) if due_at else name)
                self._answers.append((q.RecordAt(question.kind, name), text_of(text)))
            self._answers.append((question, items))

        return take

    def _take_locks(self, rows: Rows) -> None:
        for key, text, severed in rows:
            self._texts[text_of(key)] = (text or b"", severed)

    def _take_alone(self, rows: Rows) -> None:
        """One lock that was waited for: now locked by this transaction, or absent; and the time."""
        for key, text, severed, now in rows:
            self._now = whole(now)
            if text is not None:
                self._owned.add(q.LockByKey(text_of(key)))
                self._texts[text_of(key)] = (text, severed)

    def _take_workers(self, rows: Rows) -> None:
        workers = []
        for name, worker, lease, severed in rows:
            workers.append(worker_of(text_of(name), worker or b""))
            key = worker_key(text_of(name))
            if lease is not None:
                self._texts[key] = (lease, severed)
        self._registered = workers
        self._answers.append((q.RegisteredWorkers(), workers))

    def _take_due(self, kind: type[q.RunsAtOnce | q.RunsByTime]) -> Parse:
        def take(rows: Rows) -> None:
            for name, due_at, run in rows:
                self._due[kind, text_of(name)].append((whole(due_at), text_of(run)))

        return take

    # -- answers from several statements -------------------------------------------------------------------------

    def _free(self, question: Question, answer: Any) -> Any:
        """The answer, unless the row exists and another transaction has locked it."""
        if answer is None or question not in self._changing or question in self._owned:
            return answer
        if isinstance(answer, RecordUnreadable):
            return answer  # the lock does not matter
        return RowLocked(question, answer)

    def _put_runs(self, snapshot: Snapshot) -> None:
        owned = {one.worker for one in self._by[q.RunsOf] if one in self._changing}
        for name in {*self._runs, *(one.id for one in self._by[q.RunById])}:
            question, run = q.RunById(name), self._runs.get(name)
            free = self._free(question, run)
            if isinstance(run, Run) and run.worker in owned and question not in self._owned:
                free = RowLocked(question, run)
            snapshot.put(question, free)
        registered = {worker.id for worker in self._registered}
        for one in self._by[q.RunsOf]:
            if one in self._changing and one.worker in registered - self._locked_workers:
                snapshot.put(one, RowLocked(one))

    def _put_locks(self, snapshot: Snapshot) -> None:
        keys = {one.key for one in self._by[q.LockByKey]} | {worker_key(worker.id) for worker in self._registered}
        for name in self._claimed:
            if isinstance(run := self._runs[name], Run):
                keys |= {run_key(run.workflow, run.id), *(key for _, key in run.locks)}
        for key in keys | self._texts.keys():
            question, found = q.LockByKey(key), self._texts.get(key)
            record: LockRecord | RecordUnreadable | None = None
            if found is not None:
                record = lock_of(key, found[0], _ids.decode(found[1]) if found[1] else (), self._now)
            snapshot.put(question, self._free(question, record))

    def _put_due(self, snapshot: Snapshot) -> None:
        """The due runs, in order. Of a type that is claimed: the runs that were locked, and the next one."""
        for name in self._claimed:
            run = self._runs[name]
            if isinstance(run, Run) and run.due_at is not None:
                self._due[q.RunsAtOnce if run.due_at < 0 else q.RunsByTime, run.type].append((run.due_at, name))
        for kind in (q.RunsAtOnce, q.RunsByTime):
            for one in self._by[kind]:
                if one.type not in self._claims:
                    snapshot.put(one, sorted(self._due[kind, one.type])[: one.limit])
            for name, limit in self._claims.items():
                items = sorted(self._due[kind, name])
                ours = sum(q.RunById(item[1]) in self._owned for item in items)
                snapshot.put(kind(limit if ours >= limit else len(items) + 1, name), items)

    def _put_missed(self, snapshot: Snapshot) -> None:
        """Counts whose lock another transaction has: `RowLocked` replaces any answer."""
        for number, named, question in self._counted:
            if number in self._missed:
                seen = [answer for one, answer in self._answers if one == question] if question == named else []
                snapshot.put(question, RowLocked(named, *seen))


def text_of(value: bytes | None) -> str:
    """A column that is text."""
    return (value or b"").decode()


def whole(value: bytes | None) -> int:
    """A column that is a whole number."""
    return int(value or b"0")
