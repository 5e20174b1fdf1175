"""A worker: one lease, and the runs that it drives while that lease is held.

It claims due runs, after a notification and at least once a second, and creates a driver for each of them. A run that
waits for long is parked. When the lease is lost, every driver leaves its run, and the worker registers again with a
new id. Once a second the worker also compares two lists: the runs that belong to it in the store, and the runs that
it drives. In this way it detects a claim or a start whose reply was lost, and an event whose notification was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from ..commands.runs import ClaimRuns, ListOwnedRuns, ReadNextDue, ReadRun, RegisterWorker, UnregisterWorker
from ..errors import HoldfastError, LeaseLost, LockTimeout, StoreError
from ..locks.acquire import take
from ..locks.lease import AsyncLease
from ..locks.options import checked_options
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import Claim, Claimed, NextDue, OwnedRuns, RunSeen, WorkerGone, WorkerRegistered
from ..rules.runs.record import SUSPECT, Continue, NewRun, Park, Run, worker_key
from ..runtime.base import BaseClient
from ..runtime.runners import run_async
from ..validation import MICROSECONDS
from .blocked_runs import BlockedRuns
from .definition import Workflow
from .driver import Driver, emit_blocked
from .lock_sweeper import LockSweeper
from .queries import Incarnation
from .worker_host import WorkerHost

POLL_SECONDS = 1.0
"""How often a worker polls, because notifications may be lost."""
CLAIMED_AT_ONCE = 250
"""At most so many runs are claimed at once: a claim reads their whole histories, and must not take long."""
SHORT_HISTORY = 200
"""The events of a run with at most this many entries are read with its history; of a longer one with a record."""
RUN_CHANNEL = ".run/"
"""The part of a notification's name before the id of a run."""
BLOCKED_CHANNEL = ".blocked/"
"""Likewise, for a blocked run that this engine may try."""
SOONEST_PARKING = 0.01
EARLY_PARKING = 0.2
"""A run may be parked after so many seconds of waiting if due runs need its place."""

_log = logging.getLogger("holdfast.workflow")


