"""Translates changes into commands of Redis, and the answers they depend on into checks.

Names are added to indexes before the records, and removed after everything else: a name without a record is skipped, a
record without a name would never be found. A server whose memory is full refuses the first addition, and then nothing
has been written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ...rules.lock_record import encode
from ...rules.runs.limits import group_of
from ...rules.runs.record import Run, memberships
from ...rules.slot import EXECUTION, Address
from .. import questions as q
from ..repository import BatchRepository
from ..swap import compared, moves_runs
from .codec import (
    changed_fields,
    check_options,
    check_record,
    check_run,
    check_slot,
    check_texts,
    fields_of,
    queue_member,
    read_event,
    read_worker,
    score,
    slot_fields,
    text,
)
from .keys import Layout, run_key_name
from .reading import Command, Commands, RedisReader, Replies

AT_ONCE = 1_000
"""The largest number of values of one command: the server's Lua accepts about 8,000."""
REMEMBERED = 7 * 24 * 3600 * 1000
"""Milliseconds that starts are kept after their span, in case the span is made longer."""

Known = dict[q.Question, tuple[Commands, Replies]]
"""What was read: the commands of each question, and their replies."""
Check = tuple[Command, Any]
"""A command, and the reply that it must still give."""
COMPARED: tuple[type[q.Question], ...] = (
    q.RegisteredWorkers,
    q.RunByKey,
    q.LockByKey,
    q.RecordAt,
    q.LimitsOf,
    q.SlotAt,
    q.SlotsOf,
    q.GroupSize,
    q.QueuedLimitKeys,
    q.RunsOf,
    q.Members,
    q.LatestArrivals,
    q.LatestStarts,
)
"""Questions that are checked with their original commands when a decision is written.

Journals and inboxes change with their runs; lists of due items and of locks are only hints.
"""


