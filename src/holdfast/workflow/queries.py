"""Queries and commands about runs that need no driver: the flows of the engine and of both clients.

Like all flows they do no I/O themselves. A start or a signal whose reply was lost is sent again and recognised.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..commands import ListRecords, RecordPage
from ..commands.runs import FailRun, ListRuns, PostEvent, ReadRun, ReviveRun, UnblockRun, WatchRun
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
from ..rules.runs.cancel_reasons import cancel_payload, limit_reason
from ..rules.runs.heartbeat_records import StepHeartbeat
from ..rules.runs.outcomes import Claim, Limited, Posted, RunPage, RunRefused, RunSeen
from ..rules.runs.record import (
    ANY_VERSION,
    LIVING,
    SHOWN,
    Block,
    LimitCancel,
    Run,
    RunEvent,
    Scalar,
    Status,
    ended_key,
    is_child_of,
    never_began,
)
from ..rules.runs.repository import RunFilter
from ..rules.runs.tree import TREE_MEMBER, TreeMember, tree_prefix
from ..runtime.codec import decode_value, encode_value
from ..runtime.flows import Flow, Wait, send
from ..validation import MICROSECONDS, Duration, checked_count, checked_key, microseconds_of_time, seconds, time_of
from . import journal as j
from .cancelling import checked_reason
from .definition import Workflow
from .limits import exceeded
from .start import RunStarter, checked_attributes

POLL_SECONDS = 1.0
"""Initial polling interval of `result()`, in seconds; also the fixed interval without notifications."""
MAX_POLL_SECONDS = 15.0
"""Longest polling interval of `result()` with notifications."""
STATUSES = SHOWN
RETRIABLE = {"failed", "timed_out", "cancelled"}
CHANGES_BESIDE = 5
"""How often a run that is given up may have been recorded meanwhile, before the caller gets an error."""
RESTART = "restart-"
"""The beginning of the request id of a restart, by which a driver knows that a history was removed."""
MAX_LISTED = 1_000_000
"""The largest `limit` of a page of runs."""
_CURSOR = re.compile(r"(-?[0-9]{1,18}):(.+)", re.ASCII | re.DOTALL)


class BlockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run is blocked, since when, and how often it was tried; `code` is the version of the last engine."""

    reason: j.Failure
    since: datetime
    tries: int
    code: str | None = None


class LimitCancelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run was cancelled because a limit was full when the run `run` started; None: when it started itself."""

    limit: str
    run: str | None = None

    def __str__(self) -> str:
        return limit_reason(self.limit, self.run or "")


class HeartbeatInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The last heartbeat of a step that has no result yet, and its details.

    If no further one comes before `expires_at`, another worker takes the run over; None: no worker waits for it.
    """

    step: str
    attempt: int
    at: datetime
    expires_at: datetime | None = None
    details: Any = None


