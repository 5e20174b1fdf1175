"""Translates questions into the statements of one round trip that locks and reads; answers.py reads the rows.

The order of the statements is the locking protocol. Groups of limits are locked first, in the order of their numbers,
while nothing else is locked. Then the rows that a decision may write are locked, table by table, each in the order of
its keys. In a batch of several commands, groups and rows that another transaction has locked are skipped. Records are
read and rows counted only in later statements, because a statement does not see what was committed while it waited. The
clock is read last, so that no record is later than the time of its decision. A command about a single lock is one
statement that does all of this: a row that was waited for is returned as it is now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from ...errors import RecordUnreadable
from ...rules.runs.limits import LimitKey, WorkflowLimits
from ...rules.runs.record import worker_key
from .. import questions as q
from ..common import end_of_prefix
from ..footprint import forecast_of
from ..questions import Question
from . import record_statements as of_records
from . import statements as sql
from .answers import Answers, Parse, encoded, text_of, whole
from .records import events_of, unreadable
from .session import Rows, Statement

SKIP, WAIT = "FOR UPDATE SKIP LOCKED", "FOR UPDATE"
GROUPS_OF_A_WORKFLOW = 0xFF
"""How many numbers a workflow has for the locks of its groups: a thousand keys must not use up the server's locks."""

_terms = msgspec.json.Decoder(WorkflowLimits)
_place = msgspec.json.Decoder(LimitKey)

COUNTS = (q.GroupSize, q.Members, q.LatestArrivals, q.LatestStarts, q.StartsToCome)
"""Questions about runs that are counted together."""
LISTS = (*COUNTS, q.QueuedLimitKeys, q.RunsAtOnce, q.RunsByTime, q.LocksAfter)


