"""Leaders: one at a time, with rising tokens; their work is stopped when the term is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import textwrap
import threading

import pytest
from sync_async import on_a_loop
from waiting import eventually

from holdfast import AsyncClient, Client, LeaseLost, LockTimeout
from holdfast.commands import Acquire, Renew
from holdfast.errors import InvalidKey, InvalidOption, WouldDeadlock

KEY = "leader:scheduler"


@pytest.fixture
def leader(hf):
    return hf.leader("scheduler", ttl=15)


@pytest.fixture
def rival(mode, url):
    return mode.client(url, name="rival").leader("scheduler")


def test_a_candidate_does_not_lead_before_it_campaigns(leader):
    assert leader.is_leader is False
    assert leader.token is None
    assert leader.name == "scheduler"


def test_the_first_candidate_leads_and_the_second_does_not(leader, rival, mode):
    term = mode.do(leader.campaign())
    assert leader.is_leader
    assert leader.token == term.token
    with pytest.raises((LockTimeout, WouldDeadlock)):  # the latter in the thread that leads
        mode.do(rival.campaign(wait=0))
    assert not rival.is_leader
    mode.do(leader.resign())
    assert not leader.is_leader
    assert leader.token is None


def test_the_next_leaders_token_is_higher(leader, rival, mode):
    first = mode.do(leader.campaign()).token
    mode.do(leader.resign())
    assert mode.do(rival.campaign()).token > first
    mode.do(rival.resign())


def test_the_default_ttl_is_15_seconds(hf, mode):
    leader = hf.leader("scheduler")
    term = mode.do(leader.campaign())
    assert 14 < term.remaining() <= 15
    mode.do(leader.resign())


def test_resigning_without_a_term_does_nothing(leader, mode):
    assert mode.do(leader.resign()) is None


def test_a_with_block_leads_for_one_term_and_resigns(leader, rival, mode):
    with mode.block(leader) as term:
        assert leader.token == term.token
    assert not leader.is_leader
    with mode.block(rival):
        assert rival.is_leader


def test_losing_the_term_inside_the_leaders_block_raises_an_error(leader, hf, mode):
    with pytest.raises(LeaseLost), mode.block(leader):
        mode.do(hf.locks.force_release(KEY, reason="test"))
    assert not leader.is_leader


def test_on_change_is_called_at_the_start_and_end_of_every_term(hf, mode):
    reported = []
    leader = hf.leader("scheduler", on_change=lambda who: reported.append((who.is_leader, who.token is not None)))
    mode.do(leader.campaign())
    mode.do(leader.resign())
    assert reported == [(True, True), (False, False)]


def test_on_change_is_called_when_a_term_is_lost(url):
    with Client(url) as client:
        reported = []
        leader = client.leader("scheduler", ttl=0.6, on_change=lambda who: reported.append(who.is_leader))
        leader.campaign()
        client.locks.force_release(KEY, reason="test")
        eventually(lambda: reported == [True, False])
        assert leader.token is None


def test_an_on_change_callback_that_raises_does_not_prevent_leading(hf, mode):
    def failing(_leader):
        raise RuntimeError("no")

    failed = []
    hf.events.subscribe(lambda event: failed.append(event) if event.name == "callback_failed" else None)
    leader = hf.leader("scheduler", on_change=failing)
    mode.do(leader.campaign())
    assert leader.is_leader
    mode.do(leader.resign())
    assert [event.fields["callback"] for event in failed] == ["on_change", "on_change"]


def test_on_change_reports_a_loss_before_the_start_of_the_next_term(url):
    """The next campaign may be faster than the thread that runs callbacks."""
    with Client(url) as client:
        reported = []
        leader = client.leader("scheduler", on_change=lambda who: reported.append(who.token))
        first = leader.campaign()
        client.runtime.callbacks.add = lambda _call: None  # simulates a slow callback thread
        client.locks.force_release(KEY, reason="test")
        with pytest.raises(LeaseLost):
            first.renew()
        second = leader.campaign()
        assert reported == [first.token, None, second.token]
        leader.resign()


@on_a_loop
async def test_on_change_may_be_asynchronous(url):
    async with AsyncClient(url) as client:
        changes = asyncio.Queue()
        failed = []
        client.events.subscribe(lambda event: failed.append(event) if event.name == "callback_failed" else None)

        async def reported(who):
            await changes.put(who.is_leader)
            raise RuntimeError("no")

        leader = client.leader("scheduler", on_change=reported)
        await leader.campaign()
        assert await changes.get() is True
        await leader.resign()
        assert await changes.get() is False
        await asyncio.sleep(0)
        assert len(failed) == 2


def test_terms_follow_each_other_in_a_for_loop(url):
    with Client(url) as client:
        leader, tokens = client.leader("scheduler"), []
        for term in leader:
            with term:
                assert leader.is_leader
                tokens.append(term.token)
            assert not leader.is_leader
            if len(tokens) == 3:
                break
        assert tokens == sorted(set(tokens))


def test_after_a_break_inside_a_term_the_leader_leads_until_it_resigns(url):
    with Client(url) as client:
        leader = client.leader("scheduler")
        for _term in leader:
            break
        assert leader.is_leader
        leader.resign()
        assert not leader.is_leader


def test_a_loss_inside_a_loop_over_terms_ends_the_term_without_an_error_and_the_next_one_follows(url):
    with Client(url) as client:
        leader, tokens = client.leader("scheduler"), []
        for term in leader:
            with term:
                tokens.append(term.token)
                if len(tokens) == 2:
                    break
                client.locks.force_release(KEY, reason="test")
                with pytest.raises(LeaseLost):
                    term.renew()
                term.check()
                raise AssertionError
        assert tokens[1] > tokens[0]


def test_another_error_does_not_end_the_term(url):
    with Client(url) as client:
        leader = client.leader("scheduler")
        with pytest.raises(ZeroDivisionError):
            for term in leader:
                with term:
                    raise ZeroDivisionError
        assert not leader.is_leader


@on_a_loop
async def test_work_in_a_term_is_cancelled_when_the_term_is_lost_and_the_loop_continues(url):
    async with AsyncClient(url) as client:
        leader, tokens, stopped = client.leader("scheduler", ttl=0.6), [], []
        async for term in leader:
            async with term:
                tokens.append(term.token)
                if len(tokens) == 3:
                    break
                await client.locks.force_release(KEY, reason="test")
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    stopped.append(leader.is_leader)
                    raise
        assert stopped == [False, False]
        assert tokens == sorted(set(tokens))
        assert asyncio.current_task().cancelling() == 0


@on_a_loop
async def test_work_is_stopped_before_the_store_can_grant_the_term_to_another_candidate(url, plan):
    """The heartbeat thread cannot reach the store: at the local deadline the work ends, before the lease expires.

    Between the two are 22 ms. A machine that stalls just then gets another try.
    """
    async with AsyncClient(url) as client:
        ended = []
        async for term in client.leader("scheduler", ttl=2):
            plan.refuse = Renew
            async with term:
                try:
                    await asyncio.sleep(60)
                finally:
                    plan.refuse = None
                    ended.append((await client.locks.inspect(KEY)).held)
            if ended[-1] or len(ended) == 5:
                break
        assert ended[-1]


@on_a_loop
async def test_a_cancellation_from_outside_is_raised_unchanged(url):
    async with AsyncClient(url) as client:
        inside = asyncio.Event()

        async def lead():
            async for term in client.leader("scheduler"):
                async with term:
                    inside.set()
                    await asyncio.sleep(60)

        task = asyncio.create_task(lead())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (await client.locks.inspect(KEY)).held


@on_a_loop
async def test_the_leaders_block_raises_lease_lost(url):
    async with AsyncClient(url) as client:
        with pytest.raises(LeaseLost):
            async with client.leader("scheduler", ttl=0.6):
                await client.locks.force_release(KEY, reason="test")
                await asyncio.sleep(60)


@on_a_loop
async def test_run_leads_every_time_the_lock_is_granted(url):
    async with AsyncClient(url) as client:
        changes = asyncio.Queue()
        leader = client.leader("scheduler", ttl=0.6, on_change=lambda who: changes.put_nowait(who.token))
        running = asyncio.create_task(leader.run())
        first = await changes.get()
        await client.locks.force_release(KEY, reason="test")
        assert await changes.get() is None
        second = await changes.get()
        assert second > first
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not leader.is_leader
        assert not (await client.locks.inspect(KEY)).held


def test_run_in_a_thread_ends_when_its_client_is_closed(url):
    client = Client(url)
    leader = client.leader("scheduler")
    thread = threading.Thread(target=leader.run)
    thread.start()
    eventually(lambda: leader.is_leader)
    client.close()
    eventually(lambda: not thread.is_alive())
    assert not leader.is_leader


def test_waiting_for_a_term_in_a_thread_ends_when_the_client_is_closed(tmp_path):
    """The leader is in another process, so that the candidate waits in the store and not in the local queue."""
    url = f"sqlite:///{tmp_path}/locks.db"
    script = """
        import sys
        from holdfast import Client
        with Client(sys.argv[1]) as hf:
            term = hf.leader("scheduler").campaign()
            print("leads", flush=True)
            sys.stdin.read()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"leads\n"
        with Client(url) as watcher:
            client = Client(url)
            thread = threading.Thread(target=client.leader("scheduler").run)
            thread.start()
            eventually(lambda: len(watcher.locks.inspect(KEY).waiters) == 1)
            client.close()
            eventually(lambda: not thread.is_alive())
            assert watcher.locks.inspect(KEY).waiters == ()
    finally:
        other.communicate()


