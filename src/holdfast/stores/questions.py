"""Questions that the rules ask a store while they decide, their answers, and the resulting changes.

Reading row by row while a rule runs would cost a round trip each. So the rules run over a `Snapshot`: the answers to
all questions that are expected, read in one step. A rule that asks another question stops with `Unanswered`, and runs
again when its answer has been read too (`executor.py`). A store answers these questions and writes `Changes`; it
contains no rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import Any, get_type_hints

import msgspec

from ..rules.lock_record import LockRecord
from ..rules.runs.limits import Limit, WorkflowLimits
from ..rules.runs.record import Run, RunEvent, WorkerRecord
from ..rules.slot import Address, Slot
from .common import Undecided
from .records import RecordName, Written


class Question(msgspec.Struct, frozen=True):
    """The base class of all questions. The docstring of each describes its answer."""

    def check(self) -> None:
        """Raise for a value of the wrong type, or text that is not valid Unicode: the command that asks is invalid."""
        for name, kinds in _kinds_of(type(self)):
            value = getattr(self, name)
            for part in value if type(value) is tuple else (value,):
                if type(part) not in kinds:
                    raise TypeError(f"{part!r} is not {kinds[0].__name__}")
                if type(part) is str and not part.isascii():
                    part.encode()


@cache
def _kinds_of(question: type[Question]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    kinds = {int: (int,), bool: (bool,), int | None: (int, type(None))}
    hints = get_type_hints(question)
    return tuple((name, kinds.get(hints[name], (str,))) for name in question.__struct_fields__)


class RunById(Question, frozen=True):
    """A run: `Run`, or None."""

    id: str


class RunByKey(Question, frozen=True):
    """The id of the run of a workflow that was started with this idempotency key: text, or None."""

    workflow: str
    key: str


class Entries(Question, frozen=True):
    """The journal of a run, a tuple of texts: all of it, or only the first entry."""

    run: str
    whole: bool


class RunEvents(Question, frozen=True):
    """The events of a run that have a higher number than `after`: a tuple of `RunEvent`, in their order."""

    run: str
    after: int


class EventByKey(Question, frozen=True):
    """The number of the event of a run that has this key: a number, or None."""

    run: str
    key: str


class RegisteredWorkers(Question, frozen=True):
    """All registered workers: a sequence of `WorkerRecord`, in any order.

    After this question a rule always asks for the leases of the workers, so a source answers these `LockByKey` too.
    """


class LockByKey(Question, frozen=True):
    """The record of a lock: `LockRecord`, or None."""

    key: str


class LimitsOf(Question, frozen=True):
    """The limits of a workflow: `WorkflowLimits`, or None."""

    workflow: str


class SlotAt(Question, frozen=True):
    """A state slot: `Slot`, or None."""

    address: Address


class SlotsOf(Question, frozen=True):
    """The keys of the `execution` state slots of a run: a tuple of texts, in any order."""

    owner: str


class RecordAt(Question, frozen=True):
    """A record of the type `kind`: its text, or None."""

    kind: str
    key: str


class GroupSize(Question, frozen=True):
    """How many runs of a group are queued (`queued`), or are admitted and have not ended: a number."""

    group: str
    queued: bool


class QueuedLimitKeys(Question, frozen=True):
    """The limit keys of a workflow under which runs are queued: a sequence of (`LimitKey`, how many), in any order."""

    workflow: str


class StartsToCome(Question, frozen=True):
    """How many starts of a group were noted for a moment after the snapshot's `now`: a number."""

    group: str


class Range(Question, frozen=True):
    """A question whose answer is the beginning of an ordered list: `limit` items of it, or all where it is None."""

    limit: int | None

    @property
    def stem(self) -> Range:
        """The same question without a limit, under which a snapshot keeps the answer."""
        return self if self.limit is None else msgspec.structs.replace(self, limit=None)


class RunsAtOnce(Range, frozen=True):
    """The runs of a type that are due at once (`due_at` below 0): (due_at, id), in order."""

    type: str


class RunsByTime(Range, frozen=True):
    """The runs of a type that are due at some time (`due_at` of 0 or more), past or future: (due_at, id), in order."""

    type: str


