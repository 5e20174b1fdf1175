"""The plugin, as users write tests with it; each user's test runs in a separate pytest."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

import pytest

import holdfast.stores.memory.store
import holdfast.stores.sqlite.store  # noqa: F401  (a pytest within this one forgets what it imported first)

pytest_plugins = ["pytester"]

HEAD = """
import asyncio, threading, time
import pytest
from holdfast import AsyncClient, Client, LeaseLost, LockTimeout
"""


@pytest.fixture
def users_tests(pytester):
    """Run a user's tests, and count those that passed."""

    def run(text, *options, **expected):
        pytester.makepyfile(HEAD + textwrap.dedent(text))
        result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", *options)
        result.assert_outcomes(**expected)
        return result

    return run


def test_pytest_loads_the_plugin_automatically():
    found = {point.name: point.value for point in entry_points(group="pytest11")}
    assert found["holdfast"] == "holdfast.testing.plugin"


@pytest.mark.parametrize("module", ["holdfast", "holdfast.client", "holdfast.stores.memory.store", "holdfast.cli"])
def test_the_package_itself_does_not_import_pytest(module):
    code = f"import sys, {module}; sys.exit('pytest' in sys.modules or 'holdfast.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_client_has_a_store_that_no_other_test_uses(users_tests):
    users_tests(
        """
        @pytest.mark.parametrize("time", range(2))
        def test_it(holdfast, time):
            assert holdfast.locks.list() == []
            holdfast.hold("a", ttl=60)
            assert len(holdfast.locks.list()) == 1
        """,
        passed=2,
    )


def test_both_clients_and_further_clients_share_one_store(users_tests):
    users_tests(
        """
        def test_it(holdfast, async_holdfast, holdfast_store):
            with holdfast.lock("a"):
                other = holdfast_store.client()
                assert other.lock("a").try_acquire() is None
                assert asyncio.run(async_holdfast.lock("a").try_acquire()) is None
                with Client(holdfast_store.url) as plain, Client() as by_default:
                    assert plain.locks.inspect("a").held
                    assert by_default.locks.inspect("a").held
                assert holdfast_store.store.capabilities.durable is False
                assert str(holdfast_store) == holdfast_store.url
        """,
        passed=1,
    )


def test_an_async_client_is_closed_although_its_loop_was_closed(users_tests):
    users_tests(
        """
        def test_it(async_holdfast):
            async def main():
                await async_holdfast.lock("a").acquire()  # never released

            with pytest.warns(ResourceWarning, match="dropped"):
                asyncio.run(main())

        def test_nothing_is_left():
            assert not [t for t in threading.enumerate() if t.name.startswith("holdfast")]
        """,
        passed=2,
    )


@pytest.mark.parametrize("how", ["option", "ini"])
def test_the_address_of_the_store_can_be_set(users_tests, pytester, how):
    url = "sqlite:///{folder}/locks.db"
    if how == "ini":
        pytester.makeini(f"[pytest]\nholdfast_url = {url}\n")
    users_tests(
        """
        def test_it(holdfast, holdfast_store, holdfast_clock, tmp_path):
            assert holdfast.url == f"sqlite:///{tmp_path}/locks.db"
            with holdfast.lock("a", ttl=5) as lease:
                holdfast_clock.advance(60)
                lease.check()
            assert (tmp_path / "locks.db").exists()
        """,
        *(["--holdfast-url", url] if how == "option" else []),
        passed=1,
    )


def test_on_a_shared_store_each_test_has_a_namespace(users_tests, tmp_path):
    users_tests(
        """
        @pytest.mark.parametrize("time", range(2))
        def test_it(holdfast, holdfast_store, time):
            assert holdfast.namespace == holdfast_store.namespace != "default"
            assert holdfast.hold("a", ttl=60)
            with Client(namespace=holdfast_store.namespace) as same, Client() as default:
                assert same.locks.inspect("a").held
                assert not default.locks.inspect("a").held
        """,
        "--holdfast-url",
        f"sqlite:///{tmp_path}/shared.db",
        passed=2,
    )


