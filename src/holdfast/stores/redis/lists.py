"""Lists of locks and of runs in Redis, and the choice of the sorted set to read.

Each set that can answer a part of the filter is counted, and the smallest one is read, from the newest run on; the
other parts of the filter are checked for each run in it. The set of ids is ordered by id: the ids with a prefix are
sorted by their start, unless there are very many. One call reads a bounded number of runs: the page may then be short,
even empty, and contains the cursor at which the next page begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ...commands import Command, ListLocks, LockPage
from ...commands.purging import ListEndedRuns, ListEndedWorkflows
from ...commands.runs import CountRuns, ListRuns
from ...errors import RecordUnreadable
from ...rules.lock_outcomes import Outcome
from ...rules.lock_record import decode
from ...rules.runs.outcomes import EndedRuns, EndedWorkflows, RunCounts, RunPage
from ...rules.runs.record import SHOWN, Run, workflow_of
from ...rules.runs.repository import RunFilter
from ..common import at_least_one, end_of_prefix, listed
from ..questions import RunById
from .codec import score, unreadable
from .keys import Layout
from .reading import Commands, ReadRefused, RedisReader, reason_of, scored

MOST_LOOKS = 2_000
"""How many runs one call reads."""
PREFIXED = 5_000
"""Up to this number, ids with a prefix are sorted by their start at once; of more, another set is read first."""
MOST_PREFIXED = 100_000
"""Up to this number, ids with a prefix are sorted by their start after another set had none of them."""
STRIDE = 200
"""How many runs are read at once, at most; a short page reads fewer at first."""
NAMES = 1_000
"""How many names of a sorted set are read at once; the next time twice as many."""
MOST_NAMES_AT_ONCE = 8_000
IN_VAIN = 10_000
"""How many names in a row may lack the prefix before the ids with the prefix are sorted instead."""
MOST_NAMES = 100_000
"""How many names one call compares with a prefix."""

Ask = Callable[..., tuple[int, list[Any]]]
Cursor = tuple[int, str]


class Stretch(NamedTuple):
    """A part of a list."""

    fitting: list[Cursor]
    """Runs whose ids begin with the prefix, the newest first."""
    compared: int
    last: Cursor | None
    """The cursor of the next part; None: this is the last."""


class Lists:
    """The lists of one namespace."""

    def __init__(self, layout: Layout, ask: Ask) -> None:
        self._layout, self._read = layout, ask
        self._reading = RedisReader(layout)

    def answer(self, command: Command) -> Outcome:
        """Answer a list or a count."""
        if isinstance(command, ListLocks):
            return self._locks(command)
        if isinstance(command, ListRuns):
            return self._runs(command)
        if isinstance(command, CountRuns):
            return self._run_counts()
        if isinstance(command, ListEndedRuns):
            return self._ended(command)
        if isinstance(command, ListEndedWorkflows):
            return self._workflows(command)
        raise TypeError(f"{type(command).__name__} is not a command that this store supports")

    def _ask(self, commands: Commands) -> tuple[int, list[Any]]:
        """The replies about indexes. Raises if one of the keys is not an index."""
        now, replies = self._read(commands)
        for command, reason in zip(commands, map(reason_of, replies), strict=True):
            if reason is not None and "WRONGTYPE" in reason:
                raise unreadable("index", command[1], "its key holds data of another type")
            if reason is not None:
                raise ReadRefused(reason)
        return now, replies

    def _locks(self, command: ListLocks) -> LockPage:
        limit, end = at_least_one(command.limit), end_of_prefix(command.prefix)
        first = f"({command.after}" if command.after >= command.prefix and command.after else f"[{command.prefix}"
        last = "+" if end is None else f"({end}"
        page = ["ZRANGEBYLEX", self._layout.index, first, last, "LIMIT", "0", str(min(limit, 10**6) + 1)]
        now, (keys,) = self._ask([page])
        items = []
        if keys[:limit]:
            now, texts = self._read([["GET", self._layout.lock(key)] for key in keys[:limit]])
            for key, text in zip(keys, texts, strict=False):
                if isinstance(text, str | bytes):
                    items.append(listed(key, _readable(key, text), now))
        return LockPage(items=tuple(items), next=keys[limit - 1] if len(keys) > limit else None, now=now)

    def _run_counts(self) -> RunCounts:
        _, (types,) = self._ask([["SMEMBERS", self._layout.types]])
        if not types:
            return RunCounts(counts={})
        _, counts = self._ask([["SCARD", self._layout.living(kind)] for kind in types])
        return RunCounts(counts={kind: count for kind, count in zip(types, counts, strict=True) if count})

    def _ended(self, command: ListEndedRuns) -> EndedRuns:
        """A page of runs that ended with one status, by the time of their end."""
        limit, name = max(1, command.limit), self._layout.ended(command.status, command.workflow)
        walk = _OldestFirst(name, command.before, command.after, min(limit + 1, MOST_NAMES_AT_ONCE))
        found: list[Cursor] = []
        now = 0
        while len(found) <= limit and not walk.ended:
            now, (reply,) = self._ask([walk.command()])
            found += walk.take(scored(RunById(""), [reply]))
        more = found[limit - 1] if len(found) > limit else None
        return EndedRuns(runs=tuple(found[:limit]), next=more, now=now)

    def _workflows(self, command: ListEndedWorkflows) -> EndedWorkflows:
        """The names of all workflows that ever had a run; there are few."""
        limit = max(1, command.limit)
        now, (types,) = self._ask([["SMEMBERS", self._layout.types]])
        names = sorted(name for name in {workflow_of(kind) for kind in types} if name > command.after)
        more = names[limit - 1] if len(names) > limit else None
        return EndedWorkflows(names=tuple(names[:limit]), next=more, now=now)

    # -- runs -----------------------------------------------------------------------------------------------

    def _runs(self, command: ListRuns) -> RunPage:
        limit, wanted = max(1, command.limit), command.wanted
        found: list[Run] = []
        looked = names = now = 0
        for stretch in self._newest(wanted, command.after, limit):
            for some in _slices(stretch.fitting, min(limit + 1, STRIDE)):
                now, runs = self._load(some)
                found += [run for run in runs if run is not None and wanted.fits(run)]
                if len(found) > limit:
                    last = found[limit - 1]
                    return RunPage(runs=tuple(found[:limit]), next=(last.created_at, last.id), now=now)
                looked += len(some)
                if looked >= MOST_LOOKS:
                    return RunPage(runs=tuple(found), next=some[-1], now=now)
            names += stretch.compared
            if names >= MOST_NAMES:
                return RunPage(runs=tuple(found), next=stretch.last, now=now or self._ask([])[0])
        return RunPage(runs=tuple(found), next=None, now=now or self._ask([])[0])

    def _load(self, cursors: list[Cursor]) -> tuple[int, list[Run | None]]:
        questions = [RunById(name) for _, name in cursors]
        per_run = [self._reading.commands(question) for question in questions]
        now, replies = self._read([command for commands in per_run for command in commands])
        runs = []
        for place, question in enumerate(questions):
            answer = self._reading.answer(question, replies[3 * place : 3 * place + 3])
            if isinstance(answer, RecordUnreadable):
                raise answer
            runs.append(answer)
        return now, runs

    def _newest(self, wanted: RunFilter, after: Cursor | None, limit: int) -> Iterator[Stretch]:
        """The runs of the smallest set that contains all matching runs, the newest first, some at a time."""
        names, ids = self._smallest(wanted)
        if ids is not None:
            yield self._in_order(wanted, after, self._begun(ids))
            return
        in_vain, ordered = 0, not wanted.prefix or bool(wanted.statuses or wanted.workflow or wanted.attributes)
        for some in self._walked(names, wanted, after, limit):
            fitting = [cursor for cursor in some if cursor[1].startswith(wanted.prefix)]
            yield Stretch(fitting, len(some), some[-1])
            in_vain = 0 if fitting else in_vain + len(some)
            if in_vain >= IN_VAIN and not ordered:
                ordered = True
                if self._few_begin_with(wanted.prefix):
                    yield self._in_order(wanted, some[-1], self._begun_with(wanted.prefix))
                    return

    def _in_order(self, wanted: RunFilter, after: Cursor | None, begun: Iterable[Cursor]) -> Stretch:
        """All runs with these ids, the newest first."""
        older = (cursor for cursor in begun if after is None or cursor < tuple(after))
        timely = (
            cursor
            for cursor in older
            if (wanted.since is None or cursor[0] >= wanted.since)
            and (wanted.until is None or cursor[0] < wanted.until)
        )
        return Stretch(sorted(timely, reverse=True), 0, None)

    def _few_begin_with(self, prefix: str) -> bool:
        """Whether the ids with this prefix are few enough to be sorted."""
        _, (more,) = self._ask([self._ids(prefix, most=1, skip=MOST_PREFIXED)])
        return not more

    def _begun_with(self, prefix: str) -> Iterator[Cursor]:
        """All runs whose ids begin with the prefix, in the order of their ids."""
        after = ""
        while True:
            _, (ids,) = self._ask([self._ids(prefix, most=PREFIXED, after=after)])
            if ids:
                yield from self._begun(ids)
            if len(ids) < PREFIXED:
                return
            after = ids[-1]

    def _ids(self, prefix: str, *, most: int, skip: int = 0, after: str = "") -> list[str]:
        """The command for ids that begin with the prefix, in their order."""
        end = end_of_prefix(prefix)
        first, last = f"({after}" if after else f"[{prefix}", "+" if end is None else f"({end}"
        return ["ZRANGEBYLEX", self._layout.by_id, first, last, "LIMIT", str(skip), str(most)]

    def _walked(self, names: list[str], wanted: RunFilter, after: Cursor | None, limit: int) -> Iterator[list[Cursor]]:
        """The runs of these sets, the newest first, some at a time."""
        lowest = "-inf" if wanted.since is None else score(wanted.since)
        highest = "+inf" if wanted.until is None else f"({score(wanted.until)}"
        stride = NAMES if after or wanted.prefix else min(limit + 1, NAMES)
        heads = {name: _Walk(name, lowest, highest, after, stride) for name in names}
        while True:
            while empty := [head for head in heads.values() if head.empty]:
                self._fill(empty)
            full = [head for head in heads.values() if head.items]
            if not full:
                return
            # Items newer than the oldest item of every set that has more can be merged now.
            bound = max((head.items[-1] for head in full if not head.ended), default=None)
            some = [item for head in full for item in head.taken(bound)]
            yield sorted(set(some), reverse=True)

    def _fill(self, heads: list[_Walk]) -> None:
        _, replies = self._ask([head.command() for head in heads])
        for head, reply in zip(heads, replies, strict=True):
            head.add(scored(RunById(""), [reply]))

    def _begun(self, ids: list[str]) -> Iterator[Cursor]:
        _, moments = self._read([["HGET", self._layout.run(name), "created_at"] for name in ids])
        return (
            (int(moment), name) for name, moment in zip(ids, moments, strict=True) if moment and not reason_of(moment)
        )

    def _smallest(self, wanted: RunFilter) -> tuple[list[str], list[str] | None]:
        """The names of the sets to read, or the ids."""
        layout = self._layout
        choices: list[list[str]] = [[layout.by_age]]
        if wanted.statuses or wanted.workflow:
            choices.append(self._groups(wanted))
        choices += [[layout.with_attribute(name, value)] for name, value in wanted.attributes.items()]
        lowest = "-inf" if wanted.since is None else score(wanted.since)
        highest = "+inf" if wanted.until is None else f"({score(wanted.until)}"
        counts: Commands = [["ZCOUNT", name, lowest, highest] for names in choices for name in names]
        if wanted.prefix:
            _, (*sizes, ids) = self._ask([*counts, self._ids(wanted.prefix, most=PREFIXED + 1)])
        else:
            ids = None
            sizes = self._ask(counts)[1]
        totals, first = [], 0
        for names in choices:
            totals.append(sum(sizes[first : first + len(names)]))
            first += len(names)
        best = totals.index(min(totals))
        if ids is not None and len(ids) <= PREFIXED and len(ids) < totals[best]:
            return [], ids
        return choices[best], None

    def _groups(self, wanted: RunFilter) -> list[str]:
        """The sets of all statuses and workflows of the filter."""
        workflows = [wanted.workflow]
        if not wanted.workflow:
            _, (types,) = self._ask([["SMEMBERS", self._layout.types]])
            workflows = sorted({workflow_of(kind) for kind in types})
        statuses = wanted.statuses or SHOWN
        return [self._layout.with_status(status, workflow) for status in statuses for workflow in workflows]


def _slices(cursors: list[Cursor], size: int) -> Iterator[list[Cursor]]:
    """The cursors in slices: a few at first, then twice as many each time."""
    first = 0
    while first < len(cursors):
        yield cursors[first : first + size]
        first += size
        size = min(2 * size, STRIDE)


class _Walk:
    """One sorted set, from the newest on."""

    def __init__(self, name: str, lowest: str, highest: str, after: Cursor | None, stride: int) -> None:
        self._name, self._lowest, self._highest, self._stride = name, lowest, highest, stride
        self._after = None if after is None else (after[0], after[1])
        self._skip = 0  # how many items with the time of `_after` have been read
        self.items: list[Cursor] = []
        self.ended = False

    @property
    def empty(self) -> bool:
        """Whether the next items have to be read."""
        return not self.items and not self.ended

    def command(self) -> list[str]:
        """The command for the next items. Items with the time of the cursor may be read again, and are dropped then."""
        highest = self._highest if self._after is None else _lower(self._highest, self._after[0])
        most = ["LIMIT", str(self._skip), str(self._stride)]
        return ["ZREVRANGEBYSCORE", self._name, highest, self._lowest, "WITHSCORES", *most]

    def add(self, found: Any) -> None:
        """Add items that were read."""
        self.ended = len(found) < self._stride
        self._stride = min(2 * self._stride, MOST_NAMES_AT_ONCE)
        self.items = [item for item in found if self._after is None or item < self._after]
        if found:
            # Not by an offset from the beginning: runs that are added, or move to another set, would shift the others.
            moment = found[-1][0]
            again = self._after is not None and self._after[0] == moment
            self._skip = (self._skip if again else 0) + sum(at == moment for at, _ in found)
            self._after = found[-1] if self._after is None else min(self._after, found[-1])

    def taken(self, bound: Cursor | None) -> list[Cursor]:
        """Remove and return the items that are not older than the bound."""
        some = [item for item in self.items if bound is None or item >= bound]
        self.items = self.items[len(some) :]
        return some


class _OldestFirst:
    """One sorted set, from the lowest score on, up to a score that is not included."""

    def __init__(self, name: str, before: int, after: Cursor | None, stride: int) -> None:
        self._name, self._before, self._stride = name, score(before), stride
        self._after = None if after is None else (after[0], after[1])
        self._skip = 0  # how many items with the score of `_after` have been read
        self.ended = False

    def command(self) -> list[str]:
        """The command for the next items."""
        lowest = "-inf" if self._after is None else score(self._after[0])
        most = ["LIMIT", str(self._skip), str(self._stride)]
        return ["ZRANGEBYSCORE", self._name, lowest, f"({self._before}", "WITHSCORES", *most]

    def take(self, found: Any) -> list[Cursor]:
        """The new ones among the items that were read: those with the score of the cursor are read again."""
        self.ended = len(found) < self._stride
        items = [item for item in found if self._after is None or item > self._after]
        if found:
            moment = found[-1][0]
            again = self._after is not None and self._after[0] == moment
            self._skip = (self._skip if again else 0) + sum(at == moment for at, _ in found)
            self._after = found[-1] if self._after is None else max(self._after, found[-1])
        return items


def _lower(highest: str, moment: int) -> str:
    """The lower of two upper bounds, the second of which is itself included."""
    if highest == "+inf" or int(highest[1:]) > moment:
        return score(moment)
    return highest


def _readable(key: str, text: str | bytes) -> Any:
    try:
        return decode(key, text)
    except RecordUnreadable as error:
        return error
