"""A `with` block: it is cancelled when its lease is lost, and some errors of the release are suppressed."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from ..errors import LeaseLost, StoreError
from ..runtime.grant import LocalGrant
from .lease import AsyncLease


class Releasing:
    """Release a lease at the end of its block; `error` is the exception that leaves the block.

    `LeaseLost` is raised, unless the block is left by an exception such as cancellation. An unreachable store raises
    nothing: the work is done and was protected, and the heartbeat thread goes on releasing the lease.
    """

    __slots__ = ("_error",)

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Whether the error of the release is suppressed."""
        if isinstance(error, LeaseLost):
            return self._error is not None and not isinstance(self._error, Exception)
        return isinstance(error, StoreError)


class Cancellable:
    """A block of a task that is cancelled when its lease is lost, as with `asyncio.timeout`."""

    __slots__ = ("_cancelling", "_fired", "_inside", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (this runs in a coroutine)
        self._task: asyncio.Task[Any] = task
        self._cancelling = task.cancelling()
        self._inside = True
        self._fired = False

    def fire(self) -> None:
        """Cancel the task, unless it has left the block already."""
        if self._inside and not self._fired:
            self._fired = True
            self._task.cancel()

    def left_by_loss(self, error: BaseException | None) -> bool:
        """Leave the block. True if the error is only this block's own cancellation, and not that of another caller."""
        self._inside = False
        if not self._fired:
            return False
        ours_alone = self._task.uncancel() <= self._cancelling
        return ours_alone and isinstance(error, asyncio.CancelledError)


class LeaseScope(Cancellable):
    """The body of an `async with` block, which is cancelled when its lease is lost."""

    __slots__ = ("_lease", "_loop", "depth")

    def __init__(self, lease: AsyncLease) -> None:
        super().__init__()
        self.depth = 0
        self._loop = self._task.get_loop()
        self._lease = lease
        lease._held.when_over(self._on_over)  # noqa: SLF001  (same package)

    def _on_over(self, held: LocalGrant) -> None:
        if held.state != "lost":
            return
        try:
            self._loop.call_soon_threadsafe(self.fire)
        except RuntimeError:  # the loop is closed, and the block with it
            return

    def stop(self) -> None:
        """The lease was ended from outside the block: cancel the block as if the lease had been lost."""
        if asyncio.current_task() is not self._task:
            self.fire()

    def leave(self, error: BaseException | None) -> None:
        """Leave the block; this block's own cancellation becomes `LeaseLost`."""
        if self.left_by_loss(error):
            raise self._lease._loss() from error  # noqa: SLF001
