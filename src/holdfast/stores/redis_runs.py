"""Commands about runs as the script reads them, and its answers about runs.

What users wrote (inputs, entries, payloads, results, attributes) goes as text and comes back as the same text: the
script never takes it apart. Numbers go as numbers, whole and below 2^53, or the command fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from .. import run_commands as r
from ..commands import Command
from ..errors import RecordUnreadable
from ..rules import run_outcomes as out
from ..rules.admission import ADMITTED, Place, Terms, Verdict
from ..rules.asks import Ask, Said
from ..rules.outcomes import Outcome
from ..rules.record import Kind
from ..rules.run import Event, Locks, NewRun, Park, Run, Scalar, Stuck, Then, Worker, workflow_of
from ..rules.slot import Swap
from . import redis_script as s
from .redis_keys import run_key_name, slot_name

Row = tuple[Any, ...]
Answer = Any
Texts = Any
"""The stored texts that came with an answer, by number."""

_json = msgspec.json.Encoder()
_event = msgspec.json.Decoder(Event)
_worker = msgspec.json.Decoder(Worker)
_attributes = msgspec.json.Decoder(dict[str, Scalar])
_names = msgspec.json.Decoder(tuple[str, ...])
_places = msgspec.json.Decoder(tuple[Place, ...])
_locks = msgspec.json.Decoder(Locks)
_stuck = msgspec.json.Decoder(Stuck)
_terms = msgspec.json.Decoder(Terms)
_run = msgspec.msgpack.Decoder(tuple[dict[str, str], str, int, int])
_claim = msgspec.msgpack.Decoder(
    tuple[dict[str, str], str, int, int, tuple[str, ...], tuple[str, ...], tuple[tuple[int, int], ...]]
)
_KINDS = frozenset(get_args(Kind))
_texts = msgspec.msgpack.Decoder(tuple[str, ...])


# ---------------------------------------------------------------------------------------- commands


def _text(value: Any) -> str:
    return _json.encode(value).decode()


def _scalars(attributes: dict[str, Scalar]) -> str:
    """The attributes as they are stored. A number that is not whole would be another one when it is read again."""
    if not attributes:
        return ""
    text = _text(attributes)
    _attributes.decode(text)
    return text


def _all(kind: type, values: Sequence[Any]) -> Sequence[Any]:
    """A list as it is. Nothing would be the end of it for Lua, and the rest of it would be lost without a word."""
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
    return values


def _new(new: NewRun) -> Row:
    workflow = workflow_of(new.type)
    name = run_key_name(workflow, new.key)
    attributes, places = _scalars(new.attributes), ""
    if new.places:
        places = _text(new.places)
        _places.decode(places)  # one that cannot be read again would be in the way of every end
    first = new.id, new.type, new.input, new.request, new.key, name, new.parent, new.root or new.id, attributes
    return *first, places, new.terms, new.priority


def _ending(then: Then | None) -> Row | None:
    if then is None:
        return None
    return (s.PARK, then.due_at) if isinstance(then, Park) else (s.FINISH, then.status, then.result)


def _swap(swap: Swap) -> Row:
    return slot_name(swap.address), swap.expected, swap.version, swap.value


def _ask(ask: Ask) -> Row:
    if ask.kind not in _KINDS:
        raise ValueError(f"there is no kind of lock {ask.kind!r}")
    if ask.give:
        return ask.number, ask.key, True
    return ask.number, ask.key, False, ask.kind, ask.permits, ask.weight, ask.ttl


def _record(command: r.RecordRun) -> Row:
    row = (
        s.RECORD_RUN,
        command.run,
        command.fence,
        command.at,
        command.request,
        _all(str, command.entries),
        command.seen,
        _ending(command.then),
        [_new(child) for child in command.children],
        None if command.attributes is None else _scalars(command.attributes),
    )
    if command.swap is None and not command.asks and command.stuck is None:
        return row
    swap = None if command.swap is None else _swap(command.swap)
    stuck = None if command.stuck is None else _text(_all(str, command.stuck))
    return *row, swap, [_ask(ask) for ask in command.asks] or None, stuck


def _claim_runs(command: r.ClaimRuns) -> Row:
    types = _all(str, [name for pair in command.types for name in pair])
    return s.CLAIM_RUNS, command.worker, types, max(1, command.limit), command.suspects, _all(str, command.runs)


def _post(command: r.PostEvent) -> Row:
    event = command.event
    body = _text(replace(event, number=0, at=0) if event.number or event.at else event)
    _event.decode(body)  # one that cannot be read again would be in the way of every claim
    return s.POST_EVENT, command.run, body, event.key, event.kind


def _revive(command: r.ReviveRun) -> Row:
    row = (command.run, command.fence, command.keep, command.request, _all(int, command.forget), command.fresh)
    return s.REVIVE_RUN, *row


def _list(command: r.ListRuns) -> Row:
    wanted = command.wanted
    texts = (_all(str, wanted.statuses), wanted.workflow, wanted.prefix)
    attributes = _text(wanted.attributes) if wanted.attributes else ""
    return s.LIST_RUNS, max(1, command.limit), command.after, *texts, wanted.since, wanted.until, attributes


def _enlist(command: r.EnlistWorker) -> Row:
    text = _text(Worker(id=command.worker, name=command.name, types=command.types, since=0))
    _worker.decode(text)  # likewise
    return s.ENLIST_WORKER, command.worker, text.removesuffix(',"since":0}') + "}"


def _publish(command: r.PublishTerms) -> Row:
    text = _text(command.terms)
    _terms.decode(text)  # likewise
    return s.PUBLISH_TERMS, command.workflow, command.terms.digest, text


ROWS: dict[type[Command], Callable[[Any], Row]] = {
    r.StartRun: lambda command: (s.START_RUN, _new(command.new), command.worker),
    r.ClaimRuns: _claim_runs,
    r.RecordRun: _record,
    r.PostEvent: _post,
    r.ReviveRun: _revive,
    r.WatchRun: lambda command: (s.WATCH_RUN, command.run, command.id),
    r.SeeRun: lambda command: (s.SEE_RUN, command.run, command.history),
    r.ListRuns: _list,
    r.CountRuns: lambda _: (s.COUNT_RUNS,),
    r.OwnedRuns: lambda command: (s.OWNED_RUNS, command.worker),
    r.RunsOutlook: lambda command: (s.RUNS_OUTLOOK, _all(str, command.types)),
    r.ListWorkers: lambda _: (s.LIST_WORKERS,),
    r.EnlistWorker: _enlist,
    r.DismissWorker: lambda command: (s.DISMISS_WORKER, command.worker),
    r.PublishTerms: _publish,
    r.SeeTerms: lambda command: (s.SEE_TERMS, command.workflow),
}


# ---------------------------------------------------------------------------------------- outcomes


def _made(fields: dict[str, str], id: str, length: int, posted: int) -> Run:
    """A run, from the fields of its hash. The script has looked at them; this says so again in types."""
    get = fields.get
    try:
        return Run(
            id=id,
            type=fields["type"],
            status=fields["status"],  # type: ignore[arg-type]  # one of them, or the script had refused it
            created_at=int(fields["created_at"]),
            due_at=_moment(get("due_at")),
            worker=get("worker", ""),
            fence=int(get("fence") or 0),
            length=length,
            posted=posted,
            lives=int(get("lives") or 0),
            deaths=int(get("deaths") or 0),
            request=get("request", ""),
            last=get("last", ""),
            key=get("key", ""),
            parent=get("parent", ""),
            root=get("root", ""),
            started_at=_moment(get("started_at")),
            ended_at=_moment(get("ended_at")),
            result=get("result"),
            attributes=_attributes.decode(text) if (text := get("attributes")) else {},
            watchers=_names.decode(text) if (text := get("watchers")) else (),
            places=_places.decode(text) if (text := get("places")) else (),
            priority=int(get("priority") or 0),
            arrival=int(get("arrival") or 0),
            cancelling=bool(get("cancelling")),
            locks=_locks.decode(text) if (text := get("locks")) else (),
            stuck=_stuck.decode(text) if (text := get("stuck")) else None,
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise RecordUnreadable(
            f"the stored run {id!r} cannot be read ({error}). It was left untouched. It may be damaged: inspect it by "
            "hand.",
            key=id,
        ) from error


def _moment(text: str | None) -> int | None:
    return int(text) if text else None


def _run_at(place: int, texts: Texts) -> Run:
    return _made(*_run.decode(texts[place]))


def _claim_at(place: int, texts: Texts) -> out.Claim:
    fields, name, length, posted, entries, events, held = _claim.decode(texts[place])
    run = _made(fields, name, length, posted)
    return out.Claim(run=run, entries=entries, events=tuple(map(_event.decode, events)), held=held)


def _events_at(place: int | bool, texts: Texts) -> tuple[Event, ...]:  # noqa: FBT001  (false is the script's None)
    return () if place is False else tuple(map(_event.decode, _texts.decode(texts[place])))


def _verdict(answer: Answer) -> Verdict:
    if answer is False:
        return ADMITTED
    what, limit, key, most, retry_in = answer
    return Verdict(what, limit, key, most, None if retry_in is False else retry_in)


def _terms_at(place: int | bool, texts: Texts) -> Terms | None:  # noqa: FBT001
    return None if place is False else _terms.decode(texts[place])


def _started(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:
    run, verdict = _run_at(answer[2], texts), _verdict(answer[4])
    return out.Started(run=run, fresh=answer[3], now=now, verdict=verdict, woken=tuple(answer[1]))


def _published(command: r.PublishTerms, answer: Answer, texts: Texts, _: int) -> Outcome:
    terms = _terms_at(answer[3], texts) or command.terms
    return out.TermsPublished(terms=terms, fresh=answer[2], woken=tuple(answer[1]))


def _claimed(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:
    start, count = answer[2] + 1, answer[3]
    claims = tuple(_claim_at(place, texts) for place in range(start, start + count))
    due = None if answer[4] is False else answer[4]
    return out.Claimed(claims=claims, next_due=due, now=now, woken=tuple(answer[1]))


def _said(number: int, what: Any, token: int, floor: int, found: str) -> Said:
    return Said(number=number, what=what, token=token, floor=floor, found=found)


def _recorded(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:
    if answer == s.RECORDED:
        return out.Recorded(done=True, events=(), now=now)
    return out.Recorded(
        done=answer[2],
        taken=tuple(answer[3]),
        limited={name: _verdict(verdict) for name, verdict in answer[5]},
        said=tuple(_said(*said) for said in answer[6]),
        events=_events_at(answer[4], texts),
        now=now,
        woken=tuple(answer[1]),
    )


def _refused(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:  # noqa: ARG001
    return out.Refused(run=None if answer[2] is False else _run_at(answer[2], texts), holder=answer[3])


def _posted(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:  # noqa: ARG001
    run = _run_at(answer[4], texts)
    return out.Posted(number=answer[2], fresh=answer[3], run=run, woken=tuple(answer[1]))


def _seen(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:
    if answer == s.RUN_SEEN:
        return out.RunSeen(claim=None, holder="", expires_at=None, now=now)
    ends = None if answer[4] is False else answer[4]
    return out.RunSeen(claim=_claim_at(answer[2], texts), holder=answer[3], expires_at=ends, now=now)


def _page(command: r.ListRuns, answer: Answer, texts: Texts, now: int) -> Outcome:
    start, count = answer[2] + 1, answer[3]
    found = (_run_at(place, texts) for place in range(start, start + count))
    following = None if answer[4] is False else (answer[5], texts[answer[4]].decode())
    return out.RunPage(runs=tuple(run for run in found if command.wanted.fits(run)), next=following, now=now)


def _pairs(answer: Answer, texts: Texts) -> dict[str, int]:
    flat = _texts.decode(texts[answer[2]])
    return {name: int(float(number)) for name, number in zip(flat[::2], flat[1::2], strict=True)}


def _owned(_: Command, answer: Answer, texts: Texts, __: int) -> Outcome:
    found = msgspec.msgpack.decode(texts[answer[2]], type=list[tuple[str, str, int]])
    return out.Owned(runs={name: (int(float(fence)), posted) for name, fence, posted in found})


def _outlook(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:  # noqa: ARG001
    return out.Outlook(next_due=None if answer[2] is False else answer[2], now=now)


def _enlisted(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:  # noqa: ARG001
    return out.Enlisted() if answer == s.ENLISTED else out.Enlisted(woken=tuple(answer[1]))


def _workers_seen(_: Command, answer: Answer, texts: Texts, now: int) -> Outcome:  # noqa: ARG001
    return out.WorkersSeen(workers=tuple(_worker.decode(text) for text in _texts.decode(texts[answer[2]])))


READERS: dict[int, Callable[[Any, Answer, Texts, int], Outcome]] = {
    s.STARTED: _started,
    s.RUN_TAKEN: lambda _, answer, texts, __: out.RunTaken(run=_run_at(answer[2], texts)),
    s.CLAIMED: _claimed,
    s.WORKER_GONE: lambda *_: out.WorkerGone(),
    s.RECORDED: _recorded,
    s.REFUSED: _refused,
    s.POSTED: _posted,
    s.RUN_SEEN: _seen,
    s.RUN_PAGE: _page,
    s.CENSUS: lambda _, answer, texts, __: out.Census(counts=_pairs(answer, texts)),
    s.OWNED: _owned,
    s.OUTLOOK: _outlook,
    s.WORKERS_SEEN: _workers_seen,
    s.ENLISTED: _enlisted,
    s.LIMITED: lambda _, answer, __, ___: out.Limited(verdict=_verdict(answer[2])),
    s.TERMS_DIFFER: lambda _, answer, texts, __: out.TermsDiffer(terms=_terms_at(answer[2], texts)),
    s.TERMS_PUBLISHED: _published,
}
