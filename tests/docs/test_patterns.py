"""The recipes of docs/patterns.md, run as they are written there."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from sync_async import on_a_loop
from waiting import eventually

from holdfast import AsyncClient, Client, LeaseLost

PAGE = Path(__file__).parents[2] / "docs/patterns.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
RECIPES = "\n\n".join(BLOCKS[:4])


@pytest.fixture(scope="module")
def recipes():
    names: dict = {}
    exec(compile(RECIPES, str(PAGE), "exec"), names)
    return names


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def jobs(tmp_path):
    db = sqlite3.connect(tmp_path / "jobs.db")
    db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT)")
    db.execute("INSERT INTO jobs VALUES (7, 'running')")
    db.commit()
    yield db
    db.close()


def test_a_jobs_transition_is_made_once_and_refused_while_another_client_makes_it(recipes, sqlite_url, jobs):
    with Client(sqlite_url) as mine, Client(sqlite_url) as other:
        with other.lock("job:7"):
            done = threading.Thread(target=lambda: results.append(recipes["finish"](mine, None, 7)))
            results: list = []
            done.start()
            done.join()
            assert results == [False]
        assert recipes["finish"](mine, jobs, 7) is True
        assert jobs.execute("SELECT state FROM jobs").fetchone() == ("done",)


def test_a_jobs_lease_of_60_s_is_renewed_every_20_s_and_lost_after_3_failures(recipes, sqlite_url, jobs):
    seen = []
    with Client(sqlite_url) as mine:

        class Spy:
            """A connection that notes which leases are held at the moment of the write."""

            in_transaction = property(lambda _: jobs.in_transaction)

            def __getattr__(self, name):
                return getattr(jobs, name)

            def __enter__(self):
                (renewal,) = mine.runtime.heartbeats._renewals.values()
                seen.append((renewal.held.ttl, renewal.interval, renewal.max_failures))
                raise LookupError("seen enough")

            def __exit__(self, *_):
                pass

        with pytest.raises(LookupError):
            recipes["finish"](mine, Spy(), 7)
        assert seen == [(60_000_000, 20, 3)]


def test_one_replica_reconciles_in_a_window_and_never_releases_early(recipes, sqlite_url):
    """Three replicas, with a shorter poll: each window has one round."""
    rounds: list = []
    stop = threading.Event()
    assert recipes["POLL"] == 30
    names = {**recipes, "POLL": 0.3}
    exec(compile(BLOCKS[1].replace("POLL = 30.0", ""), str(PAGE), "exec"), names)
    with Client(sqlite_url) as watcher:

        def replica(number):
            with Client(sqlite_url) as hf:
                names["reconcile_forever"](
                    hf, lambda: rounds.append((number, watcher.locks.inspect("reconciler").fence)), stop
                )

        replicas = [threading.Thread(target=replica, args=(number,)) for number in range(3)]
        for thread in replicas:
            thread.start()
        eventually(lambda: len(rounds) >= 4)
        stop.set()
        for thread in replicas:
            thread.join()
        tokens = [token for _, token in rounds]
        assert len(set(tokens)) == len(tokens), "no window had two rounds"
        assert all(later - earlier >= 600_000 for earlier, later in pairwise(tokens))


@on_a_loop
async def test_updates_of_a_run_queue_in_their_process_and_reach_the_store_one_at_a_time(recipes, sqlite_url):
    async with AsyncClient(sqlite_url) as hf:
        inside, most, terms = 0, 0, set()

        async def change(lease):
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            (renewal,) = hf.runtime.heartbeats._renewals.values()
            terms.add((renewal.held.ttl, renewal.interval, len((await hf.locks.inspect(lease.key)).waiters)))
            inside -= 1
            return lease.token

        tokens = await asyncio.gather(*(recipes["update_run"](hf, "r1", change) for _ in range(30)))
        assert most == 1
        assert terms == {(30_000_000, 10, 0)}
        assert len(set(tokens)) == 30


@on_a_loop
async def test_a_runs_update_is_cancelled_when_the_lock_is_lost(recipes, sqlite_url):
    async with AsyncClient(sqlite_url) as hf:

        async def change(lease):
            await hf.locks.force_release(lease.key, reason="test")
            with pytest.raises(LeaseLost):
                await lease.renew()
            await asyncio.sleep(60)

        with pytest.raises(LeaseLost):
            await recipes["update_run"](hf, "r1", change)


def test_a_snapshot_writer_that_is_killed_is_replaced(tmp_path, sqlite_url):
    """Two real processes, the first one killed with -9. How long it takes is measured by `make chaos-leader`."""
    program = RECIPES + textwrap.dedent(
        """
        import sys

        async def main():
            async with AsyncClient(sys.argv[1]) as hf:
                await write_snapshots(hf, sys.argv[2], lambda: sys.argv[3])

        asyncio.run(main())
        """
    )
    path = tmp_path / "snapshot"
    command = [sys.executable, "-c", program, sqlite_url, str(path)]
    first = subprocess.Popen([*command, "first"])
    second = None
    try:
        eventually(lambda: path.exists() and path.read_text() == "first")
        second = subprocess.Popen([*command, "second"])
        with Client(sqlite_url) as hf:
            eventually(lambda: len(hf.locks.inspect("leader:snapshot-writer").waiters) == 1)
            before = hf.locks.inspect("leader:snapshot-writer").fence
            first.send_signal(signal.SIGKILL)
            first.wait()
            eventually(lambda: path.read_text() == "second", within=60)
            assert hf.locks.inspect("leader:snapshot-writer").fence > before
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()