class Incarnation:
    """Which of the runs that an id has had one after another a caller waits for: the first one that it has seen."""

    def __init__(self, first: int | None = None) -> None:
        self.first = first
        """The generation with which that run began; None: no run was seen yet."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was when it was read. `holder` is the worker that drives it; it holds or waits for `locks`.

    `code` is the version of the engine that drove it last; `blocked` says why no code that was tried can continue it.
    `generation` counts the histories that its id has had: `started_at` and `entries` are about the current one;
    `continued_at` is when the run itself began a new one. `replaces` is the id under which the ended run is kept that
    this one has replaced; `replaced_by` is the id of the run that has replaced this one. `cancelled_by` is the limit
    that has cancelled it; `cancel_reason` is the reason of the first cancel that was requested. `timeout` is its own
    one, in seconds, if its start has given one; `starts_at` is when a run begins, at the earliest, whose start was
    delayed and that has not begun. `details` is what its code has set by `ctx.set_details`. `heartbeats` are the last
    ones of steps that have no result yet.
    """

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
    code: str | None = None
    blocked: BlockInfo | None = None
    generation: int = 1
    continued_at: datetime | None = None
    replaces: str | None = None
    replaced_by: str | None = None
    cancelled_by: LimitCancelInfo | None = None
    cancel_reason: str | None = None
    timeout: float | None = None
    starts_at: datetime | None = None
    details: Any = None
    heartbeats: tuple[HeartbeatInfo, ...] = ()

    @property
    def living(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVING


class RunsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, the newest first, and the cursor of the next page (None: this is the last page)."""

    runs: tuple[RunInfo, ...]
    next: str | None


class RunQueries(RunStarter):
    """The flows, for one client."""

    def see(self, run_id: str, *, history: bool = False) -> Flow[tuple[Claim, RunSeen]]:
        """Read a run, or raise `UnknownRun`."""
        outcome, _ = yield from send(ReadRun(run=checked_key(run_id, what="run id"), history=history))
        assert isinstance(outcome, RunSeen)  # noqa: S101
        if outcome.claim is None:
            raise unknown_run(run_id)
        return outcome.claim, outcome

    def get(self, run_id: str) -> Flow[RunInfo]:
        """Read a run."""
        claim, seen = yield from self.see(run_id)
        return info(claim.run, holder=seen.holder)

    def list(self, wanted: RunFilter, *, after: str | None, limit: int) -> Flow[RunsPage]:
        """Read a page of runs."""
        cursor = None if after is None else _read_cursor(after)
        if checked_count(limit, what="limit") > MAX_LISTED:
            raise InvalidOption(f"limit={limit} is more than {MAX_LISTED}: read one page after the other, with after=")
        command = ListRuns(wanted=wanted, after=cursor, limit=limit)
        outcome, _ = yield from send(command)
        assert isinstance(outcome, RunPage)  # noqa: S101
        runs = tuple(info(run) for run in outcome.runs)
        return RunsPage(runs=runs, next=None if outcome.next is None else f"{outcome.next[0]}:{outcome.next[1]}")

    def post(self, run_id: str, event: RunEvent) -> Flow[Posted]:
        """Send an event to a run that has not ended."""
        outcome, _ = yield from send(PostEvent(run=checked_key(run_id, what="run id"), event=event))
        if isinstance(outcome, RunRefused):
            if outcome.run is None:
                raise unknown_run(run_id)
            raise RunEnded(
                f"the run {run_id!r} has ended ({outcome.run.status}), so it cannot receive anything. Nothing was "
                f"changed.{_successor(outcome.run)}",
                run_id=run_id,
                status=outcome.run.status,
            )
        assert isinstance(outcome, Posted)  # noqa: S101
        return outcome

    def signal(self, run_id: str, name: str, payload: Any, idempotency_key: str | None) -> Flow[None]:
        """Send a signal. With the same idempotency key it counts once."""
        yield from self.post(run_id, self.signal_event(name, payload, idempotency_key))

    def cancel(self, run_id: str, reason: str | None = None) -> Flow[None]:
        """Request the cancellation of a run; a second request has no effect."""
        payload = cancel_payload(checked_reason(reason))
        try:
            yield from self.post(run_id, RunEvent(kind="cancel", key="cancel", payload=payload))
        except RunEnded as error:
            if error.status != "cancelled":
                raise

    def result(
        self,
        run_id: str,
        output: Any,
        timeout: float | None,
        *,
        since: float | None = None,
        awaited: Incarnation | None = None,
    ) -> Flow[Any]:
        """Wait for a run's end, and return its result or raise its error. `timeout` counts from `since`.

        If the run is replaced meanwhile, this still waits for the run that had the id at first, under its new id.
        """
        awaited = awaited or Incarnation()
        name = run_id
        runtime = self.client.runtime
        checked_key(run_id, what="run id")
        attempt = runtime.new_attempt()
        flag = runtime.flag(attempt)
        deadline = None if timeout is None else (elapsed() if since is None else since) + timeout
        watch = runtime.watched()
        pause = POLL_SECONDS
        try:
            while True:
                flag.clear()
                outcome, _ = yield from send(WatchRun(run=name, id=attempt))
                assert isinstance(outcome, RunSeen)  # noqa: S101
                if outcome.claim is None:
                    raise unknown_run(name)
                run = outcome.claim.run
                if awaited.first is None:
                    awaited.first = run.first
                if run.first > awaited.first:  # the id has another run now, which knows where the ended one is kept
                    if not run.replaces:  # that was purged
                        raise unknown_run(run_id)
                    name = run.replaces
                    continue
                if not run.living:
                    return result_of(run, output)
                left = pause if deadline is None else min(pause, deadline - elapsed())
                if left <= 0:
                    raise (yield from self._not_in_time(run, outcome.holder, timeout))
                yield Wait(flag, left)
                if attempt in run.watchers and not watch.polls:
                    pause = min(2 * pause, MAX_POLL_SECONDS)
        finally:
            runtime.unflag(attempt)

    def _not_in_time(self, run: Run, holder: str, timeout: float | None) -> Flow[RunResultTimeout]:
        """The error for a run that has not ended in time. Its text says if no running worker knows the workflow."""
        late = f"the run {run.id!r} did not end within {timeout or 0:g} s (status: {run.status})."
        if run.block is not None:
            return RunResultTimeout(
                f"{late} The code that was tried cannot continue it: {j.read_failure(run.block.reason)} The run keeps "
                "its history and its locks, and continues when an engine has code that fits."
            )
        try:
            able = bool(holder) or run.status == "queued" or bool((yield from self.who_can(run.type)))
        except HoldfastError:  # this is not known
            able = True
        if able:
            return RunResultTimeout(f"{late} The run continues; call result() again to wait longer.")
        kind = run.type.removesuffix(ANY_VERSION)
        return RunResultTimeout(
            f"{late} No running worker knows the workflow {kind!r}. The run is kept: start a worker that knows it."
        )

    def revive(self, run_id: str, *, restart: bool, fence: int | None = None) -> Flow[RunInfo]:
        """Continue a run after its failure, or restart it with a new history; with `fence`, only if it is current."""
        claim, seen = yield from self.see(run_id, history=True)
        run = claim.run
        if fence is not None and run.fence != fence:  # another caller has revived it
            return info(run, holder=seen.holder)
        if not restart and run.block is not None:
            return (yield from self._unblock(run))
        if run.replaced_by:
            raise InvalidOption(
                f"the run {run_id!r} was replaced: the id {run.replaced_by!r}, under which it ran, belongs to another "
                "run now, so it can neither be retried nor restarted. Nothing was changed. Start a new run with its "
                "input."
            )
        if not restart and run.status not in RETRIABLE:
            raise InvalidOption(
                f"the run {run_id!r} is {run.status}, and only a run that failed, was cancelled or timed out can be "
                "retried. Nothing was changed. restart() runs it again with a new history."
            )
        keep, forget, children = cut(claim, restart=restart)
        kept = (j.decode_entry(text) for text in claim.entries[1:keep])
        # Its timeout begins again; the journal contains when its own time began.
        fresh = restart or run.status == "timed_out" or any(isinstance(entry, j.Begun | j.Forked) for entry in kept)
        for child in {*children, *_left_behind(claim)}:
            yield from self._check_child(run, child, revived=child in children)
        # A run that was restarted, and ended before its first record, must still look for children of its old history.
        restarted = restart or (keep == j.beginning(claim.entries) and run.last.startswith(RESTART))
        request = f"{RESTART if restarted else ''}{secrets.token_hex(8)}"
        outcome, _ = yield from send(
            ReviveRun(run=run_id, fence=run.fence, keep=keep, forget=forget, fresh=fresh, request=request)
        )
        if isinstance(outcome, Limited):
            raise exceeded(run.workflow, outcome.verdict)
        if isinstance(outcome, RunRefused):
            if outcome.run is None:  # it was purged meanwhile
                raise unknown_run(run_id)
            holder = outcome.holder or seen.holder
            raise RunLocked(
                f"the run {run_id!r} is driven by {holder or 'another worker'}. Nothing was changed. Cancel the run "
                "first, or wait for its end.",
                holder=holder or None,
            )
        assert isinstance(outcome, Posted)  # noqa: S101
        for child in children:
            yield from self._revive_child(run, child)
        return info(outcome.run)

    def _unblock(self, run: Run) -> Flow[RunInfo]:
        """Let a blocked run be tried at once."""
        restarted = run.last.startswith(RESTART)  # the next driver must know it
        request = f"{RESTART if restarted else ''}{secrets.token_hex(8)}"
        outcome, _ = yield from send(UnblockRun(run=run.id, fence=run.fence, request=request))
        if isinstance(outcome, Posted):
            return info(outcome.run)
        return (yield from self.get(run.id))  # it is being tried already, or has ended

    def fail(self, run_id: str, reason: str) -> Flow[RunInfo]:
        """End a run as failed that no worker drives."""
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidOption(f"reason={reason!r} is no text that says why the run is given up. Nothing was changed.")
        encode_value(reason, what="the reason")
        failure = j.write_failure(j.Failure("RunFailed", reason))
        for _ in range(CHANGES_BESIDE):
            claim, seen = yield from self.see(run_id)
            run = claim.run
            if not run.living:
                raise RunEnded(
                    f"the run {run_id!r} has ended ({run.status}). Nothing was changed.{_successor(run)}",
                    run_id=run_id,
                    status=run.status,
                )
            children, cancels = yield from self._living_children(run)
            entry = j.encode_entry(j.Left(at=seen.now, children=children)) if children else ""
            outcome, _ = yield from send(
                FailRun(
                    run=run_id,
                    fence=run.fence,
                    last=run.last,
                    reason=failure,
                    entry=entry,
                    request=secrets.token_hex(8),
                    cancels=cancels,
                )
            )
            if not isinstance(outcome, RunRefused) or outcome.holder or outcome.run is None:
                break
        if isinstance(outcome, RunRefused):
            if outcome.run is None:
                raise unknown_run(run_id)
            holder = outcome.holder or seen.holder
            raise RunLocked(
                f"the run {run_id!r} is driven by {holder or 'another worker'}. Nothing was changed. Cancel it: "
                "only a run that no worker drives can be given up.",
                holder=holder or None,
            )
        assert isinstance(outcome, Posted)  # noqa: S101
        return info(outcome.run)

    def _living_children(self, run: Run) -> Flow[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The children of a run that have not ended: a later retry must know of them; and those that end with it."""
        found: list[str] = []
        cancels: list[str] = []
        after = ""
        while True:
            command = ListRecords(kind=TREE_MEMBER.name, prefix=tree_prefix(run.root), after=after)
            page, _ = yield from send(command)
            assert isinstance(page, RecordPage)  # noqa: S101
            members = [item.record for item in page.items if isinstance(item.record, TreeMember)]
            for member in members:
                if member.parent == run.id:
                    outcome, _ = yield from send(ReadRun(run=member.id))
                    child = outcome.claim.run if isinstance(outcome, RunSeen) and outcome.claim is not None else None
                    if child is not None and child.living and is_child_of(child, run):
                        found.append(member.id)
                        cancels += [member.id] if child.on_parent_end == "cancel" else []
            if page.next is None:
                return tuple(found), tuple(cancels)
            after = page.next

    def _check_child(self, parent: Run, child: str, *, revived: bool) -> Flow[None]:
        """Raise if a child was cancelled with its parent and has not ended yet: the parent would fail because of it.

        Raise too if it is to be revived and was replaced: its parent would never receive an end of it.
        """
        try:
            claim, seen = yield from self.see(child)
        except UnknownRun:
            return
        if revived and claim.run.replaces and not is_child_of(claim.run, parent):
            raise InvalidOption(
                f"the run {parent.id!r} cannot be retried: its child {child!r} was replaced by another run with this "
                f"id, and is kept as {claim.run.replaces!r}. Nothing was changed. In the workflow, "
                "give the child another id, and then restart() the parent."
            )
        if claim.run.living and claim.run.cancelling and is_child_of(claim.run, parent):
            raise RunLocked(
                f"the child {child!r} of the run {parent.id!r} was cancelled and is still cleaning up. Nothing was "
                "changed. Try again when it has ended.",
                holder=seen.holder or None,
            )

    def _revive_child(self, parent: Run, child: str) -> Flow[None]:
        """Continue a child of a revived run. The parent must be revived before, or it would not receive the end."""
        try:
            claim, _ = yield from self.see(child)
        except UnknownRun:  # it was requested, and never started
            return
        run = claim.run
        if run.living or not is_child_of(run, parent):
            return
        if run.status in RETRIABLE:
            yield from self.revive(child, restart=False)
        else:  # it completed meanwhile, when its parent could not receive its end
            end = {"status": run.status, "result": msgspec.Raw((run.result or "null").encode())}
            payload = msgspec.json.encode(end).decode()
            yield from self.post(parent.id, RunEvent(kind="child", name=child, payload=payload, key=ended_key(run)))


def cut(claim: Claim, *, restart: bool) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """Return how many entries to keep, which events to remove, and which children to revive.

    If a workflow has had several attempts, `retry` continues the last one. After a `restart`, a child is restarted
    when the new history requests it.
    """
    stale = [event.number for event in claim.events if event.kind in ("cancel", "lock", "deadlock")]
    ends = {event.number: event for event in claim.events if event.kind == "child"}
    entries = [j.decode_entry(text) for text in claim.entries[1:]]
    begun = last_attempt(entries)
    left = [child for entry in entries[begun:] if isinstance(entry, j.Left) for child in entry.children]
    first = next((index for index, entry in enumerate(entries) if isinstance(entry, j.BegunAgain)), len(entries))
    attempts = [entry.seen for entry in entries[first:] if isinstance(entry, j.AttemptBegun)]
    if restart:
        answered = {entry.event for entry in entries if isinstance(entry, j.Replied)}
        unanswered = {event.number for event in claim.events if event.kind == "update"} - answered
        read = {entry.event for entry in entries if isinstance(entry, j.Signalled)} - unanswered
        approvals = {event.number for event in claim.events if event.kind == "approval"}
        return j.beginning(claim.entries), tuple(sorted({*stale, *read, *ends, *approvals})), ()
    if begun == len(entries):  # in the pause between two attempts
        return begun + 1, tuple(stale), ()
    earlier = attempts[-1] if attempts else 0
    failed = {number for number, event in ends.items() if j.read_end(event.payload).status != "completed"}
    failed = {number for number in failed if number > earlier}
    keep = before_open_locks(entries, _before_failure(entries, failed))
    failed -= {entry.event for entry in entries[:keep] if isinstance(entry, j.ChildEnded)}
    again = [ends[number].name for number in sorted(failed)]
    return max(keep + 1, j.beginning(claim.entries)), (*stale, *sorted(failed)), tuple(dict.fromkeys([*again, *left]))


def _left_behind(claim: Claim) -> list[str]:
    """The children that may not have ended with the run, or with a failed attempt of it."""
    entries = [j.decode_entry(text) for text in claim.entries[1:]]
    return [child for entry in entries if isinstance(entry, j.Left | j.BegunAgain) for child in entry.children]


def last_attempt(entries: Sequence[j.AnyEntry]) -> int:
    """How many entries belong to earlier attempts of the workflow."""
    return max((index for index, entry in enumerate(entries) if isinstance(entry, j.BegunAgain)), default=-1) + 1


def _before_failure(entries: Sequence[j.AnyEntry], failed: set[int]) -> int:
    """How many of these entries are before the cancellation of the run, or else before its last failure."""
    begun = last_attempt(entries)
    for index in range(begun, len(entries)):
        if isinstance(entries[index], j.CancelAsked):
            return index
    for index in range(len(entries) - 1, begun - 1, -1):
        entry = entries[index]
        if isinstance(entry, j.StepLost | j.LockRefused | j.LockLost):
            return index
        if isinstance(entry, j.ChildEnded) and entry.event in failed:
            return index
    keep = len(entries)
    while keep and isinstance(entries[keep - 1], j.Left):
        keep -= 1
    return keep


def before_open_locks(entries: Sequence[j.AnyEntry], keep: int) -> int:
    """How many of these entries a run keeps that holds no lock any more: those before a block that had not ended.

    Removing these entries may remove the end of another block, too.
    """
    while True:
        open_since: dict[int, int] = {}
        for index, entry in enumerate(entries[:keep]):
            if isinstance(entry, j.LockGranted):
                open_since[entry.number] = index
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
    """Check the filter for a list of runs."""
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
    """The public form of a run."""
    completed = run.status == "completed" and run.result is not None
    failed = run.result is not None and not completed
    version = run.type.partition("@")[2]
    return RunInfo(
        id=run.id,
        workflow=run.workflow,
        version=version if version not in {"", "*"} else None,
        status=run.status,
        created_at=time_of(run.created_at),
        started_at=None if run.started_at is None else time_of(run.started_at),
        ended_at=None if run.ended_at is None else time_of(run.ended_at),
        due_at=None if run.status == "running" or run.due_at is None or run.due_at < 0 else time_of(run.due_at),
        parent=run.parent or None,
        idempotency_key=run.key or None,
        attributes=run.attributes,
        holder=holder or None,
        locks=tuple(key for _, key in run.locks),
        entries=run.length,
        result=msgspec.json.decode(run.result or "null") if completed else None,
        error=j.read_failure(run.result or "") if failed else None,
        code=run.code or None,
        blocked=None if run.block is None else _block_info(run.block),
        generation=run.generation,
        continued_at=None if run.continued_at is None else time_of(run.continued_at),
        replaces=run.replaces or None,
        replaced_by=run.replaced_by or None,
        cancelled_by=None if run.cancelled_by is None else _cancel_info(run.cancelled_by),
        cancel_reason=_reason_of(run) or None,
        timeout=None if run.timeout is None else run.timeout / MICROSECONDS,
        starts_at=time_of(run.not_before) if run.not_before is not None and never_began(run) else None,
        details=None if run.details is None else msgspec.json.decode(run.details),
        heartbeats=tuple(map(_heartbeat_info, run.heartbeats)),
    )


def _heartbeat_info(beat: StepHeartbeat) -> HeartbeatInfo:
    return HeartbeatInfo(
        step=beat.step,
        attempt=beat.attempt,
        at=time_of(beat.at),
        expires_at=None if beat.expires_at is None else time_of(beat.expires_at),
        details=None if beat.details is None else msgspec.json.decode(beat.details),
    )


def _cancel_info(cause: LimitCancel) -> LimitCancelInfo:
    return LimitCancelInfo(limit=cause.limit, run=cause.run or None)


def _reason_of(run: Run) -> str:
    """Why a run was cancelled; empty if that is not known."""
    cause = run.cancelled_by
    return run.cancel_reason if cause is None else limit_reason(cause.limit, cause.run)


def _successor(run: Run) -> str:
    """A sentence about the run that has replaced this one, if there is one."""
    return f" The run {run.replaced_by!r} has replaced it." if run.replaced_by else ""


def _block_info(block: Block) -> BlockInfo:
    return BlockInfo(
        reason=j.read_failure(block.reason), since=time_of(block.first), tries=block.tries, code=block.code or None
    )


def result_of(run: Run, output: Any) -> Any:
    """Return the result of a run that has ended, or raise its error."""
    if run.status == "completed":
        return decode_value(run.result or "null", output, what=f"the result of the run {run.id!r}")
    failure = j.read_failure(run.result or "")
    reason = _reason_of(run) if run.status == "cancelled" and run.started_at is not None else ""
    by = f" ({reason})" if reason and reason not in failure.message else ""
    raise WorkflowFailed(
        f"the run {run.id!r} of {run.workflow!r} is {run.status}: {failure}{by}",
        run_id=run.id,
        status=run.status,
        kind=failure.type,
        detail=failure.message,
        traceback=failure.traceback,
    )


def unknown_run(run_id: str) -> UnknownRun:
    """The error for an id that no run has."""
    return UnknownRun(f"there is no run with the id {run_id!r} in this namespace", run_id=run_id)


def _microseconds(when: datetime, what: str) -> int:
    if not isinstance(when, datetime):
        raise InvalidOption(
            f"{what}={when!r} is not a datetime: give one with a time zone, such as datetime.now(UTC) - "
            "timedelta(hours=2)"
        )
    if when.tzinfo is None:
        raise InvalidOption(f"{what}={when!r} has no time zone: give a datetime such as datetime.now(UTC)")
    return microseconds_of_time(when)


def _read_cursor(text: str) -> tuple[int, str]:
    found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidOption(f"after={text!r} is not the `next` of a page of runs: pass that value unchanged, or None")
    return int(found[1]), checked_key(found[2], what="run id of `after`")


def checked_timeout(timeout: Duration | None) -> float | None:
    """How long to wait for a result; None: without a limit."""
    return None if timeout is None else seconds(timeout, what="timeout")
