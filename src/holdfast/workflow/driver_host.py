"""What a driver needs of whoever drives: time, chance, a way to the store, and somewhere to run step bodies."""

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
    from .context import StepCall
    from .driver import Driver
    from .driver_state import SlotTurns

Answer = Callable[[Outcome | HoldfastError], None]
Reclaimed = Literal["absent", "ready"]
"""Whether a child that an earlier attempt may have started is to be started, or is there for this attempt."""


class EarlierAttempts(NamedTuple):
    """What was before an attempt: events up to this number, and whether a history that a restart has removed."""

    events: int
    restarted: bool


class DriverHost(Protocol):
    """The worker, as its drivers see it. Everything happens on its event loop."""

    max_bytes: int
    transactional: bool
    """Whether the store's database can have the user's own writes in the same transaction."""
    turns: SlotTurns
    """Which run may change a state slot."""

    def now(self) -> int:
        """The store's time, as well as it is known here."""

    def chance(self) -> float:
        """A number between 0 and 1."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this after a while, unless the worker has ended by then."""

    def send(self, command: Command, answer: Answer) -> None:
        """Send a command; the answer comes in a callback of its own."""

    def body_of(self, call: StepCall) -> Callable[..., Any]:
        """The function of a step."""

    def spawn(self, body: Coroutine[Any, Any, Any], scope: Scope) -> asyncio.Future[Any]:
        """Run an async body."""

    def in_thread(self, body: Callable[[], Any], scope: Scope) -> asyncio.Future[Any]:
        """Run a blocking body in a thread."""

    def transact(self, work: Callable[[Any], RecordRun], scope: Scope) -> asyncio.Future[Outcome | None]:
        """Do work in a transaction of the store's database, in a thread, and carry out the record that it returns.

        The answer is that of the record; anything but `Recorded` was rolled back. None: the store was away, and nothing
        was done. What the work raises is raised.
        """

    def emit(self, event: str, **fields: object) -> None:
        """Tell the outside."""

    def reclaim(
        self, parent: str, new: NewRun, before: EarlierAttempts, answer: Callable[[Reclaimed | HoldfastError], None]
    ) -> None:
        """Make a child ready that an earlier attempt of its parent may have started; see `children.reclaim`."""

    def child_started(self, new: NewRun) -> None:
        """A child was started: emit an event if no living worker knows its workflow."""

    def renew(self, held: LocalGrant, heartbeats: object) -> Callable[[], None]:
        """Renew a lock of a run from now on, as long as `heartbeats` is there. What is returned ends that."""

    def elsewhere(self, call: Callable[[], None]) -> None:
        """Call this on the event loop; for those who are on another thread."""

    def stuck(self, run: str) -> None:
        """A run waits for nothing but locks and children: see whether that can ever end."""

    def wake_at(self, driver: Driver, due: int | None) -> None:
        """Let the driver tick at this moment on the store's clock, and at no other; None: at none."""

    def resting(self, driver: Driver) -> None:
        """The driver waits, for time or for others."""

    def gone(self, driver: Driver) -> None:
        """The driver has left its run."""
