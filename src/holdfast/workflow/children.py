"""The children of a run, for its driver: cancels and signals that must be delivered, and children of earlier attempts.

A cancel is sent again until it is answered, and a run does not end before that; likewise signals (child_signals.py).
From the second attempt of a workflow on, a child may exist already. If it has not ended, the run waits for it; if it
has completed, it keeps its result; any other child is restarted. A child that another run has started is refused, also
if that run was the same code in another attempt.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from ..commands.runs import PostEvent, ReadRun
from ..errors import HoldfastError, RecordUnreadable, RunExists, RunLocked, StoreUnavailable, WorkflowLimitExceeded
from ..rules.lock_outcomes import Outcome
from ..rules.runs.cancel_reasons import cancel_payload, parent_reason
from ..rules.runs.outcomes import Posted, RunRefused, RunSeen
from ..rules.runs.parent_ends import cancel_key
from ..rules.runs.record import NewRun, Run, RunEvent, ended_key, parent_of, workflow_of
from ..runtime.flows import Flow, send
from .attempts import first_that_differs, same_but_for_attempts
from .child_signals import ChildEnd, ChildSignals
from .context import StepCall
from .driver_host import RETRY_SECONDS, DriverHost, EarlierAttempts, Reclaimed
from .queries import RunQueries
from .recorder import Barrier
from .replay import Replay

_log = logging.getLogger("holdfast.workflow")


class Children:
    """The commands that a driver must send about the children of its run."""

    def __init__(
        self,
        host: DriverHost,
        code: Replay,
        settled: Callable[[], None],
        refused: Callable[[Outcome | HoldfastError], None],
    ) -> None:
        """`settled` is called when a command was answered, `refused` when this process must leave the run."""
        self._host, self._code, self._settled, self._refused = host, code, settled, refused
        self._gave_up = False
        self._cancels: deque[tuple[Barrier, str, str]] = deque()
        self._unanswered = 0
        self._left = False
        self._signals = ChildSignals(host, code, settled, refused)
        self.reclaiming = 0
        """How many children are being looked up that an earlier attempt may have started."""
        self.ended: set[str] = set()
        """Children that had ended, or never existed, when they were to be cancelled."""

    @property
    def busy(self) -> bool:
        """Whether a command must be answered before the run may be parked or ended."""
        return bool(self._cancels or self._unanswered or self.reclaiming or self._signals.busy)

    def cancel(self, child: str, barrier: Barrier, reason: str = "") -> None:
        """Cancel a child as soon as this barrier is reached, for this reason if there is one."""
        self._cancels.append((barrier, child, reason))

    def send(self, reached: Callable[[Barrier], bool]) -> None:
        """Send the cancels whose barrier is reached, except to children that were refused: their ids are other runs'.

        A child that is being looked up may still be refused, so its cancel waits.
        """
        while self._cancels and reached(self._cancels[0][0]) and self._cancels[0][1] not in self._code.unclaimed:
            _, child, reason = self._cancels.popleft()
            if child not in self._code.taken:
                self._unanswered += 1
                self._cancel(child, cancel_payload(parent_reason(self._code.run.id, reason)))

    def signal(self, call: StepCall, answered: Callable[[StepCall, ChildEnd | None], None]) -> None:
        """Send the signal of a step; its barrier is reached, so the child is stored or was refused."""
        self._signals.send(call, answered)

    def signal_again(self, calls: Sequence[StepCall]) -> None:
        """Send signals that the run of which this one is a fork has sent, to the children of this run."""
        self._signals.send_all(calls)

    def give_up(self, stored_with: dict[str, Barrier]) -> None:
        """The run fails, and starts no further child: cancel the children that are stored or are being stored.

        All others are not children of this run: their ids may be those of other runs.
        """
        never = {new.id for new in self._code.unstarted} | self._code.unclaimed
        left = [(child, why) for _, child, why in self._cancels if child not in never or child in stored_with]
        self._cancels = deque((stored_with.get(child, (0, 0)), child, why) for child, why in left)
        self._gave_up = True

    def leave(self) -> None:
        """Send no further command, and ignore late answers."""
        self._left = True
        self._cancels.clear()
        self._signals.leave()

    def _cancel(self, child: str, payload: str) -> None:
        run = self._code.run.id
        key = cancel_key(run, self._code.attempt)

        def answered(answer: Outcome | HoldfastError) -> None:
            if self._left:
                return
            if isinstance(answer, StoreUnavailable):
                self._host.emit("record_failed", run=run, error=str(answer))
                self._host.later(RETRY_SECONDS, lambda: self._cancel(child, payload))
                return
            if isinstance(answer, RecordUnreadable):  # no later attempt would succeed: the run does not wait for it
                _log.error("the child %s of the run %s was not cancelled: %s", child, run, str(answer))
            elif isinstance(answer, HoldfastError):
                self._refused(answer)
                return
            if isinstance(answer, RunRefused) or (isinstance(answer, Posted) and not answer.run.living):
                self.ended.add(child)
            self._unanswered -= 1
            self._settled()

        if not self._left:
            event = RunEvent(kind="cancel", key=key, payload=payload)
            self._host.send(PostEvent(run=child, event=event, parent=parent_of(self._code.run)), answered)

    def reclaim(self, new: NewRun) -> None:
        """Look up whether an earlier attempt has started this child, and prepare it for this attempt."""
        self.reclaiming += 1
        self._code.unclaimed.add(new.id)
        self._reclaim(new)

    def _reclaim(self, new: NewRun) -> None:
        code = self._code

        def answered(answer: Reclaimed | HoldfastError) -> None:
            if self._left:
                return
            if isinstance(answer, StoreUnavailable | RunLocked):  # locked: another caller is reviving it
                self._host.emit("record_failed", run=code.run.id, error=str(answer))
                self._host.later(RETRY_SECONDS, lambda: self._reclaim(new))
                return
            if isinstance(answer, RunExists | WorkflowLimitExceeded):
                code.refuse_child(new.id, answer)
            elif isinstance(answer, HoldfastError):
                self._refused(answer)
                return
            elif answer == "absent" and not self._gave_up:
                code.unstarted.append(new)
                code.writes += 1
            self.reclaiming -= 1
            code.unclaimed.discard(new.id)
            self._settled()

        if not self._left:
            before = EarlierAttempts(code.earlier, restarted=code.restarted, first=code.run.first)
            self._host.reclaim(code.run.id, new, before, answered)


def reclaim(queries: RunQueries, parent: str, new: NewRun, before: EarlierAttempts) -> Flow[Reclaimed]:
    """Prepare a child that an earlier attempt of its parent may have started, or return that it is absent.

    Raises the error that keeps the child from running.
    """
    outcome, _ = yield from send(ReadRun(run=new.id))
    assert isinstance(outcome, RunSeen)  # noqa: S101
    if outcome.claim is None:
        return "absent"
    child = outcome.claim.run
    if child.parent != parent or child.parent_first != before.first:
        if child.parent != parent and child.root == new.root and same_but_for_attempts(child.parent, parent):
            raise _of_another_attempt(parent, child)
        return "absent"  # another run has this id: the start will be refused
    if (child.workflow, outcome.claim.entries[0]) != (workflow_of(new.type), new.input):
        raise RunExists(
            f"the run {parent!r} started the child {new.id!r} with another workflow or input, in an earlier attempt or "
            "before it was restarted. The child was not changed. Give it an id that contains what differs "
            "(ctx.attempt), or start a new run instead of restarting this one.",
            run_id=new.id,
            status=child.status,
        )
    if child.living:
        return "ready"
    own, _ = yield from queries.see(parent, history=True)  # after the child, so that no end of it is missed
    ends = {event.key: event.number for event in own.events if event.kind == "child"}
    number = ends.get(ended_key(child))
    if number is None:  # forgotten by a restart; or by a retry, which revives the child itself
        number = 0 if before.restarted else before.events + 1
    elif child.status == "completed":
        number = before.events + 1
    if number <= before.events:
        yield from queries.revive(new.id, restart=True, fence=child.fence)
    return "ready"


def _of_another_attempt(parent: str, child: Run) -> RunExists:
    """The error for a child that the same code has started in another attempt of a run above it.

    A store notifies only the run that started a child of its end: the end of an adopted child would never arrive.
    """
    between = first_that_differs(parent, child.parent)
    return RunExists(
        f"the run {child.id!r} was started by {child.parent!r}, and this is {parent!r}, the same code in another "
        f"attempt. Only the run that started a child receives its end, so the child was not changed "
        f"({child.status}). Put retry= on the workflow that starts this child: then completed children keep their "
        f"results. To restart all of them, also give the run {between!r} an id=, or put ctx.run_id into the id of "
        "this child.",
        run_id=child.id,
        status=child.status,
    )