class PostgresReader(Answers):
    """One round trip that reads, and its answers."""

    def __init__(
        self,
        questions: Collection[Question],
        changing: Collection[Question],
        *,
        schema: str,
        namespace: bytes,
        at: bytes | None,
        patient: bool,
        alone: bool = False,
        awaited: Collection[Question] = (),
        passed_over: Collection[str] = (),
        wider: int = 1,
    ) -> None:
        """`at` replaces the clock in tests.

        With `patient`, rows and groups that other transactions have locked are waited for; with `alone`, only groups.
        Otherwise only `awaited` is waited for, while nothing else is locked: a row, or groups and workflows as named by
        `busy_name`. Claims skip the unreadable runs in `passed_over`, and lock `wider` times what they need.
        """
        super().__init__(questions, changing)
        self._schema, self._namespace, self._at, self._patient = schema, namespace, at, patient
        self._alone, self._awaited = alone, awaited
        self._passed_over, self._wider = passed_over, wider
        self._counts = False
        if len(awaited) == 1 and set(questions) == set(changing) == set(awaited) and self._has(q.LockByKey):
            (key,) = (one.key for one in self._by[q.LockByKey])
            self._ask(sql.LOCK_ALONE, self._take_alone, encoded([key]), at)
            return
        if changing:
            self._lock()
        if self._has(q.RunById, q.RunsOf) or self._claims:
            self._read_runs()
        if self._has(q.RunByKey, q.Entries, q.RunEvents, q.EventByKey, q.LimitsOf):
            self._read_about_runs()
        self._read_records()
        if self._has(*LISTS):
            self._read_lists()
        self._ask(sql.TIME, self._take_time, self._at, namespaced=False)
        self._read_by_time()

    @property
    def statements(self) -> list[Statement]:
        """The statements to send, in order."""
        return [statement for statement, _ in self._steps]

    @property
    def counts(self) -> bool:
        """Whether a decision depends on counted rows."""
        return self._counts

    def _ask(self, text: str, parse: Parse, *values: bytes | None, namespaced: bool = True) -> None:
        sent = (self._namespace, *values) if namespaced else values
        self._steps.append((Statement(sql.placed(text, self._schema), sent), parse))

    def _has(self, *kinds: type[Question]) -> bool:
        """Whether there is a question of these types."""
        return any(kind in self._by for kind in kinds)

    def _ask_for(self, text: str, parse: Parse, items: Iterable[Any]) -> None:
        """The same with a list of items, unless there are none."""
        if wanted := list(items):
            self._ask(text, parse, encoded(wanted))

    # -- locking ------------------------------------------------------------------------------------------------

    def _lock(self) -> None:
        how = WAIT if self._patient else SKIP
        self._lock_rows(self._awaited, WAIT)
        if self._has(*COUNTS, q.QueuedLimitKeys):
            self._lock_groups()
        if self._has(q.RunsOf, q.RegisteredWorkers):
            self._lock_workers()
        if self._has(q.Claimable):
            self._lock_due()
        if self._has(q.RunsOf):
            owned = [(one.worker, one.limit) for one in self._by[q.RunsOf] if one in self._changing]
            self._ask_for(sql.LOCK_OWNED, self._had(q.RunById), owned)
        kinds = (q.RunById, q.SlotAt, q.RecordAt, q.LockByKey)
        rows = [
            one
            for kind in kinds
            for one in self._by.get(kind, ())
            if one in self._changing and one not in self._awaited
        ]
        self._lock_rows(rows, how)

    def _lock_rows(self, rows: Iterable[Question], how: str) -> None:
        """Lock rows by their keys, in order."""
        found = list(rows)
        runs = sorted(one.id for one in found if isinstance(one, q.RunById))
        self._ask_for(sql.LOCK_RUNS.format(how=how), self._had(q.RunById), runs)
        slots = sorted(one.address for one in found if isinstance(one, q.SlotAt))
        self._ask_for(sql.LOCK_SLOTS.format(how=how), self._had_slots, slots)
        records = sorted((one.kind, one.key) for one in found if isinstance(one, q.RecordAt))
        self._ask_for(of_records.LOCK.format(how=how), self._had_records, records)
        locks = sorted(one.key for one in found if isinstance(one, q.LockByKey))
        self._ask_for(sql.LOCK_LOCKS.format(how=how), self._had(q.LockByKey), locks)

    def _lock_groups(self) -> None:
        """Lock groups of limits; a change of limits locks the workflow, of which every count shares the lock.

        Locks that are waited for come first, in order: no lock is waited for while one that was only tried is held.
        """
        groups = {one.group: one for kind in COUNTS for one in self._by.get(kind, ())}
        alone = {one.workflow for one in self._by[q.QueuedLimitKeys]}
        self._counts = bool(groups or alone)
        shared = {one.workflow for one in self._by[q.LimitsOf]} - alone if groups else set()
        for kind in (*COUNTS, q.QueuedLimitKeys, *((q.LimitsOf,) if groups or alone else ())):
            for one in self._by.get(kind, ()):
                named = busy_name(one)
                self._counted.append((number_of(self._namespace, named), named, one))
        wanted = (
            (sql.SHARED, sql.TRY_SHARED, [q.LimitsOf(workflow) for workflow in shared]),
            (sql.ALONE, sql.TRY_ALONE, [q.LimitsOf(workflow) for workflow in alone]),
            (sql.ALONE, sql.TRY_ALONE, [busy_name(one) for one in groups.values()]),
        )
        everything = self._patient or self._alone
        waited: set[int] = set()
        for text, _, names in wanted:
            numbers = {self._number(name) for name in names if everything or name in self._awaited}
            self._lock_numbers(text, _ignore, numbers)
            waited |= numbers
        for _, text, names in () if everything else wanted:
            self._lock_numbers(text, self._take_missed, {self._number(name) for name in names} - waited)

    def _lock_numbers(self, text: str, parse: Parse, numbers: set[int]) -> None:
        if numbers:
            self._ask(text, parse, encoded([str(number) for number in sorted(numbers)]), namespaced=False)

    def _number(self, named: Question) -> int:
        return number_of(self._namespace, named)

    def _lock_workers(self) -> None:
        """Lock workers: one that gets runs cannot be removed meanwhile, and one that is being removed gets no runs."""
        leaving = {one.worker for one in self._by[q.RunsOf] if one in self._changing}
        lease = worker_key("")
        given = {one.key.removeprefix(lease) for one in self._by[q.LockByKey] if one.key.startswith(lease)} - leaving
        share = "FOR KEY SHARE" if self._patient else "FOR KEY SHARE SKIP LOCKED"
        self._ask_for(sql.LOCK_WORKERS.format(how=share), self._had_workers, sorted(given))
        self._ask_for(sql.LOCK_WORKERS.format(how=SKIP), self._had_workers, sorted(leaving))

    def _lock_due(self) -> None:
        """Lock the runs to claim, and more where a rule has asked for more; other claims skip locked runs."""
        for one in self._by[q.Claimable]:
            self._claims[one.type] = max(self._claims.get(one.type, 0), one.limit)
        forecasts = {forecast_of(one.limit) for one in self._by[q.Claimable]}
        for one in (*self._by[q.RunsAtOnce], *self._by[q.RunsByTime]):
            if one.type in self._claims and one.limit is not None and one.limit not in forecasts:
                self._claims[one.type] = max(self._claims[one.type], one.limit)
        if self._claims:
            self._ask(sql.TAKE_BOUND, _ignore, self._at, namespaced=False)
            wanted = [(kind, many * self._wider) for kind, many in self._claims.items()]
            self._ask(sql.LOCK_DUE, _ignore, encoded(wanted), encoded(sorted(self._passed_over)))

    # -- reading ------------------------------------------------------------------------------------------------

    def _read_runs(self) -> None:
        self._ask_for(sql.RUNS, self._take_runs, (one.id for one in self._by[q.RunById]))
        self._ask_for(sql.RUNS_OF, self._take_runs_of, ((one.worker, one.limit) for one in self._by[q.RunsOf]))
        if self._claims:
            self._ask(sql.CLAIMED_RUNS, self._take_claimed)
            self._ask(sql.CLAIMED_ENTRIES, self._take_claimed_entries)
            self._ask(sql.CLAIMED_EVENTS, self._take_claimed_events)
            self._ask(sql.CLAIMED_LOCKS, self._take_locks)

    def _read_about_runs(self) -> None:
        by = self._by
        self._ask_for(
            sql.RUNS_BY_KEY,
            self._each(
                "run",
                by[q.RunByKey],
                lambda row: q.RunByKey(text_of(row[0]), text_of(row[1])),
                lambda row: text_of(row[2]),
            ),
            ((one.workflow, one.key) for one in by[q.RunByKey]),
        )
        entries = ((one.run, "whole" if one.whole else "first", None if one.whole else 1) for one in by[q.Entries])
        self._ask_for(
            sql.ENTRIES,
            self._all(
                by[q.Entries],
                lambda row: q.Entries(text_of(row[0]), row[1] == b"whole"),
                lambda _, rows: tuple(text_of(row[2]) for row in rows),
            ),
            entries,
        )
        self._ask_for(
            sql.EVENTS,
            self._all(
                by[q.RunEvents],
                lambda row: q.RunEvents(text_of(row[0]), whole(row[1])),
                lambda one, rows: events_of(one.run, (row[2:] for row in rows)),
            ),
            ((one.run, one.after) for one in by[q.RunEvents]),
        )
        self._ask_for(
            sql.EVENTS_BY_KEY,
            self._each(
                "event",
                by[q.EventByKey],
                lambda row: q.EventByKey(text_of(row[0]), text_of(row[1])),
                lambda row: whole(row[2]),
            ),
            ((one.run, one.key) for one in by[q.EventByKey]),
        )
        self._ask_for(
            sql.TERMS,
            self._each(
                "limits of the workflow",
                by[q.LimitsOf],
                lambda row: q.LimitsOf(text_of(row[0])),
                lambda row: _terms.decode(row[1] or b""),
            ),
            (one.workflow for one in by[q.LimitsOf]),
        )

    def _read_records(self) -> None:
        if self._has(q.SlotAt):
            self._ask_for(sql.SLOTS, self._take_slots, (one.address for one in self._by[q.SlotAt]))
        if self._has(q.SlotsOf):
            self._ask_for(
                sql.SLOTS_OF,
                self._all(
                    self._by[q.SlotsOf],
                    lambda row: q.SlotsOf(text_of(row[0])),
                    lambda _, rows: tuple(text_of(row[1]) for row in rows),
                ),
                (one.owner for one in self._by[q.SlotsOf]),
            )
        if self._has(q.RecordAt):
            self._ask_for(of_records.READ, self._take_records, ((one.kind, one.key) for one in self._by[q.RecordAt]))
        for one in self._by.get(q.RecordsAfter, ()):
            end = end_of_prefix(one.prefix)
            text, last = (of_records.AFTER, ()) if end is None else (of_records.BETWEEN, (end.encode(),))
            values = (one.kind.encode(), one.prefix.encode(), one.after.encode(), _limit(one), *last)
            self._ask(text, self._take_listed(one), *values)
        if self._has(q.LockByKey):
            self._ask_for(sql.LOCKS, self._take_locks, (one.key for one in self._by[q.LockByKey]))
        if self._has(q.RegisteredWorkers):
            self._ask(sql.WORKERS, self._take_workers)

    def _read_lists(self) -> None:
        by = self._by
        for kind, text in ((q.RunsAtOnce, sql.RUNS_AT_ONCE), (q.RunsByTime, sql.RUNS_BY_TIME)):
            looked: dict[str, int | None] = {}
            for one in by[kind]:
                if one.type not in self._claims:
                    most = looked.get(one.type, 0)
                    looked[one.type] = None if most is None or one.limit is None else max(most, one.limit)
            self._ask_for(text, self._take_due(kind), looked.items())
        self._ask_for(
            sql.MEMBERS,
            self._beginning(q.Members, lambda row: (text_of(row[0]), row[1] == b"true"), 2),
            ((one.group, one.queued, one.limit) for one in by[q.Members]),
        )
        self._ask_for(
            sql.LATEST_ARRIVALS,
            self._beginning(q.LatestArrivals, lambda row: (text_of(row[0]), row[1] == b"true", whole(row[2])), 3),
            ((one.group, one.queued, one.rank, one.limit) for one in by[q.LatestArrivals]),
        )
        self._ask_for(
            sql.LATEST_STARTS,
            self._beginning(q.LatestStarts, lambda row: (text_of(row[0]),), 1),
            ((one.group, one.limit) for one in by[q.LatestStarts]),
        )
        sizes = self._each(
            "count",
            by[q.GroupSize],
            lambda row: q.GroupSize(text_of(row[0]), row[1] == b"true"),
            lambda row: whole(row[2]),
        )
        self._ask_for(sql.GROUP_SIZES, sizes, ((one.group, one.queued) for one in by[q.GroupSize]))
        self._ask_for(
            sql.CROWDED,
            self._all(
                by[q.QueuedLimitKeys],
                lambda row: q.QueuedLimitKeys(text_of(row[0])),
                lambda one, rows: _places(one.workflow, rows),
            ),
            (one.workflow for one in by[q.QueuedLimitKeys]),
        )
        for one in by[q.LocksAfter]:
            self._ask(sql.LOCKS_AFTER, self._list(one), one.after.encode(), _limit(one))

    def _read_by_time(self) -> None:
        """Read what depends on the time, once it is known."""
        for one in self._by[q.DueLocks]:
            self._ask(sql.DUE_LOCKS, self._list(one), _limit(one))
        for one in self._by.get(q.DueRecords, ()):
            self._ask(of_records.DUE, self._take_listed(one), one.kind.encode(), _limit(one))
        self._ask_for(
            sql.STARTS_TO_COME,
            self._each(
                "count",
                self._by[q.StartsToCome],
                lambda row: q.StartsToCome(text_of(row[0])),
                lambda row: whole(row[1]),
            ),
            (one.group for one in self._by[q.StartsToCome]),
        )
        claimed = [(kind,) for kind in self._claims]
        self._ask_for(sql.NEXT_AT_ONCE, self._take_due(q.RunsAtOnce), claimed)
        self._ask_for(sql.NEXT_BY_TIME, self._take_due(q.RunsByTime), claimed)


