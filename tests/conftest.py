"""What every test gets: a store of each kind to run on, and the check that nothing was left behind."""

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

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that. Tests here send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where there is a file system in memory with room for it, files of tests are there: none of them waits for a disk.
SWIFT, ROOM = Path("/dev/shm"), 4 << 30
if "TMPDIR" not in os.environ and os.access(SWIFT, os.W_OK) and shutil.disk_usage(SWIFT).free > ROOM:
    os.environ["TMPDIR"] = str(SWIFT)
    tempfile.tempdir = None  # asked for anew

settings.register_profile("holdfast", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("holdfast")


LONG = (
    "tests/chaos/test_small_size_runs.py",
    "tests/chaos/test_small_size.py",
    "tests/mutants/",
    "tests/stores/test_conformance.py",
    "tests/testing/test_servers.py",
)
"""The files that take longest come first, so that several workers end at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long at the beginning; all else stays in its order."""

    def place(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))

    items.sort(key=place)


_frozen_for = ""


def _freeze_for(module: str) -> None:
    """Freeze what has been made before this module: the search for garbage after every test need not look at it again.

    Without this most of the time of a test run is spent on that search.
    """
    global _frozen_for  # noqa: PLW0603  (one for the process, as the collector is)
    if module != _frozen_for:
        _frozen_for = module
        gc.collect()
        gc.freeze()


def _our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test: no thread of ours, no gate, no open file of a store's."""
    _freeze_for(request.node.nodeid.partition("::")[0])
    yield
    gc.collect()
    eventually(lambda: not _our_threads())
    assert not _our_threads()
    assert len(queues) == 0
    assert providers.open_files() == []


@pytest.fixture(params=providers.names())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each kind in turn; shared by all who open it."""
    return providers.url(request.param, tmp_path)


@pytest.fixture
def plan() -> Iterator[faults.Plan]:
    """Clients made in this test reach their store through this plan."""
    with faults.planned() as made:
        yield made


@pytest.fixture(params=sync_async.NAMES)
def colour(request: pytest.FixtureRequest) -> Iterator[sync_async.Colour]:
    """Synchronous and asynchronous code in turn, for tests that say the same of both."""
    with sync_async.painted(request.param) as made:
        yield made


@pytest.fixture
def hf(colour: sync_async.Colour, url: str) -> sync_async.AnyClient:
    """A client of each colour on each store; closed at the end of the test."""
    return colour.client(url)
