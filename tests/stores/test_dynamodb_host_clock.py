"""What depends on time, of the suite for stores, on DynamoDB as users have it: by the clock of this host.

`test_conformance.py` has the whole suite with a clock that the tests move; its clients and processes use the host's.
"""

from __future__ import annotations

from providers import PROVIDERS

from holdfast.stores import open_store
from holdfast.testing.suite.commands import CommandTests
from holdfast.testing.suite.histories import HistoryTests


class TestDynamodbByTheClockOfItsHost(CommandTests, HistoryTests):
    """Histories take as long as they tell."""

    histories = 5
    server_clock = True  # for the suite: a clock that is not the test's own

    def url(self, folder):
        return PROVIDERS["dynamodb"].url(folder)

    def open(self, url, *, namespace, clock):
        return open_store(url, namespace=namespace)

    def dump(self, url, namespace):
        return PROVIDERS["dynamodb"].dump(url, namespace)
