"""Translates questions of the rules into commands of Redis, and their replies into answers.

When a decision is written, the same commands check that the answers have not changed: see writing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import msgspec

from ...errors import RecordUnreadable
from ...rules.lock_record import decode
from ...rules.record_type import unreadable as record_unreadable
from ...rules.runs.limits import LimitKey, WorkflowLimits
from ...rules.runs.record import WorkerRecord
from .. import questions as q
from ..common import end_of_prefix
from .codec import ordinal, queue_place, read_event, read_worker, run_of, slot_of, unreadable
from .keys import Layout, run_key_name

Command = list[str]
Commands = list[Command]
Replies = Sequence[Any]

_terms = msgspec.json.Decoder(WorkflowLimits)
_place = msgspec.json.Decoder(LimitKey)
_REPLIES = frozenset((list, int, str, bool))
"""Types of replies that are not errors."""
DUE, LATER = "DUE", "LATER"
"""Commands into which read.lua inserts the time: the due items of a sorted set, and how many are due later."""
MANY = 10**9
"""The number of runs that is assumed to be queued under a limit key: it is only known that there are some."""


class ReadRefused(Exception):
    """The server refused to read something; the message is the reason."""


def reason_of(reply: Any) -> str | None:
    """The error message in a reply; None if the reply is not an error."""
    if isinstance(reply, dict):
        return str(reply.get("err"))
    return str(reply) if isinstance(reply, Exception) else None


class RedisReader:
    """Questions about one namespace, and their answers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ways: dict[type[q.Question], tuple[Callable[[Any], Commands], Callable[[Any, Replies], Any]]] = {
            q.RunById: (self._ask_run, _run),
            q.RunByKey: (self._ask_key, lambda _, replies: replies[0] or None),
            q.Entries: (self._ask_entries, lambda _, replies: tuple(replies[0])),
            q.RunEvents: (self._ask_events, _events),
            q.EventByKey: (self._ask_event_key, lambda _, replies: int(replies[0]) if replies[0] else None),
            q.RegisteredWorkers: (self._ask_workers, _workers),
            q.LockByKey: (self._ask_lock, _lock),
            q.LimitsOf: (self._ask_terms, _terms_of),
            q.SlotAt: (self._ask_slot, _slot),
            q.SlotsOf: (self._ask_slots_of, lambda _, replies: tuple(sorted(replies[0]))),
            q.RecordAt: (self._ask_record, _record),
            q.GroupSize: (self._ask_size, lambda _, replies: replies[0]),
            q.QueuedLimitKeys: (self._ask_crowded, _crowded),
            q.StartsToCome: (self._ask_starts_to_come, lambda _, replies: replies[0]),
            q.Claimable: (lambda _: [], lambda *_: None),
            q.RunsAtOnce: (self._ask_at_once, scored),
            q.RunsByTime: (self._ask_by_time, scored),
            q.RunsOf: (self._ask_runs_of, lambda _, replies: tuple(replies[0])),
            q.Members: (self._ask_members, _members),
            q.LatestArrivals: (self._ask_arrivals, _arrivals),
            q.LatestStarts: (self._ask_starts, scored),
            q.DueLocks: (self._ask_due_locks, scored),
            q.LocksAfter: (self._ask_locks_after, lambda _, replies: tuple(replies[0])),
            q.RecordsAfter: (self._ask_records_after, lambda _, replies: tuple(replies[0])),
            q.DueRecords: (self._ask_due_records, scored),
        }

    def commands(self, question: q.Question) -> Commands:
        """The commands that answer a question."""
        return self._ways[type(question)][0](question)

    def answer(self, question: q.Question, replies: Replies) -> Any:
        """The answer, or an exception as the answer."""
        try:
            for reply in replies:
                if type(reply) not in _REPLIES and (reason := reason_of(reply)) is not None:
                    raise (
                        ValueError("its key holds data of another type")
                        if "WRONGTYPE" in reason
                        else ReadRefused(reason)
                    )
            return self._ways[type(question)][1](question, replies)
        except RecordUnreadable as error:
            return error
        except (ValueError, TypeError, msgspec.MsgspecError) as error:
            if isinstance(question, q.RecordAt):
                return record_unreadable(question.kind, question.key, str(error))
            return unreadable(*self._name(question), str(error))

    def _name(self, question: q.Question) -> tuple[str, str]:
        """The subject of a question, for messages."""
        if isinstance(question, q.LockByKey):
            return "record of the lock", question.key
        if isinstance(question, q.SlotAt):
            return "state", question.address[2]
        if isinstance(question, q.LimitsOf):
            return "terms of the workflow", question.workflow
        if isinstance(question, q.RunById):
            return "run", question.id
        if isinstance(question, q.Entries | q.RunEvents | q.EventByKey):
            return "run", question.run
        return "index", self.commands(question)[0][1]

    def _ask_run(self, question: q.RunById) -> Commands:
        name, layout = question.id, self._layout
        return [["HGETALL", layout.run(name)], ["LLEN", layout.journal(name)], ["LLEN", layout.inbox(name)]]

    def _ask_key(self, question: q.RunByKey) -> Commands:
        return [["HGET", self._layout.by_key, run_key_name(question.workflow, question.key)]]

    def _ask_entries(self, question: q.Entries) -> Commands:
        return [["LRANGE", self._layout.journal(question.run), "0", "-1" if question.whole else "0"]]

    def _ask_events(self, question: q.RunEvents) -> Commands:
        return [["LRANGE", self._layout.inbox(question.run), str(max(0, question.after)), "-1"]]

    def _ask_event_key(self, question: q.EventByKey) -> Commands:
        return [["HGET", self._layout.inbox_keys(question.run), question.key]]

    def _ask_workers(self, _: q.RegisteredWorkers) -> Commands:
        return [["HGETALL", self._layout.workers]]

    def _ask_lock(self, question: q.LockByKey) -> Commands:
        return [["GET", self._layout.lock(question.key)]]

    def _ask_terms(self, question: q.LimitsOf) -> Commands:
        return [["HGET", self._layout.terms, question.workflow]]

    def _ask_slot(self, question: q.SlotAt) -> Commands:
        return [["HMGET", self._layout.slot(question.address), "version", "value", "past"]]

    def _ask_slots_of(self, question: q.SlotsOf) -> Commands:
        return [["SMEMBERS", self._layout.slots_of(question.owner)]]

    def _ask_record(self, question: q.RecordAt) -> Commands:
        return [["GET", self._layout.record(question.kind, question.key)]]

    def _ask_records_after(self, question: q.RecordsAfter) -> Commands:
        after, prefix, end = question.after, question.prefix, end_of_prefix(question.prefix)
        first = f"({after}" if after and after >= prefix else f"[{prefix}"
        last = "+" if end is None else f"({end}"
        return [["ZRANGEBYLEX", self._layout.record_keys(question.kind), first, last, *_most(question)]]

    def _ask_due_records(self, question: q.DueRecords) -> Commands:
        return [[DUE, self._layout.due_records(question.kind), *_most(question)]]

    def _set(self, question: q.GroupSize | q.Members | q.LatestArrivals) -> str:
        layout, group = self._layout, question.group
        return layout.queue(group) if question.queued else layout.admitted(group)

    def _ask_size(self, question: q.GroupSize) -> Commands:
        return [["ZCARD", self._set(question)]]

    def _ask_crowded(self, question: q.QueuedLimitKeys) -> Commands:
        return [["SMEMBERS", self._layout.crowded(question.workflow)]]

    def _ask_starts_to_come(self, question: q.StartsToCome) -> Commands:
        return [[LATER, self._layout.starts(question.group)]]

    def _ask_at_once(self, question: q.RunsAtOnce) -> Commands:
        return [["ZRANGEBYSCORE", self._layout.due_runs(question.type), "-inf", "(0", "WITHSCORES", *_most(question)]]

    def _ask_by_time(self, question: q.RunsByTime) -> Commands:
        return [["ZRANGEBYSCORE", self._layout.due_runs(question.type), "0", "+inf", "WITHSCORES", *_most(question)]]

    def _ask_runs_of(self, question: q.RunsOf) -> Commands:
        return [["ZRANGE", self._layout.runs_of(question.worker), "0", _last(question)]]

    def _ask_members(self, question: q.Members) -> Commands:
        scores = [] if question.queued else ["WITHSCORES"]
        return [["ZRANGE", self._set(question), "0", _last(question), *scores]]

    def _ask_arrivals(self, question: q.LatestArrivals) -> Commands:
        if not question.queued:
            return [["ZREVRANGE", self._set(question), "0", _last(question), "WITHSCORES"]]
        rank = ordinal(question.rank)
        return [["ZREVRANGEBYLEX", self._set(question), f"({rank}!", f"[{rank} ", *_most(question)]]

    def _ask_starts(self, question: q.LatestStarts) -> Commands:
        return [["ZREVRANGE", self._layout.starts(question.group), "0", _last(question), "WITHSCORES"]]

    def _ask_due_locks(self, question: q.DueLocks) -> Commands:
        return [[DUE, self._layout.due, *_most(question)]]

    def _ask_locks_after(self, question: q.LocksAfter) -> Commands:
        first = f"({question.after}" if question.after else "-"
        return [["ZRANGEBYLEX", self._layout.index, first, "+", *_most(question)]]


