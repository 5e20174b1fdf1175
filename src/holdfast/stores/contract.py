"""The contract of a store, on one page.

A store is a place where records live, bound to one namespace; a connection is one way into it. In essence
there is one method, `Connection.execute(commands) -> outcomes`: each command is atomic by itself and
independent of its neighbours, and the batch is one trip where the server allows it. A command is answered
by an outcome, never by an exception that would take its neighbours along. An exception of `execute` speaks
of the whole batch: a `StoreError`, whose `ambiguous` says whether the batch may have been carried out.
The specification of each command is its docstring in `commands.py`.
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
"""Called from any thread with the attempts that may have been granted; None: somebody, look for yourself."""

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
    """Waiters are told of a grant; without it they only ask again from time to time."""
    one_writer: bool = False
    """Whoever has a transaction open keeps all others from writing."""
    workflows: bool = False
    """It understands the commands of `run_commands.py`: workflows can run on it."""


Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check-up found. `advice` says what to do; a finding that is ok needs none."""

    check: str
    level: Level
    detail: str
    advice: str = ""


class Connection(Protocol):
    """One way into a store. Used by one thread at a time; never shared across a fork."""

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry out the commands in their order, and answer each at its own place.

        `now` is the store's clock, read within the atomic step. After the step has been made durable, the
        attempts in the outcomes' `woken` and `hinted` are sent hints; attempts of runs are posted an event within
        the step instead. Where a hint shows that the process of a waiter that `listens` is dead, the
        store may send `PassOver` for its offer. Raises `StoreError` for the batch as a whole.
        """

    def close(self) -> None:
        """Give the connection's resources back. Safe to call twice, and after an error in the middle."""


class Watch(Protocol):
    """A running subscription to hints."""

    polls: bool
    """Whether hints are not sent at this moment. A watch that looks for itself gives them to `eager` attempts alone."""

    def expect(self, id: str, *, eager: bool) -> None:
        """Say that this attempt waits; `eager` for the head of a queue, which may be polled for often."""

    def forget(self, id: str) -> None:
        """Say that this attempt waits no longer."""

    def close(self) -> None:
        """End the subscription and its thread, if it has one."""


@runtime_checkable
class SessionBound(Protocol):
    """What a store is as well whose grants may end all at once, with a connection."""

    def on_severed(self, tell: Callable[[str], None]) -> None:
        """Call this from any thread, with the reason, when what was granted through this store has ended."""


@runtime_checkable
class UsesClientClocks(Protocol):
    """What a store is as well whose time is that of its clients' hosts: it can tell whose clock differs."""

    def on_differing_clock(self, name: str, tell: Callable[[str, str, int, float], None]) -> None:
        """Call this for each process whose clock begins to differ from the others': name, host, process, seconds ahead.

        `name` is what this client is called. Called from any thread, also about this process itself.
        """


@runtime_checkable
class SharesTransactions(Protocol):
    """What a store is as well on whose database users keep tables of their own."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A block with a connection for the user's own statements, in one transaction.

        Committed at the end of the block, rolled back when it raises. Raises `StoreError`; `ambiguous` if the outcome
        of the commit is not known.
        """

    def join(self, connection: Any) -> Connection:
        """Carry commands out within the transaction that is open on this connection; ending it is the caller's.

        Raises `InvalidOption` for what is no connection to this store's own database. No hints are sent: whether the
        transaction is ever committed is not known here. Closing it leaves the caller's connection as it is.
        """


@runtime_checkable
class OutOfProcess(Protocol):
    """What a store is as well that works in another process than its callers: two small batches overlap with them."""

    out_of_process: Literal[True]


class Store(Protocol):
    """Where the records of one namespace live."""

    @property
    def url(self) -> str:
        """The address, without any password."""

    @property
    def identity(self) -> str:
        """Equal for two stores of this process exactly if they are the same records."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can promise."""

    def connect(self, role: Role) -> Connection:
        """Open a connection. `heartbeats` go before the others wherever the store makes callers wait."""

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Subscribe to hints for attempts whose id begins with `channel` and a dot.

        A hint may be lost, late, doubled or wrong; nobody's safety rests on it.
        """

    def diagnose(self) -> tuple[Finding, ...]:
        """Look at what this store alone can know: its schema, its settings, its room. Changes nothing.

        What cannot be looked at is a finding too; nothing is raised for it.
        """

    def reopen(self) -> Store:
        """The same store, opened anew for the child of a fork, which must not touch this one again."""

    def close(self) -> None:
        """Give back what is shared between connections. The connections have been closed before."""
