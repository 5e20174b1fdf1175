"""What anybody can ask about runs, without driving them: the flows of the engine and of both clients.

Like all flows they do no I/O themselves. A start or a signal whose answer was lost is sent again and recognised.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ..commands.runs import ListRuns, PostEvent, ReadRun, ReviveRun, WatchRun
from ..errors import (
    HoldfastError,
    InvalidOption,
    RunEnded,
    RunLocked,
    RunResultTimeout,
    UnknownRun,
    WorkflowFailed,
)
from ..platform import elapsed
from ..rules.runs.outcomes import Claim, Limited, Posted, RunPage, RunRefused, RunSeen
from ..rules.runs.record import ANY_VERSION, LIVING, Run, RunEvent, Scalar, Status, ended_key
from ..rules.runs.repository import RunFilter
from ..runtime.codec import decode_value, encode_message
from ..runtime.flows import Flow, Wait, send
from ..validation import Duration, checked_count, checked_key, seconds
from . import journal as j
from .definition import Workflow
from .limits import exceeded
from .start import RunStarter, checked_attributes

LOOK_SECONDS = 1.0
"""Initial polling interval of `result()`, in seconds; also the fixed interval where no hints come."""
SELDOM_SECONDS = 15.0
"""Longest polling interval of `result()` where hints come."""
STATUSES = ("queued", "pending", "running", "suspended", "completed", "failed", "cancelled", "timed_out")
RETRIABLE = {"failed", "timed_out", "cancelled"}
RESTART = "restart-"
"""How the request of a restart begins, by which a driver knows that a history was removed."""
MAX_LISTED = 1_000_000
"""As many runs are on a page at most."""
_CURSOR = re.compile(r"(-?[0-9]{1,18}):(.+)", re.ASCII | re.DOTALL)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was when somebody looked. `holder` is the worker that drives it, `locks` what it has or waits for."""

    id: str
    workflow: str
    version: str | None
    status: Status
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    parent: str | None = None
    idempotency_key: str | None = None
    attributes: dict[str, Scalar]
    holder: str | None = None
    locks: tuple[str, ...] = ()
    entries: int = 0
    result: Any = None
    error: j.Failure | None = None

    @property
    def living(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVING


class RunsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs, the newest first, and the cursor of the next page (None: that was all)."""

    runs: tuple[RunInfo, ...]
    next: str | None


class RunQueries(RunStarter):
    """The flows, for one client."""

    def see(self, run_id: str, *, history: bool = False) -> Flow[tuple[Claim, RunSeen]]:
        """Look at a run, or raise `UnknownRun`."""
        outcome, _ = yield from send(ReadRun(run=checked_key(run_id, what="run id"), history=history))
        assert isinstance(outcome, RunSeen)  # noqa: S101
        if outcome.claim is None:
            raise _unknown(run_id)
        return outcome.claim, outcome

    def get(self, run_id: str) -> Flow[RunInfo]:
        """Look at a run."""
        claim, seen = yield from self.see(run_id)
        return info(claim.run, holder=seen.holder)

    def list(self, wanted: RunFilter, *, after: str | None, limit: int) -> Flow[RunsPage]:
        """Look at a page of runs."""
        cursor = None if after is None else _read_cursor(after)
        if checked_count(limit, what="limit") > MAX_LISTED:
            raise InvalidOption(f"limit={limit} is more than {MAX_LISTED}: ask for a page after the other, with after=")
        command = ListRuns(wanted=wanted, after=cursor, limit=limit)
        outcome, _ = yield from send(command)
        assert isinstance(outcome, RunPage)  # noqa: S101
        runs = tuple(info(run) for run in outcome.runs)
        return RunsPage(runs=runs, next=None if outcome.next is None else f"{outcome.next[0]}:{outcome.next[1]}")

    def post(self, run_id: str, event: RunEvent) -> Flow[Posted]:
        """Send an event to a living run."""
        outcome, _ = yield from send(PostEvent(run=checked_key(run_id, what="run id"), event=event))
        if isinstance(outcome, RunRefused):
            if outcome.run is None:
                raise _unknown(run_id)
            raise RunEnded(
                f"the run {run_id!r} has ended ({outcome.run.status}): nothing can be sent to it. Nothing was changed.",
                run_id=run_id,
                status=outcome.run.status,
            )
        assert isinstance(outcome, Posted)  # noqa: S101
        return outcome

    def signal(self, run_id: str, name: str, payload: Any, idempotency_key: str | None) -> Flow[None]:
        """Send a signal. Sent again with the same key it counts once."""
        key = secrets.token_hex(8) if idempotency_key is None else checked_key(idempotency_key, what="idempotency key")
        name = checked_key(name, what="signal name")
        text = encode_message(payload, what=f"the signal {name!r}", max_bytes=self.max_bytes)
        yield from self.post(run_id, RunEvent(kind="signal", name=name, payload=text, key=f"signal/{key}"))

    def cancel(self, run_id: str) -> Flow[None]:
        """Ask a run to stop. Twice is harmless."""
        try:
            yield from self.post(run_id, RunEvent(kind="cancel", key="cancel"))
        except RunEnded as error:
            if error.status != "cancelled":
                raise

    def result(self, run_id: str, output: Any, timeout: float | None, *, since: float | None = None) -> Flow[Any]:
        """Wait for a run's end, and return its result or raise what it failed with. The time counts from `since`."""
        runtime = self.client.runtime
        checked_key(run_id, what="run id")
        attempt = runtime.new_attempt()
        flag = runtime.flag(attempt)
        deadline = None if timeout is None else (elapsed() if since is None else since) + timeout
        watch = runtime.watched()
        pause = LOOK_SECONDS
        try:
            while True:
                flag.clear()
                outcome, _ = yield from send(WatchRun(run=run_id, id=attempt))
                assert isinstance(outcome, RunSeen)  # noqa: S101
                if outcome.claim is None:
                    raise _unknown(run_id)
                run = outcome.claim.run
                if not run.living:
                    return result_of(run, output)
                left = pause if deadline is None else min(pause, deadline - elapsed())
                if left <= 0:
                    raise (yield from self._not_in_time(run, outcome.holder, timeout))
                yield Wait(flag, left)
                if attempt in run.watchers and not watch.polls:
                    pause = min(2 * pause, SELDOM_SECONDS)
        finally:
            runtime.unflag(attempt)

    def _not_in_time(self, run: Run, holder: str, timeout: float | None) -> Flow[RunResultTimeout]:
        """The error for a run that has not ended in time. It says so if no living worker knows the workflow."""
        told = f"the run {run.id!r} did not end within {timeout or 0:g} s (status: {run.status})."
        try:
            able = bool(holder) or run.status == "queued" or bool((yield from self.who_can(run.type)))
        except HoldfastError:  # it is not known
            able = True
        if able:
            return RunResultTimeout(f"{told} The run goes on; call result() again to wait longer.")
        kind = run.type.removesuffix(ANY_VERSION)
        return RunResultTimeout(
            f"{told} No living worker knows the workflow {kind!r}. The run is kept: start a worker that knows it."
        )

    def revive(self, run_id: str, *, restart: bool, fence: int | None = None) -> Flow[RunInfo]:
        """Let a run go on after its failure, or begin anew with a new history; with `fence`, only while it has it."""
        claim, seen = yield from self.see(run_id, history=True)
        run = claim.run
        if fence is not None and run.fence != fence:  # somebody else has revived it
            return info(run, holder=seen.holder)
        if not restart and run.status not in RETRIABLE:
            raise InvalidOption(
                f"the run {run_id!r} is {run.status}: only one that failed, was cancelled or timed out can be retried. "
                "restart() begins a run anew."
            )
        keep, forget, children = cut(claim, restart=restart)
        kept = (j.decode_entry(text) for text in claim.entries[1:keep])
        # The time that it may take counts anew; where its own time began, the journal knows.
        fresh = restart or run.status == "timed_out" or any(isinstance(entry, j.Begun) for entry in kept)
        for child in {*children, *_left_behind(claim)}:
            yield from self._check_child(run_id, child)
        # One that was restarted and ended before its first record is still to look for children of its past.
        restarted = restart or (keep == 1 and run.last.startswith(RESTART))
        request = f"{RESTART if restarted else ''}{secrets.token_hex(8)}"
        outcome, _ = yield from send(
            ReviveRun(run=run_id, fence=run.fence, keep=keep, forget=forget, fresh=fresh, request=request)
        )
        if isinstance(outcome, Limited):
            raise exceeded(run.workflow, outcome.verdict)
        if isinstance(outcome, RunRefused):
            holder = outcome.holder or seen.holder
            raise RunLocked(
                f"the run {run_id!r} is driven by {holder or 'somebody else'}: cancel it first, or leave it to them",
                holder=holder or None,
            )
        assert isinstance(outcome, Posted)  # noqa: S101
        for child in children:
            yield from self._revive_child(run_id, child)
        return info(outcome.run)

    def _check_child(self, run_id: str, child: str) -> Flow[None]:
        """Raise if a child was cancelled with its parent and has not ended yet: the parent would fail with it."""
        try:
            claim, seen = yield from self.see(child)
        except UnknownRun:
            return
        if claim.run.living and claim.run.cancelling and claim.run.parent == run_id:
            raise RunLocked(
                f"the child {child!r} of the run {run_id!r} was cancelled and is still cleaning up: nothing was done. "
                "Try again when it has ended.",
                holder=seen.holder or None,
            )

    def _revive_child(self, run_id: str, child: str) -> Flow[None]:
        """Let a child of a run that goes on do so too; its parent must live by then, or it would not be told."""
        try:
            claim, _ = yield from self.see(child)
        except UnknownRun:  # it was wanted, and never started
            return
        run = claim.run
        if run.living or run.parent != run_id:
            return
        if run.status in RETRIABLE:
            yield from self.revive(child, restart=False)
        else:  # it went on by itself meanwhile, when there was nobody to be told
            end = {"status": run.status, "result": msgspec.Raw((run.result or "null").encode())}
            payload = msgspec.json.encode(end).decode()
            yield from self.post(run_id, RunEvent(kind="child", name=child, payload=payload, key=ended_key(run)))


def cut(claim: Claim, *, restart: bool) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """Return how many entries to keep, which events to remove, and which children to revive.

    Of a workflow with several attempts, `retry` is about the last one. After a `restart`, a child begins anew when the
    new history wants it.
    """
    told = [event.number for event in claim.events if event.kind in ("cancel", "lock", "deadlock")]
    ends = {event.number: event for event in claim.events if event.kind == "child"}
    entries = [j.decode_entry(text) for text in claim.entries[1:]]
    begun = _last_attempt(entries)
    left = [child for entry in entries[begun:] if isinstance(entry, j.Left) for child in entry.children]
    first = next((place for place, entry in enumerate(entries) if isinstance(entry, j.BegunAgain)), len(entries))
    attempts = [entry.seen for entry in entries[first:] if isinstance(entry, j.AttemptBegun)]
    if restart:
        read = [entry.event for entry in entries if isinstance(entry, j.Signalled)]
        return 1, tuple(sorted({*told, *read, *ends})), ()
    if begun == len(entries):  # in the pause between two attempts
        return begun + 1, tuple(told), ()
    earlier = attempts[-1] if attempts else 0
    failed = {number for number, event in ends.items() if j.read_end(event.payload).status != "completed"}
    failed = {number for number in failed if number > earlier}
    keep = _before_open_locks(entries, _before_failure(entries, failed))
    failed -= {entry.event for entry in entries[:keep] if isinstance(entry, j.ChildEnded)}
    again = [ends[number].name for number in sorted(failed)]
    return keep + 1, (*told, *sorted(failed)), tuple(dict.fromkeys([*again, *left]))


def _left_behind(claim: Claim) -> list[str]:
    """The children that may not have ended with the run, or with an attempt of it that failed."""
    entries = [j.decode_entry(text) for text in claim.entries[1:]]
    return [child for entry in entries if isinstance(entry, j.Left | j.BegunAgain) for child in entry.children]


def _last_attempt(entries: Sequence[j.AnyEntry]) -> int:
    """How many entries are of earlier attempts of the workflow."""
    return max((place for place, entry in enumerate(entries) if isinstance(entry, j.BegunAgain)), default=-1) + 1


def _before_failure(entries: Sequence[j.AnyEntry], failed: set[int]) -> int:
    """How many of these entries were there before the run was told to stop, or else before what failed in it last."""
    begun = _last_attempt(entries)
    for place in range(begun, len(entries)):
        if isinstance(entries[place], j.CancelAsked):
            return place
    for place in range(len(entries) - 1, begun - 1, -1):
        entry = entries[place]
        if isinstance(entry, j.StepLost | j.LockRefused | j.LockLost):
            return place
        if isinstance(entry, j.ChildEnded) and entry.event in failed:
            return place
    keep = len(entries)
    while keep and isinstance(entries[keep - 1], j.Left):
        keep -= 1
    return keep


def _before_open_locks(entries: Sequence[j.AnyEntry], keep: int) -> int:
    """How many of these entries a run keeps that has no lock any more: those before a block that had not ended.

    With what is cut off then, the end of another block may be cut off, too.
    """
    while True:
        open_since: dict[int, int] = {}
        for place, entry in enumerate(entries[:keep]):
            if isinstance(entry, j.LockGranted):
                open_since[entry.number] = place
            elif isinstance(entry, j.LockGiven | j.LockLost):
                open_since.pop(entry.number, None)
            elif isinstance(entry, j.BegunAgain):
                open_since.clear()
        if not open_since:
            return keep
        keep = min(open_since.values())


def wanted_runs(
    *,
    status: str | tuple[str, ...] | list[str] | None,
    workflow: Workflow[Any, Any] | str | None,
    since: datetime | None,
    until: datetime | None,
    attributes: Mapping[str, Scalar] | None,
    prefix: str,
) -> RunFilter:
    """Check which runs are to be listed."""
    if status is not None and not isinstance(status, Iterable):
        raise InvalidOption(f"status={status!r} is neither text nor a list: give any of {', '.join(STATUSES)}")
    statuses = () if status is None else (status,) if isinstance(status, str) else tuple(status)
    for one in statuses:
        if one not in STATUSES:
            raise InvalidOption(f"there is no status {one!r}: it is one of {', '.join(STATUSES)}")
    name = workflow.name if isinstance(workflow, Workflow) else workflow
    return RunFilter(
        statuses=statuses,
        workflow="" if name is None else checked_key(name, what="workflow name"),
        prefix="" if prefix == "" else checked_key(prefix, what="prefix"),
        since=None if since is None else _microseconds(since, "since"),
        until=None if until is None else _microseconds(until, "until"),
        attributes=checked_attributes({} if attributes is None else attributes),
    )


def info(run: Run, holder: str = "") -> RunInfo:
    """What people see of a run."""
    completed = run.status == "completed" and run.result is not None
    failed = run.result is not None and not completed
    version = run.type.partition("@")[2]
    return RunInfo(
        id=run.id,
        workflow=run.workflow,
        version=version if version not in {"", "*"} else None,
        status=run.status,
        created_at=_time(run.created_at),
        started_at=None if run.started_at is None else _time(run.started_at),
        ended_at=None if run.ended_at is None else _time(run.ended_at),
        due_at=None if run.due_at is None or run.due_at < 0 else _time(run.due_at),
        parent=run.parent or None,
        idempotency_key=run.key or None,
        attributes=run.attributes,
        holder=holder or None,
        locks=tuple(key for _, key in run.locks),
        entries=run.length,
        result=msgspec.json.decode(run.result or "null") if completed else None,
        error=j.read_failure(run.result or "") if failed else None,
    )


def result_of(run: Run, output: Any) -> Any:
    """The result of a run that has ended, or what it failed with."""
    if run.status == "completed":
        return decode_value(run.result or "null", output, what=f"the result of the run {run.id!r}")
    failure = j.read_failure(run.result or "")
    raise WorkflowFailed(
        f"the run {run.id!r} of {run.workflow!r} is {run.status}: {failure}",
        run_id=run.id,
        status=run.status,
        kind=failure.type,
        detail=failure.message,
        traceback=failure.traceback,
    )


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(f"there is no run with the id {run_id!r} in this namespace", run_id=run_id)


def _time(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def _microseconds(when: datetime, what: str) -> int:
    if not isinstance(when, datetime):
        raise InvalidOption(
            f"{what}={when!r} is no datetime: give one with a time zone, such as datetime.now(UTC) - timedelta(hours=2)"
        )
    if when.tzinfo is None:
        raise InvalidOption(f"a time needs a time zone, such as datetime.now(UTC), and {when!r} has none")
    return (when - EPOCH) // timedelta(microseconds=1)


def _read_cursor(text: str) -> tuple[int, str]:
    found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidOption(f"after={text!r} is not the `next` of a page of runs: give it as it was, or None")
    return int(found[1]), checked_key(found[2], what="run id of `after`")


def checked_timeout(timeout: Duration | None) -> float | None:
    """How long to wait for a result; None: for ever."""
    return None if timeout is None else seconds(timeout, what="timeout")