def _places(workflow: str, rows: Rows) -> tuple[tuple[LimitKey, int], ...] | RecordUnreadable:
    try:
        return tuple((_place.decode(row[1] or b""), whole(row[2])) for row in rows)
    except msgspec.MsgspecError as error:
        return unreadable("limit key of a run of the workflow", workflow, error)


def busy_name(question: Question) -> Question:
    """The name of a locked row, group or workflow: the same for all questions about it."""
    if isinstance(question, COUNTS):
        return q.GroupSize(question.group, queued=False)
    return q.LimitsOf(question.workflow) if isinstance(question, q.QueuedLimitKeys) else question


def number_of(namespace: bytes, named: Question) -> int:
    """The number of the advisory lock of a group or a workflow."""
    if isinstance(named, q.LimitsOf):
        return _number(namespace, named.workflow)
    assert isinstance(named, q.GroupSize)  # noqa: S101  (the only other type)
    workflow, bucket = f"{named.group.partition('/')[0]}/", _number(namespace, named.group) & GROUPS_OF_A_WORKFLOW
    return _number(namespace, workflow) & ~GROUPS_OF_A_WORKFLOW | bucket


def _number(namespace: bytes, name: str) -> int:
    digest = hashlib.blake2b(namespace + b"/" + name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _limit(question: q.Range) -> bytes | None:
    return None if question.limit is None else str(question.limit).encode()


def _ignore(rows: Rows) -> None:
    """Ignore the rows of a statement."""
