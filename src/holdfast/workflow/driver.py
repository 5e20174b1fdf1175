"""Drives one run: delivers events and results to its workflow code, begins its effects, and parks or ends it.

Everything happens in plain callbacks of the engine's event loop, never in a task, because the loop of the workflow code
runs inside of them. Every delivery is written to the journal, in order, by the `Recorder`. An effect (a step, a
cancel of a child) begins when everything that was delivered before it is stored. If the store refuses a driver, or
the driver leaves its run, it begins no further effect and records no further entry.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from ..commands.runs import BlockRun, RecordRun
from ..errors import (
    HoldfastError,
    InvalidValue,
    NotInWorkflow,
    RunExists,
    StoreUnavailable,
    WorkflowFailed,
)
from ..rules.lock_outcomes import Outcome
from ..rules.runs.cancel_reasons import reason_in
from ..rules.runs.outcomes import AnsweredMeanwhile, Blocked, Claim, Recorded, RunRefused
from ..rules.runs.record import Continue, End, Ending, Finish, NewRun, Park, Run, RunEvent, workflow_of
from ..runtime.codec import encode_value
from . import journal as j
from .cancelling import cancelled_error, timeout_error
from .child_signals import ChildEnd
from .children import Children
from .context import SlotWork, StepCall
from .context_children import ChildSignal
from .continuing import continues, may_continue, next_generation, unread_error, unread_signals
from .definition import Workflow
from .driver_host import RETRY_SECONDS, DriverHost
from .driver_locks import DriverLocks, MakeEntry
from .driver_state import DriverState
from .failures import failure_of, refusal_in
from .limits import exceeded
from .pause import Pause, pause_of
from .queries import RESTART
from .recorder import Barrier, Recorder
from .replay import LOCK_EVENTS, Replay
from .retrying import next_attempt
from .step_heartbeats import StepHeartbeats
from .step_runner import StepRunner, TransactionResult

_log = logging.getLogger("holdfast.workflow")

Leaving = Literal["refused", "outdated", "lost", "parked", "blocked", "ended", "continued", "closed"]
_LEFT_BY: dict[type[Ending], Leaving] = {Park: "parked", Finish: "ended", Continue: "continued"}
LONG_HISTORY = 10_000
"""At this number of entries an event is emitted: the whole history is replayed after each crash."""
Delivery = Callable[[], None]


class Driver:
    """One run that is driven by this process."""

    def __init__(self, host: DriverHost, workflow: Workflow[Any, Any], claim: Claim) -> None:
        self.host, self.workflow = host, workflow
        self.watch = host.watch
        self.run: Run = claim.run
        self.left: Leaving | None = None
        self.end: Ending | None = None
        self.idle_since = host.now()
        self.finished = asyncio.Event()
        self.became_idle = asyncio.Event()
        self._code = Replay(claim.run, workflow, self, max_bytes=host.max_bytes, transactional=host.transactional)
        self._heartbeats = StepHeartbeats(host, claim.run, self._flush)
        self._recorder = Recorder(
            host, self._code, claim.run, self._recorded, self._refused, heartbeats=self._heartbeats
        )
        self._steps = StepRunner(host, claim.run, self._heartbeats, self._step_reported, self._flush)
        self._slots = DriverState(host, self._steps)
        self._driver_locks = DriverLocks(host, claim.run, self._deliver_made, self._advance)
        self._children = Children(host, self._code, self._children_settled, self._refused)
        self._claim = claim
        self._seen = claim.run.posted
        self._effects: deque[tuple[Barrier, int, Callable[[], None]]] = deque()
        self._transactions: deque[StepCall] = deque()
        self._backlog: deque[Delivery] = deque()
        self._pause: Pause | None = None  # between two attempts of the workflow
        self._busy = True  # not begun, delivering, or a transaction is writing the journal
        self._draining = False
        self._block_sent = False
        self._unread: list[str] = []  # names of signals that the run leaves unread although it was to do more
        self._long = claim.run.length >= LONG_HISTORY
        self._next: Callable[..., Continue]  # set when the run continues as new
        self._block: BlockRun | None = None  # the code does not fit: this is sent instead of a record
        self._due: int | None = None  # the time that was last given to `host.wake_at`

    # -- called by the worker ---------------------------------------------------------------------------

    def begin(self, claim: Claim) -> None:
        """Replay the history, and continue from there."""
        self._driver_locks.replay_locks = self._code.replay_locks
        try:
            self._pause = pause_of(claim.entries)
        except Exception as error:  # as below
            self._cannot_continue(error)
        if self._block is not None:
            pass
        elif self._pause is None and claim.run.last.startswith(RESTART):
            self._begin_attempt(seen=0)  # children of the removed history may exist
        elif self._pause is None:
            self._replay(claim.entries, claim.events)
        else:
            self._code.attempt, self._code.earlier = self._pause.attempt, self._pause.earlier
            self._code.receive(claim.events)
            for child in self._pause.entry.children:  # an earlier driver may have crashed before it sent these cancels
                self._children.cancel(child, (0, 0), self._pause.why)
        self._busy = False
        self._advance()

    def _replay(self, entries: tuple[str, ...], events: tuple[RunEvent, ...]) -> None:
        code = self._code
        if self.end is None:
            try:
                code.replay(entries, events)
            except Exception as error:  # whatever it is: the run is blocked or has failed, and does not hang
                self._cannot_continue(error)
        code.replaying = False
        if self._block is not None:
            return
        self._driver_locks.replay_locks = code.replay_locks
        if self.end is None:
            self._driver_locks.begin(self._claim.held, self._claim.events)
        if code.after_others:
            unstarted, code.unstarted = code.unstarted, []
            for new in unstarted:
                self.reclaim(new)
        if not code.unstarted and code.attributes is None and code.details is None:
            self._recorder.writes_are_stored()
        if code.signals_again:
            signals, code.signals_again = code.signals_again, []
            self._effect(partial(self._children.signal_again, signals))
        for call in code.calls.values():
            self.called(call)

    def _begin_attempt(self, seen: int) -> None:
        """Begin a later attempt, or the first one after a restart. Its entry is written with the next record.

        A retry by hand must know that there were earlier attempts, because their children may exist. So the entry is
        written even if this attempt fails at once.
        """
        claim, self._pause = self._claim, None
        begun = self._recorder.append(j.AttemptBegun(at=self.host.now(), seen=seen), keep=True)
        self._replay((*claim.entries, begun), claim.events)

    def receive(self, events: tuple[RunEvent, ...]) -> None:
        """Receive events from the store; those that are known already are skipped."""
        for event in events:
            if event.number > self._seen:
                self._seen = event.number
                if self._pause is not None:
                    self._claim = replace(self._claim, events=(*self._claim.events, event))
                if event.kind in LOCK_EVENTS:
                    self._driver_locks.receive(event)
                else:
                    self._code.receive([event])
                self._decide_again()
        self._advance()

    def _decide_again(self) -> None:
        """An event has arrived: decide again how the run ends, unless the store is deciding whether that is too late.

        An end that was decided before knows nothing of the event, and a record with it would say that it was seen.
        """
        sent = self._recorder.under_way
        if (sent is None or sent.then is None) and self._decides_again(self.end):
            self.end = None

    def tick(self) -> None:
        """End the timers that are due."""
        self._due = None
        self._deliver_when_free(self._deliver_due)

    def next_time(self) -> int | None:
        """When a timer, a retry or a timeout is due next, in microseconds since 1970."""
        first, stop, deadline = self._code.next_time(), self._code.stop_at, self._deadline()
        if stop is None and deadline is None:
            return first
        return min(time for time in (first, stop, deadline) if time is not None)

    @property
    def idle(self) -> bool:
        """Whether nothing is in progress here: the run waits for time or for events."""
        return not (
            self._busy
            or self._block is not None
            or self._steps.running
            or self._steps.streaming
            or self._recorder.under_way
            or self._wants_record()
            or self._effects
            or self.left
            or isinstance(self.end, Continue)
            or self._transactions
            or self._children.busy
            or self._code.loop.immediate
        )

    @property
    def length(self) -> int:
        """The number of entries that the journal has in the store."""
        return self._recorder.length

    def poll(self) -> None:
        """Read new events with the next record, which may be empty."""
        self._recorder.poll()
        self._flush()

    @property
    def seen(self) -> int:
        """The number of the last event that was received."""
        return self._seen

    @property
    def ending(self) -> bool:
        """Whether a record is under way that parks or ends the run."""
        record = self._recorder.under_way
        return record is not None and record.then is not None

    @property
    def ended(self) -> Run | None:
        """The run as it ended here; None if it did not end here."""
        if self.left != "ended" or not isinstance(self.end, Finish):
            return None
        reason = self._cancel_reason or self.run.cancel_reason
        return replace(self.run, status=self.end.status, result=self.end.result, cancel_reason=reason)

    @property
    def _cancel_reason(self) -> str | None:
        """Why the run was cancelled: by the cancel that was delivered, or that ends a pause."""
        code, cancel = self._code, self._code.first_cancel
        return reason_in(cancel.payload) if code.end_as is None and cancel is not None else code.cancel_reason

    @property
    def can_park(self) -> bool:
        """Whether nothing is in progress, and no lock of the run has a lease: such a lock must be renewed here."""
        return self.idle and not self._driver_locks.leased

    def park(self) -> None:
        """Park the run, if possible: it leaves memory until it is due or receives an event."""
        if self.can_park:
            self.end = Park(self.next_time())
            self._flush()

    def drain(self) -> None:
        """Begin no further step, and release the run to other workers as soon as the running steps are recorded."""
        self._draining = True
        if self._block is not None:
            return
        under_way = self._busy or self._steps.running or self._recorder.under_way or self._wants_record()
        if self.end is None and self.left is None and not under_way and not self._children.busy:
            self._effects.clear()
            self._transactions.clear()
            self.end = Park(0)
            self._flush()

    def leave(self, why: Leaving) -> None:
        """Stop driving the run at once; nothing more is recorded."""
        if self.left is not None:
            return
        self.left = why
        self._recorder.leave()
        self._steps.leave()
        self._effects.clear()
        self._children.leave()
        self._backlog.clear()
        self._transactions.clear()
        self._driver_locks.leave()
        self._code.over = True
        self.host.later(0, self._code.leave)  # in a callback of its own: the workflow's loop runs in no task
        self.became_idle.set()
        self.host.driver_left(self)

    # -- called by the workflow code --------------------------------------------------------------------

    def called(self, call: StepCall) -> None:
        """The code called a step: the step begins when everything that was delivered before is stored."""
        self._effect(lambda: self._begin_step(call))

    def dropped(self, call: StepCall) -> None:
        """The code does not wait for a step any more: stop the step."""
        if self.left is not None:
            return
        if call.running is not None:
            call.running.cancel()
        if call not in self._steps.running:  # between two attempts
            self._heartbeats.ended(call.id)

    def cancel_child(self, id: str, reason: str) -> None:
        """Cancel a child, once. The run does not end before that was answered."""
        self._children.cancel(id, self._recorder.barrier(), reason)

    def reclaim(self, new: NewRun) -> None:
        """A child is requested that an earlier attempt of the workflow may have started."""
        self._children.reclaim(new)

    def _children_settled(self) -> None:
        """A command about a child was answered."""
        if self._code.unstarted:
            self._recorder.require_writes()
        if self._pause is not None:
            self.end = None  # decide again: the pause depends on the children
        self._advance()

    def refused(self, error: NotInWorkflow) -> None:
        """The code waits for a thread, so it would wait forever: fail the run. Called from that thread."""

        def fail() -> None:
            raise error

        self.host.call_threadsafe(lambda: self._deliver_when_free(fail))

    def blocking(self, seconds: float, line: str) -> None:
        """The code has blocked the event loop for long. Called from another thread."""
        run, workflow = self.run.id, self.workflow.type
        _log.warning(
            "the workflow code of the run %s has blocked its event loop for %.1f s at %s. No other run of this engine "
            "can continue meanwhile. Put this into a step.",
            run,
            seconds,
            line,
        )
        self.host.emit("code_blocking", run=run, workflow=workflow, seconds=round(seconds, 3), line=line)

    def noted(self, entry: j.AnyEntry) -> None:
        """Write an entry about something that the code did, with the next record."""
        self._recorder.append(entry)

    # -- deliveries -------------------------------------------------------------------------------------

    def _deliver_made(self, makers: Sequence[MakeEntry]) -> None:
        """Deliver the entries that these functions return, one after the other, each when it can be delivered."""
        if makers:
            self._backlog += [partial(self._deliver_if_made, make) for make in makers]
            self._advance()

    def _deliver_if_made(self, make: MakeEntry) -> None:
        if (entry := make()) is not None:
            self._deliver_new(entry)

    def _deliver_new(self, entry: j.AnyEntry) -> None:
        """Deliver an entry that is not in the journal yet; it is written with the next record."""
        self._recorder.append(entry)
        self._code.deliver(entry)

    def _deliver_when_free(self, delivery: Delivery) -> None:
        """Deliver now, or when the transaction that is writing the journal has ended."""
        self._backlog.append(delivery)
        self._advance()

    def _advance(self) -> None:
        """Deliver everything that can be delivered, end the run if its code has ended, and record."""
        if self.left is not None or self._busy:
            return
        if self._block is not None:
            self._flush()
            return
        self._busy = True
        code = self._code
        try:
            while self.end is None:
                if self._pause is not None:
                    self._in_pause(self._pause)
                elif code.done:
                    if self._unsettled():
                        break
                    self._conclude()
                elif self._backlog:
                    self._backlog.popleft()()
                elif (code.inbox or code.taken) and (entry := code.next_event(self.host.now())) is not None:
                    self._deliver_new(entry)
                else:
                    break
        except Exception as error:  # as above
            self._cannot_continue(error)
        self._busy = False
        self.idle_since = self.host.now()
        self._flush()

    def _deliver_due(self) -> None:
        """Deliver what is due by the clock: timeouts, ends of timers, retries of steps."""
        code, now = self._code, self.host.now()
        if code.stop_at is not None and now >= code.stop_at:
            error = WorkflowFailed("the workflow did not end within the time that it has after its cancellation")
            self._finish(code.end_as or "cancelled", error)
            return
        deadline = self._deadline()
        if deadline is not None and now >= deadline:
            self._deliver_new(j.CancelAsked(at=now, event=0))
        for number in code.loop.innermost():  # whatever the time is: the store's clock may have been set back
            if number <= self._recorder.polled and number in code.loop.immediate and not code.done:
                self._deliver_new(j.TimerEnded(at=now, number=number))
        while not code.done and (timer := code.loop.next_timer()) is not None:
            if round(timer.when() * 1_000_000) > now or timer.immediate:
                break
            self._deliver_new(j.TimerEnded(at=now, number=timer.number))
        for call in list(code.calls.values()):
            if call.again_at and call.again_at <= now:
                call.again_at = 0
                self.called(call)

    # -- the end ----------------------------------------------------------------------------------------

    def _unsettled(self) -> bool:
        """Whether a workflow that may be retried must first know which of its children were really started."""
        under_way = self._recorder.under_way is not None or self._children.reclaiming or self._code.unstarted
        return bool(under_way) and self._code.attempt < self.workflow.retry.max_attempts

    def _in_pause(self, pause: Pause) -> None:
        """Park or end the run in the pause between two attempts, or begin the next attempt."""
        code = self._code
        end = pause.ending(
            now=self.host.now(),
            deadline=self._deadline(),
            cancelled=code.first_cancel is not None,
            reason=self._cancel_reason,
            children=self._children.busy or pause.has_children(code.ends, self._children.ended),
            in_memory=code.root is not None,
        )
        if end is None:
            self._begin_attempt(self._seen)
        else:
            self.end = end

    def _deadline(self) -> int | None:
        timeout = self._code.timeout
        if timeout is None or self._code.end_as is not None:
            return None
        return (self.run.started_at or self.run.created_at) + timeout + self.run.blocked_for

    def _conclude(self) -> None:
        """The code has ended: decide how the run ends."""
        code, root = self._code, self._code.root
        assert root is not None  # noqa: S101  (it has ended, so it was begun)
        if (asked := code.continuing) is not None and (root.cancelled() or continues(root.exception())):
            self._take_old_cancel()
            if code.end_as is None:
                self._continue(asked.input, "asked")
            else:
                self._finish(
                    code.end_as, cancelled_error("the run was cancelled before it could continue", code.cancel_reason)
                )
        elif root.cancelled():
            self._finish(
                code.end_as or "failed", cancelled_error("the workflow code was cancelled", code.cancel_reason)
            )
        elif (error := root.exception()) is not None:
            self._finish(code.end_as or "failed", refusal_in(error) or error)
        else:
            try:
                what = f"the result of {self.workflow.name!r}"
                text = encode_value(root.result(), self.workflow.output_type, what=what, max_bytes=self.host.max_bytes)
            except InvalidValue as unfit:
                self._finish("failed", unfit)
            else:
                self._returned(text)

    def _take_old_cancel(self) -> None:
        """Deliver a cancel with which this generation began, before it continues.

        Code that never waits would carry the cancel from generation to generation.
        """
        code = self._code
        for number, event in list(code.inbox.items()):
            if event.kind == "cancel" and code.end_as is None and code.continued and event.at <= code.continued.at:
                code.continuing = None
                self._deliver_new(j.CancelAsked(at=self.host.now(), event=number))

    def _returned(self, text: str) -> None:
        """The code has returned this: end the run, unless it is to do something about unread signals."""
        on_unread, unread = self.workflow.on_unread, unread_signals(self._code)
        if unread and on_unread == "continue" and self._code.end_as is None and may_continue(self._code, unread):
            self._continue(self._claim.entries[0], "unread")
            return
        self._stop_effects()
        self._unread = sorted({event.name for event in unread.values()}) if on_unread != "keep" else []
        if unread and on_unread == "fail":
            self.end = Finish("failed", j.write_failure(failure_of(unread_error(self._code, unread))))
        else:
            self.end = Finish("completed", text)

    def _continue(self, input: str, because: Literal["asked", "unread"]) -> None:
        """Begin the next generation as soon as no step of this one is running any more."""
        self._effects.clear()
        self._transactions.clear()
        self._steps.cancel()
        for lock in list(self._code.replay_locks.pending.values()):
            if lock.waits:
                self._code.replay_locks.release(lock)
        self._next = partial(next_generation, self._code, input, because=because)
        self.end = self._next(now=self.host.now())

    def _finish(self, status: End, error: BaseException) -> None:
        """End the run with this status, or begin the pause before the next attempt if the workflow is retried."""
        self._stop_effects()
        retry, attempt, delay = self.workflow.retry, self._code.attempt, None
        if status == "timed_out" and isinstance(error, asyncio.CancelledError):
            error = timeout_error(self._code.timeout)
        if status == "failed":
            delay, error = next_attempt(retry, error, attempt, self.host.random())
        failure = failure_of(error)
        if delay is not None:
            now = self.host.now()
            again_at = now + round(delay * 1_000_000)
            deadline = self._deadline()
            if deadline is not None and again_at >= deadline:  # the timeout is for all attempts together
                self.end = Finish("timed_out", j.write_failure(failure))
                return
            self._code.continuing = None
            self._heartbeats.forget()
            self._code.replay_locks.release_all()
            self._code.requests.attempt_ended()
            children = self._code.children
            entry = j.BegunAgain(at=now, again_at=again_at, error=failure, children=children)
            self.noted(entry)
            self._pause = Pause(entry, attempt=attempt, earlier=self._code.earlier)  # `_in_pause` decides how it begins
            for child in children:
                self._children.cancel(child, self._recorder.barrier(), self._pause.why)
        else:
            self.end = Finish(status, j.write_failure(failure))

    def _cannot_continue(self, error: Exception) -> None:
        """This code cannot continue the run: block it until other code can. Misuse of the loop is a failure.

        Nothing that was delivered since the last record is recorded.
        """
        fails = self.workflow.unreadable_input == "fail" and self._code.input_unreadable and self._never_began
        if isinstance(error, NotInWorkflow) or fails:
            self._fail(error)
            return
        if not isinstance(error, HoldfastError):
            _log.error("the run %s is blocked by an unexpected error", self.run.id, exc_info=error)
        self._stop_effects()
        self._recorder.discard()
        self._children.leave()
        self.end = None
        self._block = BlockRun(
            run=self.run.id,
            fence=self.run.fence,
            reason=j.write_failure(failure_of(error)),
            engine=self.host.engine,
            code=self.host.code,
            before=self._claim.block,
            request=secrets.token_hex(8),
        )

    @property
    def _never_began(self) -> bool:
        """Whether no code has driven this run: each claim before this one has ended with a block.

        A run that waits, or whose worker crashed in its first step, has no entry in its history either.
        """
        tries = 0 if self._claim.block is None else self._claim.block.tries
        return self._recorder.length == 1 and self.run.claims - tries <= 1

    def _send_block(self) -> None:
        if self._block is not None and self.left is None:
            self.host.send(self._block, self._blocked)

    def _blocked(self, answer: Outcome | HoldfastError) -> None:
        """The store has answered that the run is blocked, or who drives it now."""
        if self.left is not None or self._block is None:
            return
        if isinstance(answer, StoreUnavailable):
            self.host.emit("record_failed", run=self.run.id, error=str(answer))
            self.host.later(RETRY_SECONDS, self._send_block)
        elif isinstance(answer, Blocked):
            emit_blocked(self.host.emit, answer.run)
            self.leave("blocked")
        else:
            self._refused(answer)

    def _fail(self, error: Exception) -> None:
        """The run cannot continue because of a mistake in its code: record it as failed. It can be retried."""
        self._stop_effects()
        self._recorder.discard()
        self._children.give_up(stored_with=self._recorder.children_under_way())
        self._code.unstarted.clear()
        self._code.replay_locks.lock_requests.clear()  # the locks of the run end with it
        self._code.attributes = self._code.details = None
        self._code.requests.discard()
        self.end = Finish("failed", j.write_failure(failure_of(error)))

    def _stop_effects(self) -> None:
        """The code has ended: stop its steps, and begin none of those that it requested."""
        self._steps.stop()
        self._effects.clear()
        self._transactions.clear()

    # -- steps ------------------------------------------------------------------------------------------

    def _effect(self, begin: Callable[[], None]) -> None:
        """Begin this when everything that was delivered before it is stored, and all timeouts of 0 have ended."""
        self._effects.append((self._recorder.barrier(), self._recorder.last_immediate, begin))

    def _may_begin(self, barrier: Barrier, timer: int) -> bool:
        """Whether an effect may begin now. `timer` is the last timeout of 0 that was open when it was requested."""
        if self._draining or self._children.reclaiming or not self._recorder.reached(barrier):
            return False
        return min(self._code.loop.immediate, default=timer + 1) > timer

    def _begin_step(self, call: StepCall) -> None:
        code = self._code
        if code.calls.get(call.id) is not call:
            return
        if isinstance(call.function, ChildSignal):
            self._children.signal(call, self._signalled)
            return
        if call.attempts == 0 and (tried := code.tries.pop(call.id, None)) is not None:  # before this replay
            call.attempts = tried.attempts
            if tried.again_at > self.host.now():
                call.again_at = tried.again_at
                return
        if call.transaction:
            self._transactions.append(call)
        else:
            self._steps.begin(call)

    def _step_reported(self, call: StepCall, entry: j.StepDone | j.StepLost | j.Attempted) -> None:
        def deliver() -> None:
            if self._code.calls.get(call.id) is not call:
                self._heartbeats.ended(call.id)
            elif isinstance(entry, j.Attempted):
                self._recorder.append(entry)
                self._heartbeats.failed(call)
                call.again_at = entry.again_at
            else:
                self._heartbeats.ended(call.id)
                self._deliver_new(entry)

        self._deliver_when_free(deliver)

    def _signalled(self, call: StepCall, answer: ChildEnd | None) -> None:
        """A signal to a child was sent; with an answer, it was not, because the child has ended."""
        if not call.future.done():
            self._step_reported(call, self._steps.done(call, answer))

    # -- transactions -----------------------------------------------------------------------------------

    def _transact(self, call: StepCall) -> None:
        """Nothing else is delivered or recorded while a transaction is under way: its entry is the next one."""
        if self._code.calls.get(call.id) is not call:
            self._flush()
            return
        self._busy = True
        call.attempts += 1
        record = self._recorder.transaction(self._seen)
        execute = self._slots.change if isinstance(call.function, SlotWork) else self._steps.transact
        try:
            execute(call, record, self._transacted)
        except Exception as error:  # for example, no thread can be started: it is tried again
            _log.warning("the step %s of the run %s could not begin, and is retried: %s", call.id, self.run.id, error)
            self._transacted(call, TransactionResult(None, None))

    def _transacted(self, call: StepCall, result: TransactionResult) -> None:
        """A transaction has ended: deliver its recorded entry; an exception counts as a failed attempt."""
        self._busy = False
        if self.left is not None:
            return
        answer = result.answer
        if isinstance(answer, Recorded) and result.entry is not None:
            entry = result.entry
            self._recorder.transaction_recorded()
            self._backlog.appendleft(lambda: self._code.deliver(entry))
            self.receive(answer.events)
        elif isinstance(answer, BaseException):
            self._steps.failed(call, answer)
            self._advance()
        elif answer is None:  # the store could not be reached, and nothing was written
            call.attempts -= 1
            self._transactions.appendleft(call)
            self.host.later(RETRY_SECONDS, self._advance)
        else:
            self._refused(answer)

    # -- records ----------------------------------------------------------------------------------------

    def _wants_record(self) -> bool:
        if self._recorder.has_content or self._ends:
            return True
        has_locks = bool(self._code.replay_locks.pending or self._code.replay_locks.carried)
        return has_locks and not self._recorder.reported_stuck(self._seen) and self._stuck() is not None

    @property
    def _ends(self) -> bool:
        """Whether the run can be parked or ended now: all cancels of children were answered, all streams are stored.

        A run that continues has no running step either: a step of the next generation must not run beside it. And it is
        known which of its children were started: a refused id is that of another run, which it must never cancel.
        """
        if isinstance(self.end, Continue) and (self._steps.busy or self._code.unstarted):
            return False
        return self.end is not None and not self._children.busy and not self._steps.streaming

    def _flush(self) -> None:
        """Record what was delivered, and begin the effects whose barrier is reached."""
        if self.left is not None or self._busy:
            return
        if self._block is not None:
            if self._recorder.under_way is None and not self._block_sent:
                self._block_sent = True
                self._send_block()
            return
        try:
            while self._effects and self.end is None and self._may_begin(*self._effects[0][:2]):
                self._effects.popleft()[2]()
        except Exception as error:  # as above
            self._cannot_continue(error)
            self._flush()
            return
        self._children.send(self._recorder.reached)
        if self._recorder.under_way is None and self._wants_record():
            self._record()
        elif self._recorder.under_way is None and self._transactions and not self._draining:
            self._transact(self._transactions.popleft())
        due = None if self.end is not None or self._code.loop.immediate else self.next_time()
        if due != self._due:
            self._due = due
            self.host.wake_at(self, due)
        if self._code.loop.immediate and self._recorder.last_immediate <= self._recorder.polled and self.end is None:
            self.host.later(0, self.tick)
        if self.idle:
            self.became_idle.set()
            self.host.driver_idle(self)

    def _record(self) -> None:
        code = self._code
        then = self.end if self._ends else None
        if isinstance(then, Continue):  # events may have come since the code has ended
            then = self.end = self._next(now=self.host.now())
        if isinstance(then, Finish):
            then = self.end = replace(then, cancels=self._cancelled_with_it())
        if isinstance(then, Finish) and then.status != "completed" and code.living_children and self._pause is None:
            self._recorder.append(j.Left(at=self.host.now(), children=code.living_children))
        self._driver_locks.releasing(code.replay_locks.lock_requests.values())
        self._recorder.send(seen=self._seen, then=then, stuck=self._stuck())

    def _cancelled_with_it(self) -> tuple[str, ...]:
        """The children that are cancelled in the step that ends the run, also where its code was not replayed."""
        continued = j.continued_entry(self._claim.entries)
        inherited = () if continued is None else continued.cancelled
        return tuple(dict.fromkeys((*inherited, *sorted(self._code.with_policy("cancel")))))

    def _stuck(self) -> tuple[str, ...] | None:
        """The children that the run waits for, if only they and locks can let it continue; else None."""
        others = self._effects or self._children.busy or self._transactions or self._steps.running
        return None if others or isinstance(self.end, Finish) else self._code.stuck()

    def _may_be_waited_for(self, command: RecordRun) -> bool:
        """Whether others may wait for this run: for its end, for a lock that it holds, or behind it in a queue.

        A run that has only just joined a queue, and has nothing else, cannot be a part of a deadlock.
        """
        known = dict(self.run.locks)
        joined = {lock.number for lock in command.lock_requests if not lock.give and lock.number not in known}
        pending = self._code.replay_locks.pending
        if self._code.replay_locks.carried:
            return True
        return bool(pending and self.run.parent) or not joined.issuperset(pending)

    def _decides_again(self, end: Ending | None) -> bool:
        """Whether events that have arrived meanwhile may change how the run is parked, continued or ended."""
        if isinstance(end, Park):
            return self._pause is not None or not self._code.done
        return self._block is None and (isinstance(end, Continue) or (end is not None and end.status == "completed"))

    def _refused(self, answer: Outcome | HoldfastError) -> None:
        """The store refuses this driver: another worker drives the run, or the run has ended.

        Or the code has given up a request that was answered meanwhile: then the run is driven from its history again.
        """
        if isinstance(answer, AnsweredMeanwhile):
            self.leave("outdated")
            return
        holder = answer.holder if isinstance(answer, RunRefused) else ""
        reason = str(answer) if isinstance(answer, HoldfastError) else "another worker drives it, or it has ended"
        self.host.emit("run_refused", run=self.run.id, workflow=self.workflow.type, reason=reason, holder=holder)
        self.leave("refused")

    def _recorded(self, command: RecordRun, answer: Recorded) -> None:
        """A record was stored: apply its answer."""
        if command.attributes is not None:
            self.run = self._code.run = replace(self.run, attributes=command.attributes)
        if command.details is not None:
            self.run = self._code.run = replace(self.run, details=command.details)
        for new in command.children:
            if new.id not in answer.taken and new.id not in answer.limited:
                self.host.child_started(new)
        if not self._long and self._recorder.length >= LONG_HISTORY:
            self._long = True
            self.host.emit("history_long", run=self.run.id, workflow=self.workflow.type, entries=self._recorder.length)
        if command.then is not None and answer.done:
            if self._unread:
                self.host.emit("signals_unread", run=self.run.id, workflow=self.workflow.type, signals=self._unread)
            self.leave(_LEFT_BY[type(command.then)])
            return
        if command.then is not None and self._decides_again(self.end):
            self.end = None  # an event has arrived meanwhile
        if answer.taken or answer.limited:
            self._recorder.forget_stuck()  # the store did not count the run as stuck
        for child in answer.taken:
            self._code.refuse_child(child, _taken(child))
        for child, verdict in answer.limited.items():
            workflow = next((new.type for new in command.children if new.id == child), child)
            self._code.refuse_child(child, exceeded(workflow_of(workflow), verdict))
        self._driver_locks.answered(answer.answers, self._recorder.sent_at)
        if command.stuck is not None and self._may_be_waited_for(command):
            self.host.search_deadlock(self.run.id)
        self.receive(answer.events)


def emit_blocked(emit: Callable[..., None], run: Run) -> None:
    """Emit the event for a run that was blocked."""
    block = run.block
    assert block is not None  # noqa: S101
    reason = str(j.read_failure(block.reason))
    emit("run_blocked", run=run.id, workflow=run.type, reason=reason, tries=block.tries, code=block.code)


def _taken(child: str) -> RunExists:
    return RunExists(
        f"there is another run with the id {child!r}, which this run did not start, at least not in this "
        "generation. That run was not changed. Give the child another id, or none: then its id begins with that of its "
        "parent.",
        run_id=child,
    )
