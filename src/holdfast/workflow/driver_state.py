"""Changes of state slots by runs: each is written in the same atomic step as its entry in the journal.

In one process, only one run at a time changes a slot, and the next run computes from the value that this run wrote.
So if a hundred runs increment one number, there are a hundred records and no retries. If another process has changed
the slot, the record changes nothing and returns the current value of the slot.
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
from .driver_host import RETRY_SECONDS, DriverHost
from .step_runner import StepRunner, TransactionResult

Turn = Callable[[PendingValue | None], None]


class SlotTurns:
    """Which run may change each slot, in one process."""

    def __init__(self) -> None:
        self._waiting: dict[Address, deque[Turn]] = {}

    def enter(self, address: Address, begin: Turn) -> None:
        """Call `begin` when the slot is free: with the value that was written last, if it is known."""
        waiting = self._waiting.get(address)
        if waiting is None:
            self._waiting[address] = deque()
            begin(None)
        else:
            waiting.append(begin)

    def leave(self, address: Address, written: PendingValue | None) -> None:
        """Begin the next change."""
        waiting = self._waiting[address]
        if waiting:
            waiting.popleft()(written)
        else:
            del self._waiting[address]


class StateChange(NamedTuple):
    """One change that is in progress, and the callback for its result."""

    call: StepCall
    work: SlotWork
    record: RecordRun
    done: Callable[[StepCall, TransactionResult], None]


class DriverState:
    """The state changes of one run."""

    def __init__(self, host: DriverHost, steps: StepRunner) -> None:
        self._host, self._steps = host, steps

    def change(self, call: StepCall, record: RecordRun, done: Callable[[StepCall, TransactionResult], None]) -> None:
        """Execute the change or the read of a step, and write its journal entry with it."""
        work: Any = call.function
        change = StateChange(call, work, record, done)
        self._host.turns.enter(change.work.address, lambda written: self._decide(change, written))

    def _read(self, change: StateChange) -> None:
        def seen(answer: Outcome | HoldfastError) -> None:
            if isinstance(answer, SlotSeen):
                self._decide(change, PendingValue(answer.last, answer.version, answer.value, fresh=True))
            elif isinstance(answer, StoreUnavailable):
                self._retry(change, answer, lambda: self._read(change))
            else:
                self._end(change, _as_error(answer))

        self._host.send(ReadSlot(address=change.work.address), seen)

    def _decide(self, change: StateChange, base: PendingValue | None) -> None:
        """Compute the change. A result without a change, or an error, counts only if the value was just read."""
        if change.call.future.done():  # the code does not wait for it any more, or the run was left
            self._end(change, None, written=base)
            return
        if base is None:
            self._read(change)
            return
        try:
            new, answer = change.work.decide(base)
            entry = self._steps.done(change.call, answer)
        except BaseException as error:
            if base.fresh:
                self._end(change, error)
            else:
                self._read(change)
            return
        if new is None and not base.fresh:
            self._read(change)
            return
        swap = None if new is None else Swap(change.work.address, base.id, base.version, new.value)
        self._send(change, replace(change.record, entries=(j.encode_entry(entry),), swap=swap), entry)

    def _send(self, change: StateChange, record: RecordRun, entry: j.StepDone) -> None:
        def answered(answer: Outcome | HoldfastError) -> None:
            if isinstance(answer, Conflict):
                self._decide(change, PendingValue(answer.last, answer.version, answer.value, fresh=True))
            elif isinstance(answer, StoreUnavailable):  # sent again unchanged: it is recognised if it was executed
                self._retry(change, answer, lambda: self._send(change, record, entry))
            elif isinstance(answer, Recorded) and (swap := record.swap) is not None:
                written = PendingValue(f"{record.run}:{record.request}", swap.version + 1, swap.value, fresh=False)
                self._end(change, answer, entry, written=written)
            else:
                self._end(change, answer, entry)

        self._host.send(record, answered)

    def _retry(self, change: StateChange, error: HoldfastError, call: Callable[[], None]) -> None:
        self._host.emit("record_failed", run=change.record.run, error=str(error))
        self._host.later(RETRY_SECONDS, call)

    def _end(
        self,
        change: StateChange,
        answer: Outcome | BaseException | None,
        entry: j.StepDone | None = None,
        *,
        written: PendingValue | None = None,
    ) -> None:
        """Report the result, and let the next change begin."""
        address = change.work.address
        self._host.later(0, lambda: self._host.turns.leave(address, written))
        change.done(change.call, TransactionResult(answer, entry))


def _as_error(answer: Outcome | HoldfastError) -> HoldfastError:
    return (
        answer
        if isinstance(answer, HoldfastError)
        else HoldfastError(f"the store returned an unexpected outcome: {answer}")
    )
