"""What a store tells the suite about itself, and what the parts of the suite work with.

Time is the one thing in which stores differ. A store on the host's clock is given a clock that stands still until
`advance` moves it. A store with a clock of its own is looked at by *its* clock: what the rules would have said is
computed for the moment that the store itself names. Such a store may override `advance` where its clock can be
set for tests; otherwise the suite really waits for the short spans, and skips the long ones with a reason.
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
"""Seconds that the suite really waits for a store whose clock it cannot move."""
NOBODYS_KEY = "nobody-ever-uses-this-key"

ANY_NAMES = ["now", "(now", "snow", "knowledge"]
"""Names like any other: a store must not take one for a word of its own."""


class SuiteBase:
    """The hooks of a store, and the tools of the parts. A new instance for every test."""

    histories: ClassVar[int] = int(os.environ.get("HOLDFAST_HISTORIES", "60"))
    """How many random histories are compared with the rules."""
    story_length: ClassVar[int] = 100
    """How many commands each of them has, at least."""
    patience: ClassVar[float] = PATIENCE
    """Seconds after which something that has not happened will not happen."""
    processes: ClassVar[bool | None] = None
    """Whether other processes reach the store by its URL. None: if its capabilities say that it is shared."""
    workers: ClassVar[int] = 4
    """How many hammer on the store at once."""
    real_second: ClassVar[int] = 4_000
    """Microseconds that a second of a story takes on a store whose clock cannot be moved."""
    notices: ClassVar[bool] = False
    """Whether the store notices that nobody receives a hint, and passes an offer over then."""
    blows: ClassVar[int] = 25
    """How often each of them does so."""

    # -- the hooks --------------------------------------------------------------------------------------------

    def url(self, folder: Path) -> str:
        """The address of an empty store, shared by all who open it. The folder is empty, and this test's alone."""
        raise NotImplementedError(f"{type(self).__name__} must say where its store is: def url(self, folder)")

    def open(self, url: str, *, namespace: str, clock: Clock) -> Store:
        """Open the store. Override it for a store that is not registered under its scheme."""
        return open_store(url, namespace=namespace, clock=clock)

    def dump(self, url: str, namespace: str) -> dict[str, LockRecord] | None:
        """The lock records of a namespace as they are stored, settled by nobody. None: they cannot be had."""
        return None

    def plant(self, url: str, namespace: str, key: str, text: str) -> bool:
        """Put any text in the place of a record. False: this store keeps no text that could be unreadable."""
        return False

    def plant_record(self, url: str, namespace: str, kind: str, key: str, text: str) -> bool:
        """Put any text in the place of a record of a type, due long ago. False: the store keeps no text."""
        return False

    def advance(self, seconds: float) -> None:
        """Let time pass for the store, or set its clock back.

        A store with a clock of its own overrides this where that clock can be set for tests.
        """
        if not self.server_clock:
            self.clock.pass_by(seconds)
        elif 0 <= seconds <= LONGEST_REAL_WAIT:
            time.sleep(seconds)
        else:
            pytest.skip(
                f"{type(self).__name__} has a clock of its own, and its advance() does not move it by {seconds} s"
            )

    def decided_at(self, connection: Connection, commands: Sequence[c.Command]) -> tuple[list[Outcome], list[int]]:
        """Execute a batch, and tell at which moment of the store's clock each command was decided.

        A store with a clock of its own is asked by looks before and after, in the same batch, and must give one
        answer; or its connections have `moments`, which tell it.
        """
        if not self.server_clock:
            return connection.execute(commands), [self.clock.now] * len(commands)
        if hasattr(connection, "moments"):
            return connection.execute(commands), connection.moments
        look = c.Inspect(key=NOBODYS_KEY)
        before, *outcomes, after = connection.execute([look, *commands, look])
        assert isinstance(before, out.LockSeen)
        assert isinstance(after, out.LockSeen)
        assert before.now == after.now, "the clock was read more than once within a batch: override decided_at()"
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
        """Whether the store has a clock of its own."""
        return self.store.capabilities.server_clock

    @property
    def steers(self) -> bool:
        """Whether `advance` moves the clock by any span, also backwards."""
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
        """Let so many seconds of a story pass, in which a second is so many microseconds long."""
        span = seconds * second / SECOND
        if self.steers or 0 < span <= 1:
            self.advance(span)

    def send(self, *commands: c.Command) -> list[Outcome]:
        """Execute one batch."""
        return self.connection.execute(commands)

    def ask(self, command: c.Command, kind: type[T], connection: Connection | None = None) -> T:
        """Execute one command, which must be answered so."""
        (outcome,) = (connection or self.connection).execute([command])
        assert isinstance(outcome, kind), f"{command} was answered {outcome}"
        return outcome

    def seen(self, key: str = "k", connection: Connection | None = None) -> LockRecord:
        """The record of a key, settled for the eye; the empty one where there is none."""
        return self.ask(c.Inspect(key=key), out.LockSeen, connection).record or LockRecord()

    def stored(self, namespace: str = "default") -> dict[str, LockRecord]:
        """The records as they are stored; where those cannot be had, as they are listed."""
        records = self.dump(self.address, namespace)
        return self.listed() if records is None else records

    def listed(self, connection: Connection | None = None) -> dict[str, LockRecord]:
        """All records, by listing page after page."""
        found: dict[str, LockRecord] = {}
        after: str | None = ""
        while after is not None:
            page = self.ask(c.ListLocks(after=after), c.LockPage, connection)
            found.update({item.key: item.record for item in page.items if item.record is not None})
            after = page.next
        return found

    def eventually(self, condition: object) -> None:
        """Wait until the condition holds."""
        assert callable(condition)
        eventually(condition, within=self.patience)

    def need_processes(self) -> None:
        """Skip where no other process reaches the store."""
        reached = self.store.capabilities.shared if self.processes is None else self.processes
        if not reached:
            pytest.skip("no other process reaches this store")


def names(outcomes: Sequence[Outcome]) -> list[str]:
    """What a batch was answered, in short."""
    return [type(outcome).__name__ for outcome in outcomes]


def about(length: int | None, seconds: float) -> bool:
    """Whether a length in microseconds is this, or a little less where a clock runs on."""
    return length is not None and seconds - 1 < length / SECOND <= seconds
