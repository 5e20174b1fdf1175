"""What is specific to the memory store."""

from __future__ import annotations

import gc

from holdfast import commands as c
from holdfast.rules import lock_outcomes as out
from holdfast.stores.memory import store as memory
from holdfast.testing.builders import acquire
from stores.forking import in_child


def test_memory_without_a_name_is_private(opened):
    first, second = opened("memory://"), opened("memory://")
    assert first.identity != second.identity
    for store in (first, second):
        (outcome,) = store.connect("commands").execute([acquire()])
        assert isinstance(outcome, out.Granted)


def test_memory_with_a_name_is_shared(opened):
    first, second = opened("memory://shared"), opened("memory://shared")
    assert first.identity == second.identity
    first.connect("commands").execute([acquire()])
    (outcome,) = second.connect("commands").execute([acquire(id="b.1")])
    assert isinstance(outcome, out.Busy)


def test_a_name_and_a_namespace_never_collide_with_another_pair(opened):
    first, second = opened("memory://a#b", namespace="c"), opened("memory://a", namespace="b#c")
    assert first.identity != second.identity
    for store in (first, second):
        (outcome,) = store.connect("commands").execute([acquire()])
        assert isinstance(outcome, out.Granted)


def test_closing_the_last_client_removes_the_records(opened):
    store = opened("memory://passing")
    connection = store.connect("commands")
    connection.execute([acquire()])
    connection.close()
    store.close()
    gc.collect()
    assert not memory._named
    again = opened("memory://passing").connect("commands")
    assert again.execute([c.Inspect(key="k")])[0].record is None


def test_a_forked_child_starts_empty_also_while_the_mutex_is_held(opened):
    store = opened("memory://forked")
    store.connect("commands").execute([acquire()])

    def child():
        (outcome,) = store.reopen().connect("commands").execute([acquire(id="b.1")])
        return type(outcome).__name__

    with store._space.mutex:
        assert in_child(child) == "Granted"
    assert len(store._space.records["k"].holders) == 1
