"""Fixtures of all tests: a store of each kind, and the check that a test leaves no thread and no open file."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import faults
import providers
import pytest
import sync_async
from hypothesis import settings
from real_servers import pytest_terminal_summary, pytest_unconfigure  # noqa: F401
from waiting import eventually

from holdfast.locks.process_queue import queues

# A shell starts background jobs with SIGINT ignored, and children inherit that. Some tests send SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# If there is a file system in memory with enough space, tests use it, so that none of them waits for a disk.
SWIFT, ROOM = Path("/dev/shm"), 4 << 30
if "TMPDIR" not in os.environ and os.access(SWIFT, os.W_OK) and shutil.disk_usage(SWIFT).free > ROOM:
    os.environ["TMPDIR"] = str(SWIFT)
    tempfile.tempdir = None  # so that it is computed again

settings.register_profile("holdfast", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("holdfast")


LONG = (
    "tests/chaos/test_small_size_runs.py",
    "tests/chaos/test_small_size.py",
    "tests/mutants/",
    "tests/stores/test_conformance.py",
    "tests/testing/test_servers.py",
)
"""The slowest files run first, so that several workers end at about the same time."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out stores on which a test is not run, and move the slowest files to the front."""
    unwanted = {id(item) for item in items if not _is_wanted(item)}
    if unwanted:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in unwanted])
        items[:] = [item for item in items if id(item) not in unwanted]

    def place(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))

    items.sort(key=place)


def _is_wanted(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    given = {} if callspec is None else callspec.params
    return all(providers.is_wanted(given.get(name), item.nodeid) for name in ("url", "provider"))


_frozen_for = ""


def _freeze_for(module: str) -> None:
    """Freeze all objects that exist before this module, so that the collection after every test skips them.

    Without this, most of the time of a test run is spent on garbage collection.
    """
    global _frozen_for  # noqa: PLW0603  (one per process, like the collector)
    if module != _frozen_for:
        _frozen_for = module
        gc.collect()
        gc.freeze()


def _our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test there is no thread of Holdfast, no local queue, and no open file of a store."""
    _freeze_for(request.node.nodeid.partition("::")[0])
    yield
    gc.collect()
    eventually(lambda: not _our_threads())
    assert not _our_threads()
    assert len(queues) == 0
    assert providers.open_files() == []


@pytest.fixture(params=providers.names())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each kind in turn; the same store for every caller."""
    return providers.url(request.param, tmp_path)


@pytest.fixture
def plan() -> Iterator[faults.Plan]:
    """The plan of faults for the clients that this test creates."""
    with faults.planned() as made:
        yield made


@pytest.fixture(params=sync_async.NAMES)
def mode(request: pytest.FixtureRequest) -> Iterator[sync_async.ClientMode]:
    """Sync and async clients in turn, for tests that are the same for both."""
    with sync_async.open_mode(request.param) as made:
        yield made


@pytest.fixture
def hf(mode: sync_async.ClientMode, url: str) -> sync_async.AnyClient:
    """A sync and an async client on each store; closed at the end of the test."""
    return mode.client(url)
