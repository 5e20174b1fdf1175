"""Translates changes into the statements of one transaction: first what must be unchanged, then what is written.

The transaction locks every row that the decision depends on, in a fixed order of tables and keys, and fails unless all
of them still have the stamps that were read. So no decision is written that another client's write has made invalid,
and nothing is locked between the round trip that reads and the one that writes. Runs that are counted together have a
guard row, whose stamp changes with every change among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from ...rules.runs.record import LOCK_QUEUE, Membership, Run, memberships, worker_key
from ...rules.slot import EXECUTION
from .. import questions as q
from ..questions import Changes, Question
from ..repository import BatchRepository
from ..swap import compared, moves_runs
from .dialect import Dialect, listing
from .reading import ALL_WORKERS, GROUPS, Reading
from .rows import (
    attribute_term,
    checked_event,
    checked_limits,
    checked_run,
    checked_slot,
    checked_worker,
    lock_text,
    text_of,
    whole,
)
from .tables import SqlTables, digest

STALE = 30_000_000
"""Microseconds after which a decision is not written any more: its time has passed."""


class Writing:
    """The statements for one batch of changes."""

    def __init__(
        self,
        repository: BatchRepository,
        reading: Reading,
        *,
        dialect: Dialect,
        tables: SqlTables,
        namespace: str,
        stamp: int,
        check_age: bool,
    ) -> None:
        self._dialect, self._tables, self._literal = dialect, tables, dialect.literal
        self._ns = dialect.literal(namespace.encode())
        self._stamp, self._reading = stamp, reading
        self._statements: list[str] = []
        self.missing: set[Question] = set()
        """What must be read too before this can be written; if there is anything, nothing is written."""
        changes = repository.changes
        runs = [(before, after) for before, after in sorted(repository.changed(), key=lambda pair: pair[1].id)]
        groups = _groups_of(runs, changes)
        self._compare(repository, groups, check_age=check_age)
        self._write_guards(changes, groups)
        self._write_limits(changes)
        self._write_workers(changes)
        self._clear_runs(changes)
        self._write_runs(runs, changes)
        self._write_journals(changes)
        self._write_inboxes(changes)
        self._write_places(runs)
        self._write_starts(changes)
        self._write_slots(changes)
        self._write_records(changes)
        self._write_locks(changes)

    @property
    def statements(self) -> list[str]:
        """The statements, in order."""
        return self._statements

    # -- what must be unchanged ------------------------------------------------------------------------------

    def _compare(self, repository: BatchRepository, groups: set[str], *, check_age: bool) -> None:
        dialect, changes, stamps = self._dialect, repository.changes, self._reading.stamps
        if check_age:
            self._statements.append(dialect.insist(f"{dialect.clock} - {repository.now} <= {STALE}"))
        rows: set[Question] = {
            *(q.RunById(name) for name in (*changes.runs, *changes.cleared)),
            *(q.LockByKey(key) for key in changes.locks),
            *(q.SlotAt(address) for address in changes.slots),
            *(q.RecordAt(*name) for name in changes.records),
            *(q.LimitsOf(workflow) for workflow in changes.terms),
        }
        guards = {name for name in groups if not name.startswith(LOCK_QUEUE)}
        rows |= {q.LockByKey(name.removeprefix(LOCK_QUEUE)) for name in groups if name.startswith(LOCK_QUEUE)}
        counted: list[Question] = []
        moved = moves_runs(repository)
        if changes.runs or changes.cleared or changes.workers or changes.terms:  # else each record is decided by itself
            for question in compared(repository, moved=moved):
                if isinstance(question, GROUPS):
                    if question.group.startswith(LOCK_QUEUE):
                        rows.add(q.LockByKey(question.group.removeprefix(LOCK_QUEUE)))
                    else:
                        guards.add(question.group)
                elif isinstance(question, q.QueuedLimitKeys | q.RunsOf):
                    counted.append(question)
                elif question in stamps:
                    rows.add(question)
        if moved:
            guards.add(ALL_WORKERS)
        self.missing |= {row for row in rows if row not in stamps}
        self.missing |= {
            q.GroupSize(name, queued=False) for name in guards - self._reading.guards.keys() - {ALL_WORKERS}
        }
        if moved and ALL_WORKERS not in self._reading.guards:
            self.missing.add(q.RegisteredWorkers())
        if not self.missing:
            self._lock_rows(rows, guards, changes)
            self._recount(counted, changes)

    def _lock_rows(self, rows: set[Question], guards: set[str], changes: Changes) -> None:
        """Compare row by row, in a fixed order of tables."""
        tables, stamps = self._tables, self._reading.stamps
        known = {digest(name): self._reading.guards[name] for name in guards}
        shared = set() if changes.workers else {digest(ALL_WORKERS)} & known.keys()
        self._same(tables.guards, "name", {name: known[name] for name in shared}, share=True)
        self._same(tables.guards, "name", {name: known[name] for name in known.keys() - shared})
        limits = {one: stamps[one] for one in rows if isinstance(one, q.LimitsOf)}
        new = {one.workflow.encode(): stamp for one, stamp in limits.items() if one.workflow in changes.terms}
        read = {one.workflow.encode(): stamp for one, stamp in limits.items() if one.workflow not in changes.terms}
        self._same(tables.limits, "workflow", new)
        self._same(tables.limits, "workflow", read, share=True)
        for written in (True, False):  # a row that is only read may be read by other decisions at the same time
            runs = {
                one.id.encode(): stamps[one]
                for one in rows
                if isinstance(one, q.RunById) and (one.id in changes.runs or one.id in changes.cleared) is written
            }
            self._same(tables.runs, "id", runs, share=not written)
        slots = {digest(*one.address): stamps[one] for one in rows if isinstance(one, q.SlotAt)}
        self._same(tables.slots, "id", slots)
        records = [one for one in rows if isinstance(one, q.RecordAt)]
        for kind in sorted({one.kind for one in records}):
            texts = {one.key.encode(): stamps[one] for one in records if one.kind == kind}
            self._same(tables.records, "k", texts, f"kind = {self._literal(kind.encode())} AND ")
        for written in (True, False):
            locks = {
                one.key.encode(): stamps[one]
                for one in rows
                if isinstance(one, q.LockByKey) and (one.key in changes.locks) is written
            }
            self._same(tables.locks, "k", locks, share=not written)

    def _same(
        self, table: str, column: str, stamps: dict[bytes, int | None], also: str = "", *, share: bool = False
    ) -> None:
        """Lock rows, and fail unless their number and the sum of their stamps are those that were read.

        Stamps are random, and each write of a row makes a new one: another set of rows has another sum.
        """
        if not stamps:
            return
        there = [stamp for stamp in stamps.values() if stamp is not None]
        keys = listing(self._literal(name) for name in sorted(stamps))
        where = f"ns = {self._ns} AND {also}{column} IN {keys}"
        source = self._dialect.locked(table, where, order=column, share=share)
        self._statements.append(self._dialect.insist(f"x.n = {len(there)} AND x.total = {sum(there)}", source))

    def _recount(self, questions: Iterable[Question], changes: Changes) -> None:
        """Count lists again that no guard covers; the rows that their changes need are locked by now."""
        tables = self._tables
        for question in questions:
            if isinstance(question, q.QueuedLimitKeys):
                where, table = f"workflow = {self._literal(question.workflow.encode())} AND queued = 1", tables.places
            elif isinstance(question, q.RunsOf) and changes.workers.get(question.worker, question) is None:
                where, table = f"worker = {self._literal(question.worker.encode())}", tables.runs
            else:
                continue
            expected = self._reading.counted.get(question, -1)
            source = f"(SELECT COUNT(*) AS n FROM {table} WHERE ns = {self._ns} AND {where}) AS x"
            self._statements.append(self._dialect.insist(f"x.n = {expected}", source))

    # -- what is written ---------------------------------------------------------------------------------------

    def _insert(self, table: str, columns: str, rows: Iterable[Sequence[bytes | str | int | None]]) -> None:
        left = iter(rows)
        while some := list(islice(left, self._dialect.rows_at_once)):
            values = ", ".join(listing((self._ns, *map(self._literal, row))) for row in some)
            self._statements.append(f"INSERT INTO {table} (ns, {columns}) VALUES {values}")

    def _update(self, table: str, where: str, **values: bytes | str | int | None) -> None:
        sets = ", ".join(f"{name} = {self._literal(value)}" for name, value in values.items())
        self._statements.append(f"UPDATE {table} SET {sets} WHERE ns = {self._ns} AND {where}")

    def _delete(self, table: str, where: str) -> None:
        self._statements.append(f"DELETE FROM {table} WHERE ns = {self._ns} AND {where}")

    def _is(self, column: str, value: str) -> str:
        return f"{column} = {self._literal(value.encode())}"

    def _is_new(self, question: Question) -> bool:
        return self._reading.stamps.get(question) is None

    def _write_guards(self, changes: Changes, groups: set[str]) -> None:
        names = sorted(name for name in groups if not name.startswith(LOCK_QUEUE))
        names += [ALL_WORKERS] if changes.workers else []
        known = self._reading.guards
        new = [name for name in names if known.get(name) is None]
        old = [self._literal(digest(name)) for name in names if known.get(name) is not None]
        if old:
            self._update(self._tables.guards, f"name IN {listing(old)}", stamp=self._stamp)
        self._insert(self._tables.guards, "name, about, stamp", ((digest(name), name, self._stamp) for name in new))

    def _write_limits(self, changes: Changes) -> None:
        for workflow, limits in sorted(changes.terms.items()):
            text = checked_limits(limits)
            if self._is_new(q.LimitsOf(workflow)):
                row = (workflow.encode(), text, self._stamp)
                self._insert(self._tables.limits, "workflow, record, stamp", [row])
            else:
                self._update(self._tables.limits, self._is("workflow", workflow), record=text, stamp=self._stamp)

    def _write_workers(self, changes: Changes) -> None:
        for name, worker in sorted(changes.workers.items()):
            self._delete(self._tables.workers, self._is("id", name))
            if worker is not None:
                row = (name.encode(), worker_key(name).encode(), checked_worker(worker))
                self._insert(self._tables.workers, "id, lease, record", [row])

    def _write_runs(self, runs: Sequence[tuple[Run | None, Run]], changes: Changes) -> None:
        columns = "id, record, type, workflow, status, created_at, due_at, worker, start_key, ended_at, stamp"
        new = []
        for before, run in runs:
            text = checked_run(run)
            worker = run.worker.encode() or None
            if before is None:
                new.append(self._new_row(run, text))
                continue
            values: dict[str, Any] = {"record": text, "stamp": self._stamp}
            if (before.workflow, before.created_at, before.key) != (run.workflow, run.created_at, run.key):
                key = digest(run.workflow, run.key) if run.key else None
                values |= {"workflow": run.workflow.encode(), "created_at": run.created_at, "start_key": key}
            if before.purgeable_from != run.purgeable_from:
                values["ended_at"] = run.purgeable_from
            if before.type != run.type:
                values["type"] = run.type.encode()
            if before.status != run.status:
                values["status"] = run.status.encode()
            if before.due_at != run.due_at:
                values["due_at"] = run.due_at
            if before.worker != run.worker:
                values["worker"] = worker
            self._update(self._tables.runs, self._is("id", run.id), **values)
        left = (one.left for one in changes.cleared.values() if one.left is not None)
        new += [self._new_row(run, checked_run(run)) for run in left]
        self._insert(self._tables.runs, columns, new)
        for item, until in changes.dangling.items():
            if until is not None:  # an unreadable run must not stay the first that is due
                where = f"{self._is('id', item.item[-1])} AND due_at = {int(item.item[0])}"
                self._update(self._tables.runs, where, due_at=until)
        self._write_attributes(runs)

    def _new_row(self, run: Run, text: str) -> tuple[Any, ...]:
        names = (run.type.encode(), run.workflow.encode(), run.status.encode())
        key = digest(run.workflow, run.key) if run.key else None
        times = (run.created_at, run.due_at)
        return run.id.encode(), text, *names, *times, run.worker.encode() or None, key, run.purgeable_from, self._stamp

    def _clear_runs(self, changes: Changes) -> None:
        """Remove runs with what belongs to them."""
        for name, one in sorted(changes.cleared.items()):
            self._delete(self._tables.runs, self._is("id", name))
            self._delete(self._tables.journal, self._is("run", name))
            self._delete(self._tables.events, self._is("run", name))
            self._delete(self._tables.slots, f"owner = {self._literal(digest(EXECUTION, name))}")
            for created_at, term in sorted(_terms(one.stored)):
                where = f"term = {self._literal(term)} AND created_at = {created_at}"
                self._delete(self._tables.attributes, f"{where} AND {self._is('run', name)}")

    def _write_attributes(self, runs: Sequence[tuple[Run | None, Run]]) -> None:
        added: list[tuple[bytes, int, bytes]] = []
        for before, run in runs:
            old, new = _terms(before), _terms(run)
            for created_at, term in sorted(old - new):
                where = f"term = {self._literal(term)} AND created_at = {created_at} AND {self._is('run', run.id)}"
                self._delete(self._tables.attributes, where)
            added += [(term, created_at, run.id.encode()) for created_at, term in sorted(new - old)]
        self._insert(self._tables.attributes, "term, created_at, run", added)

    def _write_journals(self, changes: Changes) -> None:
        added: list[tuple[bytes, int, str]] = []
        for run, steps in sorted(changes.journals.items()):
            entries: dict[int, str] = {}
            cut: int | None = None
            for step in steps:
                keep = step.at if isinstance(step, q.AppendEntries) else step.keep
                entries = {number: entry for number, entry in entries.items() if number < keep}
                if isinstance(step, q.TruncateJournal):
                    cut = keep if cut is None else min(cut, keep)
                else:
                    entries |= {step.at + place: entry for place, entry in enumerate(step.entries)}
            if cut is not None:
                self._delete(self._tables.journal, f"{self._is('run', run)} AND number >= {cut}")
            added += [(run.encode(), number, entry) for number, entry in sorted(entries.items())]
        self._insert(self._tables.journal, "run, number, entry", added)

    def _write_inboxes(self, changes: Changes) -> None:
        added: list[tuple[bytes, int, bytes | None, str]] = []
        for run, posts in sorted(changes.inboxes.items()):
            events = {}
            gone: list[int] = []
            cleared = False
            for post in posts:
                if isinstance(post, q.AddEvent):
                    events[post.event.number] = post.event
                elif isinstance(post, q.ClearInbox):
                    events, cleared = {}, True
                else:
                    events = {number: event for number, event in events.items() if number not in post.numbers}
                    gone += sorted(post.numbers)
            if cleared:
                self._delete(self._tables.events, self._is("run", run))
            elif gone:
                self._delete(self._tables.events, f"{self._is('run', run)} AND number IN {listing(map(str, gone))}")
            for event in events.values():
                key = digest(event.key) if event.key else None
                added.append((run.encode(), event.number, key, checked_event(event)))
        self._insert(self._tables.events, "run, number, event_key, event", added)

    def _write_places(self, runs: Sequence[tuple[Run | None, Run]]) -> None:
        come: list[Sequence[Any]] = []
        for before, run in runs:
            was, now = _places(before), _places(run)
            for one in was:
                if one not in now:
                    self._delete(
                        self._tables.places,
                        f"party = {self._literal(digest(one.group))} AND queued = {int(one.queued)} AND grade = "
                        f"{one.rank} AND arrival = {one.arrival} AND {self._is('run', one.run)}",
                    )
            come += [
                (
                    digest(one.group), int(one.queued), whole(one.rank), whole(one.arrival), one.run.encode(),
                    one.workflow.encode(), text_of(one.place),
                )
                for one in now
                if one not in was
            ]  # fmt: skip
        self._insert(self._tables.places, "party, queued, grade, arrival, run, workflow, place", come)

    def _write_starts(self, changes: Changes) -> None:
        """Add starts. Of those in the past only the latest can count: older ones are removed."""
        rows = []
        for number, start in enumerate(changes.starts):
            rows.append((digest(start.group), whole(start.at), start.run.encode(), self._stamp + number))
        self._insert(self._tables.starts, "party, at, run, stamp", rows)
        last = {start.group: start for start in changes.starts}
        for group, start in sorted(last.items()):
            party = f"party = {self._literal(digest(group))}"
            latest = f"SELECT at FROM {self._tables.starts} WHERE ns = {self._ns} AND {party} AND at <= {start.now}"
            kept = self._dialect.limited(f"{latest} ORDER BY at DESC", start.limit.max)
            oldest = f"SELECT CASE WHEN COUNT(*) < {start.limit.max} THEN {-(2**62)} ELSE MIN(x.at) END AS at"
            self._delete(self._tables.starts, f"{party} AND at < (SELECT y.at FROM ({oldest} FROM ({kept}) AS x) AS y)")

    def _write_slots(self, changes: Changes) -> None:
        for address, slot in sorted(changes.slots.items(), key=lambda item: item[0]):
            text, name = checked_slot(slot), digest(*address)
            if self._is_new(q.SlotAt(address)):
                row = (name, digest(*address[:2]), text_of(address), text, self._stamp)
                self._insert(self._tables.slots, "id, owner, address, record, stamp", [row])
            else:
                self._update(self._tables.slots, f"id = {self._literal(name)}", record=text, stamp=self._stamp)

    def _write_records(self, changes: Changes) -> None:
        new = []
        for (kind, key), (_, stored) in sorted(changes.records.items(), key=lambda item: item[0]):
            where = f"{self._is('kind', kind)} AND {self._is('k', key)}"
            if stored is None:
                self._delete(self._tables.records, where)
            elif self._is_new(q.RecordAt(kind, key)):
                new.append((kind.encode(), key.encode(), stored.text, stored.due_at, self._stamp))
            else:
                values = {"record": stored.text, "due_at": stored.due_at, "stamp": self._stamp}
                self._update(self._tables.records, where, **values)
        self._insert(self._tables.records, "kind, k, record, due_at, stamp", new)

    def _write_locks(self, changes: Changes) -> None:
        new = []
        for key, record in sorted(changes.locks.items()):
            if record is None:
                self._delete(self._tables.locks, self._is("k", key))
            elif self._is_new(q.LockByKey(key)):
                new.append((key.encode(), lock_text(record), record.due_at, self._stamp))
            else:
                text = lock_text(record)
                self._update(
                    self._tables.locks, self._is("k", key), record=text, due_at=record.due_at, stamp=self._stamp
                )
        self._insert(self._tables.locks, "k, record, due_at, stamp", new)


def check(changes: Changes, dialect: Dialect) -> None:
    """Raise for changes that could not be stored, or could not be read again."""
    for text in _texts(changes):
        dialect.literal(_text(text))
    for start in changes.starts:
        whole(start.at + start.limit.per)
    names = [*changes.locks, *(part for name in (*changes.slots, *changes.records) for part in name)]
    for run in changes.runs.values():
        names += (run.id, run.type, run.worker, run.key)
    for name in names:
        _text(name).encode()


def _texts(changes: Changes) -> Iterator[str]:
    """Everything that is stored as text, checked that it can be read again."""
    yield from map(checked_run, changes.runs.values())
    for record in changes.locks.values():
        if record is not None:
            whole(record.due_at)
            yield lock_text(record)
    yield from (checked_worker(worker) for worker in changes.workers.values() if worker is not None)
    yield from map(checked_limits, changes.terms.values())
    posts = (post for posts in changes.inboxes.values() for post in posts)
    yield from (checked_event(post.event) for post in posts if isinstance(post, q.AddEvent))
    steps = (step for steps in changes.journals.values() for step in steps)
    yield from (entry for step in steps if isinstance(step, q.AppendEntries) for entry in step.entries)
    yield from map(checked_slot, changes.slots.values())
    yield from (stored.text for _, stored in changes.records.values() if stored is not None)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not text")
    return value


def _places(run: Run | None) -> list[Membership]:
    return [] if run is None else memberships(run)


def _terms(run: Run | None) -> set[tuple[int, bytes]]:
    if run is None:
        return set()
    return {(run.created_at, digest(*attribute_term(name, value))) for name, value in run.attributes.items()}


def _groups_of(runs: Iterable[tuple[Run | None, Run]], changes: Changes) -> set[str]:
    """The groups whose members or starts change."""
    return {start.group for start in changes.starts} | set(_changed_groups(runs))


def _changed_groups(runs: Iterable[tuple[Run | None, Run]]) -> Iterator[str]:
    for before, after in runs:
        was, now = _places(before), _places(after)
        yield from (one.group for one in was if one not in now)
        yield from (one.group for one in now if one not in was)
