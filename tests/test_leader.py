"""Leadership: one at a time, under rising tokens; its work is stopped when the term is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from colours import on_a_loop
from holdfast import AsyncClient, Client, InvalidKey, LeaseLost, LockTimeout, WouldDeadlock
from holdfast.commands import Renew
from waiting import eventually

KEY = "leader:scheduler"


@pytest.fixture
def leader(hf):
    return hf.leader("scheduler", ttl=15)


@pytest.fixture
def rival(colour, url):
    return colour.client(url, name="rival").leader("scheduler")


def test_nobody_leads_before_the_campaign(leader):
    assert leader.is_leader is False
    assert leader.token is None
    assert leader.name == "scheduler"


def test_the_first_candidate_leads_and_the_second_does_not(leader, rival, colour):
    term = colour.do(leader.campaign())
    assert leader.is_leader
    assert leader.token == term.token
    with pytest.raises((LockTimeout, WouldDeadlock)):  # the latter in the very thread that leads
        colour.do(rival.campaign(wait=0))
    assert not rival.is_leader
    colour.do(leader.resign())
    assert not leader.is_leader
    assert leader.token is None


def test_the_next_leaders_token_is_higher(leader, rival, colour):
    first = colour.do(leader.campaign()).token
    colour.do(leader.resign())
    assert colour.do(rival.campaign()).token > first
    colour.do(rival.resign())


def test_the_default_ttl_is_15_seconds(hf, colour):
    leader = hf.leader("scheduler")
    term = colour.do(leader.campaign())
    assert 14 < term.remaining() <= 15
    colour.do(leader.resign())


def test_resigning_without_a_term_does_nothing(leader, colour):
    assert colour.do(leader.resign()) is None


def test_a_block_leads_once_and_steps_down(leader, rival, colour):
    with colour.block(leader) as term:
        assert leader.token == term.token
    assert not leader.is_leader
    with colour.block(rival):
        assert rival.is_leader


def test_losing_the_term_inside_the_leaders_block_is_loud(leader, hf, colour):
    with pytest.raises(LeaseLost), colour.block(leader):
        colour.do(hf.locks.force_release(KEY, reason="test"))
    assert not leader.is_leader


def test_on_change_tells_of_every_beginning_and_end(hf, colour):
    told = []
    leader = hf.leader("scheduler", on_change=lambda who: told.append((who.is_leader, who.token is not None)))
    colour.do(leader.campaign())
    colour.do(leader.resign())
    assert told == [(True, True), (False, False)]


def test_on_change_tells_of_a_loss(url):
    with Client(url) as client:
        told = []
        leader = client.leader("scheduler", ttl=0.6, on_change=lambda who: told.append(who.is_leader))
        leader.campaign()
        client.locks.force_release(KEY, reason="test")
        eventually(lambda: told == [True, False])
        assert leader.token is None


def test_an_on_change_that_raises_keeps_nobody_from_leading(hf, colour):
    def grumble(_leader):
        raise RuntimeError("no")

    failed = []
    hf.events.subscribe(lambda event: failed.append(event) if event.name == "callback_failed" else None)
    leader = hf.leader("scheduler", on_change=grumble)
    colour.do(leader.campaign())
    assert leader.is_leader
    colour.do(leader.resign())
    assert [event.fields["callback"] for event in failed] == ["on_change", "on_change"]


def test_a_loss_is_told_before_the_next_beginning_whoever_notices_it_first(url):
    """The next campaign may be faster than the thread that tells of losses."""
    with Client(url) as client:
        told = []
        leader = client.leader("scheduler", on_change=lambda who: told.append(who.token))
        first = leader.campaign()
        client.works.callbacks.add = lambda _call: None  # that thread is slow today
        client.locks.force_release(KEY, reason="test")
        with pytest.raises(LeaseLost):
            first.renew()
        second = leader.campaign()
        assert told == [first.token, None, second.token]
        leader.resign()


@on_a_loop
async def test_on_change_may_be_asynchronous(url):
    async with AsyncClient(url) as client:
        changes = asyncio.Queue()
        failed = []
        client.events.subscribe(lambda event: failed.append(event) if event.name == "callback_failed" else None)

        async def told(who):
            await changes.put(who.is_leader)
            raise RuntimeError("no")

        leader = client.leader("scheduler", on_change=told)
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


def test_a_loop_that_is_broken_off_inside_a_term_leads_on_until_it_resigns(url):
    with Client(url) as client:
        leader = client.leader("scheduler")
        for _term in leader:
            break
        assert leader.is_leader
        leader.resign()
        assert not leader.is_leader


def test_a_loss_inside_a_term_ends_the_term_quietly_and_the_next_one_follows(url):
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


def test_another_error_leaves_the_term_as_it_is(url):
    with Client(url) as client:
        leader = client.leader("scheduler")
        with pytest.raises(ZeroDivisionError):
            for term in leader:
                with term:
                    raise ZeroDivisionError
        assert not leader.is_leader


@on_a_loop
async def test_work_in_a_term_is_cancelled_when_it_is_lost_and_the_loop_goes_on(url):
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
async def test_work_is_stopped_before_the_store_can_give_the_term_to_another(url, plan):
    """The keeper cannot reach the store: at its local deadline the work ends, before the lease does."""
    async with AsyncClient(url) as client:
        ended = []
        async for term in client.leader("scheduler", ttl=0.8):
            plan.refuse = Renew
            async with term:
                try:
                    await asyncio.sleep(60)
                finally:
                    plan.refuse = None
                    ended.append((await client.locks.inspect(KEY)).held)
            break
        assert ended == [True]


@on_a_loop
async def test_a_cancellation_from_outside_stays_what_it_is(url):
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
async def test_running_in_the_background_leads_whenever_its_turn_comes(url):
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


def test_running_in_a_thread_ends_with_its_client(url):
    client = Client(url)
    leader = client.leader("scheduler")
    thread = threading.Thread(target=leader.run)
    thread.start()
    eventually(lambda: leader.is_leader)
    client.close()
    eventually(lambda: not thread.is_alive())
    assert not leader.is_leader


def test_waiting_in_a_thread_ends_with_its_client(url):
    with Client(url) as first, Client(url) as second:
        first.leader("scheduler").campaign()
        thread = threading.Thread(target=second.leader("scheduler").run)
        thread.start()
        eventually(lambda: thread.is_alive())
        second.close()
        eventually(lambda: not thread.is_alive())


def test_a_bad_name_is_refused(hf):
    with pytest.raises(InvalidKey, match="name"):
        hf.leader("")
