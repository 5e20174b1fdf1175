"""The lane between callers and a store: it sends what has gathered while the last batch was under way.

There is no timer and no added wait: one caller gets a plain round trip, a thousand share one commit.
Submitting is safe from any thread and any number of event loops. A synchronous caller that finds the lane
idle runs the batch itself, once, and leaves what came in meanwhile to the lane's thread. If it is
interrupted in the middle, the connection is thrown away and the others are told that their outcome is
ambiguous.
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
from .requests import Answer, CallbackRequest, Done, LoopRequest, Request, TaskRequest, ThreadRequest, deliver_all, twin

MAX_BATCH = 1_000
ALL_READS = READS + RUN_READS
LEAST_HALF = 32
"""A batch of fewer is not worth a trip of its own."""
JOIN_SECONDS = 15.0


class _Outbox(list[LoopRequest]):
    """What a loop has submitted within one turn of its own. If the loop is closed before it posts it, it is gone."""

    __slots__ = ("__weakref__", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop


class _Mine(threading.local):
    """What each thread's event loop is about to post; weak, for only the loop itself keeps it."""

    outbox: weakref.ref[_Outbox] | None = None


_THREAD = object()
_within: ContextVar[str] = ContextVar("holdfast_transaction", default="")


@contextmanager
def within(place: str) -> Iterator[None]:
    """In this block a transaction of the user's is open on a store that has one writer: others would wait for it."""
    before = _within.set(place)
    try:
        yield
    finally:
        _within.reset(before)


