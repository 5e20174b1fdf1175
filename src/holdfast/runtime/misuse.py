"""Mistakes for which Python's own message is unclear, each with an error that says what to write instead.

They are: `with` on an async object, `async with` on a sync object, and an async call where no event loop of asyncio
runs (with trio, or without an event loop).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from ..errors import InvalidOption


def require_asyncio() -> None:
    """Raise if no event loop of asyncio runs in this thread."""
    if asyncio._get_running_loop() is None:  # noqa: SLF001  (the documented function raises, which costs more)
        raise InvalidOption(
            "the async part of Holdfast needs a running event loop of asyncio, and none is running here. Under trio, "
            "use Client in a thread (trio.to_thread.run_sync), or anyio with its asyncio backend. In sync code, use "
            "Client."
        )


if TYPE_CHECKING:

    class AsyncOnly:
        """Entered by `async with`; type checkers refuse `with` by themselves."""

    class SyncOnly:
        """Entered by `with`; type checkers refuse `async with` by themselves."""

else:

    class AsyncOnly:
        """Entered by `async with` only."""

        __slots__ = ()

        def __enter__(self) -> NoReturn:
            raise TypeError(f"{type(self).__name__} is async: write `async with`, inside `async def`.")

        def __exit__(self, *_: object) -> None:
            """Never called, but `with` needs it to exist."""

    class SyncOnly:
        """Entered by `with` only."""

        __slots__ = ()

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__} is sync and would block the event loop: write `with` in sync code, or use "
                "AsyncClient."
            )

        async def __aexit__(self, *_: object) -> None:
            """Never called, but `async with` needs it to exist."""
