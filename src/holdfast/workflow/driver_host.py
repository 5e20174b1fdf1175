"""The interface between a driver and its worker: time, randomness, the store, and a place to run step bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context as Scope
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..commands import Command
from ..commands.runs import RecordRun
from ..errors import HoldfastError
from ..rules.lock_outcomes import Outcome
from ..rules.runs.record import NewRun
from ..runtime.grant import LocalGrant

if TYPE_CHECKING:
    from .blocking_code import BlockingCodeWatch
    from .context import StepCall
    from .driver import Driver
    from .driver_state import SlotTurns

RETRY_SECONDS = 0.2
"""Seconds until a command is sent again after the store could not be reached, or whose outcome is unknown."""

Answer = Callable[[Outcome | HoldfastError], None]
Reclaimed = Literal["absent", "ready"]
"""Whether a child that an earlier attempt may have started must be started, or exists for this attempt."""


class EarlierAttempts(NamedTuple):
    """What happened before an attempt: events up to this number, and whether a restart has removed a history.

    `first` is the generation with which the run began: children with an earlier one belong to a run that it has
    replaced.
    """

    events: int
    restarted: bool
    first: int


class DriverHost(Protocol):
    """The worker, as its drivers see it. Everything happens on its event loop."""

    max_bytes: int
    max_stream_bytes: int
    """How many bytes of a stream are kept."""
    engine: str
    """The id of the engine: it stays the same when the worker registers again."""
    code: str
    """The version of the engine's code, if it was given one."""
    transactional: bool
    """Whether the user's own writes can be in one transaction with the store's."""
    watch: BlockingCodeWatch
    """Looks for workflow code that blocks the event loop."""
    turns: SlotTurns
    """Decides which run may change a state slot next."""

    def now(self) -> int:
        """The store's time, as far as this process knows it."""

    def random(self) -> float:
        """A random number between 0 and 1."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this after so many seconds, unless the worker has ended by then."""

    def send(self, command: Command, answer: Answer) -> None:
        """Send a command. `answer` is called with its outcome, in a callback of its own."""

    def body_of(self, call: StepCall) -> Callable[..., Any]:
        """The function of a step."""

    def spawn(self, body: Coroutine[Any, Any, Any], scope: Scope) -> asyncio.Future[Any]:
        """Run an async body."""

    def in_thread(self, body: Callable[[], Any], scope: Scope) -> asyncio.Future[Any]:
        """Run a blocking body in a thread."""

    def transact(self, work: Callable[[Any], RecordRun], scope: Scope) -> asyncio.Future[Outcome | None]:
        """Call `work` in a transaction of the store's database, in a thread, and execute the record that it returns.

        The result is the outcome of the record; anything but `Recorded` was rolled back. None: the store could not be
        reached, and nothing was written. An exception of `work` is raised.
        """

    def emit(self, event: str, **fields: object) -> None:
        """Emit an event."""

    def reclaim(
        self, parent: str, new: NewRun, before: EarlierAttempts, answer: Callable[[Reclaimed | HoldfastError], None]
    ) -> None:
        """Prepare a child that an earlier attempt of its parent may have started; see `children.reclaim`."""

    def child_started(self, new: NewRun) -> None:
        """A child was started: emit an event if no running worker knows its workflow."""

    def renew(self, held: LocalGrant, heartbeats: object) -> Callable[[], None]:
        """Renew a lock of a run from now on, as long as `heartbeats` exists. The returned function ends that."""

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Call this on the event loop; may be used from any thread."""

    def search_deadlock(self, run: str) -> None:
        """Check whether a run that waits for nothing but locks and children is in a deadlock."""

    def wake_at(self, driver: Driver, due: int | None) -> None:
        """Call the driver's `tick` at this time of the store's clock, instead of any earlier request; None: never."""

    def driver_idle(self, driver: Driver) -> None:
        """The driver waits for time or for events."""

    def driver_left(self, driver: Driver) -> None:
        """The driver has left its run."""