class Worker(WorkerHost):
    """Claims and drives the runs of an engine. Everything happens on the event loop on which it was created."""

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
        max_stream_bytes: int,
        recover: bool,
        engine: str,
        code: str,
    ) -> None:
        super().__init__(client, max_bytes=max_bytes, max_stream_bytes=max_stream_bytes, engine=engine, code=code)
        self.id = ""
        self.drivers: dict[str, Driver] = {}
        self._workflows, self._name = workflows, name
        self._ttl, self._max_active, self._park_after = ttl, max_active, park_after
        self._lease: AsyncLease | None = None
        self._wake = asyncio.Event()
        self._driver_has_left = asyncio.Event()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._expected: set[str] = set()  # runs that are being started: their replies are on the way
        self._suspects: dict[str, Driver] = {}  # the drivers whose runs have crashed their workers
        self._early: set[str] = set()  # runs with notifications that may have come before the reply to their claim
        self._check_at = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._undriven: set[str] = set()  # runs that belonged to this worker at the last check, without a driver
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self._parking: asyncio.TimerHandle | None = None
        self._polling: asyncio.Task[None] | None = None
        self._recover = recover
        self._draining = False
        self._known = frozenset(kind for kind, _ in self._types())
        self._blocked = BlockedRuns(engine, self._known, code)
        self.lock_sweeper = LockSweeper(self.execute, lambda run: self.emit("deadlock_detected", run=run, worker=name))

    # -- the lease --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Acquire the lease, register, and begin to claim."""
        runtime = self._client.runtime
        self._unsubscribe = runtime.add_listener(self._notified_elsewhere)
        runtime.watched()
        await self._register()
        self._polling = self._loop.create_task(self._poll_forever(), name="holdfast-worker")
        self.watch.start()

    async def _register(self) -> None:
        """Register with a new id and a new lease."""
        types = tuple(kind for kind, _ in self._types())
        while not self.id:
            attempt = self._client.runtime.new_attempt()
            with suppress(LockTimeout):  # this process was paused for longer than the ttl: try again
                lease = await self._acquire_lease(attempt)
                try:
                    command = RegisterWorker(worker=attempt, name=self._name, types=types, engine=self.engine)
                    registered = await self.execute(command)
                    next_due = await self.execute(ReadNextDue(types=types))
                except BaseException:
                    await _release(lease)
                    raise
                if isinstance(registered, WorkerRegistered) and isinstance(next_due, NextDue) and lease.valid:
                    self._sync(next_due.now, force=True)
                    self._lease, self.id = lease, attempt
                    self._blocked.opened = self._blocked.opened or next_due.now
                else:
                    await _release(lease)

    async def _acquire_lease(self, attempt: str) -> AsyncLease:
        options = checked_options(
            worker_key(attempt), kind="worker", ttl=self._ttl, wait=0, owner=self._name, on_lost=self._lost_elsewhere
        )
        flow = take(self._client, options, 0, AsyncLease, attempt=attempt)
        return await run_async(flow, self._client.runtime.batchers)

    async def stop(self, grace: float) -> None:
        """Claim no further run, wait up to `grace` seconds until running steps are recorded, and release all runs."""
        self._draining = True
        for task in (self._polling, self._checking):  # the first task starts the second
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.lock_sweeper.stop()
        deadline = elapsed() + grace
        while self.drivers and elapsed() < deadline:
            for driver in list(self.drivers.values()):
                driver.drain()
            self._driver_has_left.clear()
            if self.drivers:
                await _wait(self._driver_has_left, min(0.1, deadline - elapsed()))
        for driver in list(self.drivers.values()):
            driver.leave("closed")
        self.cancel_lookups()
        if self.id:
            try:
                await self.execute(UnregisterWorker(worker=self.id))
            except HoldfastError as error:
                _log.info(
                    "the worker %s could not unregister; its runs can be claimed when its lease has expired: %s",
                    self.id,
                    error,
                )
        self._unsubscribe()
        for alarm in (*self._alarms.values(), self._parking):
            if alarm is not None:
                alarm.cancel()
        if self._lease is not None:
            await _release(self._lease)
        self.stop_host()

    def _lost_elsewhere(self, lease: AsyncLease) -> None:
        """The lease was lost. Called from another thread."""
        self._loop.call_soon_threadsafe(self._lost, lease)

    def _lost(self, lease: AsyncLease) -> None:
        if lease is not self._lease:
            return
        self._lease, self.id = None, ""
        self.emit("worker_lost", worker=self._name, runs=len(self.drivers))
        for driver in list(self.drivers.values()):
            driver.leave("lost")
        self._undriven.clear()
        self._wake.set()

    async def end_of(
        self,
        run: str,
        timeout: float | None,  # noqa: ASYNC109  (the timeout of the caller)
        awaited: Incarnation,
    ) -> Run | None:
        """Wait for the end of a run. None if the run is not driven here, or does not end here in time."""
        driver = self.drivers.get(run)
        if driver is None:
            return None
        if awaited.first is None:
            awaited.first = driver.run.first
        if driver.run.first != awaited.first:  # the run that the caller waits for was replaced by this one
            return None
        await _wait(driver.finished, timeout)
        ended = driver.ended
        return None if ended is not None and ended.status == "cancelled" else ended  # the store knows the reason

    # -- claims -----------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more runs may be driven here."""
        return 0 if self._draining else self._max_active - len(self.drivers) - len(self._expected)

    def expect(self, run: str) -> None:
        """This worker has sent a start of this run."""
        self._expected.add(run)

    def unexpect(self, run: str) -> None:
        """The start was answered, or has failed."""
        self._expected.discard(run)

    async def _poll_forever(self) -> None:
        while True:
            try:
                pause = await self._poll()
            except StoreError as error:
                self.emit("claim_failed", worker=self._name, error=str(error))
                pause = POLL_SECONDS
            except HoldfastError:
                _log.exception("the worker %s got an unexpected error; it continues", self._name)
                pause = POLL_SECONDS
            await _wait(self._wake, pause)
            self._wake.clear()

    async def _poll(self) -> float:
        """Claim due runs, settle expired locks, check the own runs. Returns the seconds until the next poll."""
        if not self.id:
            await self._register()
        if elapsed() >= self._check_at and (self._checking is None or self._checking.done()):
            self._check_at = elapsed() + POLL_SECONDS
            self._early &= self._expected  # here, where no claim of this worker is under way
            self._checking = self._loop.create_task(self._check(), name="holdfast-check")
        await self.lock_sweeper.settle()
        if not self._recover:
            return POLL_SECONDS
        pause = await self._claim_due()
        if pause >= SOONEST_PARKING and await self.try_blocked(self.room):
            return SOONEST_PARKING
        return pause

    async def try_blocked(self, limit: int) -> list[Driver]:
        """Claim some of the blocked runs that this engine has not tried, if there are any."""
        hints = self._client.runtime.listens
        found = await self._blocked.next(self.execute, self.now(), limit, hints=hints) if limit > 0 else ()
        return await self.claim(limit=len(found), runs=found, untried=True) if found else []

    async def _check(self) -> None:
        """Compare the own runs, and search for deadlocks. No claim waits for these reads, which may take long."""
        try:
            await self._compare()
            await self.lock_sweeper.check_page()
        except StoreError as error:
            self.emit("claim_failed", worker=self._name, error=str(error))
        except HoldfastError:
            _log.exception("the worker %s got an unexpected error; it continues", self._name)

    async def _claim_due(self) -> float:
        """Claim the due runs. Returns the seconds until the next run may be due."""
        while not self._draining:
            next_due = await self.execute(ReadNextDue(types=tuple(kind for kind, _ in self._types())))
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
        """Park the runs that have waited longest, some at a time. Returns False if no run waits.

        The waiting runs may wait for the very runs that are due: for a child, or for a run that is offered their lock.
        """
        waiting = sorted((one for one in self.drivers.values() if one.can_park), key=lambda one: one.idle_since)
        latest = self.now() - int(EARLY_PARKING * MICROSECONDS)
        for driver in waiting[: max(1, self._max_active // 4)]:
            if driver.idle_since <= latest:
                driver.park()
        return bool(waiting)

    async def claim(self, *, limit: int, runs: tuple[str, ...] = (), untried: bool = False) -> list[Driver]:
        """Claim runs, and begin to drive them."""
        worker = self.id
        # A suspect that waits cannot crash this worker at this moment, and may be waiting for another suspect.
        busy = any(not driver.idle for driver in self._suspects.values())
        suspects = 0 if busy else 1
        command = ClaimRuns(
            worker=worker,
            types=self._types(),
            limit=limit,
            suspects=suspects,
            runs=runs,
            engine=self.engine,
            opened=self._blocked.opened,
            code=self.code,
            untried=untried,
        )
        outcome = await self.execute(command)
        if isinstance(outcome, WorkerGone):
            await self._lease_ended()
            return []
        assert isinstance(outcome, Claimed)  # noqa: S101
        self._sync(outcome.now)
        for one in outcome.silent:
            self.emit("heartbeat_missed", run=one.run, workflow=one.workflow, step=one.step, worker=one.worker)
        for run in outcome.poisoned:
            emit_blocked(self.emit, run)
        if worker != self.id:  # lost meanwhile: the claimed runs can be claimed again when the old lease has ended
            return []
        return [self.drive(claim) for claim in outcome.claims if claim.run.id not in self.drivers]

    async def _lease_ended(self) -> None:
        """The store reports that the lease has ended, before the heartbeat thread has detected it."""
        lease = self._lease
        if lease is not None:
            self._lost(lease)
            await _release(lease)

    def drive(self, claim: Claim) -> Driver:
        """Begin to drive a run that belongs to this worker."""
        workflow = self._workflows[claim.run.type]
        driver = self.drivers[claim.run.id] = Driver(self, workflow, claim)
        if claim.run.id in self._early:
            self._early.discard(claim.run.id)
            self._loop.call_soon(self._notified, [claim.run.id])
        if claim.run.crashes >= SUSPECT:
            self._suspects[claim.run.id] = driver
        self._loop.call_soon(driver.begin, claim)  # never within a task
        return driver

    async def _compare(self) -> None:
        """Compare the runs that belong to this worker in the store with those that are driven here.

        The read uses another connection than the commands, and may overtake those that are under way. A driven run was
        claimed before, so the store lists it. A run that is just being parked or ended is `ending`. A run that is just
        being claimed may have no driver in one check (`_undriven`); only a run that has none in two checks is claimed
        again, and it still gets only one driver.
        """
        worker, driven = self.id, dict(self.drivers)
        if not worker:
            return
        outcome = await self.execute(ListOwnedRuns(worker=worker))
        assert isinstance(outcome, OwnedRuns)  # noqa: S101
        if worker != self.id:
            return
        for run, driver in driven.items():
            fence, posted = outcome.runs.get(run, (0, 0))
            if self.drivers.get(run) is not driver or driver.ending:
                continue
            if fence != driver.run.fence:
                driver.leave("refused")
            elif posted > driver.seen:  # the notification was lost
                self._notified([run])
        undriven = {run for run in outcome.runs if run not in self.drivers and run not in self._expected}
        lost = tuple(undriven & self._undriven)[:CLAIMED_AT_ONCE]
        self._undriven = undriven
        if lost:
            await self.claim(limit=len(lost), runs=lost)

    def _park_later(self, seconds: float) -> None:
        """Park idle runs in so many seconds, unless that is scheduled already."""
        if self._parking is None and self._recover and not self._draining:
            self._parking = self._loop.call_later(max(seconds, SOONEST_PARKING), self._park_idle)

    def _park_idle(self) -> None:
        """Park the runs that have waited for `park_after`, and schedule this for the next of them."""
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
        """The types that this worker can drive. For a run that was started by name alone it decides the version."""
        own = {kind: kind for kind in self._workflows}
        latest = {workflow.any_type: workflow.type for workflow in self._workflows.values()}
        return tuple((own | latest).items())

    # -- notifications ----------------------------------------------------------------------------------

    def _notified_elsewhere(self, ids: Collection[str] | None) -> None:
        """A notification has come. Called from any thread."""
        runs = None if ids is None else [name.partition(RUN_CHANNEL)[2] for name in ids if RUN_CHANNEL in name]
        blocked = [name.partition(BLOCKED_CHANNEL)[2] for name in ids or () if BLOCKED_CHANNEL in name]
        if blocked:
            self.call_threadsafe(lambda: self._may_try(blocked))
        if runs is None or runs:
            try:
                self._loop.call_soon_threadsafe(self._notified, runs)
            except RuntimeError:  # the loop is closed
                self._unsubscribe()

    def _may_try(self, runs: list[str]) -> None:
        """Another engine could not drive these runs: try them here."""
        self._blocked.add(runs)
        self._wake.set()

    def _notified(self, runs: list[str] | None) -> None:
        """Read the events of these runs. None: any run may have changed, driven here or not."""
        if runs is None:
            self._wake.set()
        for run in list(self.drivers) if runs is None else runs:
            driver = self.drivers.get(run)
            if driver is None:
                self._early.add(run)
                self._wake.set()
            elif driver.length > SHORT_HISTORY:
                driver.poll()
            else:
                self.send(ReadRun(run=run, history=True), lambda answer, driver=driver: _receive(driver, answer))  # type: ignore[misc]

    # -- for the drivers --------------------------------------------------------------------------------

    def child_started(self, new: NewRun) -> None:
        """Look for workers that know the workflow of a child, unless this worker knows it."""
        if new.type not in self._known:
            self._follow(self._queries.look_for_workers(new.id, new.type))

    def search_deadlock(self, run: str) -> None:
        """Check whether a run that waits for nothing but locks and children is in a deadlock."""
        self.lock_sweeper.search(run)

    def wake_at(self, driver: Driver, due: int | None) -> None:
        """Call the driver's `tick` at this time of the store's clock, instead of any earlier request."""
        run = driver.run.id
        alarm = self._alarms.pop(run, None)
        if alarm is not None:
            alarm.cancel()
        if due is not None:
            pause = max(0.0, (due - self.now()) / MICROSECONDS)
            self._alarms[run] = self._loop.call_later(min(pause, 3_600.0), driver.tick)

    def driver_idle(self, driver: Driver) -> None:  # noqa: ARG002  (all idle runs are checked then)
        """The driver waits: park idle runs after `park_after`."""
        self._park_later(self._park_after)

    def driver_left(self, driver: Driver) -> None:
        """The driver has left its run."""
        alarm = self._alarms.pop(driver.run.id, None)
        if alarm is not None:
            alarm.cancel()
        if self.drivers.get(driver.run.id) is driver:
            del self.drivers[driver.run.id]
            self._suspects.pop(driver.run.id, None)
            self._driver_has_left.set()
            if driver.end is not None and len(self.drivers) == self._max_active - 1:
                self._wake.set()  # another run can be driven now
            if isinstance(driver.end, Continue):  # its next generation is due
                self._wake.set()
            if driver.left == "outdated" and not self._draining:
                again = self._loop.create_task(self._drive_again(driver.run.id), name="holdfast-again")
                self._lookups.add(again)
                again.add_done_callback(self._lookups.discard)
            if isinstance(driver.end, Park) and driver.end.due_at:
                pause = (driver.end.due_at - self.now()) / MICROSECONDS
                if pause < POLL_SECONDS:  # before the next poll
                    self._loop.call_later(max(0.0, pause), self._wake.set)
        driver.finished.set()

    async def _drive_again(self, run: str) -> None:
        """Drive a run from its history again. If the store cannot be reached, `_compare` finds it later."""
        with suppress(StoreError):
            await self.claim(limit=1, runs=(run,))


async def _release(lease: AsyncLease) -> None:
    with suppress(LeaseLost, StoreError):
        await lease.release()


def _receive(driver: Driver, answer: Outcome | HoldfastError) -> None:
    if isinstance(answer, RunSeen) and answer.claim is not None and driver.left is None:
        driver.receive(answer.claim.events)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        pass