class Claimable(Question, frozen=True):
    """Announces that up to `limit` due runs of a type will be claimed. No rule asks this; the answer is None.

    A source that locks rows locks the first of these runs that are free, and answers `RunsAtOnce` and `RunsByTime`
    without the runs that other transactions have locked. Any other source ignores it.
    """

    type: str
    limit: int


class RunsOf(Range, frozen=True):
    """The runs of a worker: ids, in order."""

    worker: str


class Members(Range, frozen=True):
    """The runs of a group that are queued, or else admitted, and have not ended: (rank, arrival, id), in order.

    The rank of a queued run is its negated priority; that of an admitted run is 0.
    """

    group: str
    queued: bool


class LatestArrivals(Range, frozen=True):
    """The runs of a group with this rank that have not ended, the latest first: (arrival, id)."""

    group: str
    queued: bool
    rank: int


class LatestStarts(Range, frozen=True):
    """The starts that were noted for a group, the latest first: (at, run)."""

    group: str


class DueLocks(Range, frozen=True):
    """The locks whose `due_at` is not after the snapshot's `now`: (due_at, key), in order."""


class LocksAfter(Range, frozen=True):
    """The keys of the locks after this one: keys, in order."""

    after: str


class RecordsAfter(Range, frozen=True):
    """The keys of the records of a type that begin with the prefix and come after this one: keys, in order."""

    kind: str
    prefix: str
    after: str


class DueRecords(Range, frozen=True):
    """The records of a type whose `due_at` is not after the snapshot's `now`: (due_at, key), in order."""

    kind: str


class RangeAnswer(msgspec.Struct, frozen=True):
    """The answer to a `Range`: items, and whether the list has no more."""

    items: tuple[Any, ...]
    complete: bool


class Unanswered(Undecided):
    """A rule asked a question that the snapshot does not answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


class RowLocked(Undecided):
    """A rule asked for a row that another transaction has locked: it is not known whether the row still exists.

    `seen` is the row as it was last committed, where the store can read it: enough for a command that only reads.
    """

    def __init__(self, question: Question, *seen: Any) -> None:
        super().__init__(question)
        self.question, self.seen = question, seen


class Snapshot:
    """The answers that a store read in one step, at the moment `now` of its clock.

    An answer may be an exception, which is raised where a rule asks: `RecordUnreadable`, or `RowLocked`.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.occupied: list[Question] = []
        """Rows that a rule asked for and that were locked."""
        self.forgotten: Collection[str] = ()
        """Workers that another transaction may be removing: they get no runs."""
        self._answers: dict[Question, Any] = {}

    def put(self, question: Question, answer: Any) -> None:
        """Note the answer to a question; for a `Range`, the items that were found, at most `limit`."""
        if not isinstance(question, Range):
            self._answers[question] = answer
        elif isinstance(answer, Exception):
            self._answers[question.stem] = answer
        else:
            items, stem = tuple(answer), question.stem
            complete = question.limit is None or len(items) < question.limit
            known = self._answers.get(stem)
            if not isinstance(known, RangeAnswer) or complete or (not known.complete and len(items) > len(known.items)):
                self._answers[stem] = RangeAnswer(items, complete)

    def knows(self, question: Question) -> bool:
        """Whether a question has its answer."""
        if not isinstance(question, Range):
            return question in self._answers
        return self._found(question) is not None

    def get(self, question: Question) -> Any:
        """The answer, or its exception; `Unanswered` where there is none."""
        try:
            answer = self._answers[question]
        except KeyError:
            raise Unanswered(question) from None
        if isinstance(answer, Exception):
            raise self._noted(answer)
        return answer

    def _noted(self, error: Exception) -> Exception:
        if isinstance(error, RowLocked):
            self.occupied.append(error.question)
        return error

    def beginning(self, question: Range) -> tuple[Any, ...]:
        """The known beginning of an ordered list, complete or not."""
        found = self._answers.get(question.stem)
        return found.items if isinstance(found, RangeAnswer) else ()

    def range(self, question: Range) -> RangeAnswer:
        """The answer to a `Range`: `limit` items, or the whole list."""
        found = self._found(question)
        if found is None:
            raise Unanswered(question)
        if isinstance(found, Exception):
            raise self._noted(found)
        return found

    def _found(self, question: Range) -> RangeAnswer | Exception | None:
        found: RangeAnswer | Exception | None = self._answers.get(question.stem)
        if not isinstance(found, RangeAnswer) or found.complete:
            return found
        return found if question.limit is not None and question.limit <= len(found.items) else None