def test_a_leader_that_was_garbage_collected_is_no_longer_renewed_and_an_event_reports_it(url):
    with Client(url) as client:
        reported = []
        client.events.subscribe(lambda event: reported.append(event.name))

        def lead_and_forget():
            for _term in client.leader("scheduler", ttl=1.5):
                break

        with pytest.warns(ResourceWarning, match="dropped without being released"):
            lead_and_forget()
            gc.collect()
        eventually(lambda: not client.locks.inspect(KEY).held)
        eventually(lambda: "lease_lost" in reported)


def test_a_reference_to_a_term_keeps_its_leader_and_on_change_reports_its_end(url):
    with Client(url) as client:
        reported = []
        term = client.leader("scheduler", on_change=lambda who: reported.append(who.is_leader)).campaign()
        gc.collect()
        term.release()
        assert reported == [True, False]


@on_a_loop
async def test_resigning_stops_the_block_of_another_task_before_the_next_leader_begins(url):
    async with AsyncClient(url) as client, AsyncClient(url) as other:
        leader, log = client.leader("scheduler"), []
        inside = asyncio.Event()

        async def work():
            async for term in leader:
                async with term:
                    inside.set()
                    try:
                        await asyncio.sleep(2)
                        log.append("worked on")
                    finally:
                        log.append("stopped")
                return

        task = asyncio.create_task(work())
        await inside.wait()
        await leader.resign()
        await task
        log.append("left")
        async with other.leader("scheduler"):
            log.append("other leads")
        assert log == ["stopped", "left", "other leads"]


