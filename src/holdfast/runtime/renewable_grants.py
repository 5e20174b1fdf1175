"""No lock is granted that could not be renewed: the connection for heartbeats is open before a lock is requested.

At a server's connection limit the connection for commands may be the last connection that the server accepts. A lease
that is granted then would be lost at its first renewal, in the middle of its holder's work. So if the heartbeats have
no connection yet, or have lost it, it is opened first. If this fails, the acquires of the batch are refused and not
sent. The other commands of the batch, such as releases, are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..commands import Acquire, Command, Failed
from ..errors import HoldfastError, StoreUnavailable, StoreUnusable
from ..rules.lock_outcomes import Outcome
from ..stores.contract import Connection
from .batcher import Batcher

NEVER_RENEWED = frozenset({"hold", "lease"})
"""Kinds of locks that are not renewed by heartbeats."""


class Granting:
    """A connection for commands, next to the batcher of the heartbeats."""

    def __init__(self, connect: Callable[[], Connection], heartbeats: Batcher) -> None:
        self._connection = connect()
        self._heartbeats = heartbeats

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Execute the commands; those whose grant must be renewed later only if that is possible."""
        if self._heartbeats.connected or not any(map(_is_renewed, commands)):
            return self._connection.execute(commands)
        try:
            self._heartbeats.connect()
        except HoldfastError as error:
            return self._refuse(commands, error)
        return self._connection.execute(commands)

    def _refuse(self, commands: Sequence[Command], error: HoldfastError) -> list[Outcome]:
        kind = StoreUnusable if isinstance(error, StoreUnusable) else StoreUnavailable
        refused = Failed(
            error=kind(
                "the lock was not requested, and nothing was granted: the connection that renews leases cannot be "
                f"opened, so the lease would soon be lost. {error}"
            )
        )
        others = [command for command in commands if not _is_renewed(command)]
        outcomes = iter(self._connection.execute(others) if others else ())
        return [refused if _is_renewed(command) else next(outcomes) for command in commands]

    def close(self) -> None:
        """Close the connection for commands; the batcher of the heartbeats closes its own."""
        self._connection.close()


def _is_renewed(command: Command) -> bool:
    return isinstance(command, Acquire) and command.kind not in NEVER_RENEWED
