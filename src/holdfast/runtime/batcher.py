"""The batcher between callers and a store: it sends the commands that arrived while the last batch was in progress.

There is no timer and no added delay: one caller gets a plain round trip, a thousand callers share one commit.
Submitting is safe from any thread and any number of event loops. A sync caller that finds the batcher idle runs one
batch itself, and leaves commands that arrived meanwhile to the batcher's thread. If it is interrupted, the connection
is closed, and the other callers of the batch get an error that is marked as ambiguous.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from asyncio import events
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue

from ..commands import READS, Command, Failed
from ..commands.runs import RUN_READS
from ..errors import ClientClosed, HoldfastError, NotInWorkflow, StoreError, StoreUnavailable, WouldDeadlock
from ..platform import elapsed, start_thread
from ..rules.lock_outcomes import Outcome
from ..stores.contract import Connection
from . import failpoints
from .requests import (
    Answer,
    CallbackRequest,
    Done,
    LoopRequest,
    Request,
    TaskRequest,
    ThreadRequest,
    copied,
    deliver_all,
)

MAX_BATCH = 1_000
ALL_READS = READS + RUN_READS
MIN_HALF = 32
"""A batch with fewer requests is not worth a round trip of its own."""
JOIN_SECONDS = 15.0


class _Outbox(list[LoopRequest]):
    """Requests that an event loop submitted within one iteration; lost if the loop is closed before it posts them."""

    __slots__ = ("__weakref__", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop


class _PerThread(threading.local):
    """The outbox of each thread's event loop; weak, because only the loop itself keeps it."""

    outbox: weakref.ref[_Outbox] | None = None


_THREAD = object()
_within: ContextVar[str] = ContextVar("holdfast_transaction", default="")


@contextmanager
def within(place: str) -> Iterator[None]:
    """In this block a transaction of the user is open on a store with one writer: other writes would wait for it."""
    before = _within.set(place)
    try:
        yield
    finally:
        _within.reset(before)


