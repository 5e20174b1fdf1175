"""On every store, keys that a database might take for equal are distinct, and listed in the order of code points."""

from __future__ import annotations

import pytest

from holdfast import Client

KEYS = ["A", "Z", "a", "a ", "a\u0308", "ä", "\uff41", "\uffff", "😀", "x" * 512, "ü" * 256]


@pytest.mark.parametrize("namespace", ["n" * 512, "ü" * 256], ids=["letters", "umlauts"])
def test_keys_are_distinct_and_listed_in_the_order_of_code_points(url, namespace):
    with Client(url, namespace=namespace) as hf:
        for key in KEYS:
            assert hf.hold(key, ttl=60), key
        for key in KEYS:
            assert not hf.hold(key, ttl=60), key
        assert [status.key for status in hf.locks.list()] == sorted(KEYS)
    with Client(url, namespace="N" * 512) as other:
        assert list(other.locks.list()) == []
        assert other.hold("a", ttl=60)
