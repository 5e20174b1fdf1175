"""A process whose clock differs is named: by an event in every process on the file, and by doctor. Real clocks.

It has no other effect: leases use the clock that sets file timestamps, which all processes of a host share.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from commandline import holdfast
from providers import sqlite_path
from waiting import eventually

from holdfast import Client, LockTimeout
from holdfast.stores.sqlite import clock as sqlite_clock
from holdfast.testing.faults import SkewedClock
from holdfast.testing.processes import running

WORKER = """
import sys
from holdfast import Client
with Client(sys.argv[1], name="skewed_process") as hf:
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
def skewed_process(url):
    """Start a process whose clock is off by so much; returns a function that lets it acquire a lock, and its pid."""
    clocks = []

    def start(offset):
        clock = SkewedClock(offset)
        clocks.append(clock)
        process = clock.start([sys.executable, "-c", WORKER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def work():
            printed = []
            process.stdin.write("x\n")
            process.stdin.flush()
            while (line := process.stdout.readline().strip()) != "done":
                assert line, "it has ended"
                printed.append(line)
            return printed

        return work, process, clock

    yield start
    for clock in clocks:
        clock.close()


@pytest.mark.parametrize("offset", [3_600.0, -3_600.0, 5.0, -5.0])
def test_a_process_whose_clock_differs_is_named_in_every_process_and_by_doctor(url, skewed_process, offset):
    with Client(url, name="straight") as hf:
        notified = []
        hf.events.subscribe(lambda event: notified.append(event.fields) if event.name == "clock_differs" else None)
        hf.lock("a", ttl=5).acquire().release()
        assert notified == []
        work, process, _clock = skewed_process(offset)
        printed = work()
        assert len(printed) == 1
        assert "'client': 'skewed_process'" in printed[0]
        hf.lock("a", ttl=5).acquire().release()
        (one,) = notified
        assert (one["client"], one["pid"]) == ("skewed_process", process.pid)
        assert one["ahead"] == pytest.approx(offset, abs=1)
        for _ in range(3):  # once per change
            assert work() == []
            hf.lock("a", ttl=5).acquire().release()
        assert len(notified) == 1
        done = holdfast("doctor", "--json", "--url", url)
        assert done.exit_code == 1
        (finding,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "clocks"]
        assert finding["level"] == "problem"
        assert f"skewed_process ({one['host']}, process {process.pid})" in finding["detail"]
        assert ("ahead" if offset > 0 else "behind") in finding["detail"]


def test_a_corrected_clock_is_no_longer_reported_until_it_differs_again(url, skewed_process):
    with Client(url) as hf:
        notified = []
        hf.events.subscribe(lambda event: notified.append(event.fields) if event.name == "clock_differs" else None)
        work, process, clock = skewed_process(3_600.0)
        work()
        hf.lock("a", ttl=5).acquire().release()
        clock.set(0.0)
        eventually(lambda: work() == [] and not rows(url))
        hf.lock("a", ttl=5).acquire().release()
        assert len(notified) == 1
        clock.set(-100.0)
        eventually(work)
        hf.lock("a", ttl=5).acquire().release()
        assert [one["pid"] for one in notified] == [process.pid] * 2
        assert holdfast("doctor", "--url", url).exit_code == 1


def test_a_process_that_ended_is_no_longer_named(url, skewed_process):
    work, process, _ = skewed_process(3_600.0)
    work()
    assert rows(url) == [("skewed_process",)]
    process.stdin.close()
    eventually(lambda: rows(url) == [])


ENGINE = """
import asyncio, os, sys
from holdfast import AsyncClient, Context, Engine, workflow
from holdfast.stores.sqlite import clock as sqlite_clock

sqlite_clock.LOOK_SECONDS = 0.0

@workflow(name=sys.argv[2])
async def flow(ctx: Context) -> None:
    await asyncio.sleep(0.05)

def report(word):  # by one write: two threads do this
    os.write(1, f"{word}\\n".encode())

def tell(event):
    if event.name in ("worker_lost", "clock_differs") or event.fields.get("leases"):
        report(event.name)

async def main():
    async with AsyncClient(sys.argv[1], name=sys.argv[2]) as hf:
        hf.events.subscribe(tell)
        async with Engine(hf, workflows=[flow], worker_ttl=3) as engine:
            for _ in range(5):
                await (await engine.start(flow)).result()
                report("returned")
            await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
RENEWALS = 9
"""Three times as long as a worker's lease lasts without a renewal."""


def events_of(process):
    """The events of an engine until it has completed its runs and renewed its lease often, or has lost it."""
    notified = Counter()
    while notified["returned"] < 5 or notified["leases_renewed"] < RENEWALS:
        line = process.stdout.readline()
        assert line, "it has ended"
        notified[line.strip()] += 1
        if notified["worker_lost"]:
            break
    return notified


@pytest.mark.parametrize("offset", [3_600.0, -3_600.0])
def test_workers_keep_their_leases_although_the_clock_of_one_differs(url, offset):
    """Each drives its runs; the process whose clock differs is named once by each of the two."""
    with SkewedClock(offset) as skewed_process, SkewedClock() as straight:
        workers = [
            clock.start([sys.executable, "-c", ENGINE, url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for name, clock in (("skewed_process", skewed_process), ("straight", straight))
        ]
        with ThreadPoolExecutor(len(workers)) as threads:
            notified = list(threads.map(events_of, workers))
        assert [one["worker_lost"] for one in notified] == [0, 0]
        assert [one["clock_differs"] for one in notified] == [1, 1]
        assert holdfast("doctor", "--url", url).exit_code == 1


TRIES = """
import sys
from holdfast import Client, LockTimeout
with Client(sys.argv[1]) as hf:
    held = []
    for line in sys.stdin:
        try:
            held.append(hf.lock(line.strip(), ttl=60, wait=0).acquire())
            print("taken", flush=True)
        except LockTimeout:
            print("busy", flush=True)
"""


@pytest.mark.parametrize("offset", [3_600.0, -3_600.0])
def test_a_clock_that_differs_or_moves_neither_takes_nor_loses_a_lock(url, offset):
    """Each time with the first command after the clock was moved."""
    with SkewedClock(offset) as clock, Client(url) as hf:
        other = clock.start([sys.executable, "-c", TRIES, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def tries(key):
            other.stdin.write(f"{key}\n")
            other.stdin.flush()
            return other.stdout.readline().strip()

        ours = hf.lock("ours", ttl=60).acquire()
        for moved in (offset, 0.0, -offset):
            clock.set(moved)
            assert tries("ours") == "busy"
            assert tries(f"theirs {moved}") == "taken"
            with pytest.raises(LockTimeout):
                hf.lock(f"theirs {moved}", ttl=60, wait=0).acquire()
        ours.check()
        ours.release()


class Host:
    """A host whose clock a test sets: it stamps files too, in steps of so many microseconds."""

    def __init__(self, step=1):
        self.now, self.step, self.off = 1_790_000_000_900_001, step, 0

    def clock(self):
        return self.now + self.off

    def stamp(self):
        return self.now // self.step * self.step


@pytest.fixture
def host(monkeypatch):
    def make(**options):
        host = Host(**options)
        monkeypatch.setattr(sqlite_clock, "host_clock", host.clock)
        clock = sqlite_clock.host_clock
        return host, sqlite_clock.Clocks(clock, host)

    return make


def test_a_step_of_the_hosts_clock_is_followed_and_one_of_a_single_process_is_not(host):
    host, clocks = host()
    for seconds in (3_600, -7_200, 2, 0):
        host.now += seconds * 1_000_000
        assert clocks.now() == host.now
    for off in (3_600, -3_600, 2, -2, 0):
        host.off = off * 1_000_000
        assert clocks.now() == host.now
        host.now += 1
        assert clocks.now() == host.now
    host.off = 900_000
    assert clocks.now() == host.clock(), "less than a second is no difference"


def test_a_file_system_with_timestamps_in_whole_seconds_works(host):
    host, clocks = host(step=2_000_000)
    for _ in range(10):
        host.now += 300_000
        assert clocks.now() == host.now
    host.off = 3_600_000_000
    assert clocks.now() == host.stamp()


def rows(url):
    with closing(sqlite3.connect(sqlite_path(url))) as db:
        return db.execute("SELECT name FROM clocks").fetchall()


PLAIN = """
from holdfast import Client
with Client(sys.argv[1]) as hf:
    hf.events.subscribe(lambda event: event.name == "clock_differs" and report("event"))
    hf.lock("k", ttl=5).acquire().release()
    report("done")
"""


def test_processes_with_correct_clocks_write_no_rows_about_clocks(url):
    for _ in range(2):
        with running(PLAIN, url) as process:
            assert process.read_line() == "done"
    assert rows(url) == []
