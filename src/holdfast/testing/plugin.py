"""The pytest plugin: fixtures for clients on a private store, and for a clock that the test moves.

`holdfast` and `async_holdfast` are clients on a store that no other test uses. `holdfast_store` is that store, for
further clients. `holdfast_clock` is a virtual clock that the test moves. The option `--holdfast-url`, or `holdfast_url`
in the ini file, is the address of the store; the default is a memory store.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.register_assert_rewrite("holdfast.testing.suite")

from ..client import AsyncClient, Client  # noqa: E402  (after the line above, so that pytest can rewrite its asserts)
from ..stores import open_store, redacted  # noqa: E402
from ..stores.contract import Store  # noqa: E402
from .clock import VirtualClock  # noqa: E402
from .clock_patches import installed  # noqa: E402
from .faults import clients_open  # noqa: E402

DEFAULT_URL = "memory://{test}"


class _Elsewhere:
    """A store as another process sees it: its callers do not share a local queue with those of other clients."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.identity = f"{store.identity}#{secrets.token_hex(6)}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _open_elsewhere(url: str, **options: Any) -> Any:
    return _Elsewhere(open_store(url, **options))


class StoreUnderTest:
    """The store of one test. `client()` and `async_client()` create further clients, closed at the end of the test.

    Each of these clients behaves as if it were in its own process. Two clients that are created by `Client(url)` are
    two clients of one process: their callers share a local queue.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self._closing = ExitStack()
        self.store: Store = open_store(url, namespace=namespace)
        self._closing.callback(self.store.close)

    def client(self, **options: Any) -> Client:
        """Create one more client on this store, as if it were in another process."""
        with clients_open(_open_elsewhere):
            client = Client(self.url, **{"namespace": self.namespace, **options})
        self._closing.callback(client.close)
        return client

    def async_client(self, **options: Any) -> AsyncClient:
        """Create one more async client on this store. It is closed at the end of the test."""
        with clients_open(_open_elsewhere):
            client = AsyncClient(self.url, **{"namespace": self.namespace, **options})
        self._closing.callback(client._shut)  # noqa: SLF001  (no await: its event loop is closed by then)
        return client

    def close(self) -> None:
        """Close every client that was created here, and the store."""
        self._closing.close()

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<StoreUnderTest {redacted(self.url)} namespace={self.namespace!r}>"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--holdfast-url` and the ini setting `holdfast_url`."""
    text = (
        "address of the store for tests that use Holdfast; {folder} is replaced by the test's temporary folder, {test} "
        "by a name that is unique to the test (default: a memory store)"
    )
    parser.getgroup("holdfast").addoption("--holdfast-url", default=None, metavar="URL", help=text)
    parser.addini("holdfast_url", text, default="")


@pytest.fixture
def holdfast_clock() -> Iterator[VirtualClock]:
    """A clock that stands still until the test moves it, for all clients and stores that the test creates."""
    with installed(VirtualClock()) as clock:
        yield clock


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreUnderTest]:
    """The store of this test's clients. `$HOLDFAST_URL` is its address, for code that creates its own client.

    If all tests share one store, pass the `namespace` to such code too: otherwise it uses `default`, as other tests do.
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
                f"{redacted(url)} has its own clock, which holdfast_clock cannot move: run this test on memory:// "
                "or on a sqlite:// file, or do not use holdfast_clock"
            )
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield found
    finally:
        found.close()


@pytest.fixture
def holdfast(holdfast_store: StoreUnderTest) -> Client:
    """A client on a store that no other test uses. It is closed at the end of the test."""
    return holdfast_store.client()


@pytest.fixture
def async_holdfast(holdfast_store: StoreUnderTest) -> AsyncClient:
    """An async client on a store that no other test uses, for any event loop. It is closed at the end of the test."""
    return holdfast_store.async_client()
