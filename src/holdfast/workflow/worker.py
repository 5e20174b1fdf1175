"""A worker: one lease, and the runs that it drives while that lease lives.

It claims runs that are due, told by a hint or by looking once a second, and gives each a driver. A run that waits for
long is parked. When the lease is lost every driver leaves, and the worker comes back as another incarnation. Once a
second it also compares the runs that the store counts as its own with those that it drives: a claim or a start whose
answer was lost is found so, and so is an event whose hint was lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context as Scope
from functools import partial
from typing import Any

from .._platform import elapsed
from ..client import BaseClient
from ..commands import Command
from ..errors import HoldfastError, LeaseLost, LockTimeout, StoreError
from ..held import Held
from ..keeper import Kept
from ..locks.lease import AsyncLease
from ..locks.taking import take
from ..locks.terms import FAILURES, STALLS, checked_terms
from ..rules.outcomes import Outcome
from ..rules.run import SUSPECT, Park, Run, worker_key
from ..rules.run_outcomes import (
    Claim,
    Claimed,
    Enlisted,
    Outlook,
    Owned,
    Recorded,
    RunSeen,
    Started,
    WorkerGone,
)
from ..run_commands import ClaimRuns, DismissWorker, EnlistWorker, OwnedRuns, RecordRun, RunsOutlook, SeeRun
from ..runners import run_async
from ..stores.contract import Joinable
from ..values import MICROSECONDS
from .context import StepCall
from .definition import Workflow
from .driver import Driver
from .host import Answer
from .patrol import Patrol
from .slots import Turns
from .transacting import transact

POLL_SECONDS = 1.0
"""How often a worker looks by itself, for what it was not told of."""
RESYNC = MICROSECONDS
"""The store's clock as known here is corrected when it is this far off."""
CLAIMED_AT_ONCE = 1_000
HINT = ".run/"
SOONEST_PARKING = 0.01

_log = logging.getLogger("holdfast.workflow")


