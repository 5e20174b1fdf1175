"""The local queues of this process: its callers queue here first, and only a few of them wait in the store.

There is one local queue for each lock that is in use in this process, for all threads, event loops and clients. For
an exclusive lock, one caller at a time goes to the store; for a semaphore or a read-write lock, a few callers. A
local queue never passes a lease to the next caller: this caller goes to the store, and waits behind the waiters of
other processes.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from asyncio import current_task
from contextvars import ContextVar

from ..platform import after_fork_in_child
from ..runtime.loop_probe import LoopProbe
from ..runtime.notifier import running_loop
from .local_queue import Address, LocalQueue, Turn

Context = object
"""The caller: the running task, or else the thread."""


class Caller:
    """A caller of locks where no task runs: a thread, in one context of `contextvars`.

    A thread of a pool serves one request after the other, each in a context of its own: two requests are two callers.
    The context alone is not enough: tasks and threads inherit a copy of it, and are separate callers.
    """

    __slots__ = ("__weakref__", "holds", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.holds: weakref.WeakSet[object] = weakref.WeakSet()


_caller: ContextVar[Caller | None] = ContextVar("holdfast_caller", default=None)


def current_context() -> Context:
    """The running task, or else this thread."""
    task = current_task(loop) if (loop := running_loop()) is not None else None
    return task if task is not None else threading.current_thread()


def current_caller() -> Context:
    """The running task, or else this thread in this context. A caller that holds nothing is replaced by a new one."""
    context = current_context()
    if not isinstance(context, threading.Thread):
        return context
    caller = _caller.get()
    if caller is None or caller.thread is not context or not caller.holds:
        caller = Caller()
        _caller.set(caller)
    return caller


def _inside(queue: LocalQueue, context: object) -> Turn | None:
    """The turn of this caller, if it holds the lock or has sent its command to the store."""
    for turn in queue.inside():
        if turn.context() is context and not turn.forgotten:
            return turn
    return None


class ProcessQueues:
    """All the local queues of this process, behind one lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may run while its thread holds it
        self._queues: dict[Address, LocalQueue] = {}
        self._probes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopProbe] = weakref.WeakKeyDictionary()

    def enter(self, turn: Turn, *, once: bool = False) -> Turn | None:
        """Go to the store at once, which opens the turn, or queue. `once`: the caller will not wait.

        A caller of an exclusive lock that already holds it is not queued: its earlier turn is returned.
        """
        context = turn.context()
        with self._lock:
            queue = self._queues.get(turn.address)
            if queue is None:
                queue = self._queue(turn)
            elif context is not None:
                queue.drop_over()  # a caller that was notified of a loss may be here before that turn was removed
                earlier = _inside(queue, context)
                if earlier is not None:
                    return earlier
            if once:  # it will not check again
                queue.pass_over(turn, self._probe)
            goes = queue.enter(turn, once=once)
        if goes:
            turn.open.set()
        return None

    def send(self, turn: Turn) -> None:
        """A caller whose turn was opened sends its command now."""
        with self._lock:
            queue = self._queue(turn)
            queue.send(turn)
            admitted = queue.admit()
        _open(admitted)

    def granted(self, turn: Turn) -> None:
        """The store has granted the lock: further callers may be admitted."""
        with self._lock:
            queue = self._queue(turn)
            queue.granted(turn)
            admitted = queue.admit()
        _open(admitted)

    def leave(self, turn: Turn) -> None:
        """The turn has ended, whatever its place. Calling it twice is harmless, and finishes what was interrupted."""
        with self._lock:
            queue = self._queues.get(turn.address)
            if queue is None:
                return
            queue.remove(turn)
            admitted = queue.admit()
            if not queue:
                del self._queues[turn.address]
        _open(admitted)

    def _queue(self, turn: Turn) -> LocalQueue:
        queue = self._queues.get(turn.address)
        if queue is None:
            queue = self._queues[turn.address] = LocalQueue(turn.address[2])
        return queue

    def check(self, turn: Turn) -> bool:
        """Whether a waiting caller may go to the store.

        This also completes an interrupted `leave`, and passes over callers of an event loop that is blocked.
        """
        with self._lock:
            queue = self._queues.get(turn.address)
            if queue is None:
                return True
            queue.drop_over()
            queue.pass_over(turn, self._probe)
            admitted = queue.admit()
            waits = turn in queue.waiting
        _open(admitted)
        return not waits

    def blockers(self, address: Address) -> list[Turn]:
        """The callers that hold the lock, then those that have sent their command to the store."""
        with self._lock:
            queue = self._queues.get(address)
            return [] if queue is None else list(queue.inside())

    def waiting(self, address: Address) -> int:
        """How many callers wait here."""
        with self._lock:
            queue = self._queues.get(address)
            return 0 if queue is None else len(queue.waiting)

    def _probe(self, loop: asyncio.AbstractEventLoop) -> LoopProbe:
        return self._probes.get(loop) or self._probes.setdefault(loop, LoopProbe(loop))

    def __len__(self) -> int:
        return len(self._queues)

    def reset(self) -> None:
        """Remove all entries: this process is the child of a fork, and holds nothing."""
        self.__init__()  # type: ignore[misc]


def _open(admitted: list[Turn]) -> None:
    """Called without the lock, because it runs other code. If it is interrupted, the others notice when they check."""
    for turn in admitted:
        turn.open.set()


queues = ProcessQueues()
after_fork_in_child(queues.reset)
