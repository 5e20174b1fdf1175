"""The plugin for pytest: clients on a private store, and a clock that the test moves.

`holdfast` and `async_holdfast` are clients on a store that no other test sees; `holdfast_store` is that store, for
further clients; `holdfast_clock` makes time a thing of the test. `--holdfast-url`, or `holdfast_url` in the ini
file, says where the store is; without it, in memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.register_assert_rewrite("holdfast.testing.suite")

from ..client import AsyncClient, Client  # noqa: E402  (what follows may be rewritten, so it must not come first)
from ..stores import open_store, redacted  # noqa: E402
from ..stores.contract import Store  # noqa: E402
from .clock import VirtualClock  # noqa: E402
from .clock_patches import installed  # noqa: E402
from .faults import clients_open  # noqa: E402

DEFAULT_URL = "memory://{test}"


class _Elsewhere:
    """A store as another process sees it: callers who use it do not meet the others at the local gate."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.identity = f"{store.identity}#{secrets.token_hex(6)}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _open_elsewhere(url: str, **options: Any) -> Any:
    return _Elsewhere(open_store(url, **options))


class StoreUnderTest:
    """A store of one test's own. `client()` and `async_client()` make further clients, closed at its end.

    Each of them behaves as if it were in a process of its own. Two clients that are made by `Client(url)` are what
    they are: two of one process, whose callers meet before they go to the store.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self._closing = ExitStack()
        self.store: Store = open_store(url, namespace=namespace)
        self._closing.callback(self.store.close)

    def client(self, **options: Any) -> Client:
        """One more client on this store, as another process would have it."""
        with clients_open(_open_elsewhere):
            client = Client(self.url, **{"namespace": self.namespace, **options})
        self._closing.callback(client.close)
        return client

    def async_client(self, **options: Any) -> AsyncClient:
        """One more asynchronous client on this store. It need not be closed by whoever asked for it."""
        with clients_open(_open_elsewhere):
            client = AsyncClient(self.url, **{"namespace": self.namespace, **options})
        self._closing.callback(client._shut)  # noqa: SLF001  (its event loop is gone by then, so not by await)
        return client

    def close(self) -> None:
        """Close every client that was made here, and the store."""
        self._closing.close()

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<StoreUnderTest {redacted(self.url)} namespace={self.namespace!r}>"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the line of the ini file."""
    text = (
        "where tests that use Holdfast have their store; {folder} is the test's own folder and {test} a name of its "
        "own (default: in memory)"
    )
    parser.getgroup("holdfast").addoption("--holdfast-url", default=None, metavar="URL", help=text)
    parser.addini("holdfast_url", text, default="")


@pytest.fixture
def holdfast_clock() -> Iterator[VirtualClock]:
    """A clock that stands still until the test moves it, for all clients and stores that are made in the test."""
    with installed(VirtualClock()) as clock:
        yield clock


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreUnderTest]:
    """The store beneath the clients of this test. `$HOLDFAST_URL` is its address, for code that makes its own.

    On a store that all tests share, such code must be told the `namespace` too: else it is in `default`, with others.
    """
    clock = request.getfixturevalue("holdfast_clock") if "holdfast_clock" in request.fixturenames else None
    template = request.config.getoption("holdfast_url") or request.config.getini("holdfast_url") or DEFAULT_URL
    name = f"test-{secrets.token_hex(6)}"
    url = template.replace("{test}", name)
    if "{folder}" in url:
        url = url.replace("{folder}", str(request.getfixturevalue("tmp_path")))
    found = StoreUnderTest(url, "default" if url != template else name)
    try:
        if clock is not None and found.store.capabilities.server_clock:
            pytest.fail(
                f"{redacted(url)} has a clock of its own, which holdfast_clock cannot move: run this test on memory:// "
                "or on a sqlite:// file, or without the clock"
            )
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield found
    finally:
        found.close()


@pytest.fixture
def holdfast(holdfast_store: StoreUnderTest) -> Client:
    """A client on a store that no other test sees. It is closed at the end of the test."""
    return holdfast_store.client()


@pytest.fixture
def async_holdfast(holdfast_store: StoreUnderTest) -> AsyncClient:
    """An asynchronous client on a store that no other test sees, for any event loop. It is closed at the end."""
    return holdfast_store.async_client()
