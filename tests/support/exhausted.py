"""A process that cannot start more threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_threads() -> Iterator[None]:
    """In the block, no thread of Holdfast can be started."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("holdfast"):
            raise RuntimeError("can't start new thread")
        start(self)

    threading.Thread.start = refuse
    try:
        yield
    finally:
        threading.Thread.start = start
