"""`runs.fork`: a new run that has the history of another run up to a step, and continues from there.

The kept entries are not changed, and keep the numbers of their events, so that the code replays them as in the other
run. An entry `Forked` before them contains what the replay needs from the other run. Some things stay with the other
run and are not copied: its locks, its children that have not ended, its unread signals, its places in limits.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import InvalidOption
from ..rules.runs.outcomes import Claim
from ..rules.runs.record import NewRun, Past, Run, RunEvent, escaped, generation_id
from ..runtime.codec import encode_message
from ..runtime.flows import Flow
from . import journal as j
from .limits import exceeded
from .queries import RETRIABLE, RunInfo, RunQueries, before_open_locks, cut, info, last_attempt
from .replay import seed_of
from .start import checked_run_id

NAMED = 20
"""How many steps an error names at most."""
_COUNT = re.compile(r"#[0-9]+\Z")


def fork(queries: RunQueries, run_id: str, *, from_step: str | None, input: Any, id: str | None) -> Flow[RunInfo]:
    """Start a run with the history of another one up to a step; without a step, up to its failure."""
    new_id = secrets.token_hex(8) if id is None else checked_run_id(id)
    text = None
    if input is not msgspec.UNSET:
        text = encode_message(input, what=f"the input of the fork of {run_id!r}", max_bytes=queries.max_bytes)
    claim, _ = yield from queries.see(run_id, history=True)
    past = past_of(claim, new_id, kept_entries(claim, from_step), step=from_step or "")
    return (yield from start_with(queries, claim, new_id, past, input=text))


def start_with(queries: RunQueries, claim: Claim, id: str, past: Past, *, input: str | None = None) -> Flow[RunInfo]:
    """Start a run of the same type that continues from there."""
    run = claim.run
    new = NewRun(
        id=id,
        type=run.type,
        input=claim.entries[0] if input is None else input,
        request=secrets.token_hex(8),
        attributes=run.attributes,
        priority=run.priority,
        timeout=run.timeout,
    )
    started = yield from queries.start(new, workflow=run.workflow, past=past)
    if started.run.id != id:  # a limit returned the run that is there instead
        raise exceeded(run.workflow, started.verdict)
    return info(started.run)


def kept_entries(claim: Claim, from_step: str | None) -> int:
    """How many entries after the input are kept."""
    run = claim.run
    entries = [j.decode_entry(text) for text in claim.entries[1:]]
    if from_step is None:
        if run.status not in RETRIABLE:
            raise InvalidOption(
                f"the run {run.id!r} is {run.status}: from_step= must name the step where the fork continues. Only "
                "a run that failed, was cancelled or timed out is forked from its failure. Nothing was started."
            )
        return cut(claim, restart=False)[0] - 1
    begun = last_attempt(entries)
    ids = [getattr(entry, "id", "") for entry in entries]
    if not from_step or from_step not in ids[begun:]:
        raise _unknown_step(run, from_step, ids, begun)
    first = ids.index(from_step, begun)
    if any(isinstance(entry, j.CancelAsked) for entry in entries[begun:first]):
        raise InvalidOption(
            f"the run {run.id!r} was cancelled before the step {from_step!r}, and a fork would be cancelled too: name "
            "an earlier step. Nothing was started."
        )
    return before_open_locks(entries, first)


def _unknown_step(run: Run, step: str, ids: Sequence[str], begun: int) -> InvalidOption:
    if step in ids[:begun]:
        return InvalidOption(
            f"the step {step!r} of the run {run.id!r} belongs to an earlier attempt of the workflow, and only the last "
            "attempt can be forked. Nothing was started."
        )
    named = list(dict.fromkeys(filter(None, ids[begun:])))
    more = ", ..." if len(named) > NAMED else ""
    there = f"It has {', '.join(map(repr, named[-NAMED:]))}{more}" if named else "Its history has no steps yet"
    return InvalidOption(f"the run {run.id!r} has no recorded step {step!r}. {there}. Nothing was started.")


def past_of(claim: Claim, id: str, keep: int, *, step: str = "", unread: bool = False) -> Past:
    """What a run with this id has from the first `keep` entries of another one; with `unread`, also its signals."""
    run = claim.run
    entries = [j.decode_entry(text) for text in claim.entries[1:]]
    begun = last_attempt(entries)
    before = entries[0] if entries and isinstance(entries[0], j.Forked) else None
    continued = j.continued_entry(claim.entries)
    last = [_own(entry, run, id) for entry in entries[begun:keep] if not isinstance(entry, _NOT_KEPT)]
    _check_state(run, last)
    began = before.began if before is not None else run.started_at or run.created_at
    began = next((entry.at for entry in entries if isinstance(entry, j.Begun)), began)
    numbers, children = _children(claim, last, max((entry.at for entry in last), default=began))
    read = {entry.event for entry in last if isinstance(entry, j.Signalled | j.ChildEnded | j.CancelAsked)} | numbers
    if unread:
        read |= {event.number for event in claim.events if event.kind == "signal"}
    earlier = [_own(entry, run, id) for entry in entries[:begun] if isinstance(entry, j.BegunAgain | j.AttemptBegun)]
    forked = j.Forked(
        at=began,
        runs=(generation_id(run.id, run.generation), *(() if before is None else before.runs)),
        step=step,
        seed=seed_of(run, before),
        began=began,
        kept=len(earlier) + len(last),
        children=tuple(sorted(children)),
        continued=None if continued is None else _own_continued(continued, run, id),
    )
    return Past(
        entries=tuple(map(j.encode_entry, (forked, *earlier, *last))),
        events=tuple(event for event in claim.events if event.number in read),
        posted=run.posted,
        generation=run.generation,  # the code of the kept part may have used it
    )


_NOT_KEPT = j.Begun | j.Left | j.Forked | j.Continued


def _own(entry: j.AnyEntry, run: Run, id: str) -> j.AnyEntry:
    """An entry as it is in the fork: without children of the other run, and with locks of its own tree."""
    if isinstance(entry, j.BegunAgain):
        return replace(entry, children=())
    if isinstance(entry, j.LockGranted):
        return replace(entry, key=_own_key(entry.key, run, id))
    return entry


def _own_continued(continued: j.Continued, run: Run, id: str) -> j.Continued:
    """How the generation began, as it is in the fork: the locks that it began with are asked for by their keys."""
    locks = tuple(replace(lock, key=_own_key(lock.key, run, id)) for lock in continued.locks)
    return replace(continued, children=(), abandoned=(), cancelled=(), signals=(), locks=locks)


def _own_key(key: str, run: Run, id: str) -> str:
    """The key of a lock; of one that only the tree of the run shares, the key in the tree of the fork."""
    tree = f"execution/{escaped(run.root or run.id)}/"
    return f"execution/{escaped(id)}/{key.removeprefix(tree)}" if key.startswith(tree) else key


def _children(claim: Claim, entries: Sequence[j.AnyEntry], until: int) -> tuple[set[int], set[str]]:
    """The children that had ended, and the events of their ends; also of those that nobody had waited for yet."""
    numbers, children = set[int](), set[str]()
    for entry in entries:
        if isinstance(entry, j.ChildEnded):
            numbers.add(entry.event)
            children.add(entry.id)
        elif isinstance(entry, j.StepLost) and entry.child and "/" in entry.id:  # refused, under an id of its parent
            children.add(entry.id)
    for event in claim.events:
        if event.kind == "child" and event.at <= until and event.name not in children and _completed(event):
            numbers.add(event.number)
            children.add(event.name)
    return numbers, children


def _completed(event: RunEvent) -> bool:
    return j.read_end(event.payload).status == "completed"


def _check_state(run: Run, entries: Sequence[j.AnyEntry]) -> None:
    """Raise where the entries depend on state of the other run's tree, which the fork does not share."""
    for entry in entries:
        if isinstance(entry, j.StepDone) and entry.id.startswith("state#"):
            key, _, name = _COUNT.sub("", entry.id.removeprefix("state#")).rpartition(".")
            if entry.args == j.arguments_hash((("execution", run.root or run.id, key), name), {}):
                raise InvalidOption(
                    f"the history of the run {run.id!r} uses the state {key!r} of the scope 'execution' before this "
                    f"place ({entry.id!r}), and a fork does not share that state: fork from {entry.id!r} or from an "
                    "earlier step. Nothing was started."
                )