class Worker:
    """The driving part of an engine. Everything happens on the event loop on which it was started."""

    def __init__(
        self,
        client: BaseClient,
        workflows: Mapping[str, Workflow[Any, Any]],
        *,
        name: str,
        ttl: float,
        max_active: int,
        park_after: float,
        max_bytes: int,
        recover: bool,
    ) -> None:
        self.max_bytes = max_bytes
        self.transactional = isinstance(client.works.store, Joinable)
        self.turns = Turns()
        self.id = ""
        self.drivers: dict[str, Driver] = {}
        self._client, self._workflows, self._name = client, workflows, name
        self._ttl, self._max_active, self._park_after = ttl, max_active, park_after
        self._loop = asyncio.get_running_loop()
        self._lease: AsyncLease | None = None
        self._offset = 0
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()
        self._deafen: Callable[[], None] = lambda: None
        self._expected: set[str] = set()  # runs that are being started: their answers are on the way
        self._strangers: set[str] = set()  # counted as ours by the store when it was last asked, and not driven
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self._parking: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(thread_name_prefix="holdfast-step")
        self._tending: asyncio.Task[None] | None = None
        self._recover = recover
        self._draining = False
        self.patrol = Patrol(self.ask, lambda run: self.emit("deadlock_detected", run=run, worker=name))

    # -- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take a lease, make itself known, and begin to claim."""
        works = self._client.works
        self._deafen = works.hear(self._hinted_elsewhere)
        works.watched()
        await self._enlist()
        self._tending = self._loop.create_task(self._tend(), name="holdfast-worker")

    async def _enlist(self) -> None:
        """Begin an incarnation: a new id, a new lease."""
        types = tuple(kind for kind, _ in self._types())
        while not self.id:
            attempt = self._client.works.new_attempt()
            with suppress(LockTimeout):  # paused in the middle for longer than the lease lasts: once more
                lease = await self._take_lease(attempt)
                try:
                    known = await self.ask(EnlistWorker(worker=attempt, name=self._name, types=types))
                    outlook = await self.ask(RunsOutlook(types=types))
                except BaseException:
                    await _give_back(lease)
                    raise
                if isinstance(known, Enlisted) and isinstance(outlook, Outlook) and lease.valid:
                    self._sync(outlook.now, force=True)
                    self._lease, self.id = lease, attempt
                else:
                    await _give_back(lease)

    async def _take_lease(self, attempt: str) -> AsyncLease:
        terms = checked_terms(
            worker_key(attempt), kind="worker", ttl=self._ttl, wait=0, owner=self._name, on_lost=self._lost_elsewhere
        )
        flow = take(self._client, terms, 0, AsyncLease, attempt=attempt)
        return await run_async(flow, self._client.works.lanes)

    async def stop(self, grace: float) -> None:
        """Claim nothing more, let the runs that are driven come to a good place, give the rest back, and go."""
        self._draining = True
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        self.patrol.stop()
        deadline = elapsed() + grace
        while self.drivers and elapsed() < deadline:
            for driver in list(self.drivers.values()):
                driver.drain()
            self._gone.clear()
            if self.drivers:
                await _wait(self._gone, min(0.1, deadline - elapsed()))
        for driver in list(self.drivers.values()):
            driver.leave("closed")
        if self.id:
            try:
                await self.ask(DismissWorker(worker=self.id))
            except HoldfastError as error:
                _log.info("the worker %s could not say goodbye: %s", self.id, error)
        self._deafen()
        for alarm in (*self._alarms.values(), self._parking):
            if alarm is not None:
                alarm.cancel()
        if self._lease is not None:
            await _give_back(self._lease)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _lost_elsewhere(self, lease: AsyncLease) -> None:
        """The lease is lost. Called from another thread."""
        self._loop.call_soon_threadsafe(self._lost, lease)

    def _lost(self, lease: AsyncLease) -> None:
        if lease is not self._lease:
            return
        self._lease, self.id = None, ""
        self.emit("worker_lost", worker=self._name, runs=len(self.drivers))
        for driver in list(self.drivers.values()):
            driver.leave("lost")
        self._strangers.clear()
        self._wake.set()

    async def end_of(self, run: str, timeout: float | None) -> Run | None:  # noqa: ASYNC109  (of the caller's own)
        """Wait for the end of a run that is driven here. None if it is not, does not end here, or not in time."""
        driver = self.drivers.get(run)
        if driver is None:
            return None
        await _wait(driver.finished, timeout)
        return driver.ended

    # -- claims -----------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more runs it may drive."""
        return 0 if self._draining else self._max_active - len(self.drivers) - len(self._expected)

    def expect(self, run: str) -> None:
        """A start of this run by this worker is on its way."""
        self._expected.add(run)

    def unexpect(self, run: str) -> None:
        """It has been answered, or never will be."""
        self._expected.discard(run)

    async def _tend(self) -> None:
        while True:
            try:
                pause = await self._look()
            except StoreError as error:
                self.emit("claim_failed", worker=self._name, error=str(error))
                pause = POLL_SECONDS
            except HoldfastError:
                _log.exception("the worker %s stumbled and goes on", self._name)
                pause = POLL_SECONDS
            await _wait(self._wake, pause)
            self._wake.clear()

    async def _look(self) -> float:
        """Claim what is due, compare, park. Returns for how long there is nothing to do."""
        if not self.id:
            await self._enlist()
        await self._compare()
        await self.patrol.round()
        if not self._recover:
            return POLL_SECONDS
        return await self._claim_due()

    async def _claim_due(self) -> float:
        """Claim what is due. Returns for how long nothing will be."""
        while self.room > 0:
            outlook = await self.ask(RunsOutlook(types=tuple(kind for kind, _ in self._types())))
            assert isinstance(outlook, Outlook)  # noqa: S101
            self._sync(outlook.now)
            if outlook.next_due is None or outlook.next_due > outlook.now:
                until = POLL_SECONDS if outlook.next_due is None else (outlook.next_due - outlook.now) / MICROSECONDS
                return min(POLL_SECONDS, max(0.001, until))
            if not await self.claim(limit=min(self.room, CLAIMED_AT_ONCE)):
                break
        return POLL_SECONDS

    async def claim(self, *, limit: int, runs: tuple[str, ...] = ()) -> list[Driver]:
        """Claim runs and begin to drive them."""
        worker = self.id
        # One that waits for others does not kill anybody at this moment, and may be waiting for another such run.
        busy = any(driver.run.deaths >= SUSPECT and not driver.idle for driver in self.drivers.values())
        suspects = 0 if busy else 1
        command = ClaimRuns(worker=worker, types=self._types(), limit=limit, suspects=suspects, runs=runs)
        outcome = await self.ask(command)
        if isinstance(outcome, WorkerGone):
            await self._resign()
            return []
        assert isinstance(outcome, Claimed)  # noqa: S101
        self._sync(outcome.now)
        if worker != self.id:  # lost meanwhile; what was claimed dies with the old lease
            return []
        return [self.drive(claim) for claim in outcome.claims if claim.run.id not in self.drivers]

    async def _resign(self) -> None:
        """The store says that the lease is over, before the keeper did."""
        lease = self._lease
        if lease is not None:
            self._lost(lease)
            await _give_back(lease)

    def drive(self, claim: Claim) -> Driver:
        """Begin to drive a run that is this worker's."""
        workflow = self._workflows[claim.run.type]
        driver = self.drivers[claim.run.id] = Driver(self, workflow, claim)
        self._loop.call_soon(driver.begin, claim)  # never within a task
        return driver

    async def _compare(self) -> None:
        """Compare the runs that the store counts as ours with those that are driven."""
        worker, driven = self.id, dict(self.drivers)
        outcome = await self.ask(OwnedRuns(worker=worker))
        assert isinstance(outcome, Owned)  # noqa: S101
        if worker != self.id:
            return
        for run, driver in driven.items():
            fence, posted = outcome.runs.get(run, (0, 0))
            if self.drivers.get(run) is not driver or driver.ending:
                continue
            if fence != driver.run.fence:
                driver.leave("refused")
            elif posted > driver.seen:  # the hint was lost
                self._hinted([run])
        strangers = {run for run in outcome.runs if run not in self.drivers and run not in self._expected}
        lost = tuple(strangers & self._strangers)[:CLAIMED_AT_ONCE]
        self._strangers = strangers
        if lost:
            await self.claim(limit=len(lost), runs=lost)

    def _park_later(self, seconds: float) -> None:
        """Look in so many seconds for what has waited for long, unless that is going to happen anyway."""
        if self._parking is None and self._recover and not self._draining:
            self._parking = self._loop.call_later(max(seconds, SOONEST_PARKING), self._park_the_idle)

    def _park_the_idle(self) -> None:
        """Park what has waited for long, and look again when the next one will have."""
        self._parking = None
        now, waiting = self.now(), []
        for driver in list(self.drivers.values()):
            if driver.idle:
                left = self._park_after - (now - driver.idle_since) / MICROSECONDS
                if left <= 0:
                    driver.park()
                else:
                    waiting.append(left)
        if waiting:
            self._park_later(min(waiting))

    def _types(self) -> tuple[tuple[str, str], ...]:
        """What it can drive; of a run that was started by name alone it decides the version."""
        own = {kind: kind for kind in self._workflows}
        latest = {workflow.any_type: workflow.type for workflow in self._workflows.values()}
        return tuple((own | latest).items())

    # -- hints ------------------------------------------------------------------------------------------

    def _hinted_elsewhere(self, ids: Collection[str] | None) -> None:
        """Called from any thread."""
        runs = None if ids is None else [name.partition(HINT)[2] for name in ids if HINT in name]
        if runs is None or runs:
            try:
                self._loop.call_soon_threadsafe(self._hinted, runs)
            except RuntimeError:  # the loop is closed
                self._deafen()

    def _hinted(self, runs: list[str] | None) -> None:
        for run in list(self.drivers) if runs is None else runs:
            driver = self.drivers.get(run)
            if driver is None:
                self._wake.set()
            else:
                self.send(SeeRun(run=run, history=True), lambda answer, driver=driver: _tell(driver, answer))  # type: ignore[misc]

    # -- for the drivers --------------------------------------------------------------------------------

    def now(self) -> int:
        """The store's time, as well as it is known here."""
        return self._offset + round(elapsed() * MICROSECONDS)

    def _sync(self, now: int, *, force: bool = False) -> None:
        offset = now - round(elapsed() * MICROSECONDS)
        if force or abs(offset - self._offset) > RESYNC:
            self._offset = offset

    def chance(self) -> float:
        """A number between 0 and 1."""
        return random.random()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this after a while."""
        self._loop.call_later(seconds, call)

    async def ask(self, command: Command) -> Outcome:
        """Send a command and await its outcome."""
        return await self._client.works.lanes["commands"].submit(command)

    def send(self, command: Command, answer: Answer) -> None:
        """Send a command; the answer comes in a callback of its own."""

        def answered(outcome: Outcome | HoldfastError) -> None:
            if isinstance(outcome, Recorded | Started):
                self._sync(outcome.now)
            answer(outcome)

        try:
            self._client.works.lanes["commands"].ask(command, answered)
        except HoldfastError as error:
            self._loop.call_soon(answer, error)

    def body_of(self, call: StepCall) -> Callable[..., Any]:
        """The function of a step: its own; a test may put another in its place."""
        return call.function

    def spawn(self, body: Coroutine[Any, Any, Any], scope: Scope) -> asyncio.Future[Any]:
        """Run an async body."""
        return self._loop.create_task(body, context=scope)

    def in_thread(self, body: Callable[[], Any], scope: Scope) -> asyncio.Future[Any]:
        """Run a blocking body in a thread."""
        return self._loop.run_in_executor(self._threads, scope.run, body)

    def transact(self, work: Callable[[Any], RecordRun], scope: Scope) -> asyncio.Future[Outcome | None]:
        """Do work and carry out its record in one transaction of the store's database, in a thread."""
        store = self._client.works.store
        return self._loop.run_in_executor(self._threads, scope.run, partial(transact, store, work))

    def emit(self, event: str, **fields: object) -> None:
        """Tell the outside."""
        self._client.events.emit(event, **fields)

    def renew(self, held: Held, keeper: object) -> Callable[[], None]:
        """Have a lock of a run renewed by the client's keeper; closing the client does not give it back."""
        length = held.ttl / MICROSECONDS
        works = self._client.works
        works.keeper.keep(
            Kept(
                held,
                interval=length / 3,
                max_failures=FAILURES,
                max_stall=length * STALLS,
                pulse=works.pulse(),
                since=elapsed(),
                handle=weakref.ref(keeper),
                lent=True,
            )
        )

        def stop() -> None:
            held.end()
            works.keeper.drop(held)

        return stop

    def elsewhere(self, call: Callable[[], None]) -> None:
        """Call this on the event loop; from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def stuck(self, run: str) -> None:
        """See whether a run that waits for nothing but locks and children can ever go on."""
        self.patrol.search(run)

    def wake_at(self, driver: Driver, due: int | None) -> None:
        """Wake the driver when time alone brings it something."""
        run = driver.run.id
        alarm = self._alarms.pop(run, None)
        if alarm is not None:
            alarm.cancel()
        if due is not None:
            pause = max(0.0, (due - self.now()) / MICROSECONDS)
            self._alarms[run] = self._loop.call_later(min(pause, 3_600.0), driver.tick)

    def resting(self, driver: Driver) -> None:  # noqa: ARG002  (whichever it is)
        """Look for what has waited for long when this one will have."""
        self._park_later(self._park_after)

    def gone(self, driver: Driver) -> None:
        """The driver has left its run."""
        alarm = self._alarms.pop(driver.run.id, None)
        if alarm is not None:
            alarm.cancel()
        if self.drivers.get(driver.run.id) is driver:
            del self.drivers[driver.run.id]
            self._gone.set()
            if driver.end is not None and len(self.drivers) == self._max_active - 1:
                self._wake.set()  # there is room again
            if isinstance(driver.end, Park) and driver.end.due_at:
                pause = (driver.end.due_at - self.now()) / MICROSECONDS
                if pause < POLL_SECONDS:  # sooner than it would look by itself
                    self._loop.call_later(max(0.0, pause), self._wake.set)
        driver.finished.set()


async def _give_back(lease: AsyncLease) -> None:
    with suppress(LeaseLost, StoreError):
        await lease.release()


def _tell(driver: Driver, answer: Outcome | HoldfastError) -> None:
    if isinstance(answer, RunSeen) and answer.claim is not None and driver.left is None:
        driver.hear(answer.claim.events)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        pass
