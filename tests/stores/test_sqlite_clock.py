"""A process whose clock differs is named: by an event in every process on the file, and by doctor. Real clocks."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from commandline import holdfast
from holdfast import Client
from holdfast.stores import sqlite_clock
from holdfast.testing.faults import SkewedClock
from holdfast.testing.processes import running
from providers import sqlite_path
from waiting import eventually

WORKER = """
import sys
from holdfast import Client
with Client(sys.argv[1], name="crooked") as hf:
    hf.events.subscribe(lambda event: event.name == "clock_differs" and print("event", event.fields, flush=True))
    for line in sys.stdin:
        hf.lock("k" + line.strip(), ttl=60).acquire().release()
        print("done", flush=True)
"""


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture(autouse=True)
def _compared_with_every_write(monkeypatch):
    monkeypatch.setattr(sqlite_clock, "LOOK_SECONDS", 0.0)


@pytest.fixture
def crooked(url):
    """Start a process by a clock that is off by so much; returns a way to let it take a lock, and its number."""
    clocks = []

    def start(offset):
        clock = SkewedClock(offset)
        clocks.append(clock)
        process = clock.start([sys.executable, "-c", WORKER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def work():
            said = []
            process.stdin.write("x\n")
            process.stdin.flush()
            while (line := process.stdout.readline().strip()) != "done":
                assert line, "it has ended"
                said.append(line)
            return said

        return work, process, clock

    yield start
    for clock in clocks:
        clock.close()


@pytest.mark.parametrize("offset", [3_600.0, -3_600.0, 5.0, -5.0])
def test_a_process_whose_clock_differs_is_named_by_itself_by_the_others_and_by_doctor(url, crooked, offset):
    with Client(url, name="straight") as hf:
        told = []
        hf.events.subscribe(lambda event: told.append(event.fields) if event.name == "clock_differs" else None)
        hf.lock("a", ttl=5).acquire().release()
        assert told == []
        work, process, _clock = crooked(offset)
        said = work()
        assert len(said) == 1
        assert "'client': 'crooked'" in said[0]
        hf.lock("a", ttl=5).acquire().release()
        (one,) = told
        assert (one["client"], one["pid"]) == ("crooked", process.pid)
        assert one["ahead"] == pytest.approx(offset, abs=1)
        for _ in range(3):  # once for one incident
            assert work() == []
            hf.lock("a", ttl=5).acquire().release()
        assert len(told) == 1
        done = holdfast("doctor", "--json", "--url", url)
        assert done.exit_code == 1
        (finding,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "clocks"]
        assert finding["level"] == "problem"
        assert f"crooked ({one['host']}, process {process.pid})" in finding["detail"]
        assert ("ahead" if offset > 0 else "behind") in finding["detail"]


def test_a_clock_that_was_set_right_is_named_no_more_and_named_again_when_it_goes_wrong_again(url, crooked):
    with Client(url) as hf:
        told = []
        hf.events.subscribe(lambda event: told.append(event.fields) if event.name == "clock_differs" else None)
        work, process, clock = crooked(3_600.0)
        work()
        hf.lock("a", ttl=5).acquire().release()
        clock.set(0.0)
        eventually(lambda: work() == [] and not rows(url))
        hf.lock("a", ttl=5).acquire().release()
        assert len(told) == 1
        clock.set(-100.0)
        eventually(work)
        hf.lock("a", ttl=5).acquire().release()
        assert [one["pid"] for one in told] == [process.pid] * 2
        assert holdfast("doctor", "--url", url).exit_code == 1


def test_a_process_that_ends_takes_its_name_along(url, crooked):
    work, process, _ = crooked(3_600.0)
    work()
    assert rows(url) == [("crooked",)]
    process.stdin.close()
    eventually(lambda: rows(url) == [])


def rows(url):
    with closing(sqlite3.connect(sqlite_path(url))) as db:
        return db.execute("SELECT name FROM clocks").fetchall()


PLAIN = """
from holdfast import Client
with Client(sys.argv[1]) as hf:
    hf.events.subscribe(lambda event: event.name == "clock_differs" and say("event"))
    hf.lock("k", ttl=5).acquire().release()
    say("done")
"""


def test_processes_whose_clocks_are_right_write_nothing_of_it(url):
    for _ in range(2):
        with running(PLAIN, url) as process:
            assert process.hear() == "done"
    assert rows(url) == []
