"""Translates questions into the statements of one round trip that reads, and their rows into answers.

All statements see one state of the tables, and lock nothing. What is read is remembered with its stamps (`Reading`), so
that the write that follows can compare them. The guards come first: where a database reads statement by statement, a
count that was read after its guard cannot be older than the guard. The clock comes last, so that no record is later
than the time of its decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from ...rules.runs.record import LOCK_QUEUE, worker_key
from ...rules.slot import EXECUTION
from .. import questions as q
from ..common import end_of_prefix
from ..footprint import LOOKED_AT
from ..questions import Question, Snapshot
from .dialect import Dialect, Row, Rows, listing
from .rows import events_of, limits_of, lock_of, place_of, run_of, slot_of, unreadable, worker_of
from .tables import SqlTables, digest

Parse = Callable[[Rows], None]
GROUPS = (q.GroupSize, q.Members, q.LatestArrivals, q.LatestStarts, q.StartsToCome)
"""Questions about runs that are counted together."""
ALL_WORKERS = "workers"
"""The name of the guard of the registered workers, and of which runs they have."""


class Reading:
    """One round trip that reads: its statements, its answers, and the stamps of what was read."""

    def __init__(
        self,
        questions: Collection[Question],
        *,
        dialect: Dialect,
        tables: SqlTables,
        namespace: str,
        at: int | None,
        current: str = "",
        passed_over: Collection[str] = (),
    ) -> None:
        """`at` replaces the clock in tests.

        `current` is added to statements in a user's transaction, whose snapshot may be older than what others have
        committed: it locks the rows. Workers and their leases are read without it, or no heartbeat could be written.
        Due runs that are `passed_over` are not listed.
        """
        self._dialect, self._tables, self._at, self._current = dialect, tables, at, current
        self._literal = dialect.literal
        self._passed_over = passed_over
        self._ns = dialect.literal(namespace.encode())
        self._clock = dialect.clock if at is None else str(at)
        self._by: defaultdict[type[Question], list[Any]] = defaultdict(list)
        for question in questions:
            self._by[type(question)].append(question)
        self._steps: list[tuple[str, Parse]] = []
        self._answers: list[tuple[Question, Any]] = []
        self._now = 0
        self._locks: dict[str, Any] = {}
        self._to_come: list[tuple[q.StartsToCome, list[int]]] = []
        self.stamps: dict[Question, int | None] = {}
        """The stamps of the rows that were read; None: there is no row."""
        self.guards: dict[str, int | None] = {}
        """The stamps of the guards that were read."""
        self.counted: dict[Question, int] = {}
        """How many rows the answers to lists have that are compared by their number."""
        self._read_guards()
        self._read_workers()
        self._read_runs()
        self._read_about_runs()
        self._read_records()
        self._read_groups()
        self._read_lists()
        self._step(f"SELECT {self._clock}", self._take_time)

    @property
    def statements(self) -> list[str]:
        """The statements to send, in order."""
        return [statement for statement, _ in self._steps]

    def snapshot(self, results: Sequence[Rows]) -> Snapshot:
        """The answers, from the rows of the statements."""
        for (_, parse), rows in zip(self._steps, results, strict=True):
            parse(rows)
        snapshot = Snapshot(self._now)
        for question, answer in self._answers:
            snapshot.put(question, answer)
        for key, record in self._locks.items():
            snapshot.put(q.LockByKey(key), record)
        for one, moments in self._to_come:
            snapshot.put(one, sum(moment > self._now for moment in moments))
        return snapshot

    # -- statements -----------------------------------------------------------------------------------------

    def _step(self, statement: str, parse: Parse) -> None:
        self._steps.append((statement, parse))

    def _bytes(self, text: str) -> str:
        return self._literal(text.encode())

    def _keys(self, texts: Iterable[str]) -> str:
        return listing(sorted({self._bytes(text) for text in texts}))

    def _digests(self, names: Iterable[tuple[str, ...]]) -> str:
        return listing(sorted({self._literal(digest(*name)) for name in names}))

    def _select(self, columns: str, table: str, where: str, end: str = "", limit: int | None = None) -> str:
        text = f"SELECT {columns} FROM {table} WHERE ns = {self._ns} AND {where}{f' {end}' if end else ''}"
        return f"{self._dialect.limited(text, limit)}{self._current}"

    def _read_guards(self) -> None:
        names = {one.group for kind in GROUPS for one in self._by.get(kind, ()) if not one.group.startswith(LOCK_QUEUE)}
        if q.RegisteredWorkers in self._by or q.RunsOf in self._by:
            names.add(ALL_WORKERS)
        if not names:
            return
        by_digest = {digest(name): name for name in names}
        self.guards = dict.fromkeys(names)

        def take(rows: Rows) -> None:
            for name, stamp in rows:
                self.guards[by_digest[bytes(name)]] = stamp

        workers = names & {ALL_WORKERS}  # in a user's transaction it must stay free for all workers
        for some, current in ((workers, ""), (names - workers, self._current)):
            if some:
                wanted = self._digests((name,) for name in some)
                select = self._select("name, stamp", self._tables.guards, f"name IN {wanted}")
                self._step(f"{select.removesuffix(self._current)}{current}", take)

    def _read_workers(self) -> None:
        if q.RegisteredWorkers not in self._by:
            return
        workers, locks = self._tables.workers, self._tables.locks

        def take(rows: Rows) -> None:
            found = [worker_of(_text(name), record) for name, record, *_ in rows]
            self._answers.append((q.RegisteredWorkers(), found))
            for worker, (_, _, key, record, stamp) in zip(found, rows, strict=True):
                self._note_lock(worker_key(worker.id), None if key is None else record, stamp)

        self._step(
            f"SELECT w.id, w.record, l.k, l.record, l.stamp FROM {workers} w LEFT JOIN {locks} l "
            f"ON l.ns = w.ns AND l.k = w.lease WHERE w.ns = {self._ns}",
            take,
        )

    def _note_lock(self, key: str, text: str | None, stamp: int | None) -> None:
        self.stamps[q.LockByKey(key)] = stamp
        self._locks[key] = None if text is None else lock_of(key, text)

    def _rows(
        self,
        kind: type[Question],
        columns: str,
        *,
        table: str,
        where: str,
        question: Callable[[Any], Question],
        answer: Callable[[Any], Any],
    ) -> None:
        """Read rows with a stamp, one for each question; None where there is none."""
        asked = list(self._by[kind])

        def take(rows: Rows) -> None:
            found: dict[Question, Any] = {}
            for row in rows:
                one = question(row)
                found[one] = answer(row)
                self.stamps[one] = row[-1]
            for one in asked:
                self.stamps.setdefault(one, None)
                self._answers.append((one, found.get(one)))

        select = self._select(f"{columns}, stamp", table, where)
        if kind is q.LimitsOf and self._current:  # it is only compared: other starts need it too
            select = f"{select.removesuffix(self._current)}{self._dialect.share}"
        self._step(select, take)

    def _read_runs(self) -> None:
        by, tables = self._by, self._tables
        if q.RunById in by:
            self._rows(
                q.RunById,
                "id, record",
                table=tables.runs,
                where=f"id IN {self._keys(one.id for one in by[q.RunById])}",
                question=lambda row: q.RunById(_text(row[0])),
                answer=lambda row: run_of(_text(row[0]), row[1]),
            )
        for one in by.get(q.RunsOf, ()):
            where = f"worker = {self._bytes(one.worker)}"
            self._list(
                one,
                self._select("id", tables.runs, where, "ORDER BY id", one.limit),
                _key,
            )
        for kind, sign in ((q.RunsAtOnce, "due_at < 0"), (q.RunsByTime, "due_at >= 0")):
            for one in by.get(kind, ()):
                where = f"type = {self._bytes(one.type)} AND {sign}"
                if self._passed_over:
                    where += f" AND id NOT IN {self._keys(self._passed_over)}"
                self._list(
                    one,
                    self._select("due_at, id", tables.runs, where, "ORDER BY due_at, id", one.limit),
                    _pair,
                )
        for one in by.get(q.Claimable, ()):
            self._answers.append((one, None))

    def _list(self, question: q.Range, statement: str, item: Callable[[Row], Any]) -> None:
        """Read an ordered list."""
        self._step(statement, lambda rows: self._take_list(question, map(item, rows)))

    def _one(self, question: Question, statement: str, answer: Callable[[Rows], Any]) -> None:
        """Read one answer."""
        self._step(statement, lambda rows: self._answers.append((question, answer(rows))))

    def _take_list(self, question: q.Range, items: Iterable[Any]) -> None:
        found = tuple(items)
        self.counted[question.stem] = len(found) if question.limit is None or len(found) < question.limit else -1
        self._answers.append((question, found))

    def _read_about_runs(self) -> None:
        by, tables = self._by, self._tables
        if asked := by.get(q.RunByKey):
            names = {digest(one.workflow, one.key): one for one in asked}
            self._step(
                self._select(
                    "start_key, id",
                    tables.runs,
                    f"start_key IN {self._digests((one.workflow, one.key) for one in asked)}",
                ),
                lambda rows: self._take_named(names, {bytes(row[0]): _text(row[1]) for row in rows}),
            )
        if asked := by.get(q.Entries):
            whole = [one.run for one in asked if one.whole]
            first = [one.run for one in asked if not one.whole]
            for runs, only in ((whole, ""), (first, " AND number = 0")):
                if runs:
                    where = f"run IN {self._keys(runs)}{only}"
                    select = self._select("run, entry", tables.journal, where, "ORDER BY run, number")
                    self._step(select, partial(self._take_entries, runs, not only))
        for one in by.get(q.RunEvents, ()):
            where = f"run = {self._bytes(one.run)} AND number > {int(one.after)}"
            self._one(one, self._select("event", tables.events, where, "ORDER BY number"), partial(_events, one.run))
        for one in by.get(q.EventByKey, ()):
            key = self._literal(digest(one.key))
            self._one(
                one,
                self._select("number", tables.events, f"run = {self._bytes(one.run)} AND event_key = {key}"),
                lambda rows: rows[0][0] if rows else None,
            )
        if asked := by.get(q.LimitsOf):
            self._rows(
                q.LimitsOf,
                "workflow, record",
                table=tables.limits,
                where=f"workflow IN {self._keys(one.workflow for one in asked)}",
                question=lambda row: q.LimitsOf(_text(row[0])),
                answer=lambda row: limits_of(_text(row[0]), row[1]),
            )

    def _take_named(self, names: dict[bytes, Question], found: dict[bytes, Any]) -> None:
        self._answers += [(question, found.get(name)) for name, question in names.items()]

    def _take_entries(self, runs: Sequence[str], whole: bool, rows: Rows) -> None:  # noqa: FBT001  (bound by partial)
        found: dict[str, list[str]] = {run: [] for run in runs}
        for run, entry in rows:
            found[_text(run)].append(entry)
        self._answers += [(q.Entries(run, whole=whole), tuple(entries)) for run, entries in found.items()]

    def _read_records(self) -> None:
        by, tables = self._by, self._tables
        if asked := by.get(q.SlotAt):
            names = {digest(*one.address): one for one in asked}
            self._rows(
                q.SlotAt,
                "id, record",
                table=tables.slots,
                where=f"id IN {self._digests(one.address for one in asked)}",
                question=lambda row: names[bytes(row[0])],
                answer=lambda row: slot_of(names[bytes(row[0])].address[2], row[1]),
            )
        if asked := by.get(q.SlotsOf):
            owners = {digest(EXECUTION, one.owner): one for one in asked}
            wanted = self._digests((EXECUTION, one.owner) for one in asked)
            select = self._select("owner, address", tables.slots, f"owner IN {wanted}")
            self._step(select, partial(self._take_slots_of, owners))
        kinds: defaultdict[str, list[q.RecordAt]] = defaultdict(list)
        for one in by.get(q.RecordAt, ()):
            kinds[one.kind].append(one)
        for kind, asked in kinds.items():
            self._read_typed(kind, asked)
        leases = [one for one in by.get(q.LockByKey, ()) if one.key.startswith(LOOKED_AT)]
        others = [one for one in by.get(q.LockByKey, ()) if not one.key.startswith(LOOKED_AT)]
        for asked in filter(None, (leases, others)):
            select = self._select("k, record, stamp", tables.locks, f"k IN {self._keys(one.key for one in asked)}")
            self._step(
                select.removesuffix(self._current) if asked is leases else select, partial(self._take_locks, asked)
            )

    def _take_slots_of(self, owners: dict[bytes, q.SlotsOf], rows: Rows) -> None:
        found: dict[q.SlotsOf, list[str]] = {one: [] for one in owners.values()}
        for owner, address in rows:
            found[owners[bytes(owner)]].append(msgspec.json.decode(address)[2])
        self._answers += [(one, tuple(sorted(keys))) for one, keys in found.items()]

    def _read_typed(self, kind: str, asked: Sequence[q.RecordAt]) -> None:
        def take(rows: Rows) -> None:
            found = {_text(key): (record, stamp) for key, record, stamp in rows}
            for one in asked:
                record, self.stamps[one] = found.get(one.key, (None, None))
                self._answers.append((one, record))

        where = f"kind = {self._bytes(kind)} AND k IN {self._keys(one.key for one in asked)}"
        self._step(self._select("k, record, stamp", self._tables.records, where), take)

    def _take_locks(self, asked: Sequence[q.LockByKey], rows: Rows) -> None:
        found = {_text(key): (record, stamp) for key, record, stamp in rows}
        for one in asked:
            self._note_lock(one.key, *found.get(one.key, (None, None)))

    def _party(self, group: str) -> str:
        return f"party = {self._literal(digest(group))}"

    def _read_groups(self) -> None:
        by, tables = self._by, self._tables
        for one in by.get(q.GroupSize, ()):
            where = f"{self._party(one.group)} AND queued = {int(one.queued)}"
            self._one(one, self._select("COUNT(*)", tables.places, where), lambda rows: rows[0][0])
        for one in by.get(q.Members, ()):
            where = f"{self._party(one.group)} AND queued = {int(one.queued)}"
            self._list(
                one,
                self._select("grade, arrival, run", tables.places, where, "ORDER BY grade, arrival, run", one.limit),
                _triple,
            )
        for one in by.get(q.LatestArrivals, ()):
            where = f"{self._party(one.group)} AND queued = {int(one.queued)} AND grade = {int(one.rank)}"
            self._list(
                one,
                self._select("arrival, run", tables.places, where, "ORDER BY arrival DESC, run DESC", one.limit),
                _pair,
            )
        for one in by.get(q.LatestStarts, ()):
            self._list(
                one,
                self._select("at, run", tables.starts, self._party(one.group), "ORDER BY at DESC, run DESC", one.limit),
                _pair,
            )
        for one in by.get(q.StartsToCome, ()):
            select = self._select("at", tables.starts, f"{self._party(one.group)} AND at > {self._clock}")
            self._step(select, partial(self._take_starts, one))
        for one in by.get(q.QueuedLimitKeys, ()):
            self._read_queued(one)

    def _take_starts(self, question: q.StartsToCome, rows: Rows) -> None:
        """Counted when the time of the decision is known."""
        self._to_come.append((question, [row[0] for row in rows]))

    def _read_queued(self, question: q.QueuedLimitKeys) -> None:
        def take(rows: Rows) -> None:
            try:
                self._answers.append((question, tuple((place_of(place), many) for place, many in rows)))
            except msgspec.MsgspecError as error:
                self._answers.append((question, unreadable("limit key of the workflow", question.workflow, error)))
            self.counted[question] = sum(many for _, many in rows)

        where = f"workflow = {self._bytes(question.workflow)} AND queued = 1"
        self._step(self._select("MAX(place), COUNT(*)", self._tables.places, where, "GROUP BY party"), take)

    def _read_lists(self) -> None:
        by, tables = self._by, self._tables
        for one in by.get(q.DueLocks, ()):
            self._list(
                one,
                self._select("due_at, k", tables.locks, f"due_at <= {self._clock}", "ORDER BY due_at, k", one.limit),
                _pair,
            )
        for one in by.get(q.LocksAfter, ()):
            self._list(
                one,
                self._select("k", tables.locks, f"k > {self._bytes(one.after)}", "ORDER BY k", one.limit),
                _key,
            )
        for one in by.get(q.RecordsAfter, ()):
            end = end_of_prefix(one.prefix)
            first = f"k >= {self._bytes(one.prefix)} AND k > {self._bytes(one.after)}"
            last = "" if end is None else f" AND k < {self._bytes(end)}"
            where = f"kind = {self._bytes(one.kind)} AND {first}{last}"
            self._step(
                self._select("k, record, stamp", tables.records, where, "ORDER BY k", one.limit),
                partial(self._take_listed, one, one.kind),
            )
        for one in by.get(q.DueRecords, ()):
            where = f"kind = {self._bytes(one.kind)} AND due_at <= {self._clock}"
            self._step(
                self._select("k, record, stamp, due_at", tables.records, where, "ORDER BY due_at, k", one.limit),
                partial(self._take_listed, one, one.kind),
            )

    def _take_listed(self, question: q.Range, kind: str, rows: Rows) -> None:
        """A list of records: the items, and each record, which the rule asks for next."""
        items: list[Any] = []
        for key, record, stamp, *due_at in rows:
            name = _text(key)
            items.append((due_at[0], name) if due_at else name)
            self.stamps[q.RecordAt(kind, name)] = stamp
            self._answers.append((q.RecordAt(kind, name), record))
        self._take_list(question, items)

    def _take_time(self, rows: Rows) -> None:
        self._now = int(rows[0][0])


def _text(value: Any) -> str:
    return bytes(value).decode()


def _events(run: str, rows: Rows) -> Any:
    return events_of(run, [row[0] for row in rows])


def _key(row: Row) -> str:
    return _text(row[0])


def _pair(row: Row) -> tuple[int, str]:
    return row[0], _text(row[1])


def _triple(row: Row) -> tuple[int, int, str]:
    return row[0], row[1], _text(row[2])
