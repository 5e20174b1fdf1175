"""`TestEngine`: workflows in a test, with a clock that the test moves and steps that it replaces.

Runs are kept in memory. Sleeps, timers, retries and timeouts of workflows pass when the test calls `advance`, and take
no real time. The bodies of steps run as they are, unless `mock` replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from ..commands import Command
from ..commands.runs import ReadNextDue, RecordRun
from ..errors import InvalidOption
from ..events import Events
from ..observe import LoggingSink
from ..rules.runs.outcomes import NextDue
from ..runtime.base import BaseClient
from ..runtime.grant import LocalGrant
from ..stores import open_store
from ..validation import MAX_TTL_SECONDS, MICROSECONDS, Duration, seconds
from ..workflow.context import StepCall
from ..workflow.definition import Step, Workflow, step_of
from ..workflow.driver import Driver
from ..workflow.driver_host import Answer
from ..workflow.engine import Engine, at_rest
from ..workflow.retention import Retention
from ..workflow.worker import Worker

MANY = 1_000
HOP = 300 * 86_400 * MICROSECONDS
"""The largest step of the clock: between two steps the worker's lease is renewed, so that it does not expire."""


class _Client(BaseClient):
    """A client on its own memory store, with the test's clock."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        super().__init__("memory://", events=Events(LoggingSink()))

    def _open(self) -> Any:
        if self._store is None:
            self._store = open_store("memory://", namespace=self._namespace, clock=self._clock)
        return super()._open()


class _Worker(Worker):
    """A worker that uses the test's clock."""

    clock: Callable[[], int]
    mocks: dict[str, Callable[..., Any]]
    due: dict[str, tuple[int, Driver]]

    def now(self) -> int:
        """The time of the test's clock."""
        return self.clock()

    def _sync(self, now: int, *, force: bool = False) -> None:
        """Nothing to measure: store and worker share one clock."""

    def _park_later(self, seconds: float) -> None:
        """Never park a run: only the test could load it again."""

    def wake_at(self, driver: Driver, due: int | None) -> None:
        """Store when this driver is due; `advance` stops at that moment."""
        self.due.pop(driver.run.id, None)
        if due is not None:
            self.due[driver.run.id] = (due, driver)

    def driver_left(self, driver: Driver) -> None:
        """The driver has left its run."""
        self.due.pop(driver.run.id, None)
        super().driver_left(driver)

    def body_of(self, call: StepCall) -> Callable[..., Any]:
        """The function of a step, or its mock."""
        return self.mocks.get(call.name, call.function)

    def send(self, command: Command, answer: Answer) -> None:
        """Send a command. Locks are requested without a ttl, so that none expires when time is moved far."""
        if isinstance(command, RecordRun) and command.lock_requests:
            command = replace(command, lock_requests=tuple(replace(ask, ttl=None) for ask in command.lock_requests))
        super().send(command, answer)

    def renew(self, held: LocalGrant, heartbeats: object) -> Callable[[], None]:  # noqa: ARG002
        """Renew nothing: locks have no ttl here."""
        return lambda: None

    async def next_moment(self) -> int | None:
        """When a driver, or a run that waits to be claimed again, is due next."""
        next_due = await self.execute(ReadNextDue(types=tuple(kind for kind, _ in self._types())))
        assert isinstance(next_due, NextDue)  # noqa: S101
        moments = [when for when, _ in self.due.values()]
        if next_due.next_due is not None and next_due.next_due > self.now():
            moments.append(next_due.next_due)
        return min(moments, default=None)

    def next_due(self) -> Driver | None:
        """The driver that is due, the earliest first; it is removed from the list."""
        first = min(self.due.values(), key=lambda pair: pair[0], default=None)
        if first is None or first[0] > self.now():
            return None
        del self.due[first[1].run.id]
        return first[1]

    async def keep(self) -> None:
        """Renew the worker's lease, so that it does not expire when time is moved far."""
        if self._lease is not None:
            await self._lease.renew()


class TestEngine(Engine):
    """An engine for tests, with its own clock and with steps that can be mocked.

    >>> import asyncio
    >>> from holdfast import workflow
    >>> from holdfast.testing import TestEngine
    >>> @workflow
    ... async def remind(ctx, name: str) -> str:
    ...     await ctx.sleep("30 days")
    ...     return await ctx.step("send", print, name)
    >>> async def test() -> str:
    ...     async with TestEngine([remind]) as engine:
    ...         engine.mock("send", "sent")
    ...         handle = await engine.start(remind, "you")
    ...         await engine.advance("30 days")
    ...         return await handle.result()
    >>> asyncio.run(test())
    'sent'
    """

    __test__ = False
    _worker_type = _Worker

    def __init__(
        self, workflows: Sequence[Workflow[Any, Any]], *, start: datetime | None = None, **options: Any
    ) -> None:
        begin = start or datetime.now(UTC)
        if begin.tzinfo is None:
            raise InvalidOption(f"start needs a time zone, such as datetime(2026, 1, 1, tzinfo=UTC), not {begin!r}")
        self._now = round(begin.timestamp() * MICROSECONDS)
        self._mocks: dict[str, Callable[..., Any]] = {}
        super().__init__(None, workflows=workflows, worker_ttl=MAX_TTL_SECONDS, **options)

    def _time(self) -> int:
        return self._now

    def _new_client(self, where: Any) -> BaseClient:  # noqa: ARG002  (always in memory)
        return _Client(self._time)

    def _new_worker(self, client: BaseClient) -> Worker:
        worker = super()._new_worker(client)
        assert isinstance(worker, _Worker)  # noqa: S101
        worker.clock, worker.mocks, worker.due = self._time, self._mocks, {}
        return worker

    def now(self) -> datetime:
        """The time of this engine."""
        return datetime.fromtimestamp(self._now / MICROSECONDS, UTC)

    def mock(self, step: Step[Any, Any] | str, instead: Any) -> None:
        """Replace a step by a function, an exception to raise, or a value to return."""
        name = step if isinstance(step, str) else (step_of(step) or step).name
        if isinstance(instead, BaseException) or (isinstance(instead, type) and issubclass(instead, BaseException)):

            def body(*_args: object, **_options: object) -> Any:
                raise instead

        elif callable(instead):
            body = instead
        else:

            def body(*_args: object, **_options: object) -> Any:
                return instead

        self._mocks[name] = body

    async def advance(self, duration: Duration) -> None:
        """Let time pass, from timer to timer, until every run waits for something later or has ended."""
        worker = self._open()[1]
        assert isinstance(worker, _Worker)  # noqa: S101
        end = self._now + round(seconds(duration) * MICROSECONDS)
        await self.settle()
        while (moment := await worker.next_moment()) is not None and moment <= end:
            await self._move(worker, moment)
            if (driver := worker.next_due()) is not None:
                driver.became_idle.clear()
                worker.later(0, driver.tick)
                await driver.became_idle.wait()
            await self.settle()
        await self._move(worker, end)
        await self.settle()
        if self._retention is not None:
            await self._retention.sweep()

    def _start_retention(self, retention: Retention) -> None:
        """Nothing: runs are purged when the clock was moved."""

    async def _move(self, worker: _Worker, moment: int) -> None:
        while self._now < moment:
            self._now = min(moment, self._now + HOP)
            await worker.keep()

    async def settle(self) -> None:
        """Wait until every run waits for time, for a signal or for another run, or has ended."""
        worker = self._open()[1]
        while True:
            for driver in list(worker.drivers.values()):
                await at_rest(driver)
            claimed = await worker.claim(limit=MANY)
            if not claimed and all(driver.idle for driver in worker.drivers.values()):
                return
