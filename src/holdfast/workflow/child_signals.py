"""The signals that a run sends to its children, for its driver.

A signal is sent when the start of its child is stored, and sent again until the store has answered. Its key is that of
the step that sends it, so the child has it once, however often it is sent. The store refuses it if the run that has the
id is not a child of this run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

from ..commands.runs import PostEvent
from ..errors import HoldfastError, RecordUnreadable, StoreUnavailable
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import RunRefused
from ..rules.runs.record import RunEvent, generation_id, parent_of
from .context_children import signal_of
from .driver_host import RETRY_SECONDS, DriverHost

if TYPE_CHECKING:
    from .context import StepCall
    from .replay import Replay


class ChildEnd(TypedDict):
    """Why a signal was not sent: the status of the child, if it has ended, and a sentence."""

    status: str
    why: str


Answered = Callable[["StepCall", ChildEnd | None], None]


class ChildSignals:
    """The signals of one run that are on the way."""

    def __init__(
        self,
        host: DriverHost,
        code: Replay,
        settled: Callable[[], None],
        refused: Callable[[Outcome | HoldfastError], None],
    ) -> None:
        """`settled` is called when a signal was answered, `refused` when this process must leave the run."""
        self._host, self._code, self._settled, self._refused = host, code, settled, refused
        self._unanswered = 0
        self._left = False

    @property
    def busy(self) -> bool:
        """Whether a signal was sent that is not answered yet."""
        return self._unanswered > 0

    def leave(self) -> None:
        """Send nothing more, and ignore late answers."""
        self._left = True

    def send(self, call: StepCall, answered: Answered) -> None:
        """Send a signal. `answered` is called with None, or with why it was not sent."""
        self._unanswered += 1
        self._send(call, answered)

    def send_all(self, calls: Sequence[StepCall]) -> None:
        """Send signals in this order, each when the one before was answered. Children that have ended get none."""
        if calls:
            self.send(calls[0], lambda _call, _end: self.send_all(calls[1:]))

    def _send(self, call: StepCall, answered: Answered) -> None:
        signal = signal_of(call)
        code = self._code
        if self._left:
            return
        if (failure := code.taken.get(signal.child)) is not None:
            self._end(call, answered, {"status": "", "why": f"the child {signal.child!r} was not started: {failure}."})
            return
        run = generation_id(code.run.id, code.run.generation)
        event = RunEvent(kind="signal", name=signal.name, payload=signal.payload, key=f"signal/{run}:{call.id}")

        def sent(answer: Outcome | HoldfastError) -> None:
            if self._left:
                return
            if isinstance(answer, StoreUnavailable):
                self._host.emit("record_failed", run=code.run.id, error=str(answer))
                self._host.later(RETRY_SECONDS, lambda: self._send(call, answered))
            elif isinstance(answer, RecordUnreadable):  # no later attempt would succeed
                why = f"the record of the child {signal.child!r} cannot be read: {answer}"
                self._end(call, answered, {"status": "", "why": why})
            elif isinstance(answer, HoldfastError):
                self._refused(answer)
            elif isinstance(answer, RunRefused):
                status = "" if answer.run is None else answer.run.status
                what = f"has ended ({status})" if status else "was purged, or replaced by another run"
                self._end(call, answered, {"status": status, "why": f"the child {signal.child!r} {what}."})
            else:
                self._end(call, answered, None)

        self._host.send(PostEvent(run=signal.child, event=event, parent=parent_of(code.run)), sent)

    def _end(self, call: StepCall, answered: Answered, end: ChildEnd | None) -> None:
        self._unanswered -= 1
        answered(call, end)
        self._settled()
