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
from typing import Any, TypeVar

from ..commands import Command
from ..commands.runs import ClaimRuns, ListOwnedRuns, ReadNextDue, ReadRun, RecordRun, RegisterWorker, UnregisterWorker
from ..errors import ClientClosed, HoldfastError, LeaseLost, LockTimeout, StoreError, StoreUnusable
from ..locks.acquire import take
from ..locks.lease import AsyncLease
from ..locks.options import FAILURES, STALLS, checked_options
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import (
    Claim,
    Claimed,
    NextDue,
    OwnedRuns,
    Recorded,
    RunSeen,
    Started,
    WorkerGone,
    WorkerRegistered,
)
from ..rules.runs.record import SUSPECT, NewRun, Park, Run, worker_key
from ..runtime.base import BaseClient
from ..runtime.batcher import Batcher
from ..runtime.flows import LONG_READS, Flow
from ..runtime.grant import LocalGrant
from ..runtime.heartbeats import Renewal
from ..runtime.runners import run_async
from ..stores.contract import SharesTransactions
from ..validation import MICROSECONDS
from .children import reclaim
from .context import StepCall
from .definition import Workflow
from .driver import Driver
from .driver_host import Answer, EarlierAttempts, Reclaimed
from .driver_state import SlotTurns
from .lock_sweeper import LockSweeper
from .queries import RunQueries
from .transactions import transact

POLL_SECONDS = 1.0
"""How often a worker looks by itself, for what it was not told of."""
RESYNC = MICROSECONDS
"""The store's clock as known here is corrected when it is this far off."""
CLAIMED_AT_ONCE = 250
"""No step in a store takes long: a claim reads the whole histories of its runs."""
SHORT_HISTORY = 200
"""Events of a run with so many entries are read together with its history; of a longer one by a record, without it."""
HINT = ".run/"
SOONEST_PARKING = 0.01
EARLY_PARKING = 0.2
"""Seconds that a run has waited, at least, when it is parked to make room for runs that are due."""

_log = logging.getLogger("holdfast.workflow")

