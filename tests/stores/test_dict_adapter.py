"""The adapter of docs/stores/adapter.md, as it is written there, passes the suite for stores by the page's own test."""

from __future__ import annotations

from dict_adapter import FILES, dict_store, loaded
from msgspec.structs import replace

from holdfast.platform import host_clock
from holdfast.rules.lock_record import decode
from holdfast.stores.cas_adapter import LOCKS, RECORDS

MOST_LINES = 100


def test_the_adapter_is_complete_in_under_a_hundred_lines():
    code = [line for line in FILES["dict_store.py"].splitlines() if line.strip()]
    assert len(code) < MOST_LINES


class TestDictStore(loaded("test_dict_store").TestDictStore):
    """The page's test, with the hooks that look into the table."""

    def dump(self, url, namespace):
        rows = dict_store.tables[url].rows
        return {
            key: decode(key, text) for (of, kind, key), (text, _, _) in rows.items() if (of, kind) == (namespace, LOCKS)
        }

    def plant(self, url, namespace, key, text):
        dict_store.tables[url].rows[namespace, LOCKS, key] = text, "planted", 1
        return True

    def plant_record(self, url, namespace, kind, key, text):
        dict_store.tables[url].rows[namespace, RECORDS + kind, key] = text, "planted", 1
        return True


class TestDictStoreByItsOwnClock(TestDictStore):
    """The same with the time that the service reads. Histories take as long as they tell."""

    histories = 10

    def open(self, url, *, namespace, clock):
        store = dict_store.open_dict(url, namespace=namespace, clock=host_clock)
        store.service.capabilities = replace(store.service.capabilities, server_clock=True)
        return store
