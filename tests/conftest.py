"""What every test gets: a store of each kind to run on, and the check that nothing was left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import faults
import providers
from holdfast.locks.gate import gates
from waiting import eventually

settings.register_profile("holdfast", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("holdfast")


def _our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """After every test: no thread of ours, no gate, no open file of a store's."""
    yield
    gc.collect()
    eventually(lambda: not _our_threads())
    assert not _our_threads()
    assert len(gates) == 0
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
