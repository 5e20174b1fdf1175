"""Nothing is granted that could not be renewed: the heartbeats' connection is open before a lock is asked for.

At a server's limit of connections the one for commands may be the last that it accepts. A lease that was granted then
would be lost at its first renewal, in the middle of its holder's work. So where the heartbeats have no connection yet,
or have lost it, it is opened first; if that fails, what would be granted is refused and not sent. The other
commands of the batch, such as releases, go on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..commands import Acquire, Command, Failed
from ..errors import HoldfastError, StoreUnavailable, StoreUnusable
from ..rules.lock_outcomes import Outcome
from ..stores.contract import Connection
from .batcher import Batcher

NEVER_RENEWED = frozenset({"hold", "lease"})
"""Kinds of locks that heartbeats have nothing to do with."""


class Granting:
    """A connection for commands, beside the lane of the heartbeats."""

    def __init__(self, connect: Callable[[], Connection], heartbeats: Batcher) -> None:
        self._connection = connect()
        self._heartbeats = heartbeats

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Execute the commands; what is to be renewed later only if it can be."""
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
                "the lock was not asked for, and nothing was granted: the connection that renews leases cannot be "
                f"opened, so the lease would be lost soon. {error}"
            )
        )
        rest = [command for command in commands if not _is_renewed(command)]
        outcomes = iter(self._connection.execute(rest) if rest else ())
        return [refused if _is_renewed(command) else next(outcomes) for command in commands]

    def close(self) -> None:
        """Close the connection for commands; that of the heartbeats belongs to its lane."""
        self._connection.close()


def _is_renewed(command: Command) -> bool:
    return isinstance(command, Acquire) and command.kind not in NEVER_RENEWED