class Batcher:
    """One queue, at most one batch in progress, one connection."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        name: str,
        *,
        place: str = "-",
        out_of_process: bool = False,
        idle: float = math.inf,
    ) -> None:
        """`idle`: `close_if_idle` closes the connection after so many seconds without a command."""
        self._connect = connect
        self._place = place
        self._idle = idle
        self._used, self._unused_since = True, 0.0
        self._name = name
        self._out_of_process = out_of_process
        self._sent = 0  # how many requests were in the last batch
        self._connection: Connection | None = None
        self._connecting = threading.Lock()
        self._mutex = threading.RLock()  # reentrant: a signal handler may run while its thread holds it
        self._queue: list[Request] = []
        self._runner: object | None = None  # what runs a batch: a caller's request, or the thread
        self._thread: threading.Thread | None = None
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._per_thread = _PerThread()
        self._closed = False
        self._ended = threading.Event()

    # -- submitting ---------------------------------------------------------------------------------

    def run(self, command: Command) -> Outcome:
        """Send one command from this thread and wait for its outcome."""
        outcome = self.call((command,))[0]
        if type(outcome) is Failed:
            raise copied(outcome.error)
        return outcome

    def call(self, commands: Sequence[Command]) -> list[Outcome]:
        """Send commands from this thread and wait for their outcomes, which may be failures."""
        call = ThreadRequest(commands)
        batch: list[Request] = []
        self._refuse_within(commands)
        refuse_in_workflow(events._get_running_loop())  # noqa: SLF001  (None outside of a loop)
        if self._mutex._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001  (as threading.Condition does it)
            raise _would_wait_for_itself()
        try:
            with self._mutex:
                if self._closed:
                    raise ClientClosed  # noqa: TRY301  (one place cleans up)
                if self._runner is None:
                    self._runner = call
                    batch, self._queue = [*self._queue, call], []
                else:
                    self._refuse_nested()
                    call.will_wait()
                    self._queue.append(call)
            if batch:
                self._send(batch)
                self._finish_turn(call)
        except BaseException:
            # An interrupt may occur anywhere, also while delivering or finishing. All of it is done again.
            deliver_all(batch, None, _interrupted())
            self._finish_turn(call)
            raise
        call.wait()
        return call.answers()

    def _refuse_within(self, commands: Sequence[Command]) -> None:
        if _within.get() == self._place and not all(isinstance(command, ALL_READS) for command in commands):
            raise WouldDeadlock(
                "this code runs within a transaction on the same store, which has one writer at a time: the call would "
                "wait for the transaction to end. Nothing was sent. Make the call in a step before or after the "
                "transaction."
            )

    def _refuse_nested(self) -> None:
        """A signal handler or a finaliser that runs within this thread's own batch would wait for itself."""
        if isinstance(self._runner, ThreadRequest) and self._runner.thread == threading.get_ident():
            raise _would_wait_for_itself()

    def submit(self, command: Command) -> asyncio.Future[Outcome]:
        """Send one command from this event loop; the returned future is set to its outcome.

        Commands that a loop submits within one iteration are sent together.
        """
        request = TaskRequest(command, asyncio.get_running_loop())
        self._gather(request)
        return request.future

    def submit_callback(self, command: Command, answer: Answer) -> None:
        """Send one command from this event loop, and call back on that loop with its outcome or with the error."""
        self._gather(CallbackRequest(command, asyncio.get_running_loop(), answer))

    def _gather(self, request: LoopRequest) -> None:
        if self._closed:
            raise ClientClosed
        self._refuse_within(request.commands)
        loop = request.loop
        refuse_in_workflow(loop)
        mine = self._per_thread.outbox
        outbox = None if mine is None else mine()
        if outbox is None or outbox.loop is not loop:
            outbox = _Outbox(loop)
            self._per_thread.outbox = weakref.ref(outbox)
            loop.call_soon(self._post, outbox)
        outbox.append(request)

    def enqueue(self, commands: Sequence[Command], done: Done | None = None) -> bool:
        """Send commands without waiting. `done` is called from another thread. Returns False if the batcher is closed.

        If no thread can be started, `done` is called with that error before this returns.
        """
        with self._mutex:
            if self._closed:
                return False
            self._queue.append(Request(commands, done))
            unsent = self._wake_thread()
        _fail_unsent(unsent)
        return True

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None

    def connect(self) -> None:
        """Open the connection now, from any thread, if there is none. Raises the store's error, or `ClientClosed`."""
        with self._connecting:
            if self._connection is not None:
                return
            fresh = self._connect()
            with self._mutex:
                if not self._closed:
                    self._connection = fresh
                    return
        with suppress(Exception):
            fresh.close()
        raise ClientClosed

    def close_if_idle(self) -> None:
        """Close the connection if it was idle for `idle` seconds; the next command opens a new one."""
        if self._connection is None:
            return
        if self._used:
            self._used, self._unused_since = False, elapsed()
        with self._mutex:
            if elapsed() - self._unused_since < self._idle or self._runner is not None or self._queue:
                return
            idle, self._connection = self._connection, None
        if idle is not None:
            with suppress(Exception):
                idle.close()

    def close(self) -> None:
        """Send the queued commands, end the thread, close the connection. Later calls raise `ClientClosed`."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            unsent = self._wake_thread(even_if_empty=True)
            mine = isinstance(self._runner, ThreadRequest) and self._runner.thread == threading.get_ident()
        _fail_unsent(unsent)
        if self._thread is not threading.current_thread() and not mine:  # a thread must not wait for itself
            self._ended.wait(JOIN_SECONDS)
            if self._thread is not None:
                self._thread.join(JOIN_SECONDS)

    # -- sending ------------------------------------------------------------------------------------

    def _post(self, outbox: _Outbox) -> None:
        self._per_thread.outbox = None
        requests = [request for request in outbox if request.wanted]
        with self._mutex:
            closed = self._closed
            unsent: list[Request] = []
            if not closed:
                self._queue.extend(requests)
                unsent = self._wake_thread()
        if closed:
            for request in requests:
                request.settle(None, ClientClosed())
        _fail_unsent(unsent)

    def _wake_thread(self, *, even_if_empty: bool = False) -> list[Request]:
        """Make the thread process the queue. Called with the mutex held. Returns requests that have no thread."""
        if self._runner is None and (self._queue or even_if_empty):
            if not self._queue and self._thread is None:  # closed, and no thread was ever needed
                self._end()
                return []
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name=f"holdfast-{self._name}", daemon=True)
                try:
                    start_thread(self._thread)
                except RuntimeError:
                    return self._take_unsent()
            self._runner = _THREAD
            self._wake.put(None)
        return []

    def _take_unsent(self) -> list[Request]:
        """No thread can be started: leave the batcher to the next caller, with an empty queue."""
        self._thread = None
        unsent, self._queue = self._queue, []
        if self._closed:
            self._end()
        return unsent

    def _end(self) -> None:
        self._drop_connection()
        self._ended.set()

    def _finish_turn(self, call: ThreadRequest) -> None:
        """Leave the batcher to its thread if there is more to do, else to the next caller. It may be called twice."""
        with self._mutex:
            if self._runner is call:
                self._runner = None
            elif self._runner is _THREAD:
                self._wake.put(None)  # an interrupt may have prevented the wake-up
            unsent: list[Request] = []
            if self._queue or (self._closed and not self._ended.is_set()):
                unsent = self._wake_thread(even_if_empty=self._closed)
        _fail_unsent(unsent)

    def _serve(self) -> None:
        with self._mutex:
            if self._thread is not threading.current_thread():  # an interrupted start left a second thread
                return
        while True:
            self._wake.get()
            while True:
                with self._mutex:
                    if self._runner is not _THREAD:  # a superfluous wake-up
                        if self._ended.is_set():
                            return
                        break
                    size = self._next_size()
                    batch, self._queue = self._queue[:size], self._queue[size:]
                    if not batch:
                        self._runner = None
                        if self._closed:
                            self._end()
                            return
                        break
                self._send(batch)

    def _next_size(self) -> int:
        """How many requests the next batch has: all, or on an out-of-process store half of those that circulate.

        Tasks of one loop that are answered together submit together again: then the store waits for the loop, and the
        loop for the store. In two halves, the store executes one half while the loop processes the other.
        """
        if not self._out_of_process:
            return MAX_BATCH
        circulating = len(self._queue) + self._sent
        self._sent = min(len(self._queue), MAX_BATCH, max(MIN_HALF, (circulating + 1) // 2))
        return self._sent

    def _send(self, batch: list[Request]) -> None:
        """Execute the batch and deliver every answer. Whatever happens, each request gets an answer."""
        outcomes: list[Outcome] | None = None
        error: HoldfastError | None = None
        try:
            commands = batch[0].commands if len(batch) == 1 else [one for request in batch for one in request.commands]
            self._used = True
            connection = self._connection or self._connected()
            if failpoints.reached is not None:
                failpoints.reach("before", commands)
            outcomes = connection.execute(commands)
            if failpoints.reached is not None:
                failpoints.reach("after", commands)
        except StoreError as raised:
            error = raised
        except Exception as raised:  # (an unexpected error must reach the callers, and not end the thread)
            error = StoreUnavailable(f"the store failed: {type(raised).__name__}: {raised}", ambiguous=True)
            error.__cause__ = raised
        finally:
            if outcomes is None:
                self._drop_connection()
                error = error or _interrupted()
            deliver_all(batch, outcomes, error)

    def _connected(self) -> Connection:
        with self._connecting:  # another thread may be opening it in advance
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def refuse_in_workflow(loop: asyncio.AbstractEventLoop | None) -> None:
    """Workflow code is replayed: calls of its own to a store are not recorded, and its loop cannot wait for them."""
    if getattr(loop, "deterministic", False):
        raise NotInWorkflow(
            "this is workflow code, which must do the same in every replay. Nothing was sent. Call Holdfast in a step, "
            "ctx.step(name, function, ...), or use the methods of ctx: ctx.state, ctx.child, ctx.wait_for_signal"
        )


def _would_wait_for_itself() -> WouldDeadlock:
    return WouldDeadlock(
        "this thread was executing a command when a signal handler or a finaliser in it made another call, which would "
        "wait for itself. The second command was not sent. Set a flag in the handler, and act on it later."
    )


def _fail_unsent(unsent: list[Request]) -> None:
    """Deliver the error for commands that were not sent. Not under the mutex, because it runs other code."""
    if unsent:
        error = StoreUnavailable(
            "no thread could be started to send this command, so it was not sent: this process, or its user, has "
            "reached its limit of threads. End some (`ps -eLf` lists them) or raise the limit, and try again."
        )
        deliver_all(unsent, None, error)


def _interrupted() -> StoreUnavailable:
    return StoreUnavailable(
        "the caller that was sending this command was interrupted: the command may have been executed", ambiguous=True
    )
