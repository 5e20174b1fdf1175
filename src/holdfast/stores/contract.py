"""The contract of a store, on one page.

A store holds the records of one namespace; a connection sends commands to it. The main method is
`Connection.execute(commands) -> outcomes`: each command is atomic by itself and independent of the others in its
batch, and a batch is one round trip where the server allows it. The answer to a command is an outcome, never an
exception that would make other commands fail. If `execute` raises an exception, it applies to the whole batch: a
`StoreError`, whose `ambiguous` says whether the batch may have been executed. The docstring of each command in
`commands` is its specification.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from ..commands import Command
from ..rules.lock_outcomes import Outcome

Role = Literal["commands", "heartbeats", "queries"]
Hint = Callable[[Collection[str] | None], None]
"""Called from any thread with the attempts that may have been granted; None: any attempt, so all must check."""

Clock = Callable[[], int]
"""Microseconds of wall-clock time."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a store can and cannot promise."""

    durable: bool
    """An answered command survives the loss of power."""
    shared: bool
    """Other processes see the same records."""
    server_clock: bool
    """`now` comes from one clock for all clients, not from the clients' hosts."""
    notifies: bool
    """Waiters are notified of a grant; otherwise they only poll from time to time."""
    one_writer: bool = False
    """An open transaction blocks all other writers."""
    workflows: bool = False
    """It supports the commands about runs: workflows can run on it."""
    clock_step: int = 1
    """The resolution of the store's clock, in microseconds."""
    trips: int = 1
    """Round trips of a batch of commands about a few records, where no other client writes to the same records.

    A store may divide a larger batch, and one with a list in its middle: then each part takes so many.
    """


Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one health check. `advice` says what to do; a finding that is ok has none."""

    check: str
    level: Level
    detail: str
    advice: str = ""


class Connection(Protocol):
    """A connection to a store. Used by one thread at a time; never shared across a fork."""

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Execute the commands in their order, and return one outcome for each, in the same order.

        `now` is the store's clock, read within the atomic step. After the step is durable, hints are sent to the
        attempts in the outcomes' `woken` and `hinted`; attempts of runs get an event within the step instead. Where a
        hint shows that the process of a waiter that `listens` has ended, the store may send `PassOver` for its offer.
        Raises `StoreError` for the batch as a whole.
        """

    def close(self) -> None:
        """Release the connection's resources. Safe to call twice, and after an error during a batch."""


class Watch(Protocol):
    """A running subscription to hints."""

    @property
    def polls(self) -> bool:
        """Whether the server sends no notifications now. Then the watch polls, and only for `eager` attempts."""

    def expect(self, id: str, *, eager: bool) -> None:
        """Register an attempt that waits; `eager` for the head of a queue, for which the store may be polled often."""

    def forget(self, id: str) -> None:
        """Unregister an attempt that waits no longer."""

    def close(self) -> None:
        """End the subscription and its thread, if it has one."""


@runtime_checkable
class SessionBound(Protocol):
    """Implemented by stores whose grants may all end at once, with a connection."""

    def on_severed(self, callback: Callable[[str], None]) -> None:
        """Register a callback: called from any thread, with the reason, when all grants of this store have ended."""


@runtime_checkable
class UsesClientClocks(Protocol):
    """Implemented by stores that use the clocks of their clients' hosts: they report clocks that differ."""

    def on_differing_clock(self, name: str, callback: Callable[[str, str, int, float], None]) -> None:
        """Register a callback for each process whose clock begins to differ: name, host, process, seconds ahead.

        `name` is the name of this client. Called from any thread, also about this process itself.
        """


@runtime_checkable
class SharesTransactions(Protocol):
    """Implemented by stores on whose database users may have tables of their own."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A block with a connection for the user's own statements, in one transaction.

        Committed at the end of the block, rolled back when it raises. Raises `StoreError`; `ambiguous` if the outcome
        of the commit is not known.
        """

    def join(self, connection: Any) -> Connection:
        """A connection that carries commands out within the transaction that is open on the caller's connection.

        The caller ends the transaction. Raises `InvalidOption` unless `connection` is one to this store's database. No
        hints are sent: the store does not know whether the transaction is committed. Closing the returned connection
        leaves the caller's connection open.
        """


@runtime_checkable
class OutOfProcess(Protocol):
    """Implemented by stores that work in another process than their callers: two small batches may overlap."""

    out_of_process: Literal[True]


class Store(Protocol):
    """The records of one namespace."""

    @property
    def url(self) -> str:
        """The address, without any password."""

    @property
    def identity(self) -> str:
        """Equal for two stores of this process exactly if they have the same records."""

    @property
    def capabilities(self) -> Capabilities:
        """The promises of this store."""

    def connect(self, role: Role) -> Connection:
        """Open a connection. If callers have to wait for the store, connections for `heartbeats` go first."""

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Subscribe to hints for attempts whose id begins with `channel` and a dot.

        A hint may be lost, late, doubled or wrong; safety does not depend on it.
        """

    def diagnose(self) -> tuple[Finding, ...]:
        """Check what only this store can know: its schema, its settings, its disk space. Changes nothing.

        A check that is not possible is a finding too; no error is raised for it.
        """

    def reopen(self) -> Store:
        """The same store, opened again for the child of a fork, which must not use this one any more."""

    def close(self) -> None:
        """Release resources that the connections share. The connections have been closed before."""
