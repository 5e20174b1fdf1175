"""Reads that may take long go by a connection of their own: nobody waits for them who takes a lock."""

from __future__ import annotations

import threading

import pytest

from holdfast import Client
from holdfast.commands import Acquire, ListLocks
from holdfast.flows import send
from holdfast.run_commands import CountRuns, ListRuns, SeeRun
from holdfast.runners import run
from holdfast.workflow.asking import Asking

READS = {
    "runs": (ListRuns, lambda hf: hf.runs.list()),
    "history": (SeeRun, lambda hf: run(Asking(hf, max_bytes=100).see("r", history=True), hf.works.lanes)),
    "count": (CountRuns, lambda hf: run(send(CountRuns()), hf.works.lanes)),
    "locks": (ListLocks, lambda hf: hf.locks.list()),
}


@pytest.mark.parametrize("read", READS)
def test_a_slow_read_delays_no_acquire_of_the_same_client(url, plan, read):
    """The list is on its way to the store, and stays there until the lock has been taken and given back."""
    kind, ask = READS[read]
    under_way, go_on = threading.Event(), threading.Event()
    order = []

    def before(commands):
        if any(isinstance(command, kind) for command in commands):
            under_way.set()
            if not go_on.wait(10):
                order.append("the read had to give way")

    plan.before = before
    with Client(url) as hf:
        hf.runs.start("wf", 1, id="r")

        def reading():
            ask(hf)
            order.append("read")

        reader = threading.Thread(target=reading)
        reader.start()
        assert under_way.wait(20)
        with hf.lock("k", ttl=5):
            order.append("acquired")
        order.append("released")
        go_on.set()
        reader.join()
    assert order == ["acquired", "released", "read"]
    assert plan.count(Acquire) == 1
