"""What workflow code and step bodies write to: `ctx.stream(name)` and `current_step().stream(name)`.

Items are encoded where they are written, so a value that cannot be written raises there. A thread that writes faster
than the store can take waits in `write`; async code waits where it awaits what `write` returns.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from ..runtime.codec import encode_value
from ..validation import checked_key

ADVICE = "give its type, stream(name, type=...)"


class StreamTarget(Protocol):
    """Takes the items of one stream, as JSON texts."""

    def put(self, text: str) -> None:
        """Take an item. Raises if nothing can be written any more."""

    def wait(self) -> None:
        """Block this thread while too many items wait to be stored, unless an event loop runs in it."""

    def wait_async(self) -> Generator[Any, None, None]:
        """Wait likewise on the running event loop; a generator, as `__await__` returns it."""


class PendingItem:
    """What `write` returns: an item that will be stored. Awaiting it waits while too many items are not stored yet."""

    __slots__ = ("_target",)

    def __init__(self, target: StreamTarget) -> None:
        self._target = target

    def __await__(self) -> Generator[Any, None, None]:
        return self._target.wait_async()


class StreamWriter:
    """One stream of a run, for the code that writes to it."""

    def __init__(self, name: str, type: Any, target: StreamTarget, *, max_bytes: int) -> None:
        self.name = checked_key(name, what="stream name")
        self._type, self._target, self._max_bytes = Any if type is None else type, target, max_bytes

    def write(self, item: Any) -> PendingItem:
        """Add an item: what JSON has or, with `type=`, any value that is read back as that type.

        The item is stored soon, and before the result of the step is recorded or the run ends. In async code, await the
        returned object to write no faster than the store can take; in a thread, `write` itself waits.
        """
        text = encode_value(
            item, self._type, what=f"an item of the stream {self.name!r}", max_bytes=self._max_bytes, advice=ADVICE
        )
        self._target.put(text)
        self._target.wait()
        return PendingItem(self._target)

    def __repr__(self) -> str:
        return f"<StreamWriter {self.name}>"
