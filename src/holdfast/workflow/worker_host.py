"""What a worker provides to its drivers: the store's time, commands to the store, timers, and threads for steps.

It does not know which runs are driven, claimed or parked: the class `Worker`, which is derived from it, does. All its
methods are called on the event loop on which it was created.
"""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context as Scope
from functools import partial
from typing import Any, TypeVar

from ..commands import Command
from ..commands.runs import ReadRun, RecordRun
from ..errors import ClientClosed, HoldfastError, StoreUnusable
from ..locks.options import FAILURES, STALLS
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import Recorded, Started
from ..rules.runs.record import NewRun
from ..runtime.base import BaseClient
from ..runtime.batcher import Batcher
from ..runtime.flows import LONG_READS, Flow
from ..runtime.grant import LocalGrant
from ..runtime.heartbeats import Renewal
from ..runtime.runners import run_async
from ..stores.contract import SharesTransactions
from ..validation import MICROSECONDS
from .blocking_code import BlockingCodeWatch
from .children import reclaim
from .context import StepCall
from .driver_host import Answer, EarlierAttempts, Reclaimed
from .driver_state import SlotTurns
from .queries import RunQueries
from .transactions import transact

RESYNC = MICROSECONDS
"""The local copy of the store's clock is corrected when it differs by more than this."""

_log = logging.getLogger("holdfast.workflow")

T = TypeVar("T")


class WorkerHost:
    """The part of `DriverHost` that does not depend on the runs of a worker."""

    def __init__(self, client: BaseClient, *, max_bytes: int, max_stream_bytes: int, engine: str, code: str) -> None:
        self.max_bytes, self.max_stream_bytes, self.engine, self.code = max_bytes, max_stream_bytes, engine, code
        self.transactional = isinstance(client.runtime.store, SharesTransactions)
        self.turns = SlotTurns()
        self.watch = BlockingCodeWatch()
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._offset = 0
        self._threads = ThreadPoolExecutor(thread_name_prefix="holdfast-step")
        self._queries = RunQueries(client, max_bytes=max_bytes)
        self._lookups: set[asyncio.Task[Any]] = set()

    def stop_host(self) -> None:
        """Start no further step in a thread; those that are running are left alone."""
        self.watch.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def cancel_lookups(self) -> None:
        """Cancel the queries that are in progress for drivers."""
        for lookup in list(self._lookups):
            lookup.cancel()

    # -- time -------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The store's time, as far as this process knows it."""
        return self._offset + round(elapsed() * MICROSECONDS)

    def _sync(self, now: int, *, force: bool = False) -> None:
        offset = now - round(elapsed() * MICROSECONDS)
        if force or abs(offset - self._offset) > RESYNC:
            self._offset = offset

    def random(self) -> float:
        """A random number between 0 and 1."""
        return random.random()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this after so many seconds."""
        self._loop.call_later(seconds, call)

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        """Call this on the event loop; may be used from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    # -- the store --------------------------------------------------------------------------------------

    async def execute(self, command: Command) -> Outcome:
        """Send a command and return its outcome."""
        return await self._batcher(command).submit(command)

    def send(self, command: Command, answer: Answer) -> None:
        """Send a command. `answer` is called with its outcome, in a callback of its own."""

        def answered(outcome: Outcome | HoldfastError) -> None:
            if isinstance(outcome, Recorded | Started):
                self._sync(outcome.now)
            answer(outcome)

        try:
            self._batcher(command).submit_callback(command, answered)
        except HoldfastError as error:
            self._loop.call_soon(answer, error)

    def _batcher(self, command: Command) -> Batcher:
        """The batcher of a command: long reads use the connection for queries, so that no other command waits for them.

        Two commands that are under way at once may then be executed in another order than they were sent in. Code that
        depends on an order awaits the first command. A read of one run with a short history follows a signal to it: it
        is not long, and must not wait behind long reads.
        """
        is_long = isinstance(command, LONG_READS) and not isinstance(command, ReadRun)
        return self._client.runtime.batchers["queries" if is_long else "commands"]

    def emit(self, event: str, **fields: object) -> None:
        """Emit an event."""
        self._client.events.emit(event, **fields)

    # -- steps ------------------------------------------------------------------------------------------

    def body_of(self, call: StepCall) -> Callable[..., Any]:
        """The function of a step; a test may replace it."""
        return call.function

    def spawn(self, body: Coroutine[Any, Any, Any], scope: Scope) -> asyncio.Future[Any]:
        """Run an async body."""
        return self._loop.create_task(body, context=scope)

    def in_thread(self, body: Callable[[], Any], scope: Scope) -> asyncio.Future[Any]:
        """Run a blocking body in a thread."""
        return self._loop.run_in_executor(self._threads, scope.run, body)

    def transact(self, work: Callable[[Any], RecordRun], scope: Scope) -> asyncio.Future[Outcome | None]:
        """Call `work` and execute its record in one transaction of the store's database, in a thread."""
        store = self._client.runtime.store
        return self._loop.run_in_executor(self._threads, scope.run, partial(transact, store, work))

    # -- locks and children -----------------------------------------------------------------------------

    def renew(self, held: LocalGrant, heartbeats: object) -> Callable[[], None]:
        """Renew a lock of a run by the client's heartbeat thread; closing the client does not release it."""
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
        """Prepare a child that an earlier attempt of its parent may have started."""

        def answered(task: asyncio.Task[Reclaimed]) -> None:
            error = ClientClosed() if task.cancelled() else task.exception()
            if error is None:
                answer(task.result())
            elif isinstance(error, HoldfastError):
                answer(error)
            else:
                _log.error("the child %s could not be looked up", new.id, exc_info=error)
                answer(StoreUnusable(f"the child {new.id!r} could not be looked up: {error!r}"))

        self._follow(reclaim(self._queries, parent, new, before)).add_done_callback(answered)

    def _follow(self, flow: Flow[T]) -> asyncio.Task[T]:
        """Drive a flow in a task that ends with this worker."""
        task = self._loop.create_task(run_async(flow, self._client.runtime.batchers), name="holdfast-lookup")
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)
        return task
