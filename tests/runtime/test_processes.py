"""Forks, interpreter exits and running loops: how processes stay independent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from waiting import eventually

from holdfast import AsyncClient, Client, LeaseLost


def in_child(work):
    """Run in a forked child; its exit code tells whether all went well."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback  # noqa: PLC0415

            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork_the_child_holds_nothing_and_the_parent_loses_nothing(url):
    with Client(url) as hf, hf.lock("a", ttl=1) as lease:

        def child():
            assert not lease.valid
            with pytest.raises(LeaseLost, match="forked"):
                lease.check()
            with pytest.raises(LeaseLost):
                lease.release()
            if not url.startswith("memory"):
                assert hf.lock("a").try_acquire() is None, "the parent's lock is seen"
            with hf.lock("b", wait=5) as mine:
                assert mine.valid
            hf.close()

        assert in_child(child) == 0
        lease.check()
        before = lease.expires_at
        eventually(lambda: lease.expires_at > before)
        assert [info.key for info in hf.locks.list()] == ["a"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_other_threads_are_busy_leaves_a_working_child(url):
    stop = threading.Event()
    with Client(url) as hf:

        def churn(number):
            while not stop.is_set():
                with hf.lock(f"k{number}"):
                    pass

        threads = [threading.Thread(target=churn, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()

        def child():
            with hf.lock("from-the-child", wait=20):
                pass
            hf.close()

        codes = [in_child(child) for _ in range(5)]
        stop.set()
        for thread in threads:
            thread.join(20)
        assert codes == [0] * 5


def python(source, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "default::ResourceWarning", "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_interpreter_that_exits_without_closing_releases_its_locks(tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"
    done = python(
        """
        import sys
        from holdfast import Client
        hf = Client(sys.argv[1])
        lease = hf.lock("a", ttl=300).acquire()
        waiting = hf.hold("window", ttl=300)
        print("ready")
        """,
        url,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ready")
    assert "Traceback" not in done.stderr
    with Client(url) as hf:
        assert [info.key for info in hf.locks.list()] == ["window"]


def test_an_interpreter_whose_loop_is_cancelled_ends_cleanly(tmp_path):
    done = python(
        """
        import asyncio, sys
        from holdfast import AsyncClient
        async def main():
            hf = AsyncClient(sys.argv[1])
            async with hf.lock("a"):
                asyncio.get_running_loop().call_later(0.05, asyncio.current_task().cancel)
                await asyncio.sleep(60)
        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            print("cancelled")
        """,
        f"sqlite:///{tmp_path}/hf.db",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "cancelled"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_that_was_never_closed_warns_and_ends_its_threads(url):
    client = Client(url)
    client.lock("a").acquire().release()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del client


def test_the_sync_client_works_inside_a_running_loop(url):
    """As in a notebook."""

    async def cell():
        with Client(url) as hf:
            with hf.lock("a", wait=5) as lease:
                assert lease.valid
            async with AsyncClient(url) as other, other.lock("a", wait=5):
                pass

    asyncio.run(cell())


def test_the_path_of_the_default_file_is_fixed_at_construction_and_logged_once(tmp_path, monkeypatch, caplog):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("INFO", logger="holdfast"), Client() as hf:
        monkeypatch.chdir(tmp_path / "elsewhere")
        with hf.lock("a"):
            pass
    assert (tmp_path / "holdfast.db").exists()
    assert not (tmp_path / "elsewhere" / "holdfast.db").exists()
    assert [str(tmp_path / "holdfast.db") in record.getMessage() for record in caplog.records].count(True) == 1


def test_the_url_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("HOLDFAST_URL", "memory://")
    with Client() as hf:
        assert hf.url == "memory://"
        assert "memory://" in repr(hf)
