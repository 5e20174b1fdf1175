"""Commands that the heartbeat thread sends until they have taken effect.

`PendingAbandons` sends an `Abandon` again until the store has answered it, or until the attempt has expired by itself,
so that an attempt without a waiting caller holds no lock. `OpenOffers` settles a lock again when an offer that this
client made has ended, because the waiter may have crashed. Both are called by the heartbeat thread, and both send
without waiting for the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..commands import Abandon, Failed, Settle
from ..errors import HoldfastError
from ..events import Events
from ..platform import elapsed
from ..rules import lock_outcomes as out
from ..validation import MICROSECONDS
from .batcher import Batcher

IDLE_SECONDS = 60.0
"""Seconds after which the heartbeat thread checks everything although nothing is due."""
RETRY_ABANDON_SECONDS = 1.0
"""Seconds until an Abandon that failed is sent again."""
OFFER_MARGIN_SECONDS = 0.02
"""Seconds after the end of an offer at which the lock is settled, to allow for rounding of the store's clock."""


class OpenOffers:
    """Locks that this client has offered to waiters, each with the time at which the offer has ended."""

    def __init__(self, commands: Batcher, wake_before: Callable[[float], None]) -> None:
        """`wake_before(moment)` makes the heartbeat thread check before that moment."""
        self._commands = commands
        self._wake_before = wake_before
        self._ends: dict[str, float] = {}  # by key: when the last offer of this client has ended

    def keys(self) -> list[str]:
        """The keys of the locks whose offers have not ended."""
        return list(self._ends)

    def add(self, key: str, seconds: float) -> None:
        """Settle this lock when an offer that lasts for so many seconds from now has ended."""
        self._ends[key] = check_at = elapsed() + seconds + OFFER_MARGIN_SECONDS
        self._wake_before(check_at)

    def settle_ended(self, now: float) -> float:
        """Settle the locks whose last offer has ended. Returns when the next offer ends.

        Nothing is sent for a lock that this client goes on handing over: each hand-over postpones the check.
        """
        due = [key for key, check_at in list(self._ends.items()) if check_at <= now]
        for key in due:
            self._ends.pop(key, None)
        if due:

            def done(outcomes: list[out.Outcome] | None, _error: HoldfastError | None) -> None:
                for key, outcome in zip(due, outcomes or (), strict=False):
                    if isinstance(outcome, out.Settled) and outcome.offer_ends_in is not None:  # longer than the first
                        self.add(key, outcome.offer_ends_in / MICROSECONDS)

            self._commands.enqueue([Settle(key=key) for key in due], done)
        return min(list(self._ends.values()), default=math.inf)


class _PendingAbandon:
    """An attempt that must be given back, until it has expired by itself."""

    __slots__ = ("command", "retry_at", "until")

    def __init__(self, command: Abandon, until: float) -> None:
        self.command = command
        self.until = until
        self.retry_at = until


class PendingAbandons:
    """Attempts that must be given back; each Abandon is sent again until the store has answered it."""

    def __init__(
        self, commands: Batcher, events: Events, *, wake: Callable[[], None], offered: Callable[[str], None]
    ) -> None:
        """`wake` makes the heartbeat thread check now. `offered(key)`: giving back made an offer to another waiter."""
        self._commands = commands
        self._events = events
        self._wake = wake
        self._offered = offered
        self._pending: dict[str, _PendingAbandon] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, command: Abandon) -> None:
        """Send an Abandon now, and again until it is answered."""
        now = elapsed()
        self._pending[command.id] = pending = _PendingAbandon(command, now + command.ttl / MICROSECONDS)
        self._send(pending)

    def _send(self, pending: _PendingAbandon) -> None:
        command = pending.command

        def done(outcomes: list[out.Outcome] | None, error: HoldfastError | None) -> None:
            if outcomes is not None and isinstance(outcomes[0], out.Abandoned):
                self._pending.pop(command.id, None)
                if outcomes[0].woken:
                    self._offered(command.key)
                return
            trouble = outcomes[0].error if outcomes is not None and isinstance(outcomes[0], Failed) else error
            self._events.emit("give_back_failed", key=command.key, attempt=command.id, error=str(trouble))
            pending.retry_at = elapsed() + RETRY_ABANDON_SECONDS
            self._wake()

        pending.retry_at = pending.until
        if not self._commands.enqueue((command,), done):
            self._pending.pop(command.id, None)

    def send_due(self, now: float) -> float:
        """Send again what failed; after one ttl the attempt has expired by itself. Returns when to check again."""
        wake_at = now + IDLE_SECONDS
        for pending in list(self._pending.values()):
            if now >= pending.until:
                self._pending.pop(pending.command.id, None)
            elif now >= pending.retry_at:
                self._send(pending)
            wake_at = min(wake_at, pending.retry_at)
        return wake_at
