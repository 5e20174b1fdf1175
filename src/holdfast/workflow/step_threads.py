"""The attempts of plain steps: each waits for a thread of the engine's pool, and then runs its body there.

A thread may become free long after an attempt was submitted. So the attempt begins when its thread begins the body, not
before, and an attempt that has ended before that never runs its body.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context as Scope
from functools import partial
from typing import Any, Literal

from ..errors import HoldfastError
from .driver_host import DriverHost


class ThreadAttempt:
    """One attempt of a plain step: it is queued, then its body begins, and it is over."""

    def __init__(self, host: DriverHost, body: Callable[[], Any], scope: Scope) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._state: Literal["queued", "begun", "over"] = "queued"
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Is done when the thread begins the body, or when there will be no thread."""
        self.thread = host.in_thread(partial(self._run, body), scope)
        """The result of the body."""
        self.thread.add_done_callback(lambda _: self._begin())

    def _run(self, body: Callable[[], Any]) -> Any:
        """Run the body, unless the attempt has ended before this thread was free."""
        with self._lock:
            if self._state == "over":
                return None
            self._state = "begun"
        self._host.call_threadsafe(self._begin)
        return without_stop_iteration(body)

    def _begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)

    def refuse(self, error: HoldfastError) -> None:
        """The attempt cannot begin any more, for this reason."""
        if not self.begun.done():
            self.begun.set_exception(error)

    def end(self) -> None:
        """The attempt is over: a body that has not begun never does. One that has begun is left alone."""
        with self._lock:
            queued = self._state == "queued"
            self._state = "over"
        if queued:
            self.thread.cancel()


def without_stop_iteration(body: Callable[[], Any]) -> Any:
    """Call the body of a step; `StopIteration` becomes another error."""
    try:
        return body()
    except StopIteration as error:  # a future cannot have this exception
        raise RuntimeError(f"the step raised {error!r}") from error