T = TypeVar("T")


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
        self.transactional = isinstance(client.runtime.store, SharesTransactions)
        self.turns = SlotTurns()
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
        self._suspects: dict[str, Driver] = {}  # of the drivers, those whose runs have crashed their workers
        self._early: set[str] = set()  # hinted at while their claims or starts were under way, perhaps
        self._look_around_at = 0.0
        self._looking_around: asyncio.Task[None] | None = None
        self._strangers: set[str] = set()  # counted as ours by the store when it was last asked, and not driven
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self._parking: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(thread_name_prefix="holdfast-step")
        self._tending: asyncio.Task[None] | None = None
        self._recover = recover
        self._draining = False
        self._asking = RunQueries(client, max_bytes=max_bytes)
        self._known = frozenset(kind for kind, _ in self._types())
        self._looks: set[asyncio.Task[Any]] = set()  # into the store, for drivers
        self.patrol = LockSweeper(self.ask, lambda run: self.emit("deadlock_detected", run=run, worker=name))

    # -- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take a lease, make itself known, and begin to claim."""
        runtime = self._client.runtime
        self._deafen = runtime.hear(self._hinted_elsewhere)
        runtime.watched()
        await self._enlist()
        self._tending = self._loop.create_task(self._tend(), name="holdfast-worker")

    async def _enlist(self) -> None:
        """Begin an incarnation: a new id, a new lease."""
        types = tuple(kind for kind, _ in self._types())
        while not self.id:
            attempt = self._client.runtime.new_attempt()
            with suppress(LockTimeout):  # paused in the middle for longer than the lease lasts: once more
                lease = await self._take_lease(attempt)
                try:
                    known = await self.ask(RegisterWorker(worker=attempt, name=self._name, types=types))
                    next_due = await self.ask(ReadNextDue(types=types))
                except BaseException:
                    await _give_back(lease)
                    raise
                if isinstance(known, WorkerRegistered) and isinstance(next_due, NextDue) and lease.valid:
                    self._sync(next_due.now, force=True)
                    self._lease, self.id = lease, attempt
                else:
                    await _give_back(lease)

    async def _take_lease(self, attempt: str) -> AsyncLease:
        terms = checked_options(
            worker_key(attempt), kind="worker", ttl=self._ttl, wait=0, owner=self._name, on_lost=self._lost_elsewhere
        )
        flow = take(self._client, terms, 0, AsyncLease, attempt=attempt)
        return await run_async(flow, self._client.runtime.batchers)

    async def stop(self, grace: float) -> None:
        """Claim nothing more, let the runs that are driven come to a good place, give the rest back, and go."""
        self._draining = True
        for task in (self._tending, self._looking_around):  # the first one begins the other
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
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
        for look in list(self._looks):
            look.cancel()
        if self.id:
            try:
                await self.ask(UnregisterWorker(worker=self.id))
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
        """Claim what is due, settle, look around. Returns for how long there is nothing to do."""
        if not self.id:
            await self._enlist()
        if elapsed() >= self._look_around_at and (self._looking_around is None or self._looking_around.done()):
            self._look_around_at = elapsed() + POLL_SECONDS
            self._early &= self._expected  # here, where no claim of its own is under way
            self._looking_around = self._loop.create_task(self._look_around(), name="holdfast-look-around")
        await self.patrol.settle()
        if not self._recover:
            return POLL_SECONDS
        return await self._claim_due()

    async def _look_around(self) -> None:
        """Compare, and look for deadlocks. No claim waits for that: its reads may wait for other long reads."""
        try:
            await self._compare()
            await self.patrol.look()
        except StoreError as error:
            self.emit("claim_failed", worker=self._name, error=str(error))
        except HoldfastError:
            _log.exception("the worker %s stumbled and goes on", self._name)

    async def _claim_due(self) -> float:
        """Claim what is due. Returns for how long nothing will be."""
        while not self._draining:
            next_due = await self.ask(ReadNextDue(types=tuple(kind for kind, _ in self._types())))
            assert isinstance(next_due, NextDue)  # noqa: S101
            self._sync(next_due.now)
            if next_due.next_due is None or next_due.next_due > next_due.now:
                until = POLL_SECONDS if next_due.next_due is None else (next_due.next_due - next_due.now) / MICROSECONDS
                return min(POLL_SECONDS, max(0.001, until))
            if self.room < 1:
                return EARLY_PARKING if self._make_room() else POLL_SECONDS
            if not await self.claim(limit=min(self.room, CLAIMED_AT_ONCE)):
                break
        return POLL_SECONDS

    def _make_room(self) -> bool:
        """Park the runs that have waited longest, some at a time. False: none waits.

        What is due may be the very thing that they wait for: a child, or the run that is offered their lock.
        """
        waiting = sorted((one for one in self.drivers.values() if one.can_park), key=lambda one: one.idle_since)
        latest = self.now() - int(EARLY_PARKING * MICROSECONDS)
        for driver in waiting[: max(1, self._max_active // 4)]:
            if driver.idle_since <= latest:
                driver.park()
        return bool(waiting)

    async def claim(self, *, limit: int, runs: tuple[str, ...] = ()) -> list[Driver]:
        """Claim runs and begin to drive them."""
        worker = self.id
        # One that waits for others does not kill anybody at this moment, and may be waiting for another such run.
        busy = any(not driver.idle for driver in self._suspects.values())
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
        if claim.run.id in self._early:
            self._early.discard(claim.run.id)
            self._loop.call_soon(self._hinted, [claim.run.id])
        if claim.run.crashes >= SUSPECT:
            self._suspects[claim.run.id] = driver
        self._loop.call_soon(driver.begin, claim)  # never within a task
        return driver

    async def _compare(self) -> None:
        """Compare the runs that the store counts as ours with those that are driven.

        The read goes by another connection than the commands, and may overtake those that are under way. What is driven
        was claimed before, so the store knows of it. A run that is just being parked or ended is `ending`. One that is
        just being claimed is a stranger for once; claimed a second time it is given again, and driven by one driver.
        """
        worker, driven = self.id, dict(self.drivers)
        if not worker:
            return
        outcome = await self.ask(ListOwnedRuns(worker=worker))
        assert isinstance(outcome, OwnedRuns)  # noqa: S101
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
        """Look at these runs. None: it is not known which; maybe at those that are driven, maybe at others."""
        if runs is None:
            self._wake.set()
        for run in list(self.drivers) if runs is None else runs:
            driver = self.drivers.get(run)
            if driver is None:
                self._early.add(run)
                self._wake.set()
            elif driver.length > SHORT_HISTORY:
                driver.look()
            else:
                self.send(ReadRun(run=run, history=True), lambda answer, driver=driver: _tell(driver, answer))  # type: ignore[misc]

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
        return await self._batcher(command).submit(command)

    def send(self, command: Command, answer: Answer) -> None:
        """Send a command; the answer comes in a callback of its own."""

        def answered(outcome: Outcome | HoldfastError) -> None:
            if isinstance(outcome, Recorded | Started):
                self._sync(outcome.now)
            answer(outcome)

        try:
            self._batcher(command).ask(command, answered)
        except HoldfastError as error:
            self._loop.call_soon(answer, error)

    def _batcher(self, command: Command) -> Batcher:
        """The way to the store: a long read goes by the connection for queries, so that no acquire waits for it.

        Two commands that are under way at once may then be carried out in another order than they were sent in. What
        depends on an order awaits the first one. A look at one run with a short history follows a signal to it: it is
        no long read, and must not wait behind one.
        """
        is_long = isinstance(command, LONG_READS) and not isinstance(command, ReadRun)
        return self._client.runtime.batchers["queries" if is_long else "commands"]

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
        store = self._client.runtime.store
        return self._loop.run_in_executor(self._threads, scope.run, partial(transact, store, work))

    def emit(self, event: str, **fields: object) -> None:
        """Tell the outside."""
        self._client.events.emit(event, **fields)

    def renew(self, held: LocalGrant, heartbeats: object) -> Callable[[], None]:
        """Have a lock of a run renewed by the client's keeper; closing the client does not give it back."""
        length = held.ttl / MICROSECONDS
        runtime = self._client.runtime
        runtime.heartbeats.keep(
            Renewal(
                held,
                interval=length / 3,
                max_failures=FAILURES,
                max_stall=length * STALLS,
                probe=runtime.probe(),
                since=elapsed(),
                handle=weakref.ref(heartbeats),
                lent=True,
            )
        )

        def stop() -> None:
            held.end()
            runtime.heartbeats.drop(held)

        return stop

    def reclaim(
        self, parent: str, new: NewRun, before: EarlierAttempts, answer: Callable[[Reclaimed | HoldfastError], None]
    ) -> None:
        """Make a child ready that an earlier attempt of its parent may have started."""

        def answered(task: asyncio.Task[Reclaimed]) -> None:
            error = ClientClosed() if task.cancelled() else task.exception()
            if error is None:
                answer(task.result())
            elif isinstance(error, HoldfastError):
                answer(error)
            else:
                _log.error("the child %s could not be looked up", new.id, exc_info=error)
                answer(StoreUnusable(f"the child {new.id!r} could not be looked up: {error!r}"))

        self._follow(reclaim(self._asking, parent, new, before)).add_done_callback(answered)

    def child_started(self, new: NewRun) -> None:
        """Look for workers that know the workflow of a child, unless this one does."""
        if new.type not in self._known:
            self._follow(self._asking.look_for_workers(new.id, new.type))

    def _follow(self, flow: Flow[T]) -> asyncio.Task[T]:
        """Drive a flow in a task that ends with this worker."""
        task = self._loop.create_task(run_async(flow, self._client.runtime.batchers), name="holdfast-look")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)
        return task

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
            self._suspects.pop(driver.run.id, None)
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