class RedisWriter:
    """The commands that write changes to one namespace."""

    def __init__(self, layout: Layout, reading: RedisReader) -> None:
        self._layout, self._reading = layout, reading
        self._fields: dict[str, tuple[Run, dict[str, str]]] = {}  # checked runs, in their stored form
        self._ways: dict[type[q.Question], Callable[[Any, Known, int], Iterable[Check]]] = {
            q.RunById: self._check_run,
            q.StartsToCome: self._check_starts_to_come,
            **dict.fromkeys(COMPARED, self._check_as_asked),
        }

    def begin(self) -> None:
        """Begin a new decision."""
        self._fields.clear()

    def check(self, changes: q.Changes) -> None:
        """Raise for changes that could not be stored, or could not be read again."""
        left = (one.left for one in changes.cleared.values() if one.left is not None)
        for run in (*changes.runs.values(), *left):
            check_run(run, self._fields_of(run))
        for key, record in changes.locks.items():
            text(key)
            if record is not None:
                check_record(record)
        for worker in changes.workers.values():
            if worker is not None:
                read_worker(text(worker))
        for terms in changes.terms.values():
            check_options(terms)
        for post in chain.from_iterable(changes.inboxes.values()):
            if isinstance(post, q.AddEvent):
                read_event(text(post.event))
        for step in chain.from_iterable(changes.journals.values()):
            if isinstance(step, q.AppendEntries):
                check_texts(*step.entries)
        for address, slot in changes.slots.items():
            check_slot(address, slot)
        for kind, key in changes.records:
            check_texts(kind, key)
        for start in changes.starts:
            score(start.at + start.limit.per)

    def _fields_of(self, run: Run) -> dict[str, str]:
        known = self._fields.get(run.id)
        if known is None or known[0] is not run:
            known = self._fields[run.id] = run, fields_of(run)
        return known[1]

    # -- what must be unchanged -----------------------------------------------------------------------------

    def checks(self, repository: BatchRepository, known: Known) -> list[Check]:
        """What the decisions depend on: commands, and the replies that they must still give."""
        lists = _longest(known)
        found: list[Check] = []
        for question in compared(repository, moved=moves_runs(repository)):
            way = self._ways.get(type(question))
            if way is not None:
                found += way(lists.get(question, question), known, repository.now)
        return found

    def _check_as_asked(self, question: q.Question, known: Known, _: int) -> Iterable[Check]:
        return zip(*known[question], strict=True)

    def _check_run(self, question: q.RunById, known: Known, now: int) -> Iterable[Check]:
        fields, length, posted = known[question][1]
        if fields or length or posted:
            return self._check_as_asked(question, known, now)
        layout, name = self._layout, question.id
        return ((["EXISTS", layout.run(name), layout.journal(name), layout.inbox(name)], 0),)

    def _check_starts_to_come(self, question: q.StartsToCome, known: Known, now: int) -> Iterable[Check]:
        (count,) = known[question][1]
        return ((["ZCOUNT", self._layout.starts(question.group), f"({now}", "+inf"], count),)

    # -- what is written ------------------------------------------------------------------------------------

    def writes(self, repository: BatchRepository, known: Known) -> list[Command]:
        """The commands that make the changes, in their order."""
        changes, layout = repository.changes, self._layout
        additions: list[Command] = []
        records: list[Command] = []
        removals: list[Command] = []
        posted: dict[str, int] = {}  # of runs that are new
        for before, after in repository.changed():
            if before is None:
                posted[after.id] = after.posted
            self._index(before, after, changes, additions, removals)
            self._count(before, after, additions, removals)
            stored = known[q.RunById(after.id)][1][0] if before is not None else ()
            old = dict(zip(stored[::2], stored[1::2], strict=True))
            put, gone = changed_fields(old, self._fields_of(after))
            if put:
                records.append(["HSET", layout.run(after.id), *put])
            if gone:
                removals.append(["HDEL", layout.run(after.id), *gone])
        self._clear_runs(changes, known, additions, records, removals)
        self._starts(changes, known, additions)
        self._dangling_items(changes, additions, removals)
        self._records(changes, additions, records, removals)
        self._locks(repository, additions, records, removals)
        for (workflow, key), run in changes.keys.items():
            additions.append(["HSET", layout.by_key, run_key_name(workflow, key), run])
        for workflow, terms in changes.terms.items():
            records.append(["HSET", layout.terms, workflow, text(terms)])
        for address, slot in changes.slots.items():
            if address[0] == EXECUTION:
                additions.append(["SADD", layout.slots_of(address[1]), address[2]])
            records.append(["HSET", layout.slot(address), *slot_fields(slot)])
        for name, worker in changes.workers.items():
            if worker is None:
                removals.append(["HDEL", layout.workers, name])
            else:
                records.append(["HSET", layout.workers, name, text(worker)])
        return [*additions, *self._lists(changes, posted), *records, *removals]

    def _index(
        self, before: Run | None, after: Run, changes: q.Changes, additions: list[Command], removals: list[Command]
    ) -> None:
        """Update the sorted sets that contain a run."""
        layout = self._layout
        created, name = score(after.created_at), after.id
        if before is None or before.created_at != after.created_at:
            additions += [["ZADD", layout.by_age, created, name], ["ZADD", layout.by_id, "0", name]]
        if before is not None and before.key and not after.key and (before.workflow, before.key) not in changes.keys:
            removals.append(["HDEL", layout.by_key, run_key_name(before.workflow, before.key)])
        if before is None or before.type != after.type:
            additions.append(["SADD", layout.types, after.type])
        old, new = sets_of(layout, before), sets_of(layout, after)
        for place, how in new.items():
            if place not in old or old[place] != how:
                additions.append(["SADD", place, name] if how is None else ["ZADD", place, how, name])
        for place, how in old.items():
            if place not in new:
                removals.append(["SREM" if how is None else "ZREM", place, name])

    def _clear_runs(
        self,
        changes: q.Changes,
        known: Known,
        additions: list[Command],
        records: list[Command],
        removals: list[Command],
    ) -> None:
        """Remove runs with all that belongs to them.

        The order is: journal and inbox, state, the hash of the run, and last its entries in the indexes, so that a
        server that stops in between leaves no run which the indexes do not name.
        """
        layout = self._layout
        for name, cleared in sorted(changes.cleared.items()):
            before, left = cleared.stored, cleared.left
            records.append(["DEL", layout.journal(name), layout.inbox(name), layout.inbox_keys(name)])
            addresses: list[Address] = [(EXECUTION, name, key) for key in cleared.slots]
            slots = list(map(layout.slot, addresses))
            records += [["DEL", *some] for some in _chunks([*slots, layout.slots_of(name)])]
            old, new = sets_of(layout, before), sets_of(layout, left)
            removals += [
                ["SREM" if how is None else "ZREM", place, name] for place, how in old.items() if place not in new
            ]
            if before.key:
                removals.append(["HDEL", layout.by_key, run_key_name(before.workflow, before.key)])
            if left is None:
                records.append(["DEL", layout.run(name)])
                removals += [["ZREM", layout.by_age, name], ["ZREM", layout.by_id, name]]
                continue
            stored = known[q.RunById(name)][1][0]
            put, gone = changed_fields(dict(zip(stored[::2], stored[1::2], strict=True)), self._fields_of(left))
            additions += [["ZADD", place, how, name] for place, how in new.items() if how is not None]
            records += [["HSET", layout.run(name), *put]] if put else []
            removals += [["HDEL", layout.run(name), *gone]] if gone else []

    def _count(self, before: Run | None, after: Run, additions: list[Command], removals: list[Command]) -> None:
        """Update the sets by which limits count a run."""
        layout = self._layout
        old, new = _counted(layout, before), _counted(layout, after)
        for (name, member), how in new.items():
            if old.get((name, member)) != how:
                additions.append(["ZADD", name, how, member])
        for name, member in old:
            if (name, member) not in new:
                removals.append(["ZREM", name, member])
        for run in (before, after):
            if run is not None and run.status == "queued":
                for place in run.places:
                    crowded, mark = layout.crowded(run.workflow), text(place)
                    if run is after:
                        additions.append(["SADD", crowded, mark])
                    else:
                        queue = layout.queue(group_of(run.workflow, place))
                        removals.append(["UNLESS", queue, "SREM", crowded, mark])

    def _starts(self, changes: q.Changes, known: Known, additions: list[Command]) -> None:
        """Add starts that limits count. Of past starts only the latest can count, and finally none: the set expires."""
        for number, start in enumerate(changes.starts):
            name = self._layout.starts(start.group)
            member = f"{changes.runs[start.run].fence} {number} {start.run}"  # a revived run starts again
            noted = changes.starts[: number + 1]
            to_come = known[q.StartsToCome(start.group)][1][0]
            to_come += sum(one.group == start.group and one.at > one.now for one in noted)
            left = (max(start.at, start.now) - start.now + start.limit.per) // 1000 + 1 + REMEMBERED
            additions.append(["ZADD", name, score(start.at), member])
            additions.append(["ZREMRANGEBYRANK", name, "0", str(-(start.limit.max + to_come) - 1)])
            additions.append(["PEXPIRE", name, str(left)])

    def _dangling_items(self, changes: q.Changes, additions: list[Command], removals: list[Command]) -> None:
        """Remove names of runs that do not exist; postpone runs that cannot be read."""
        for item, until in changes.dangling.items():
            name = self._reading.commands(item.list)[0][1]
            member = item.item
            if isinstance(item.list, q.Members):
                member = queue_member(*item.item) if item.list.queued else item.item[-1]
            elif not isinstance(item.list, q.RunsOf):
                member = item.item[-1]
            if until is None:
                removals.append(["ZREM", name, member])
            else:
                additions.append(["ZADD", name, score(until), member])

    def _records(
        self, changes: q.Changes, additions: list[Command], records: list[Command], removals: list[Command]
    ) -> None:
        """Write records of any type, with their sorted sets."""
        layout, texts = self._layout, list[str]()
        for (kind, key), (_, stored) in changes.records.items():
            index, due, name = layout.record_keys(kind), layout.due_records(kind), layout.record(kind, key)
            if stored is None:
                removals += [["ZREM", index, key], ["ZREM", due, key], ["DEL", name]]
                continue
            additions.append(["ZADD", index, "0", key])
            if stored.due_at is None:
                removals.append(["ZREM", due, key])
            else:
                additions.append(["ZADD", due, score(stored.due_at), key])
            texts += [name, stored.text]
        records += [["MSET", *some] for some in _chunks(texts)]

    def _locks(
        self, repository: BatchRepository, additions: list[Command], records: list[Command], removals: list[Command]
    ) -> None:
        layout, texts = self._layout, []
        for key, record in repository.changes.locks.items():
            if record is None:
                removals += [["ZREM", layout.index, key], ["ZREM", layout.due, key], ["DEL", layout.lock(key)]]
                continue
            additions.append(["ZADD", layout.index, "0", key])
            if record.due_at is None:
                removals.append(["ZREM", layout.due, key])
            else:
                additions.append(["ZADD", layout.due, score(record.due_at), key])
            texts += [layout.lock(key), encode(record).decode()]
        records += [["MSET", *some] for some in _chunks(texts)]

    def _lists(self, changes: q.Changes, posted: dict[str, int]) -> Iterator[Command]:
        """Journals and inboxes. A new run may have events whose numbers have gaps: these are as if removed."""
        layout = self._layout
        for run, steps in changes.journals.items():
            for step in steps:
                if isinstance(step, q.TruncateJournal) and step.keep == 0:
                    yield ["DEL", layout.journal(run)]  # the end -1 of LTRIM would be the last entry
                elif isinstance(step, q.TruncateJournal):
                    yield ["LTRIM", layout.journal(run), "0", str(step.keep - 1)]
                else:
                    yield from (["RPUSH", layout.journal(run), *some] for some in _chunks(step.entries))
        for run in {**changes.inboxes, **{name: () for name, last in posted.items() if last}}:
            length = 0 if run in posted else None
            for post in changes.inboxes.get(run, ()):
                if isinstance(post, q.AddEvent):
                    if length is not None:
                        yield from self._gap(run, post.event.number - 1 - length)
                        length = post.event.number
                    yield ["RPUSH", layout.inbox(run), text(post.event)]
                    if post.event.key:
                        yield ["HSET", layout.inbox_keys(run), post.event.key, str(post.event.number)]
                elif isinstance(post, q.ClearInbox):
                    yield ["DEL", layout.inbox(run), layout.inbox_keys(run)]
                else:
                    yield from (["LSET", layout.inbox(run), str(number - 1), ""] for number in sorted(post.numbers))
                    yield from (["HDEL", layout.inbox_keys(run), *some] for some in _chunks(tuple(post.keys)))
            if length is not None:
                yield from self._gap(run, posted[run] - length)

    def _gap(self, run: str, many: int) -> Iterator[Command]:
        return (["RPUSH", self._layout.inbox(run), *some] for some in _chunks([""] * many))


