"""`runs.import_`: stores a run that was exported from another store, to debug it in this one.

By default nothing of the run is executed: a run that had not ended is written as `cancelled`, without its locks. Only
with `run=True` the run continues in this store, like a fork of its history, but with the same id.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..commands.runs import ImportRun, ReadRun
from ..errors import HoldfastError, InvalidOption, InvalidValue, RunExists
from ..rules.runs.outcomes import Claim, RunSeen, RunTaken, Started
from ..rules.runs.record import Finish, Run, finished
from ..runtime.flows import Flow, send
from ..validation import checked_key
from . import journal as j
from .forking import kept_entries, past_of, start_with
from .history import RunHistory
from .queries import RunInfo, RunQueries, before_open_locks, info
from .start import checked_run_id

LARGEST = 2**62
"""Numbers of a file are smaller: some stores keep them in 64 bits."""
LATEST = 253_370_764_800_000_000
"""Times of a file are not after the beginning of the year 9999, in microseconds: later ones cannot be shown."""
IMPORTED = j.Failure("RunImported", "it was imported while it was %s, and does not continue by itself")


def import_history(queries: RunQueries, history: RunHistory, *, id: str | None, run: bool) -> Flow[RunInfo]:
    """Write the run of a history; with `run`, let it continue."""
    claim = checked(history)
    new_id = claim.run.id if id is None else id
    if run or id is not None:  # a run that is only kept may have the id of a generation
        checked_run_id(new_id)
    seen, _ = yield from send(ReadRun(run=new_id))
    assert isinstance(seen, RunSeen)  # noqa: S101
    if seen.claim is not None:
        raise _exists(new_id, seen.claim.run)
    if run:
        return (yield from _continued(queries, claim, new_id))
    entries, events, found = claim.entries, claim.events, claim.run
    if new_id != found.id:
        past = past_of(claim, new_id, len(entries) - 1, unread=True)
        entries, events = (entries[0], *past.entries), past.events
        found = replace(found, id=new_id, key="", parent="", root=new_id, length=len(entries))
    found = replace(_ended(found, seen.now), replaces="", replaced_by="")  # those runs are not here
    outcome, _ = yield from send(ImportRun(imported=found, entries=entries, events=events))
    if isinstance(outcome, RunTaken) and outcome.run != found:  # the same run: this command was sent again
        raise _exists(new_id, outcome.run)
    return info(outcome.run if isinstance(outcome, Started) else found)


def _continued(queries: RunQueries, claim: Claim, id: str) -> Flow[RunInfo]:
    run = claim.run
    if run.status == "completed":
        raise InvalidOption(
            f"the run {run.id!r} has completed, so it cannot continue. Nothing was changed: import it without "
            "run=True, and fork it from a step."
        )
    entries = [j.decode_entry(text) for text in claim.entries[1:]]
    keep = before_open_locks(entries, len(entries)) if run.living else kept_entries(claim, None)
    past = past_of(claim, id, keep, unread=True)
    return (yield from start_with(queries, claim, id, past))


def _ended(run: Run, now: int) -> Run:
    """The record of a run that nobody drives and that has ended."""
    if not run.living:
        return run
    failure = replace(IMPORTED, message=IMPORTED.message % run.status)
    return finished(run, now, Finish("cancelled", j.write_failure(failure)))


def _exists(id: str, run: Run) -> RunExists:
    if run.id != id:
        return RunExists(
            f"the run {run.id!r} of {run.workflow!r} has the idempotency key of this run already. Nothing was changed. "
            "Give the import an id of its own: then it has no idempotency key.",
            run_id=run.id,
            status=run.status,
        )
    return RunExists(
        f"there is a run with the id {id!r} already, of {run.workflow!r} ({run.status}). Nothing was changed. Import "
        "it under another id.",
        run_id=id,
        status=run.status,
    )


def checked(history: RunHistory) -> Claim:
    """The history, if its parts fit together. Raises `InvalidValue`."""
    if not isinstance(history, RunHistory):
        raise InvalidOption(f"{history!r} is no history: give a RunHistory, or the name of a file")
    run, entries, events = history.run, history.entries, history.events
    try:
        checked_key(run.id, what="run id")
        checked_key(run.type, what="workflow name")
        times = [j.decode_entry(entry).at for entry in entries[1:]]
        for event in events:
            times.append(event.at)
            msgspec.json.decode(event.payload)
            if event.kind == "child":
                j.read_end(event.payload)
        for text in (run.details, run.result):
            if text is not None:
                msgspec.json.decode(text)
        info(run)  # what every list and query does with it
    except (HoldfastError, msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise _damaged(run, str(error)) from error
    numbers = [event.number for event in events]
    if not entries or run.length != len(entries):
        raise _damaged(run, f"the run has {run.length} entries, and the file {len(entries)}")
    if numbers != sorted({number for number in numbers if 0 < number <= run.posted}):
        raise _damaged(run, "the numbers of its events are not in order")
    counts = (run.fence, run.posted, run.claims, run.priority, run.arrival, run.timeout)
    if any(number is not None and abs(number) > LARGEST for number in counts):
        raise _damaged(run, "a number is too large")
    times += [run.created_at, *(time for time in _times_of(run) if time is not None)]
    if not all(0 <= time <= LATEST for time in times):
        raise _damaged(run, "a time is before 1970 or after 9998")
    if run.living == (run.ended_at is not None):
        raise _damaged(run, f"it is {run.status}, and ended at {run.ended_at}")
    return Claim(run=run, entries=entries, events=events)


def _times_of(run: Run) -> tuple[int | None, ...]:
    return (run.started_at, run.ended_at, run.continued_at, run.not_before)


def _damaged(run: Run, why: str) -> InvalidValue:
    return InvalidValue(f"the history of the run {run.id!r} is damaged: {why.rstrip('.')}. Nothing was changed.")
