"""The local gate: callers of one process meet here first and go to the store one at a time.

There is one gate for each exclusive lock that is in use in this process, whatever the thread, the event loop
or the client. It opens when the lease behind it has ended or is lost. It never passes a lease on: the next
caller goes to the store like anyone else, behind the waiters of other processes.
"""

from __future__ import annotations

import threading
import weakref
from asyncio import current_task
from collections.abc import Callable

from .._platform import after_fork_in_child
from ..flag import Flag, running_loop
from ..held import Held
from ..rules.record import Label

Context = object
"""Who is calling: the running task, or else the thread."""


def current_context() -> Context:
    """The running task, or else this thread."""
    task = current_task(loop) if (loop := running_loop()) is not None else None
    return task if task is not None else threading.current_thread()


class Turn:
    """One caller's turn at a gate. `open` is set when it may go to the store."""

    __slots__ = ("_last", "address", "context", "grips", "held", "label", "lease", "open", "since")

    def __init__(self, address: tuple[str, str], context: Context, label: Label, since: float) -> None:
        self.address = address
        self.context = weakref.ref(context)  # weak: a task whose loop is gone must be collected, not kept here
        self.label = label
        self.since = since
        self.open = Flag()
        self.held: Held | None = None  # the grant whose end opens the gate
        self.lease: Callable[[], object] = lambda: None  # a weak reference: a gate keeps nothing alive
        self.grips = [1]  # one for each time that its lease was taken and not given back; a number is used once
        self._last = 1

    def grip(self) -> None:
        """Its lease is taken once more, by whoever has it already."""
        self._last += 1
        self.grips.append(self._last)

    def let_go(self, grip: int | None) -> bool:
        """Give up this grip, or else the last one. True if no other is left, so that the lease itself is given back."""
        if len(self.grips) == 1 and grip in {None, self.grips[0]}:
            return True
        if grip is None:
            self.grips.pop()
        elif grip in self.grips:
            self.grips.remove(grip)
        return False

    @property
    def forgotten(self) -> bool:
        """Whether the lease inside was dropped: nobody can release it, and it ends when its time runs out."""
        return self.held is not None and self.lease() is None

    @property
    def over(self) -> bool:
        """Whether the lease inside has ended or is lost, also if nobody has come to open the gate yet."""
        return self.held is not None and self.held.state != "held"


class Gates:
    """All the gates of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in while its thread has it
        self._queues: dict[tuple[str, str], list[Turn]] = {}  # the first of each is inside

    def inside(self, address: tuple[str, str]) -> Turn | None:
        """Whose turn it is."""
        with self._lock:
            queue = self._queues.get(address)
            return queue[0] if queue else None

    def enter(self, turn: Turn) -> tuple[int, Turn]:
        """Queue up. Returns how many are before, and whose turn it is; with none before, the turn is open.

        Whoever is inside already and comes again is told so and does not queue up.
        """
        with self._lock:
            queue = self._queues.get(turn.address)
            if queue and queue[0].over:  # whoever was told of the loss may be here before the gate was opened
                self.leave(queue[0])
                queue = self._queues.get(turn.address)
            if not queue:
                queue = self._queues[turn.address] = []
            elif queue[0].context() is turn.context() and not queue[0].forgotten:
                return 0, queue[0]
            before = len(queue)
            queue.append(turn)
            first = queue[0]
        if not before:
            turn.open.set()
        return before, first

    def leave(self, turn: Turn) -> None:
        """Leave, from inside or from the queue. Twice is harmless, and finishes what was interrupted."""
        with self._lock:
            queue = self._queues.get(turn.address)
            if queue is None:
                return
            if turn in queue:
                queue.remove(turn)
            head = queue[0] if queue else None
            if head is None:
                del self._queues[turn.address]
        if head is not None:
            head.open.set()

    def __len__(self) -> int:
        return len(self._queues)

    def reset(self) -> None:
        """Forget everything: this is the child of a fork, which holds nothing."""
        self.__init__()  # type: ignore[misc]


gates = Gates()
after_fork_in_child(gates.reset)
