"""What each store says that it can promise. The Valkey and Redis of the tests have `appendfsync always`."""

from __future__ import annotations

import pytest
from providers import LIVE, PROVIDERS

from holdfast.stores import open_store

HOSTS_CLOCK, SERVERS_CLOCK = False, True
NOBODY, SOMEBODY = False, True
PROMISED = {  # durable, shared, server_clock, notifies, workflows, trips
    "memory": (False, False, HOSTS_CLOCK, SOMEBODY, True, 1),
    "sqlite": (True, True, HOSTS_CLOCK, SOMEBODY, True, 1),
    "postgres": (True, True, SERVERS_CLOCK, SOMEBODY, True, 1),
    "valkey": (True, True, SERVERS_CLOCK, SOMEBODY, True, 1),
    "redis": (True, True, SERVERS_CLOCK, SOMEBODY, True, 1),
    "mariadb": (True, True, SERVERS_CLOCK, NOBODY, True, 2),
    "postgres_by_sql": (True, True, SERVERS_CLOCK, NOBODY, True, 2),
    "mongodb": (True, True, SERVERS_CLOCK, SOMEBODY, False, 2),
    "dynamodb": (True, True, HOSTS_CLOCK, NOBODY, False, 2),
}


@pytest.mark.parametrize("name", [name for name in PROVIDERS if name not in LIVE])
def test_a_store_promises_what_is_documented_for_it(name, tmp_path):
    store = open_store(PROVIDERS[name].url(tmp_path), namespace="default")
    store.connect("commands").close()
    found = store.capabilities
    store.close()
    seen = (found.durable, found.shared, found.server_clock, found.notifies, found.workflows, found.trips)
    assert seen == PROMISED[name]
