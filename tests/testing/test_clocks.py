"""The suite on stores with their own running clock: one that can be set, and one that cannot."""

from __future__ import annotations

from itertools import count
from typing import Any

from msgspec.structs import replace

from holdfast.platform import host_clock
from holdfast.stores import open_store
from holdfast.testing import StoreConformance
from holdfast.testing.suite.histories import HistoryTests
from holdfast.testing.suite.resends import ResendTests


class Server:
    """A memory store with its own clock."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.capabilities = replace(store.capabilities, server_clock=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class TestAClockThatCanBeSet(StoreConformance):
    histories = 40

    def url(self, folder):
        self.offset = 0
        self.ticks = count(1)
        return f"memory://{folder}"

    def open(self, url, *, namespace, clock):
        def now():
            return host_clock() + self.offset + next(self.ticks)

        return Server(open_store(url, namespace=namespace, clock=now))

    def advance(self, seconds):
        self.offset += round(seconds * 1_000_000)


class TestAClockThatCannot(ResendTests, HistoryTests):
    histories = 20

    def url(self, folder):
        return f"memory://{folder}"

    def open(self, url, *, namespace, clock):
        return Server(open_store(url, namespace=namespace, clock=host_clock))