def _longest(known: Known) -> dict[q.Question, q.Range]:
    """The ordered lists that were read, each with the longest part that was read."""
    found: dict[q.Question, q.Range] = {}
    for question in known:
        if isinstance(question, q.Range):
            other = found.setdefault(question.stem, question)
            if other.limit is not None and (question.limit is None or question.limit > other.limit):
                found[question.stem] = question
    return found


def sets_of(layout: Layout, run: Run | None) -> dict[str, str | None]:
    """The sets that contain a run, each with its score; None: a set without scores."""
    if run is None:
        return {}
    created = score(run.created_at)
    found: dict[str, str | None] = {layout.with_status(run.status, run.workflow): created}
    found |= {layout.with_attribute(name, value): created for name, value in run.attributes.items()}
    if run.due_at is not None:
        found[layout.due_runs(run.type)] = score(run.due_at)
    if run.purgeable_from is not None:
        found[layout.ended(run.status, run.workflow)] = score(run.purgeable_from)
    if run.worker:
        found[layout.runs_of(run.worker)] = "0"
    if run.living:
        found[layout.living(run.type)] = None
    return found


def _counted(layout: Layout, run: Run | None) -> dict[tuple[str, str], str]:
    found = {}
    for one in () if run is None else memberships(run):
        if one.queued:
            found[layout.queue(one.group), queue_member(one.rank, one.arrival, one.run)] = "0"
        else:
            found[layout.admitted(one.group), one.run] = score(one.arrival)
    return found


def _chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(values), AT_ONCE):
        yield values[first : first + AT_ONCE]
