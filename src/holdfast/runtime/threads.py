"""Executes blocking calls of asynchronous methods, each in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

from ..platform import start_thread
from .notifier import Notifier

T = TypeVar("T")


async def in_thread(function: Callable[[], T], *, name: str) -> T:
    """Call a function that blocks in a new thread, and return what it returns or raise what it raises.

    A cancelled caller waits for the function to return before the cancellation is raised: the function may be using
    a connection that the caller closes or rolls back next.
    """
    done, results, errors = Notifier(), list[T](), list[BaseException]()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            results.append(context.run(function))
        except BaseException as error:  # raised in the caller
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=call, name=name, daemon=True)
    start_thread(thread)
    cancelled: asyncio.CancelledError | None = None
    while not done.is_set():
        try:
            await done.wait_async()
        except asyncio.CancelledError as error:
            cancelled = error
    thread.join()
    if cancelled is not None:
        raise cancelled
    if errors:
        raise errors[0]
    return results[0]