class AppendEntries(msgspec.Struct, frozen=True):
    """Entries for a journal, from the index `at` on."""

    at: int
    entries: tuple[str, ...]


class TruncateJournal(msgspec.Struct, frozen=True):
    """Remove all entries of a journal but the first."""

    keep: int


class AddEvent(msgspec.Struct, frozen=True):
    """An event for an inbox."""

    event: RunEvent


class RemoveEvents(msgspec.Struct, frozen=True):
    """Remove events from an inbox, and their keys."""

    numbers: frozenset[int]
    keys: tuple[str, ...]


class ClearInbox(msgspec.Struct, frozen=True):
    """Remove all events of an inbox, and their keys."""


class NotedStart(msgspec.Struct, frozen=True):
    """A start for a group. Of those that are not later than `now` only the latest `limit.max` need be kept."""

    group: str
    at: int
    run: str
    limit: Limit
    now: int


InboxChange = AddEvent | RemoveEvents | ClearInbox


class DanglingItem(msgspec.Struct, frozen=True):
    """An item of a list of runs whose run does not exist or cannot be read."""

    list: Range
    """Without a limit."""
    item: Any


class ClearedRun(msgspec.Struct, frozen=True):
    """A run that is removed, with its journal, its inbox, its idempotency key and its `execution` state.

    `stored` is its row as it was read; with `left`, that row stays in its place. `slots` are the keys of its state.
    """

    stored: Run
    left: Run | None
    slots: tuple[str, ...]


class Changes:
    """The changes of commands: the last state of each record, and the additions to journals and inboxes in order."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.keys: dict[tuple[str, str], str] = {}
        """The ids of new runs by their idempotency keys; they are in `runs` too."""
        self.cleared: dict[str, ClearedRun] = {}
        """Runs that are removed; they are not in `runs`. A step that removes runs contains one command only."""
        self.journals: dict[str, list[AppendEntries | TruncateJournal]] = {}
        self.inboxes: dict[str, list[InboxChange]] = {}
        self.locks: dict[str, LockRecord | None] = {}
        """None: the record is removed."""
        self.slots: dict[Address, Slot] = {}
        self.records: dict[RecordName, Written] = {}
        self.terms: dict[str, WorkflowLimits] = {}
        self.workers: dict[str, WorkerRecord | None] = {}
        """None: the worker is removed."""
        self.starts: list[NotedStart] = []
        self.dangling: dict[DanglingItem, int | None] = {}
        """None: the item is removed from its list; a time: its run is due again then. Where a list is an index of the
        rows of runs there is nothing to do."""

    def __bool__(self) -> bool:
        return any(
            (
                self.runs, self.cleared, self.journals, self.inboxes, self.locks, self.slots, self.records, self.terms,
                self.workers, self.starts, self.dangling,
            )
        )  # fmt: skip

    def add(self, later: Changes) -> None:
        """Add later changes."""
        self.runs.update(later.runs)
        self.keys.update(later.keys)
        self.cleared.update(later.cleared)
        for run, steps in later.journals.items():
            self.journals.setdefault(run, []).extend(steps)
        for run, posts in later.inboxes.items():
            self.inboxes.setdefault(run, []).extend(posts)
        self.locks.update(later.locks)
        self.slots.update(later.slots)
        self.records.update(later.records)
        self.terms.update(later.terms)
        self.workers.update(later.workers)
        self.starts.extend(later.starts)
        self.dangling.update(later.dangling)


def journal_after(entries: Iterable[str], steps: Iterable[AppendEntries | TruncateJournal]) -> tuple[str, ...]:
    """A journal after these steps.

    >>> journal_after(("input", "a", "b"), [TruncateJournal(2), AppendEntries(2, ("c",))])
    ('input', 'a', 'c')
    """
    journal = list(entries)
    for step in steps:
        if isinstance(step, TruncateJournal):
            del journal[step.keep :]
        else:
            journal[step.at :] = step.entries
    return tuple(journal)
