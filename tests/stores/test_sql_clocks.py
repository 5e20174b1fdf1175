"""What depends on time, of the suite for stores, on relational stores as users have them: by the clock of the server.

`test_conformance.py` has the whole suite with a clock that the tests move.
"""

from __future__ import annotations

import pytest
from providers import PROVIDERS

from holdfast.stores import open_store
from holdfast.testing.suite.commands import CommandTests
from holdfast.testing.suite.histories import HistoryTests


class ServersClock(HistoryTests):
    """Random histories, which take as long as they tell."""

    histories = 5
    kind: str

    def url(self, folder):
        return PROVIDERS[self.kind].url(folder)

    def open(self, url, *, namespace, clock):
        return open_store(url, namespace=namespace)

    def dump(self, url, namespace):
        return PROVIDERS[self.kind].dump(url, namespace)

    @pytest.fixture(autouse=True)
    def _by_the_server(self, _one_store_a_test):
        assert self.server_clock


class TestMariadbByTheClockOfItsServer(CommandTests, ServersClock):
    """The time of a command does not depend on the database, so its tests, which wait for real, run here only."""

    kind = "mariadb"


class TestPostgresBySqlByTheClockOfItsServer(ServersClock):
    kind = "postgres_by_sql"
