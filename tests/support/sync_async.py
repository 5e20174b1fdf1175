"""One test for the sync and the async client: `do(...)` returns the result of a call, awaited if necessary."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast import AsyncClient, Client

NAMES = ["sync", "async"]
AnyClient = Any
"""A `Client` or an `AsyncClient`."""


class ClientMode:
    """Creates sync or async clients, and executes their calls."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None) -> None:
        self.name = name
        self._loop = loop
        self._clients: list[AnyClient] = []

    def client(self, url: str, **options: Any) -> AnyClient:
        made = Client(url, **options) if self._loop is None else AsyncClient(url, **options)
        self._clients.append(made)
        return made

    def do(self, answer: Any) -> Any:
        if inspect.isawaitable(answer):
            assert self._loop is not None, "a sync client returned an awaitable"
            return self._loop.run_until_complete(_awaited(answer))
        return answer

    @contextmanager
    def block(self, manager: Any) -> Iterator[Any]:
        """Enter a `with` block, or an `async with` block."""
        if self._loop is None:
            with manager as entered:
                yield entered
            return
        entered = self.do(manager.__aenter__())
        try:
            yield entered
        except BaseException as error:
            if not self.do(manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.do(manager.__aexit__(None, None, None))

    def close(self) -> None:
        for client in reversed(self._clients):
            self.do(client.close())


async def _awaited(answer: Any) -> Any:
    return await answer


@contextmanager
def open_mode(name: str) -> Iterator[ClientMode]:
    loop = asyncio.new_event_loop() if name == "async" else None
    mode = ClientMode(name, loop)
    try:
        yield mode
    finally:
        mode.close()
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def on_a_loop(test: Any) -> Any:
    """Decorator for a test that is a coroutine function."""

    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(test(*arguments, **options))

    return run
