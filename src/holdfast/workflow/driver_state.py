"""Changes of state slots by runs: each is written in the same atomic step as its entry in the journal.

Of the runs of one process only one at a time changes a slot, and the next one builds on what it wrote: a hundred runs
that count on one number need a hundred records and no second try. Whoever else changes the slot is found out by the
record itself, which then does nothing and tells what the slot holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..commands import ReadSlot
from ..commands.runs import RecordRun
from ..errors import HoldfastError, StoreUnavailable
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import Recorded
from ..rules.slot import Address, Conflict, SlotSeen, Swap
from ..state.pending_writes import PendingValue
from . import journal as j
from .context import SlotWork, StepCall
from .driver_host import DriverHost
from .step_runner import StepRunner, TransactionResult

RETRY_SECONDS = 0.2

Go = Callable[[PendingValue | None], None]


class SlotTurns:
    """Whose turn it is at each slot, in one process."""

    def __init__(self) -> None:
        self._waiting: dict[Address, deque[Go]] = {}

    def enter(self, address: Address, go: Go) -> None:
        """Go when it is one's turn: with what the one before has written, if that is known."""
        waiting = self._waiting.get(address)
        if waiting is None:
            self._waiting[address] = deque()
            go(None)
        else:
            waiting.append(go)

    def leave(self, address: Address, tip: PendingValue | None) -> None:
        """Let the next one go."""
        waiting = self._waiting[address]
        if waiting:
            waiting.popleft()(tip)
        else:
            del self._waiting[address]


class StateChange(NamedTuple):
    """One change that is under way, and whom to tell what came of it."""

    call: StepCall
    work: SlotWork
    record: RecordRun
    done: Callable[[StepCall, TransactionResult], None]


class DriverState:
    """The changes of one run."""

    def __init__(self, host: DriverHost, steps: StepRunner) -> None:
        self._host, self._steps = host, steps

    def change(self, call: StepCall, record: RecordRun, done: Callable[[StepCall, TransactionResult], None]) -> None:
        """Make the change of a step, or look, and put its entry into the journal with it."""
        work: Any = call.function
        change = StateChange(call, work, record, done)
        self._host.turns.enter(change.work.address, lambda tip: self._decide(change, tip))

    def _look(self, change: StateChange) -> None:
        def seen(answer: Outcome | HoldfastError) -> None:
            if isinstance(answer, SlotSeen):
                self._decide(change, PendingValue(answer.last, answer.version, answer.value, fresh=True))
            elif isinstance(answer, StoreUnavailable):
                self._again(change, answer, lambda: self._look(change))
            else:
                self._end(change, _as_error(answer))

        self._host.send(ReadSlot(address=change.work.address), seen)

    def _decide(self, change: StateChange, base: PendingValue | None) -> None:
        """Decide on what the slot holds. To leave it as it is, or to fail, is believed only of what was just seen."""
        if change.call.future.done():  # nobody waits for it any more, or the run was left
            self._end(change, None, tip=base)
            return
        if base is None:
            self._look(change)
            return
        try:
            new, answer = change.work.decide(base)
            entry = self._steps.done(change.call, answer)
        except BaseException as error:
            if base.fresh:
                self._end(change, error)
            else:
                self._look(change)
            return
        if new is None and not base.fresh:
            self._look(change)
            return
        swap = None if new is None else Swap(change.work.address, base.id, base.version, new.value)
        self._send(change, replace(change.record, entries=(j.encode_entry(entry),), swap=swap), entry)

    def _send(self, change: StateChange, record: RecordRun, entry: j.StepDone) -> None:
        def answered(answer: Outcome | HoldfastError) -> None:
            if isinstance(answer, Conflict):
                self._decide(change, PendingValue(answer.last, answer.version, answer.value, fresh=True))
            elif isinstance(answer, StoreUnavailable):  # sent again as it is: it is recognised if it was carried out
                self._again(change, answer, lambda: self._send(change, record, entry))
            elif isinstance(answer, Recorded) and (swap := record.swap) is not None:
                written = PendingValue(f"{record.run}:{record.request}", swap.version + 1, swap.value, fresh=False)
                self._end(change, answer, entry, tip=written)
            else:
                self._end(change, answer, entry)

        self._host.send(record, answered)

    def _again(self, change: StateChange, error: HoldfastError, call: Callable[[], None]) -> None:
        self._host.emit("record_failed", run=change.record.run, error=str(error))
        self._host.later(RETRY_SECONDS, call)

    def _end(
        self,
        change: StateChange,
        answer: Outcome | BaseException | None,
        entry: j.StepDone | None = None,
        *,
        tip: PendingValue | None = None,
    ) -> None:
        """Tell what came of it, and let the next one go."""
        address = change.work.address
        self._host.later(0, lambda: self._host.turns.leave(address, tip))
        change.done(change.call, TransactionResult(answer, entry))


def _as_error(answer: Outcome | HoldfastError) -> HoldfastError:
    return answer if isinstance(answer, HoldfastError) else HoldfastError(f"the store answered {answer}")
