"""Writers take turns: heartbeats first, no starvation, and a killed or stopped process does not block others for
long."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from waiting import eventually

from holdfast import commands as c
from holdfast.errors import StoreUnavailable
from holdfast.platform import elapsed
from holdfast.rules import lock_outcomes as out
from holdfast.stores.sqlite.write_turns import turn_for
from holdfast.testing.builders import acquire, release
from holdfast.testing.processes import running

STUCK = """
import time
def clock():
    report("in the middle")
    sys.stdin.readline()
    return time.time_ns() // 1000
store = open_store(sys.argv[1], namespace="default", clock=clock)
outcome, = store.connect("commands").execute([acquire("theirs")])
report(type(outcome).__name__)
sys.stdin.readline()
"""


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/locks.db"


def test_a_process_killed_during_its_write_turn_does_not_block_others(url, opened):
    connection = opened(url).connect("commands")
    with running(STUCK, url) as other:
        assert other.read_line() == "in the middle"
        os.kill(other.pid, signal.SIGKILL)
        other.popen.wait()
        began = elapsed()
        mine, theirs = connection.execute([acquire(), c.Inspect(key="theirs")])
        assert elapsed() - began < 2
    assert isinstance(mine, out.Granted)
    assert theirs.record is None


def test_a_process_stopped_during_its_write_turn_is_named_after_the_timeout_and_continues_later(url, opened):
    impatient = opened(url + "?patience=0.2").connect("commands")
    patient = opened(url).connect("heartbeats")
    with running(STUCK, url) as other:
        assert other.read_line() == "in the middle"
        os.kill(other.pid, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match=f"process {other.pid} has locked .*locks.db-turn") as caught:
            impatient.execute([acquire()])
        assert (caught.value.retryable, caught.value.ambiguous) == (True, False)
        assert impatient.execute([c.Inspect(key="k")])[0].record is None, "reads wait for nobody"
        os.kill(other.pid, signal.SIGCONT)
        other.send_line()
        assert other.read_line() == "Granted"
        assert isinstance(patient.execute([acquire()])[0], out.Granted)
        assert isinstance(impatient.execute([acquire("theirs", "b.1")])[0], out.Busy)


def test_another_program_that_locks_the_file_is_waited_for_as_long(url, opened, tmp_path):
    store = opened(url + "?patience=0.2")
    connection = store.connect("commands")
    with closing(sqlite3.connect(tmp_path / "locks.db", isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"another program has locked") as caught:
            connection.execute([acquire()])
        assert not caught.value.ambiguous
        assert connection.execute([c.ListLocks()])[0].items == ()
        shell.execute("ROLLBACK")
    assert isinstance(connection.execute([acquire()])[0], out.Granted)


def test_a_thread_that_waits_too_long_within_its_process_gets_an_error(url, opened, tmp_path):
    store = opened(url + "?patience=0.05")
    connection = store.connect("commands")
    turn, somebody = turn_for(tmp_path / "locks.db"), object()
    turn.take(somebody, urgent=False, deadline=elapsed() + 1)
    with pytest.raises(StoreUnavailable, match="other threads of this process"):
        connection.execute([acquire()])
    turn.give(somebody)
    assert isinstance(connection.execute([acquire()])[0], out.Granted)


def test_within_a_process_heartbeats_write_first_and_the_others_in_order(tmp_path):
    turn, order = turn_for(tmp_path / "a.db"), []
    turn.take("first", urgent=False, deadline=elapsed() + 5)

    def go(name, urgent):
        turn.take(name, urgent=urgent, deadline=elapsed() + 20)
        order.append(name)
        turn.give(name)

    threads = []
    for place, name in enumerate(["a", "b", "heartbeat", "c"]):
        threads.append(threading.Thread(target=go, args=(name, name == "heartbeat")))
        threads[-1].start()
        eventually(lambda place=place: len(turn._others) + len(turn._urgent) == place + 1)
    turn.give("first")
    for thread in threads:
        thread.join()
    assert order == ["heartbeat", "a", "b", "c"]
    assert turn._taker is None


def test_releasing_a_turn_without_having_it_affects_no_other_thread(tmp_path):
    turn = turn_for(tmp_path / "a.db")
    turn.take("me", urgent=False, deadline=elapsed() + 5)
    turn.give("you")
    assert turn._taker == "me"
    turn.give("me")
    turn.give("me")
    assert turn._taker is None


@pytest.mark.parametrize("where", ["clock", "rule"])
def test_an_interrupt_during_a_batch_leaves_neither_a_turn_nor_a_transaction(url, opened, where, monkeypatch):
    interrupted = True

    def clock():
        if interrupted and where == "clock":
            raise KeyboardInterrupt
        return time.time_ns() // 1000

    class Interrupted(c.Settle, frozen=True, kw_only=True):
        def decide(self, lock):
            raise KeyboardInterrupt

    connection = opened(url, clock=clock).connect("commands")
    with pytest.raises(KeyboardInterrupt):
        connection.execute([acquire("mine"), Interrupted(key="k")])
    interrupted = False
    other = opened(url + "?patience=1").connect("commands")
    assert other.execute([c.Inspect(key="mine")])[0].record is None
    assert isinstance(other.execute([acquire("mine")])[0], out.Granted)
    assert isinstance(connection.execute([acquire("theirs")])[0], out.Granted)


def test_an_error_at_the_commit_is_ambiguous(url, opened, tmp_path):
    connection = opened(url).connect("commands")
    with connection._handle.active:
        db = connection._handle.ready()
        db.set_authorizer(
            lambda action, name, *_: (
                sqlite3.SQLITE_DENY if (action, name) == (sqlite3.SQLITE_TRANSACTION, "COMMIT") else sqlite3.SQLITE_OK
            )
        )
    with pytest.raises(StoreUnavailable, match="may or may not") as caught:
        connection.execute([acquire()])
    assert caught.value.ambiguous
    with connection._handle.active:
        db = connection._handle.ready()
        db.set_authorizer(None)
    assert isinstance(connection.execute([acquire(id="b.1")])[0], out.Granted)


def test_checking_the_turn_file_again_does_not_change_it(url, opened, tmp_path):
    opened(url).close()
    opened(url).close()
    before = (tmp_path / "locks.db-turn").stat().st_ctime_ns
    time.sleep(0.02)  # longer than the file system's clock ticks
    opened(url).close()
    assert (tmp_path / "locks.db-turn").stat().st_ctime_ns == before


SATURATE = """
store = open_store(sys.argv[1], namespace="default")
connection = store.connect("commands")
report("ready")
n = 0
while True:
    granted, = connection.execute([acquire(sys.argv[2], f"a.{n}")])
    connection.execute([release(sys.argv[2], f"a.{n}", token=granted.token)])
    n += 1
"""


def test_heartbeats_do_not_starve_beside_constant_writers(url, opened):
    """The speed itself is measured by a benchmark; this test shows only starvation."""
    heartbeat = opened(url).connect("heartbeats")
    with running(SATURATE, url, "x") as one, running(SATURATE, url, "y") as two, running(SATURATE, url, "z") as three:
        for process in (one, two, three):
            assert process.read_line() == "ready"
        waits = []
        for n in range(50):
            began = elapsed()
            (outcome,) = heartbeat.execute([acquire("mine", f"b.{n}")])
            heartbeat.execute([release("mine", f"b.{n}", token=outcome.token)])
            waits.append(elapsed() - began)
        assert max(waits) < 3