def test_a_healthy_lease_survives_an_hour(users_tests):
    users_tests(
        """
        def test_in_a_thread(holdfast, holdfast_clock):
            with holdfast.lock("a", ttl=30) as lease:
                first = lease.expires_at
                holdfast_clock.advance("1 hour")
                lease.check()
                assert (lease.expires_at - first).total_seconds() > 3_560
                assert lease.expires_at > holdfast_clock.now()

        def test_on_a_loop(async_holdfast, holdfast_clock):
            async def main():
                async with async_holdfast.lock("a", ttl=30) as lease:
                    await holdfast_clock.advance_async(3_600)
                    lease.check()

            asyncio.run(main())
        """,
        passed=2,
    )


def test_a_lease_is_lost_with_an_error_after_a_pause(users_tests):
    users_tests(
        """
        def test_in_a_thread(holdfast, holdfast_clock):
            notified = []
            with pytest.raises(LeaseLost):
                with holdfast.lock("a", ttl=30, on_lost=notified.append) as lease:
                    holdfast_clock.pause(20)
                    lease.check()  # the heartbeat came in time
                    holdfast_clock.pause(31)
                    assert not lease.valid
            assert notified == [lease]

        def test_on_a_loop(async_holdfast, holdfast_clock):
            async def main():
                with pytest.raises(LeaseLost):
                    async with async_holdfast.lock("a", ttl=30):
                        await holdfast_clock.pause_async(31)
                        await asyncio.Event().wait()  # cancelled here

            asyncio.run(main())

        def test_a_hold_ends_with_its_window(holdfast, holdfast_clock):
            assert holdfast.hold("a", ttl=60)
            holdfast_clock.advance(59)
            assert not holdfast.hold("a", ttl=60)
            holdfast_clock.advance(1)
            assert holdfast.hold("a", ttl=60)
        """,
        passed=3,
    )


def test_a_waiter_times_out_without_real_waiting(users_tests):
    users_tests(
        """
        def test_by_itself(holdfast, holdfast_store, holdfast_clock):
            with holdfast_store.client().lock("a"):
                before = holdfast_clock.elapsed()
                with pytest.raises(LockTimeout):
                    holdfast.lock("a", wait="10 minutes").acquire()
                assert holdfast_clock.elapsed() - before == pytest.approx(600, abs=0.01)

        def test_in_another_thread(holdfast, holdfast_store, holdfast_clock):
            errors = []

            def wait():
                try:
                    holdfast.lock("a").acquire(wait=60)
                except LockTimeout as error:
                    errors.append(error)

            with holdfast_store.client().lock("a"):
                thread = threading.Thread(target=wait)
                thread.start()
                holdfast_clock.advance(59)
                assert not errors
                holdfast_clock.advance(2)
                thread.join(10)
                assert len(errors) == 1

        def test_on_a_loop(async_holdfast, holdfast_store, holdfast_clock):
            async def main():
                async with holdfast_store.async_client().lock("a"):
                    waiting = asyncio.create_task(async_holdfast.lock("a").acquire(wait=60))
                    await holdfast_clock.advance_async(59)
                    assert not waiting.done()
                    await holdfast_clock.advance_async(2)
                    with pytest.raises(LockTimeout):
                        await waiting

            asyncio.run(main())
        """,
        passed=3,
    )


def test_the_lock_of_a_halted_client_goes_to_another_client(users_tests):
    users_tests(
        """
        def test_it(holdfast, holdfast_store, holdfast_clock):
            other, taken = holdfast_store.client(), []

            def take():
                with other.lock("a", wait=300) as second:
                    taken.append(second.token)

            lease = holdfast.lock("a", ttl=30).acquire()
            thread = threading.Thread(target=take)
            thread.start()
            holdfast_clock.advance(100)
            assert taken == []
            with holdfast_clock.halted(holdfast):
                holdfast_clock.advance(40)
            thread.join(10)
            assert taken[0] > lease.token
            with pytest.raises(LeaseLost):
                lease.release()
        """,
        passed=1,
    )


def test_a_waiter_gets_the_lock_while_time_stands_still(users_tests):
    users_tests(
        """
        def test_it(holdfast, holdfast_store, holdfast_clock):
            lease = holdfast_store.client().lock("a").acquire()
            before = holdfast_clock.elapsed()

            def release():
                time.sleep(0.05)
                lease.release()

            thread = threading.Thread(target=release)
            thread.start()
            with holdfast.lock("a", wait=1):
                assert holdfast_clock.elapsed() == before
            thread.join()
        """,
        passed=1,
    )