class Batcher:
    """One queue, at most one batch under way, one connection."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        name: str,
        *,
        place: str = "-",
        out_of_process: bool = False,
        idle: float = math.inf,
    ) -> None:
        """`idle`: after so many seconds without a command, `rest` closes the connection until the next one."""
        self._connect = connect
        self._place = place
        self._idle = idle
        self._used, self._unused_since = True, 0.0
        self._name = name
        self._out_of_process = out_of_process
        self._sent = 0  # how many parcels went with the last batch
        self._connection: Connection | None = None
        self._connecting = threading.Lock()
        self._mutex = threading.RLock()  # a signal handler may come in while its thread has it
        self._queue: list[Request] = []
        self._runner: object | None = None  # whoever runs a batch: a caller's parcel, or the lane's thread
        self._thread: threading.Thread | None = None
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._mine = _Mine()
        self._closed = False
        self._ended = threading.Event()

    # -- ways in ------------------------------------------------------------------------------------

    def run(self, command: Command) -> Outcome:
        """Send one command from this thread and wait for its outcome."""
        outcome = self.call((command,))[0]
        if type(outcome) is Failed:
            raise twin(outcome.error)
        return outcome

    def call(self, commands: Sequence[Command]) -> list[Outcome]:
        """Send commands from this thread and wait for their outcomes, be they failures or not."""
        call = ThreadRequest(commands)
        batch: list[Request] = []
        self._refuse_within(commands)
        _refuse_in_workflow(events._get_running_loop())  # noqa: SLF001  (None outside of any, as asyncio asks it)
        if self._mutex._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001  (as threading.Condition asks it)
            raise _would_wait_for_itself()
        try:
            with self._mutex:
                if self._closed:
                    raise ClientClosed  # noqa: TRY301  (one place cleans up)
                if self._runner is None:
                    self._runner = call
                    batch, self._queue = [*self._queue, call], []
                else:
                    self._refuse_itself()
                    call.will_wait()
                    self._queue.append(call)
            if batch:
                self._send(batch)
                self._hand_on(call)
        except BaseException:
            # An interrupt may come anywhere, also in the middle of delivering or handing on. All of it is done again.
            deliver_all(batch, None, _interrupted())
            self._hand_on(call)
            raise
        call.wait()
        return call.answers()

    def _refuse_within(self, commands: Sequence[Command]) -> None:
        if _within.get() == self._place and not all(isinstance(command, ALL_READS) for command in commands):
            raise WouldDeadlock(
                "this is the body of a transaction on the same store, which has one writer at a time: what it asks for "
                "would wait for the transaction to end. Do it in a step before or after."
            )

    def _refuse_itself(self) -> None:
        """A signal handler or a finaliser that runs inside this thread's own batch would wait for itself."""
        if isinstance(self._runner, ThreadRequest) and self._runner.thread == threading.get_ident():
            raise _would_wait_for_itself()

    def submit(self, command: Command) -> asyncio.Future[Outcome]:
        """Send one command from this event loop, which is to await its outcome.

        What a loop sends within one turn of its own goes out together.
        """
        promise = TaskRequest(command, asyncio.get_running_loop())
        self._gather(promise)
        return promise.future

    def ask(self, command: Command, answer: Answer) -> None:
        """Send one command from this event loop, and call back there with its outcome or with what went wrong."""
        self._gather(CallbackRequest(command, asyncio.get_running_loop(), answer))

    def _gather(self, question: LoopRequest) -> None:
        if self._closed:
            raise ClientClosed
        self._refuse_within(question.commands)
        loop = question.loop
        _refuse_in_workflow(loop)
        mine = self._mine.outbox
        outbox = None if mine is None else mine()
        if outbox is None or outbox.loop is not loop:
            outbox = _Outbox(loop)
            self._mine.outbox = weakref.ref(outbox)
            loop.call_soon(self._post, outbox)
        outbox.append(question)

    def enqueue(self, commands: Sequence[Command], done: Done | None = None) -> bool:
        """Send commands without waiting. `done` is called from another thread. False if the lane is closed.

        Where no thread can be had, `done` is told so here and now.
        """
        with self._mutex:
            if self._closed:
                return False
            self._queue.append(Request(commands, done))
            stranded = self._rouse()
        _tell_stranded(stranded)
        return True

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None

    def connect(self) -> None:
        """Open the connection now, from any thread, if there is none. Raises what the store says, or `ClientClosed`."""
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

    def rest(self) -> None:
        """Close the connection if it was idle for `idle` seconds; the next command opens another one."""
        if self._connection is None:
            return
        if self._used:
            self._used, self._unused_since = False, elapsed()
        with self._mutex:
            if elapsed() - self._unused_since < self._idle or self._runner is not None or self._queue:
                return
            resting, self._connection = self._connection, None
        if resting is not None:
            with suppress(Exception):
                resting.close()

    def close(self) -> None:
        """Send what has gathered, end the thread, close the connection. Later calls raise `ClientClosed`."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            stranded = self._rouse(even_if_empty=True)
            mine = isinstance(self._runner, ThreadRequest) and self._runner.thread == threading.get_ident()
        _tell_stranded(stranded)
        if self._thread is not threading.current_thread() and not mine:  # not what would wait for itself
            self._ended.wait(JOIN_SECONDS)
            if self._thread is not None:
                self._thread.join(JOIN_SECONDS)

    # -- the work -----------------------------------------------------------------------------------

    def _post(self, outbox: _Outbox) -> None:
        self._mine.outbox = None
        questions = [question for question in outbox if question.wanted]
        with self._mutex:
            closed = self._closed
            stranded: list[Request] = []
            if not closed:
                self._queue.extend(questions)
                stranded = self._rouse()
        if closed:
            for question in questions:
                question.settle(None, ClientClosed())
        _tell_stranded(stranded)

    def _rouse(self, *, even_if_empty: bool = False) -> list[Request]:
        """Make the thread look at the queue. Called with the mutex held. Returns those for whom there is no thread."""
        if self._runner is None and (self._queue or even_if_empty):
            if not self._queue and self._thread is None:  # closed, and never needed a thread
                self._end()
                return []
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name=f"holdfast-{self._name}", daemon=True)
                try:
                    start_thread(self._thread)
                except RuntimeError:
                    return self._strand()
            self._runner = _THREAD
            self._wake.put(None)
        return []

    def _strand(self) -> list[Request]:
        """No thread can be started: leave the lane to the next caller, with an empty queue."""
        self._thread = None
        stranded, self._queue = self._queue, []
        if self._closed:
            self._end()
        return stranded

    def _end(self) -> None:
        self._drop_connection()
        self._ended.set()

    def _hand_on(self, call: ThreadRequest) -> None:
        """Leave the lane to its thread if there is more to do, else to the next caller. Twice is harmless."""
        with self._mutex:
            if self._runner is call:
                self._runner = None
            elif self._runner is _THREAD:
                self._wake.put(None)  # interrupted, it may have been named and not been woken
            stranded: list[Request] = []
            if self._queue or (self._closed and not self._ended.is_set()):
                stranded = self._rouse(even_if_empty=self._closed)
        _tell_stranded(stranded)

    def _serve(self) -> None:
        with self._mutex:
            if self._thread is not threading.current_thread():  # interrupted, it was started once too often
                return
        while True:
            self._wake.get()
            while True:
                with self._mutex:
                    if self._runner is not _THREAD:  # woken once too often
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
        """How many parcels go next: all that there are, or on a swift store half of those that go round and round.

        Tasks of one loop that are answered together ask together again: then the store waits for the loop, and the loop
        for the store. In two halves, one is with the store while the loop works on the other.
        """
        if not self._out_of_process:
            return MAX_BATCH
        around = len(self._queue) + self._sent
        self._sent = min(len(self._queue), MAX_BATCH, max(LEAST_HALF, (around + 1) // 2))
        return self._sent

    def _send(self, batch: list[Request]) -> None:
        """Execute the batch and deliver every answer. Nothing that happens leaves a parcel without one."""
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
        except Exception as raised:  # (a driver's surprise must reach the callers, not end the lane)
            error = StoreUnavailable(f"the store failed: {type(raised).__name__}: {raised}", ambiguous=True)
            error.__cause__ = raised
        finally:
            if outcomes is None:
                self._drop_connection()
                error = error or _interrupted()
            deliver_all(batch, outcomes, error)

    def _connected(self) -> Connection:
        with self._connecting:  # somebody may be opening it in advance
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _refuse_in_workflow(loop: asyncio.AbstractEventLoop | None) -> None:
    """Workflow code is replayed, and what it asks a store by itself is not recorded; nor can its loop wait for it."""
    if getattr(loop, "deterministic", False):
        raise NotInWorkflow(
            "this is workflow code, which must do the same in every life of its run: what it asks Holdfast for belongs "
            "into a step, ctx.step(name, function, ...), or is asked of ctx: ctx.state, ctx.child, ctx.wait_for_signal"
        )


def _would_wait_for_itself() -> WouldDeadlock:
    return WouldDeadlock(
        "this thread is in the middle of talking to the store, and was interrupted by a signal handler or a "
        "finaliser that wants to do the same: it would wait for itself. Set a flag there, and act on it later."
    )


def _tell_stranded(stranded: list[Request]) -> None:
    """Tell those whose command was not sent. Not under the mutex, for it may go on to anybody."""
    if stranded:
        error = StoreUnavailable(
            "no thread could be started to send this command, so it was not sent: this process, or its user, has as "
            "many threads as it may have. End some (`ps -eLf` shows them) or raise the limit, and try again."
        )
        deliver_all(stranded, None, error)


def _interrupted() -> StoreUnavailable:
    return StoreUnavailable(
        "the caller that was sending this command was interrupted: it may have been carried out", ambiguous=True
    )
