"""Mistakes of use that Python itself explains poorly, each with an error that says what to write instead.

`with` on something asynchronous, `async with` on something synchronous, an asynchronous call where no event loop of
asyncio runs (trio, or none at all).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from ..errors import InvalidOption


def require_asyncio() -> None:
    """Raise where no event loop of asyncio runs."""
    if asyncio._get_running_loop() is None:  # noqa: SLF001  (the documented one raises, which costs more)
        raise InvalidOption(
            "the asynchronous part of Holdfast needs a running event loop of asyncio, and none runs here. Under trio, "
            "use Client in a thread (trio.to_thread.run_sync), or anyio with its asyncio backend. In plain code, use "
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
            raise TypeError(f"{type(self).__name__} is asynchronous: write `async with`, inside `async def`.")

        def __exit__(self, *_: object) -> None:
            """Never called: `with` looks for it first."""

    class SyncOnly:
        """Entered by `with` only."""

        __slots__ = ()

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__} is synchronous and would block the event loop: write `with` in plain code, or "
                "use AsyncClient."
            )

        async def __aexit__(self, *_: object) -> None:
            """Never called: `async with` looks for it first."""