def test_a_wait_that_never_ends_is_an_error_and_does_not_hang(users_tests):
    users_tests(
        """
        def test_a_wait_without_end(holdfast, holdfast_store, holdfast_clock):
            holdfast_clock.longest_wait = 1_000
            with holdfast_store.client().lock("a", ttl=600):
                with pytest.raises(TimeoutError, match="1000 s of virtual time"):
                    holdfast.lock("a").acquire()

        def test_a_step_that_does_not_come_to_rest(holdfast, holdfast_clock):
            holdfast_clock.patience, go_on = 0.2, threading.Event()

            def slowly(value):
                go_on.wait(10)
                return 1

            thread = threading.Thread(target=lambda: holdfast.state("n", initial=0).update(slowly))
            thread.start()
            with pytest.raises(TimeoutError, match="a call of a client"):
                holdfast_clock.advance(1)
            go_on.set()
            thread.join()

        def test_a_task_whose_clock_is_never_moved(async_holdfast, holdfast_store, holdfast_clock):
            holdfast_clock.patience = 0.1

            async def main():
                async with holdfast_store.async_client().lock("a"):
                    with pytest.raises(TimeoutError, match="stands still"):
                        await async_holdfast.lock("a").acquire(wait=60)

            asyncio.run(main())

        def test_the_wrong_word_on_a_loop(holdfast_clock):
            async def main():
                with pytest.raises(RuntimeError, match="advance_async"):
                    holdfast_clock.advance(1)

            asyncio.run(main())
        """,
        passed=4,
    )


def test_a_blocked_loop_loses_its_lease_after_max_stall(users_tests):
    users_tests(
        """
        @pytest.mark.filterwarnings("default::ResourceWarning")
        def test_it(async_holdfast, holdfast_clock):
            held, go_on, notified = threading.Event(), threading.Event(), []

            async def main():
                with pytest.raises(LeaseLost):
                    async with async_holdfast.lock("a", ttl=10, max_stall=60) as lease:
                        notified.append(lease)
                        held.set()
                        go_on.wait(20)
                        await asyncio.sleep(0)

            thread = threading.Thread(target=asyncio.run, args=(main(),))
            thread.start()
            held.wait(10)
            holdfast_clock.advance(50)
            assert notified[0].valid
            holdfast_clock.advance(60)
            assert not notified[0].valid
            go_on.set()
            thread.join()
        """,
        passed=1,
    )


def test_conflicting_writers_pause_in_real_time(users_tests):
    users_tests(
        """
        def test_it(holdfast, holdfast_store, holdfast_clock):
            other = holdfast_store.client()

            def count(client):
                for _ in range(100):
                    client.state("n", initial=0).increment()

            threads = [threading.Thread(target=count, args=(client,)) for client in (holdfast, other)]
            for thread in threads:
                thread.start()
            holdfast_clock.advance(60)
            for thread in threads:
                thread.join()
            assert holdfast.state("n").get() == 200
        """,
        passed=1,
    )


def test_after_the_test_all_clocks_are_real_again(users_tests):
    users_tests(
        """
        from holdfast.runtime import flows, grant as held, heartbeats
        from holdfast.platform import elapsed

        def test_virtual(holdfast, holdfast_clock):
            assert flows.elapsed == held.elapsed == heartbeats.elapsed == holdfast_clock.elapsed

        def test_real(holdfast):
            assert flows.elapsed is held.elapsed is heartbeats.elapsed is elapsed
            with pytest.raises(LockTimeout):
                with holdfast.semaphore("a", permits=1):
                    holdfast.semaphore("a", permits=1).acquire(wait=0.01)
        """,
        passed=2,
    )


def test_a_store_with_its_own_clock_is_refused(users_tests, monkeypatch):
    users_tests(
        """
        from holdfast.stores.memory import store as memory
        from msgspec.structs import replace

        @pytest.fixture(autouse=True)
        def server(monkeypatch):
            monkeypatch.setattr(memory, "CAPABILITIES", replace(memory.CAPABILITIES, server_clock=True))

        def test_it(holdfast, holdfast_clock):
            pass
        """,
        errors=1,
    ).stdout.fnmatch_lines(["*has its own clock, which holdfast_clock cannot move*"])