def _most(question: q.Range) -> Command:
    return [] if question.limit is None else ["LIMIT", "0", str(question.limit)]


def _last(question: q.Range) -> str:
    return "-1" if question.limit is None else str(question.limit - 1)


def _pairs(flat: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _run(question: q.RunById, replies: Replies) -> Any:
    fields, length, posted = replies
    if not fields:
        if length or posted:
            raise unreadable("run", question.id, "its journal or its inbox exists, and the run does not")
        return None
    return run_of(question.id, dict(_pairs(fields)), length, posted)


def _events(_: q.RunEvents, replies: Replies) -> Any:
    return tuple(read_event(text) for text in replies[0] if text)


def _workers(_: q.RegisteredWorkers, replies: Replies) -> Any:
    return tuple(starmap(_worker, _pairs(replies[0])))


def _worker(name: str, text: str) -> WorkerRecord:
    try:
        return read_worker(text)
    except (TypeError, msgspec.MsgspecError) as error:
        raise unreadable("worker", name, str(error)) from error


def _lock(question: q.LockByKey, replies: Replies) -> Any:
    return decode(question.key, replies[0]) if replies[0] is not False and replies[0] is not None else None


def _record(_: q.RecordAt, replies: Replies) -> Any:
    (text,) = replies
    if text is None or text is False:
        return None
    if not isinstance(text, str):
        raise TypeError("it contains bytes that are not valid UTF-8")
    return text


def _terms_of(_: q.LimitsOf, replies: Replies) -> Any:
    return _terms.decode(replies[0]) if replies[0] else None


def _slot(question: q.SlotAt, replies: Replies) -> Any:
    version, value, past = (part if isinstance(part, str) else None for part in replies[0])
    return slot_of(question.address[2], version, value, past)


def _crowded(_: q.QueuedLimitKeys, replies: Replies) -> Any:
    return tuple((_place.decode(text), MANY) for text in replies[0])


def scored(_: q.Question, replies: Replies) -> Any:
    """Names with scores: (score, name)."""
    return tuple((int(float(number)), name) for name, number in _pairs(replies[0]))


def _members(question: q.Members, replies: Replies) -> Any:
    if question.queued:
        return tuple(map(queue_place, replies[0]))
    return tuple((0, int(float(arrival)), name) for name, arrival in _pairs(replies[0]))


def _arrivals(question: q.LatestArrivals, replies: Replies) -> Any:
    if question.queued:
        return tuple(queue_place(member)[1:] for member in replies[0])
    return tuple((int(float(arrival)), name) for name, arrival in _pairs(replies[0]))
