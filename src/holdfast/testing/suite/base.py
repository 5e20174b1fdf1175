"""The hooks that a store implements for the suite, and the tools that all parts of the suite use.

Stores differ in their clocks. A store on the host's clock is opened with a clock that stands still until `advance`
moves it. A store with its own clock is tested with that clock: the expected outcomes are computed for the moment at
which the store decided. Such a store may override `advance` if its clock can be set for tests. Otherwise the suite
waits in real time for short spans, and skips the tests with long ones, with a reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from ... import commands as c
from ...rules import lock_outcomes as out
from ...rules.lock_outcomes import Outcome
from ...rules.lock_record import LockRecord
from ...stores import open_store
from ...stores.contract import Clock, Connection, Role, Store
from ..builders import SECOND, ManualClock
from ..waiting import PATIENCE, eventually

T = TypeVar("T", bound=Outcome)

LONGEST_REAL_WAIT = 3.0
"""The longest real wait, in seconds, on a store whose clock cannot be moved."""
UNUSED_KEY = "nobody-ever-uses-this-key"

ANY_NAMES = ["now", "(now", "snow", "knowledge"]
"""Ordinary names: a store must not confuse them with its own keywords."""


class SuiteBase:
    """Hooks of a store, and tools of the suite. Each test has a new instance."""

    histories: ClassVar[int] = int(os.environ.get("HOLDFAST_HISTORIES", "60"))
    """How many random histories are compared with the rules."""
    history_length: ClassVar[int] = 100
    """The minimum number of commands in each random history."""
    patience: ClassVar[float] = PATIENCE
    """Seconds after which an expected event counts as missing."""
    processes: ClassVar[bool | None] = None
    """Whether other processes can open the store by its URL. None: as its capability `shared` states."""
    workers: ClassVar[int] = 4
    """How many threads or processes use the store at once."""
    real_second: ClassVar[int] = 4_000
    """The length of a second of a history, in microseconds, on a store whose clock cannot be moved."""
    notices: ClassVar[bool] = False
    """Whether the store detects that a hint reached no receiver, and then passes the waiter over."""
    rounds: ClassVar[int] = 25
    """How many operations each of the `workers` executes."""

    # -- the hooks --------------------------------------------------------------------------------------------

    def url(self, folder: Path) -> str:
        """The address of an empty store, the same for every caller. The folder is empty and belongs to this test."""
        raise NotImplementedError(
            f"{type(self).__name__} must override url(self, folder) and return the address of its store"
        )

    def open(self, url: str, *, namespace: str, clock: Clock) -> Store:
        """Open the store. Override it for a store that is not registered under its scheme."""
        return open_store(url, namespace=namespace, clock=clock)

    def dump(self, url: str, namespace: str) -> dict[str, LockRecord] | None:
        """The lock records of a namespace as they are stored, not settled. None: they cannot be read."""
        return None

    def plant(self, url: str, namespace: str, key: str, text: str) -> bool:
        """Replace a record by any text. False: this store keeps no text that could be unreadable."""
        return False

    def plant_record(self, url: str, namespace: str, kind: str, key: str, text: str) -> bool:
        """Replace a record of a type by any text, due long ago. False: the store keeps no text."""
        return False

    def advance(self, seconds: float) -> None:
        """Let time pass for the store, or set its clock back.

        A store with its own clock overrides this if that clock can be set for tests.
        """
        if not self.server_clock:
            self.clock.pass_by(seconds)
        elif 0 <= seconds <= LONGEST_REAL_WAIT:
            time.sleep(seconds)
        else:
            pytest.skip(
                f"{type(self).__name__}: the store has its own clock, which advance() does not move by {seconds} s"
            )

    def decided_at(self, connection: Connection, commands: Sequence[c.Command]) -> tuple[list[Outcome], list[int]]:
        """Execute a batch. Returns the outcomes, and the time of the store's clock at which each command was decided.

        For a store with its own clock, the batch also reads the clock before and after the commands, and both times
        must be equal; or the store's connections have `moments`, the times of the last batch.
        """
        if not self.server_clock:
            return connection.execute(commands), [self.clock.now] * len(commands)
        if hasattr(connection, "moments"):
            return connection.execute(commands), connection.moments
        look = c.Inspect(key=UNUSED_KEY)
        before, *outcomes, after = connection.execute([look, *commands, look])
        assert isinstance(before, out.LockSeen)
        assert isinstance(after, out.LockSeen)
        assert before.now == after.now, "the store read its clock more than once within a batch: override decided_at()"
        return outcomes, [before.now] * len(commands)

    # -- the tools --------------------------------------------------------------------------------------------

    clock: ManualClock
    address: str
    folder: Path
    _things: ExitStack

    @pytest.fixture(autouse=True)
    def _one_store_a_test(self, tmp_path: Path) -> Iterator[None]:
        self.clock, self.folder = ManualClock(), tmp_path
        self.address = self.url(tmp_path)
        with ExitStack() as self._things:
            yield

    @cached_property
    def server_clock(self) -> bool:
        """Whether the store has its own clock."""
        return self.store.capabilities.server_clock

    @property
    def steers(self) -> bool:
        """Whether `advance` can move the clock by any span, also backwards."""
        return not self.server_clock or type(self).advance is not SuiteBase.advance

    @cached_property
    def store(self) -> Store:
        """The store of this test, opened once."""
        return self.opened()

    @cached_property
    def connection(self) -> Connection:
        """A connection for commands."""
        return self.connect()

    def opened(self, namespace: str = "default") -> Store:
        """Open the store once more; it is closed at the end of the test."""
        store = self.open(self.address, namespace=namespace, clock=self.clock)
        self._things.callback(store.close)
        return store

    def connect(self, role: Role = "commands", store: Store | None = None) -> Connection:
        """One more connection; it is closed at the end of the test."""
        connection = (store or self.store).connect(role)
        self._things.callback(connection.close)
        return connection

    def pass_time(self, seconds: float, second: int) -> None:
        """Let so many seconds of a history pass; `second` is the length of one of them in microseconds."""
        span = seconds * second / SECOND
        if self.steers or 0 < span <= 1:
            self.advance(span)

    def send(self, *commands: c.Command) -> list[Outcome]:
        """Execute one batch."""
        return self.connection.execute(commands)

    def ask(self, command: c.Command, kind: type[T], connection: Connection | None = None) -> T:
        """Execute one command, whose outcome must be of this type."""
        (outcome,) = (connection or self.connection).execute([command])
        assert isinstance(outcome, kind), f"expected {kind.__name__} for {command}, got {outcome}"
        return outcome

    def seen(self, key: str = "k", connection: Connection | None = None) -> LockRecord:
        """The record of a key as `Inspect` returns it, settled; an empty record if there is none."""
        return self.ask(c.Inspect(key=key), out.LockSeen, connection).record or LockRecord()

    def stored(self, namespace: str = "default") -> dict[str, LockRecord]:
        """The records as they are stored; if these cannot be read, as they are listed."""
        records = self.dump(self.address, namespace)
        return self.listed() if records is None else records

    def listed(self, connection: Connection | None = None) -> dict[str, LockRecord]:
        """All records, from all pages of the listing."""
        found: dict[str, LockRecord] = {}
        after: str | None = ""
        while after is not None:
            page = self.ask(c.ListLocks(after=after), c.LockPage, connection)
            found.update({item.key: item.record for item in page.items if item.record is not None})
            after = page.next
        return found

    def eventually(self, condition: object) -> None:
        """Wait until the condition is true."""
        assert callable(condition)
        eventually(condition, within=self.patience)

    def need_processes(self) -> None:
        """Skip the test if other processes cannot open the store."""
        reached = self.store.capabilities.shared if self.processes is None else self.processes
        if not reached:
            pytest.skip("other processes cannot open this store")


def names(outcomes: Sequence[Outcome]) -> list[str]:
    """The type names of the outcomes of a batch."""
    return [type(outcome).__name__ for outcome in outcomes]


def about(length: int | None, seconds: float) -> bool:
    """Whether a length in microseconds is this many seconds, or up to a second less, since a clock may be running."""
    return length is not None and seconds - 1 < length / SECOND <= seconds
