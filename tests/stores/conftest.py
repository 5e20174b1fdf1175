"""The shared suite's fixtures: a store of each kind, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from providers import PROVIDERS, Provider, redis_layout
from tls import make_certificates

from holdfast.stores import open_store
from holdfast.stores.contract import Connection, Store
from holdfast.testing.builders import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=PROVIDERS.values(), ids=lambda provider: provider.name)
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@pytest.fixture
def kind(provider: Provider) -> str:
    return provider.name


@pytest.fixture
def url(provider: Provider, tmp_path: Path) -> str:
    return provider.url(tmp_path)


@pytest.fixture
def server(url: str) -> Iterator[redis.Redis]:
    """A connection to the Redis or Valkey of the test, for its own commands."""
    with redis.Redis.from_url(url.partition("?")[0], decode_responses=True) as client:
        yield client


@pytest.fixture
def base(url: str) -> str:
    """The prefix of all Redis keys of the test's namespace."""
    return redis_layout(url, "default").base


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    """Open stores that are closed at the end of the test, with their connections."""
    with ExitStack() as stack:

        def opening(url: str, **options) -> Store:
            options.setdefault("namespace", "default")
            store = open_store(url, **options)
            stack.callback(store.close)
            connect = store.connect

            def connect_and_close(role="commands"):
                connection = connect(role)
                stack.callback(connection.close)
                return connection

            store.connect = connect_and_close
            return store

        yield opening


@pytest.fixture
def store(url: str, clock: ManualClock, opened) -> Store:
    return opened(url, clock=clock)


@pytest.fixture
def connection(store: Store) -> Connection:
    return store.connect("commands")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Path:
    """The folder with a certificate authority and a server certificate."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def patient(monkeypatch):
    """Wait longer for locked rows, so that a slow machine does not fail the test."""
    monkeypatch.setattr("holdfast.stores.postgresql.batch.LOOKS_FOR", 20.0)
    monkeypatch.setattr("holdfast.stores.postgresql.batch.PATIENCE", b"5000")
    monkeypatch.setattr("holdfast.stores.postgresql.batch.PAUSES", (0.01,) * 500)
