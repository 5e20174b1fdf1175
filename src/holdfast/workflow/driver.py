"""Drives one run: delivers what comes, records it under the fence, and begins effects.

Everything here happens in plain callbacks of the engine's event loop, never in a task, because the workflow's own loop
runs inside. What is delivered goes into the journal in the order of its delivery, with at most one record under way. An
effect (a step, a word to a child) begins when everything that was delivered before it is durable. A driver that is
refused, or told to leave, begins nothing more and records nothing more.
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

from ..commands.runs import RecordRun
from ..errors import HoldfastError, InvalidValue, NotInWorkflow, RunExists, StoreUnavailable, WorkflowFailed
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import Claim, Recorded, RunRefused
from ..rules.runs.record import End, Ending, Finish, NewRun, Park, Run, RunEvent, workflow_of
from ..runtime.codec import encode_value
from . import journal as j
from .children import Barrier, Children
from .context import SlotWork, StepCall
from .definition import Workflow
from .driver_host import DriverHost
from .driver_locks import DriverLocks, Make
from .driver_state import DriverState
from .failures import failure_of, is_one_of, refusal_in
from .limits import exceeded
from .pause import Pause, pause_of
from .queries import RESTART
from .replay import OF_LOCKS, Replay
from .step_runner import StepRunner, TransactionResult

RETRY_SECONDS = 0.2
"""How long a record waits that found the store away."""

_log = logging.getLogger("holdfast.workflow")

Leaving = Literal["refused", "lost", "parked", "ended", "closed"]
Delivery = Callable[[], None]


class Driver:
    """One run in the hands of this process."""

    def __init__(self, host: DriverHost, workflow: Workflow[Any, Any], claim: Claim) -> None:
        self.host, self.workflow = host, workflow
        self.run: Run = claim.run
        self.left: Leaving | None = None
        self.end: Ending | None = None
        self.idle_since = host.now()
        self.finished = asyncio.Event()
        self.rested = asyncio.Event()
        self._code = Replay(claim.run, workflow, self, max_bytes=host.max_bytes, transactional=host.transactional)
        self._steps = StepRunner(host, claim.run.id, self._step_reported, self._flush)
        self._slots = DriverState(host, self._steps)
        self._driver_locks = DriverLocks(host, claim.run, self._deliver_made, self._advance)
        self._sent = 0.0  # when the record that is under way was sent
        # The events that it had seen when it last said that it is stuck; -1: it did not say so.
        self._stuck_at = -1 if claim.run.stuck is None else claim.run.stuck.seen
        self._seen = claim.run.posted
        self._fresh: list[str] = []  # delivered, and not yet on their way to the store
        self._delivered = self._durable = claim.run.length
        self._effects: deque[tuple[Barrier, int, Callable[[], None]]] = deque()
        self._written = self._floor = 0  # writes of children and attributes: that are stored, that must be
        self._children = Children(host, self._code, self._children_settled, self._refused)
        self._pause: Pause | None = None  # between two attempts of the workflow
        self._attempt_begun = ""  # the entry with which this driver began an attempt after others
        self._claim = claim
        self._looks = self._looked_for = 0  # how often events are to be asked for, and were
        self._looked = 0  # the last timer of length 0 before whose end the store was asked for events
        self._transactions: deque[StepCall] = deque()
        self._backlog: deque[Delivery] = deque()
        self._busy = True  # not begun, delivering, or a transaction has the journal
        self._recording: RecordRun | None = None
        self._writing = self._looking = 0  # what `_written` and `_looked` are when it is answered
        self._records = 0
        self._mark = secrets.token_hex(4)  # one worker may drive a run twice under one fence: their records differ
        self._draining = False
        self._due: int | None = None  # when its host is to wake it

    # -- from the worker --------------------------------------------------------------------------------

    def begin(self, claim: Claim) -> None:
        """Replay the history, and go on from there."""
        self._driver_locks.replay_locks = self._code.replay_locks
        try:
            self._pause = pause_of(claim.entries)
        except Exception as error:  # as below
            self._fail(error)
        if self._pause is None and claim.run.length == 1 and claim.run.last.startswith(RESTART):
            self._begin_attempt(seen=0)  # children of the history that was removed may be there
        elif self._pause is None:
            self._replay(claim.entries, claim.events)
        else:
            self._code.attempt, self._code.earlier = self._pause.attempt, self._pause.earlier
            self._code.hear(claim.events)
            for child in self._pause.entry.children:  # an earlier driver may have crashed before it sent these cancels
                self._children.cancel(child, (0, 0))
        self._busy = False
        self._advance()

    def _replay(self, entries: tuple[str, ...], events: tuple[RunEvent, ...]) -> None:
        code = self._code
        if self.end is None:
            try:
                code.replay(entries, events)
            except Exception as error:  # whatever it is: the run has failed, and is not left in the air
                self._fail(error)
        code.replaying = False
        self._driver_locks.replay_locks = code.replay_locks
        if self.end is None:
            self._driver_locks.begin(self._claim.held, self._claim.events)
        if code.after_others:
            wanted, code.unstarted = code.unstarted, []
            for new in wanted:
                self.reclaim(new)
        if not code.unstarted and code.attributes is None:
            self._written = code.writes
        for call in code.calls.values():
            self.called(call)

    def _begin_attempt(self, seen: int) -> None:
        """Begin an attempt after others. That goes into the journal with whatever goes there first."""
        claim, self._pause = self._claim, None
        begun = self._attempt_begun = j.encode_entry(j.AttemptBegun(at=self.host.now(), seen=seen))
        self._fresh.append(begun)
        self._delivered += 1
        self._replay((*claim.entries, begun), claim.events)

    def hear(self, events: tuple[RunEvent, ...]) -> None:
        """Take note of events."""
        for event in events:
            if event.number > self._seen:
                self._seen = event.number
                if self._pause is not None:
                    self._claim = replace(self._claim, events=(*self._claim.events, event))
                if event.kind in OF_LOCKS:
                    self._driver_locks.hear(event)
                else:
                    self._code.hear([event])
        self._advance()

    def tick(self) -> None:
        """Time has passed."""
        self._due = None
        self._deliver_when_free(self._time_passes)

    def next_time(self) -> int | None:
        """When time alone brings something, in microseconds since 1970."""
        first, stop, deadline = self._code.next_time(), self._code.stop_at, self._deadline()
        if stop is None and deadline is None:
            return first
        return min(time for time in (first, stop, deadline) if time is not None)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way here: it waits for time or for others."""
        return not (
            self._busy
            or self._steps.running
            or self._recording
            or self._wants_record()
            or self._effects
            or self.left
            or self._transactions
            or self._children.busy
            or self._code.loop.immediate
        )

    @property
    def length(self) -> int:
        """How many entries its journal has in the store."""
        return self._durable

    def look(self) -> None:
        """Ask the store for events that have come, with the next record, which may be empty."""
        self._looks += 1
        self._flush()

    @property
    def seen(self) -> int:
        """How many events it knows of."""
        return self._seen

    @property
    def ending(self) -> bool:
        """Whether a record is on its way after which this process does not drive the run."""
        return self._recording is not None and self._recording.then is not None

    @property
    def ended(self) -> Run | None:
        """The run as it ended here; None if it did not."""
        if self.left != "ended" or not isinstance(self.end, Finish):
            return None
        return replace(self.run, status=self.end.status, result=self.end.result)

    @property
    def can_park(self) -> bool:
        """Whether nothing is under way here, and it has no lock with a lease: such a run stays where it is."""
        return self.idle and not self._driver_locks.leased

    def park(self) -> None:
        """Leave the run to nobody until something is due, if it can be parked."""
        if self.can_park:
            self.end = Park(self.next_time())
            self._flush()

    def drain(self) -> None:
        """Begin no further step, and let another worker go on as soon as those under way are recorded."""
        self._draining = True
        under_way = self._busy or self._steps.running or self._recording or self._wants_record()
        if self.end is None and self.left is None and not under_way and not self._children.busy:
            self._effects.clear()
            self._transactions.clear()
            self.end = Park(0)
            self._flush()

    def leave(self, why: Leaving) -> None:
        """Stop here and now; nothing of it is recorded any more."""
        if self.left is not None:
            return
        self.left = why
        self._steps.stop()
        self._effects.clear()
        self._children.leave()
        self._backlog.clear()
        self._transactions.clear()
        self._driver_locks.leave()
        self._code.over = True
        self.host.later(0, self._code.leave)  # in a callback of its own: the workflow's loop runs in no task
        self.rested.set()
        self.host.gone(self)

    # -- what the code asks for -------------------------------------------------------------------------

    def called(self, call: StepCall) -> None:
        """A step begins when everything before it is durable."""
        self._effect(lambda: self._begin_step(call))

    def dropped(self, call: StepCall) -> None:
        """Nobody waits for a step any more: stop it."""
        if call.running is not None and self.left is None:
            call.running.cancel()

    def cancel_child(self, id: str) -> None:
        """A child is cancelled, once. The run does not end before that."""
        self._children.cancel(id, self._barrier())

    def reclaim(self, new: NewRun) -> None:
        """A child is wanted that an earlier attempt of the workflow may have started."""
        self._children.reclaim(new)

    def _children_settled(self) -> None:
        """Something about children was answered."""
        if self._code.unstarted:
            self._floor = self._code.writes
        if self._pause is not None:
            self.end = None  # it depends on that
        self._advance()

    def refused(self, error: NotInWorkflow) -> None:
        """The code waits for a thread: it cannot go on. Called from that thread."""

        def fail() -> None:
            raise error

        self.host.elsewhere(lambda: self._deliver_when_free(fail))

    def noted(self, entry: j.AnyEntry) -> None:
        """What the code did goes into the journal with the next record."""
        self._fresh.append(j.encode_entry(entry))
        self._delivered += 1

    # -- going on ---------------------------------------------------------------------------------------

    def _deliver_made(self, made: Sequence[Make]) -> None:
        """Deliver what these make when it can be delivered, one after the other; some may make nothing then."""
        self._backlog += [partial(self._deliver_if_made, make) for make in made]
        self._advance()

    def _deliver_if_made(self, make: Make) -> None:
        if (entry := make()) is not None:
            self._deliver_new(entry)

    def _deliver_new(self, entry: j.AnyEntry) -> None:
        """Deliver something that is not in the journal yet; it goes there with the next record."""
        self._fresh.append(j.encode_entry(entry))
        self._delivered += 1
        self._code.deliver(entry)

    def _deliver_when_free(self, delivery: Delivery) -> None:
        """Deliver now, or when the transaction that has the journal is over."""
        self._backlog.append(delivery)
        self._advance()

    def _advance(self) -> None:
        """Deliver what can be delivered, end the run if its code has ended, and record."""
        if self.left is not None or self._busy:
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
            self._fail(error)
        self._busy = False
        self.idle_since = self.host.now()
        self._flush()

    def _unsettled(self) -> bool:
        """Whether a workflow that may be tried again must first know which of its children were really started."""
        under_way = self._recording is not None or self._children.reclaiming or self._code.unstarted
        return bool(under_way) and self._code.attempt < self.workflow.retry.max_attempts

    def _in_pause(self, pause: Pause) -> None:
        """Decide how the pause goes on. Only a cancel or the workflow's timeout ends it early."""
        code, now, deadline = self._code, self.host.now(), self._deadline()
        if any(event.kind == "cancel" for event in code.inbox.values()):
            error = asyncio.CancelledError("it was cancelled in the pause between two attempts")
            self.end = Finish("cancelled", j.write_failure(failure_of(error)))
        elif deadline is not None and now >= deadline:
            self.end = Finish("timed_out", j.write_failure(pause.entry.error))
        elif now < pause.entry.again_at:
            self.end = Park(pause.entry.again_at)
        elif self._children.busy or pause.living(code.ends, self._children.gone):
            self.end = Park(deadline)
        elif code.root is not None:  # the code of the failed attempt: whoever claims the run next begins anew
            self.end = Park(now)
        else:
            self._begin_attempt(self._seen)

    def _deadline(self) -> int | None:
        if self.workflow.timeout is None or self._code.end_as is not None:
            return None
        return (self.run.started_at or self.run.created_at) + self.workflow.timeout

    def _time_passes(self) -> None:
        code, now = self._code, self.host.now()
        if code.stop_at is not None and now >= code.stop_at:
            self._finish(
                code.end_as or "cancelled", WorkflowFailed("it did not end in the time after its cancellation")
            )
            return
        deadline = self._deadline()
        if deadline is not None and now >= deadline:
            self._deliver_new(j.CancelAsked(at=now, event=0))
        for number in code.loop.innermost():  # whatever the clock says: the store's may have been set back
            if number <= self._looked and number in code.loop.immediate and not code.done:
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

    def _conclude(self) -> None:
        """The code has ended: decide how."""
        code, root = self._code, self._code.root
        assert root is not None  # noqa: S101  (it has ended, so it was begun)
        if root.cancelled():
            self._finish(code.end_as or "failed", asyncio.CancelledError("the workflow's code was cancelled"))
        elif (error := root.exception()) is not None:
            self._finish(code.end_as or "failed", refusal_in(error) or error)
        else:
            try:
                what = f"the result of {self.workflow.name!r}"
                text = encode_value(root.result(), self.workflow.output_type, what=what, max_bytes=self.host.max_bytes)
            except InvalidValue as unfit:
                self._finish("failed", unfit)
            else:
                self._stop_effects()
                self.end = Finish("completed", text)

    def _finish(self, status: End, error: BaseException) -> None:
        """End as it says, or begin again if the workflow is to be retried."""
        self._stop_effects()
        failure = failure_of(error)
        retry, tried = self.workflow.retry, self._code.attempt
        if status == "failed" and tried < retry.max_attempts and not is_one_of(error, retry.give_up_on):
            now = self.host.now()
            again_at = now + round(retry.delay_after(tried, self.host.chance()) * 1_000_000)
            deadline = self._deadline()
            if deadline is not None and again_at >= deadline:  # its time is for all its attempts together
                self.end = Finish("timed_out", j.write_failure(failure))
                return
            self._code.replay_locks.give_all()
            children = self._code.children
            entry = j.BegunAgain(at=now, again_at=again_at, error=failure, children=children)
            self.noted(entry)
            for child in children:
                self._children.cancel(child, self._barrier())
            self._pause = Pause(entry, attempt=tried, earlier=self._code.earlier)  # `_in_pause` decides how it begins
        else:
            self.end = Finish(status, j.write_failure(failure))

    def _fail(self, error: Exception) -> None:
        """It cannot go on: the run has failed, and can be retried with other code."""
        if not isinstance(error, HoldfastError):
            _log.error("the run %s cannot go on", self.run.id, exc_info=error)
        self._stop_effects()
        # Whoever retries it must know that others have been there: their children may be, too.
        self._fresh = [entry for entry in self._fresh if entry is self._attempt_begun]
        under_way = 0 if self._recording is None else len(self._recording.entries)
        self._delivered = self._durable + under_way + len(self._fresh)
        children = () if self._recording is None else (new.id for new in self._recording.children)
        self._children.give_up(stored_with=dict.fromkeys(children, (0, self._writing)))
        self._floor = 0
        self._code.unstarted.clear()
        self._code.replay_locks.lock_requests.clear()  # what it has ends with it
        self._code.attributes = None
        self.end = Finish("failed", j.write_failure(failure_of(error)))

    def _stop_effects(self) -> None:
        """The code has ended: stop its steps, and begin none of those that it still asked for."""
        self._steps.stop()
        self._effects.clear()
        self._transactions.clear()

    # -- steps ------------------------------------------------------------------------------------------

    def _effect(self, begin: Callable[[], None]) -> None:
        """Begin this when everything that was delivered before it is durable, and its timeouts of 0 have ended."""
        self._effects.append((self._barrier(), self._looks_for, begin))

    def _barrier(self) -> Barrier:
        """What must be stored before an effect that is wanted now begins: all that was delivered or asked for."""
        return self._delivered, self._code.writes

    def _reached(self, barrier: Barrier) -> bool:
        delivered, writes = barrier
        return delivered <= self._durable and max(writes, self._floor) <= self._written

    def _may_begin(self, barrier: Barrier, timer: int) -> bool:
        """Whether an effect begins now. `timer` is the last timeout of 0 that had not ended when it was asked for."""
        if self._draining or self._children.reclaiming or not self._reached(barrier):
            return False
        return min(self._code.loop.immediate, default=timer + 1) > timer

    def _begin_step(self, call: StepCall) -> None:
        code = self._code
        if code.calls.get(call.id) is not call:
            return
        if call.attempts == 0 and (tried := code.tries.pop(call.id, None)) is not None:  # in an earlier life
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
                return
            if isinstance(entry, j.Attempted):
                self._fresh.append(j.encode_entry(entry))
                self._delivered += 1
                call.again_at = entry.again_at
            else:
                self._deliver_new(entry)

        self._deliver_when_free(deliver)

    # -- transactions -----------------------------------------------------------------------------------

    def _transact(self, call: StepCall) -> None:
        """Nothing else is delivered or recorded while a transaction is under way: its entry is the next one."""
        if self._code.calls.get(call.id) is not call:
            self._flush()
            return
        self._busy = True
        call.attempts += 1
        self._records += 1
        self._stuck_at = -1
        record = RecordRun(
            run=self.run.id,
            fence=self.run.fence,
            at=self._durable,
            request=f"{self.run.fence}.{self._mark}.{self._records}",
            seen=self._seen,
        )
        carry_out = self._slots.change if isinstance(call.function, SlotWork) else self._steps.transact
        try:
            carry_out(call, record, self._transacted)
        except Exception as error:  # there is no thread for it, perhaps: it is tried again
            _log.warning("the step %s of the run %s could not begin: %s", call.id, self.run.id, error)
            self._transacted(call, TransactionResult(None, None))

    def _transacted(self, call: StepCall, result: TransactionResult) -> None:
        """A transaction is over: what it recorded is delivered, what it raised counts as a failed attempt."""
        self._busy = False
        if self.left is not None:
            return
        answer = result.answer
        if isinstance(answer, Recorded) and result.entry is not None:
            entry = result.entry
            self._durable += 1
            self._delivered += 1
            self._backlog.appendleft(lambda: self._code.deliver(entry))
            self.hear(answer.events)
        elif isinstance(answer, BaseException):
            self._steps.failed(call, answer)
            self._advance()
        elif answer is None:  # the store was away, and nothing was done
            call.attempts -= 1
            self._transactions.appendleft(call)
            self.host.later(RETRY_SECONDS, self._advance)
        else:
            self._refused(answer)

    # -- records ----------------------------------------------------------------------------------------

    def _wants_record(self) -> bool:
        code = self._code
        if (
            self._fresh
            or code.unstarted
            or code.replay_locks.lock_requests
            or code.attributes is not None
            or self._ends
        ):
            return True
        if self._looks_for > self._looked or self._looks > self._looked_for:
            return True
        return bool(code.replay_locks.places) and self._stuck_at != self._seen and self._stuck() is not None

    @property
    def _looks_for(self) -> int:
        """The last timer of length 0. Before it ends, a record that may be empty asks for events that have come."""
        return max(self._code.loop.immediate, default=0)

    @property
    def _ends(self) -> bool:
        """Whether the run can be parked or ended now: all cancels of children were answered."""
        return self.end is not None and not self._children.busy

    def _flush(self) -> None:
        """Record what was delivered, and begin the effects for which everything before is durable."""
        if self.left is not None or self._busy:
            return
        try:
            while self._effects and self.end is None and self._may_begin(*self._effects[0][:2]):
                self._effects.popleft()[2]()
        except Exception as error:  # as above
            self._fail(error)
        self._children.send(self._reached)
        if self._recording is None and self._wants_record():
            self._record()
        elif self._recording is None and self._transactions and not self._draining:
            self._transact(self._transactions.popleft())
        due = None if self.end is not None or self._code.loop.immediate else self.next_time()
        if due != self._due:
            self._due = due
            self.host.wake_at(self, due)
        if self._code.loop.immediate and self._looks_for <= self._looked and self.end is None:
            self.host.later(0, self.tick)
        if self.idle:
            self.rested.set()
            self.host.resting(self)

    def _record(self) -> None:
        code = self._code
        self._records += 1
        if code.preface is not None:
            self._fresh.insert(0, j.encode_entry(code.preface))
            self._delivered += 1
            code.preface = None
        then = self.end if self._ends else None
        if isinstance(then, Finish) and then.status != "completed" and code.children and self._pause is None:
            self._fresh.append(j.encode_entry(j.Left(at=self.host.now(), children=code.children)))
            self._delivered += 1
        entries, self._fresh = tuple(self._fresh), []
        children, code.unstarted = tuple(code.unstarted), []
        attributes, code.attributes = code.attributes, None
        lock_requests = tuple(code.replay_locks.lock_requests.values())
        code.replay_locks.lock_requests.clear()
        self._driver_locks.given(lock_requests)
        self._sent = elapsed()
        self._writing, self._looking = code.writes, self._looks_for
        self._looked_for = self._looks
        self._recording = RecordRun(
            run=self.run.id,
            fence=self.run.fence,
            at=self._durable,
            request=f"{self.run.fence}.{self._mark}.{self._records}",
            entries=entries,
            seen=self._seen,
            then=then,
            children=children,
            attributes=attributes,
            lock_requests=lock_requests,
            stuck=self._stuck(),
        )
        self._stuck_at = -1 if self._recording.stuck is None else self._seen
        self.host.send(self._recording, self._answered)

    def _stuck(self) -> tuple[str, ...] | None:
        """The children that the run waits for, where nothing can bring it on but them and locks; else None."""
        others = self._effects or self._children.busy or self._transactions or self._steps.running
        return None if others or isinstance(self.end, Finish) else self._code.stuck()

    def _may_be_waited_for(self, command: RecordRun) -> bool:
        """Whether others may wait for this run: for its end, for what it holds, or behind it in a queue.

        A run that has only just joined a queue, and has nothing else, cannot be a part of a deadlock.
        """
        known = dict(self.run.locks)
        joined = {ask.number for ask in command.lock_requests if not ask.give and ask.number not in known}
        places = self._code.replay_locks.places
        return bool(places and self.run.parent) or not joined.issuperset(places)

    def _answered(self, answer: Outcome | HoldfastError) -> None:
        command = self._recording
        if self.left is not None or command is None:
            return
        if isinstance(answer, StoreUnavailable):  # sent again as it is: it is recognised if it was carried out
            self.host.emit("record_failed", run=self.run.id, error=str(answer))
            self.host.later(RETRY_SECONDS, self._send_again)
        elif isinstance(answer, Recorded):
            self._recorded(command, answer)
        else:
            self._refused(answer)

    def _refused(self, answer: Outcome | HoldfastError) -> None:
        holder = answer.holder if isinstance(answer, RunRefused) else ""
        reason = str(answer) if isinstance(answer, HoldfastError) else "another worker drives it, or it has ended"
        self.host.emit("run_refused", run=self.run.id, workflow=self.workflow.type, reason=reason, holder=holder)
        self.leave("refused")

    def _send_again(self) -> None:
        if self._recording is not None and self.left is None:
            self.host.send(self._recording, self._answered)

    def _recorded(self, command: RecordRun, answer: Recorded) -> None:
        self._recording = None
        self._durable += len(command.entries)
        self._written, self._looked = max(self._written, self._writing), max(self._looked, self._looking)
        if command.attributes is not None:
            self.run = self._code.run = replace(self.run, attributes=command.attributes)
        for new in command.children:
            if new.id not in answer.taken and new.id not in answer.limited:
                self.host.child_started(new)
        if command.then is not None and answer.done:
            self.leave("ended" if isinstance(command.then, Finish) else "parked")
            return
        if command.then is not None and isinstance(self.end, Park) and (self._pause is not None or not self._code.done):
            self.end = None  # something has come meanwhile
        if answer.taken or answer.limited:
            self._stuck_at = -1  # the store did not believe it
        for child in answer.taken:
            self._code.refuse_child(child, _taken(child))
        for child, verdict in answer.limited.items():
            workflow = next((new.type for new in command.children if new.id == child), child)
            self._code.refuse_child(child, exceeded(workflow_of(workflow), verdict))
        self._driver_locks.answers(answer.answers, self._sent)
        if command.stuck is not None and self._may_be_waited_for(command):
            self.host.stuck(self.run.id)
        self.hear(answer.events)


def _taken(child: str) -> RunExists:
    return RunExists(
        f"there is another run with the id {child!r}, which this run did not start. It was left as it is. Give the "
        "child another id, or none: then its id begins with that of its parent.",
        run_id=child,
    )