@on_a_loop
async def test_resigning_within_the_block_does_not_cancel_its_own_task(url):
    async with AsyncClient(url) as client:
        leader = client.leader("scheduler")
        async for term in leader:
            async with term:
                await leader.resign()
                assert not term.valid
            break
        assert asyncio.current_task().cancelling() == 0


@on_a_loop
async def test_the_block_of_an_ended_term_is_cancelled_at_its_first_await(url):
    async with AsyncClient(url) as client:
        leader = client.leader("scheduler")
        term = await leader.campaign()
        await leader.resign()
        async with term:
            await asyncio.sleep(0.5)
            pytest.fail("it worked on")
        assert asyncio.current_task().cancelling() == 0


@on_a_loop
async def test_one_candidate_in_two_tasks_leaves_each_block_with_its_own_term(url):
    async with AsyncClient(url) as client:
        leader = client.leader("scheduler")
        first = await leader.__aenter__()
        await client.locks.force_release(KEY, reason="test")
        with pytest.raises(LeaseLost):
            await first.renew()
        entered, done = asyncio.Event(), asyncio.Event()

        async def second():
            async with leader as term:
                entered.set()
                await done.wait()
                assert term.valid

        task = asyncio.create_task(second())
        with contextlib.suppress(asyncio.CancelledError):
            await entered.wait()
        await entered.wait()
        with pytest.raises(LeaseLost):
            await leader.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
        assert leader.is_leader
        done.set()
        await task


def test_a_candidate_keeps_waiting_while_the_store_is_unavailable(url, plan, monkeypatch):
    monkeypatch.setattr("holdfast.runtime.flows.RESEND_AFTER", (0.01,))
    with Client(url) as client:
        failed = []
        client.events.subscribe(lambda event: failed.append(event) if event.name == "campaign_failed" else None)
        leader = client.leader("scheduler", ttl=0.6)
        plan.refuse = Acquire
        thread = threading.Thread(target=leader.run)
        thread.start()
        eventually(lambda: len(failed) >= 2)
        assert not leader.is_leader
        plan.refuse = None
        eventually(lambda: leader.is_leader)
        client.close()
        thread.join()


def test_on_change_reports_the_end_of_a_term_when_the_client_is_closed(url):
    client, reported = Client(url), []
    leader = client.leader("scheduler", on_change=lambda who: reported.append(who.is_leader))
    thread = threading.Thread(target=leader.run)
    thread.start()
    eventually(lambda: reported == [True])
    client.close()
    thread.join()
    assert reported == [True, False]


def test_an_on_change_that_cannot_be_called_is_refused(hf, url):
    with pytest.raises(InvalidOption, match="on_change"):
        hf.leader("scheduler", on_change=5)

    async def later(_leader):
        pass

    with Client(url) as client, pytest.raises(InvalidOption, match="cannot be async"):
        client.leader("scheduler", on_change=later)


def test_an_async_on_change_does_not_prevent_the_release_of_the_term_at_exit(tmp_path):
    url = f"sqlite:///{tmp_path}/locks.db"
    script = """
        import asyncio, sys
        from holdfast import AsyncClient

        async def reported(leader):
            pass

        hf = AsyncClient(sys.argv[1])
        leader = hf.leader("scheduler", on_change=reported)
        asyncio.run(leader.campaign())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), url], check=True, capture_output=True)
    with Client(url) as client:
        assert not client.locks.inspect(KEY).held


def test_a_bad_name_is_refused(hf):
    with pytest.raises(InvalidKey, match="name"):
        hf.leader("")
