"""The heartbeats of the running steps of one run: what bodies report, sent to the store now and then.

A body may call `heartbeat` as often as it likes; without a `heartbeat_timeout`, the first call is sent at once, and
further ones every ten seconds. A step with a `heartbeat_timeout` begins when its first heartbeat is stored, so that a
process that hangs at once is noticed too; calls are sent at most every quarter of the timeout after that. The store
waits a little longer for a heartbeat than this process does, so that a silent step is normally ended here, and only the
run of a process that hangs is taken over. Nothing is sent after a driver has left its run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ..commands.runs import RecordHeartbeat
from ..errors import AttemptEnded, HoldfastError, StoreUnavailable
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.heartbeat_records import AttemptEnd
from ..rules.runs.outcomes import HeartbeatRecorded
from ..rules.runs.record import Run
from ..runtime.codec import decode_value, encode_value
from ..validation import MICROSECONDS
from .context import StepCall
from .driver_host import RETRY_SECONDS, DriverHost

MAX_DETAILS = 16_384
"""Bytes of the details of a heartbeat, at most: all details of a run are in its record."""
SENT_PER_TIMEOUT = 4
"""How many heartbeats of a step are sent within its `heartbeat_timeout`, at most."""
PAUSE = 10.0
"""Seconds between two heartbeats that are sent of a step without `heartbeat_timeout`."""
LONGEST_MARGIN = 1.0
"""How many seconds longer than this process the store waits for a heartbeat, at most; a quarter of short timeouts."""
ADVICE = "give its type, heartbeat(details, type=...)"

Stored = Callable[[HoldfastError | None], None]
"""Called when a heartbeat is stored, or with the reason why it is not."""


class StepHeartbeats:
    """The heartbeats of the steps of one run that is driven here."""

    def __init__(self, host: DriverHost, run: Run, changed: Callable[[], None]) -> None:
        """`changed` is called when there is something to record that no entry of the journal goes with."""
        self._host, self._run, self._changed = host, run, changed
        self._attempts: dict[StepCall, AttemptHeartbeats] = {}
        self._closing: set[AttemptHeartbeats] = set()
        self._details = {one.step: one.details for one in run.heartbeats if one.details is not None}
        self._stored = {one.step for one in run.heartbeats}
        # An earlier driver of this worker may have left heartbeats that expire.
        self._ends = {one.step: True for one in run.heartbeats if one.expires_at is not None}

    def open(self, call: StepCall) -> AttemptHeartbeats:
        """The heartbeats of a new attempt of a step."""
        found = self._attempts[call] = AttemptHeartbeats(self, self._host, self._run, call, self._details.get(call.id))
        return found

    def close(self, call: StepCall, then: Stored, *, failed: bool) -> None:
        """An attempt has ended: accept no further heartbeats. `then` is called when nothing is under way; perhaps now.

        If it has failed, its last heartbeat is stored first: the next attempt may be in another process.
        """
        attempt = self._attempts.pop(call, None)
        if attempt is None:
            then(None)
            return
        if attempt.details is not None:
            self._details[call.id] = attempt.details
        self._closing.add(attempt)

        def closed(error: HoldfastError | None) -> None:
            self._closing.discard(attempt)
            then(error)

        attempt.close(closed, send=failed)

    def stop(self) -> None:
        """All attempts have ended, because the code of the run has. Accept no further heartbeats and send none."""
        self._abort("over")

    def leave(self) -> None:
        """The run is not driven here any more: likewise."""
        self._abort("left")

    def _abort(self, why: str) -> None:
        for attempt in (*self._attempts.values(), *self._closing):
            attempt.abort(why)
        self._attempts.clear()
        self._closing.clear()

    # -- for records ------------------------------------------------------------------------------------

    @property
    def has_ends(self) -> bool:
        """Whether attempts have ended whose heartbeats are in the store."""
        return bool(self._ends)

    def take(self) -> tuple[AttemptEnd, ...]:
        """The attempts that have ended since the last record."""
        ends, self._ends = self._ends, {}
        return tuple(AttemptEnd(step, again) for step, again in ends.items())

    def failed(self, call: StepCall) -> None:
        """The next record contains a failed attempt of this step, which will be tried again."""
        if call.id in self._stored and call.heartbeat_timeout is not None:
            self._ends[call.id] = True

    def ended(self, step: str) -> None:
        """The next record contains the result of this step, or the code does not wait for the step any more."""
        self._details.pop(step, None)
        if step in self._stored:
            self._stored.discard(step)
            self._ends[step] = False

    def forget(self) -> None:
        """The workflow begins again: nothing of its steps is kept."""
        for step in list(self._stored):
            self.ended(step)
        self._details.clear()

    # -- called by attempts -----------------------------------------------------------------------------

    def sent(self, step: str) -> None:
        """A heartbeat of this step may be in the store from now on. The next record must not remove its expiry."""
        self._stored.add(step)
        self._ends.pop(step, None)

    def came_late(self, step: str) -> None:
        """A heartbeat that was under way was answered after its attempt was stopped: remove it from the store."""
        if not any(call.id == step for call in self._attempts):
            self._ends[step] = False
            self._changed()


class AttemptHeartbeats:
    """The heartbeats of one attempt of a step."""

    def __init__(self, owner: StepHeartbeats, host: DriverHost, run: Run, call: StepCall, earlier: str | None) -> None:
        """`earlier` are the details that an earlier attempt has left, as JSON text."""
        self._owner, self._host, self._earlier = owner, host, earlier
        self._timeout = call.heartbeat_timeout
        self._pause = PAUSE if self._timeout is None else self._timeout / SENT_PER_TIMEOUT
        self._command = RecordHeartbeat(run=run.id, fence=run.fence, step=call.id, attempt=call.attempts)
        self._lock = threading.Lock()
        self._beaten_at = self._sent_at = elapsed() - self._pause
        self.details: str | None = None
        """The last details that the body has given, as JSON text."""
        self._unsent = False  # whether the body has called since the last command was sent
        self._fresh = False  # whether the details have changed since then
        self._scheduled = False  # whether a command is under way or will be sent
        self._why = ""  # why nothing more is taken
        self._aborted = False
        self._under_way = False
        self._sends_rest = True  # whether what is not stored is sent after the end of the attempt
        self._begun: Stored | None = None
        self._closed: Stored | None = None
        self._silent: Callable[[], None] | None = None
        self._waiting: Callable[[HoldfastError], None] | None = None  # the body waits for a thread
        self._waited = False  # for so long that heartbeats were sent meanwhile
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"<heartbeats of {self._command.step}, attempt {self._command.attempt}>"

    # -- called by the body, from any thread ------------------------------------------------------------

    def beat(self, details: Any, type: Any) -> None:
        """Note a heartbeat; it is sent soon."""
        text = None
        if details is not None:
            what = f"the details of a heartbeat of the step {self._command.step!r}"
            wanted = Any if type is None else type
            text = encode_value(details, wanted, what=what, max_bytes=MAX_DETAILS, advice=ADVICE)
        with self._lock:
            if self._why:
                raise attempt_ended(self._command, self._why)
            self._beaten_at = elapsed()
            self._unsent = True
            if text is not None:
                self.details, self._fresh = text, True
            begins, self._scheduled = not self._scheduled, True
        if begins:
            self._host.call_threadsafe(self._send_when_due)

    def last(self) -> Any:
        """The details of the last heartbeat of an earlier attempt."""
        if self._earlier is None:
            return None
        return decode_value(self._earlier, Any, what=f"the last heartbeat of the step {self._command.step!r}")

    # -- called on the engine's event loop --------------------------------------------------------------

    def begin(self, begun: Stored) -> None:
        """Send the first heartbeat, and call `begun` when it is stored, or with the reason why it is not."""
        self._begun, self._scheduled = begun, True
        self._send()

    def wait(self, refused: Callable[[HoldfastError], None]) -> None:
        """The body waits for a thread: send heartbeats for it until it begins, and call `refused` if one is refused."""
        if self._timeout is not None:
            self._waiting = refused
            self._later("wait", self._pause, self._beat_while_waiting)

    def _beat_while_waiting(self) -> None:
        if self._waiting is not None and not self._why:
            self._waited = True
            self.beat_here()
            self._later("wait", self._pause, self._beat_while_waiting)

    def watch(self, silent: Callable[[], None]) -> None:
        """The body begins: call `silent` if it sends no heartbeat for too long."""
        if self._timeout is None:
            return
        self._silent, self._waiting = silent, None
        # If the store was slow, or no thread was free: the body has its whole time from now on.
        if self._waited or elapsed() - self._sent_at > self._pause:
            self.beat_here()
        self._check()

    def beat_here(self) -> None:
        """Count this moment as a heartbeat: the body begins, or waits for a thread."""
        with self._lock:
            self._beaten_at, self._unsent = elapsed(), True
            begins, self._scheduled = not self._scheduled, True
        if begins:
            self._send_when_due()

    def _check(self) -> None:
        """Look whether the body was silent for too long."""
        if self._why or self._timeout is None or self._silent is None:
            return
        left = self._beaten_at + self._timeout - elapsed()
        if left > 0:
            self._later("check", left, self._check)
        else:
            self._silent()

    def _later(self, what: str, seconds: float, call: Callable[[], None]) -> None:
        """Call this later, unless the attempt has ended by then: its timers do not outlive it."""
        self._timers[what] = asyncio.get_running_loop().call_later(seconds, call)

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self, closed: Stored, *, send: bool) -> None:
        """Accept no further heartbeats; with `send`, store what is not stored yet. Then call `closed`, once."""
        self._cancel_timers()
        with self._lock:
            refused = self._why == "refused"
            self._why = self._why or "over"
        if refused:
            closed(attempt_ended(self._command, "refused"))
            return
        self._unsent = self._unsent and self._fresh and send
        self._sends_rest = send
        if not self._under_way and not self._unsent:
            closed(None)
            return
        self._closed = closed
        if not self._under_way:
            self._send()

    def abort(self, why: str) -> None:
        """Accept no further heartbeats and send none."""
        self._cancel_timers()
        with self._lock:
            self._why, self._aborted = self._why or why, True

    def _send_when_due(self) -> None:
        """Send a heartbeat as soon as the pause after the last one is over."""
        if self._why:
            return
        pause = self._sent_at + self._pause - elapsed()
        if pause > 0:
            self._later("send", pause, self._send_if_open)
        else:
            self._send_if_open()

    def _send_if_open(self) -> None:
        if not self._why:
            self._send()

    def _send(self) -> None:
        now = elapsed()
        with self._lock:
            details = self.details if self._fresh else self._command.details
            self._unsent = self._fresh = False
            if self._begun is not None:
                self._beaten_at = now
            silence = now - self._beaten_at
        self._command = replace(self._command, details=details, lasts=self._lasts(silence))
        self._sent_at, self._under_way = now, True
        self._owner.sent(self._command.step)
        self._host.send(self._command, self._answered)

    def _lasts(self, silence: float) -> int | None:
        """When the heartbeat expires in the store, in microseconds from now; the body has been silent for so long."""
        if self._timeout is None:
            return None
        margin = min(LONGEST_MARGIN, self._timeout / SENT_PER_TIMEOUT)
        return round(max(0.0, self._timeout + margin - silence) * MICROSECONDS)

    def _answered(self, answer: Outcome | HoldfastError) -> None:
        self._under_way = False
        if self._aborted:
            self._owner.came_late(self._command.step)
        elif isinstance(answer, StoreUnavailable) and not self._sends_rest:
            self._stored(None)
        elif isinstance(answer, StoreUnavailable):
            self._under_way = True  # until it is sent again
            self._host.emit("record_failed", run=self._command.run, error=str(answer))
            self._host.later(RETRY_SECONDS, self._send_again)
        elif isinstance(answer, HeartbeatRecorded):
            self._command = replace(self._command, details=None)  # they are stored
            self._stored(None)
        else:
            self._refused(answer)

    def _send_again(self) -> None:
        if self._aborted:
            return
        if self._sends_rest:
            self._send()
        else:  # the attempt has succeeded meanwhile: nothing of it is needed
            self._under_way = False
            self._stored(None)

    def _stored(self, error: HoldfastError | None) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun(error)
        with self._lock:
            self._scheduled = more = self._unsent
        if self._closed is None:
            if more:
                self._send_when_due()
        elif more and error is None:
            self._send()
        else:
            closed, self._closed = self._closed, None
            closed(error)

    def _refused(self, answer: Outcome | HoldfastError) -> None:
        with self._lock:
            self._why, self._unsent = "refused", False
        error = answer if isinstance(answer, HoldfastError) else attempt_ended(self._command, "refused")
        if self._waiting is not None:
            self._waiting(error)
        self._stored(error)


def attempt_ended(command: RecordHeartbeat, why: str) -> AttemptEnded:
    """The error for an attempt that sends no heartbeats any more."""
    what = f"the step {command.step!r} of the run {command.run!r} sends no heartbeats any more: "
    reasons = {
        "over": "this attempt of the step has ended, by its timeout or because its function has returned. Code that "
        "goes on in a thread should stop; what it does has no effect on the run.",
        "left": "this process does not drive the run any more, and another worker repeats the step. The result of this "
        "attempt will not be recorded.",
        "refused": "another worker drives the run. The result of this attempt will not be recorded.",
    }
    return AttemptEnded(what + reasons[why], run_id=command.run, step=command.step)
