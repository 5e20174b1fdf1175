"""Run locks: one driver a run, in both colours on every store."""

from __future__ import annotations

import gc
import pickle
import threading
from datetime import UTC, datetime, timedelta

import pytest
from waiting import eventually

from holdfast import AsyncClient, Client, LeaseLost, RunLocked, StoreUnavailable
from holdfast.commands import Acquire, Release, Renew
from holdfast.errors import InvalidDuration, InvalidKey
from holdfast.locks import RunLock
from holdfast.runtime.notifier import Notifier

RUN = ("import", "run-7")


@pytest.fixture
def locks(hf):
    return hf.run_locks


@pytest.fixture
def others(colour, url):
    return colour.client(url, name="another worker").run_locks


def test_a_free_run_is_locked_and_a_held_one_is_not_also_not_by_the_same_client(locks, others, colour):
    assert colour.do(locks.try_acquire(*RUN)) is True
    assert colour.do(locks.try_acquire(*RUN)) is False
    assert colour.do(others.try_acquire(*RUN)) is False
    assert colour.do(others.try_acquire("import", "run-8")) is True
    assert colour.do(others.try_acquire("export", "run-7")) is True


def test_the_default_is_30_minutes_renewed_every_10(locks, hf, colour):
    colour.do(locks.try_acquire(*RUN))
    left = colour.do(locks.get(*RUN)).expires_at - datetime.now(UTC)
    assert timedelta(minutes=29) < left <= timedelta(minutes=30)
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    assert renewal.interval == 600


def test_both_are_settable(locks, hf, colour):
    colour.do(locks.try_acquire(*RUN, "1 hour", renew_every="5 minutes"))
    assert colour.do(locks.get(*RUN)).expires_at - datetime.now(UTC) > timedelta(minutes=59)
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    assert renewal.interval == 300


def test_the_keeper_renews_it_also_when_the_thread_that_took_it_has_ended(url):
    with Client(url) as client:
        thread = threading.Thread(target=lambda: client.run_locks.try_acquire(*RUN, 0.6))
        thread.start()
        thread.join()
        beats = []
        client.events.subscribe(lambda event: beats.append(event.name))
        eventually(lambda: beats.count("leases_renewed") >= 4)
        assert client.run_locks.token(*RUN) is not None
        assert "lease_neglected" not in beats


def test_get_tells_who_holds_it_until_when_on_what_and_under_which_token(locks, others, colour, url):
    assert colour.do(locks.get(*RUN)) is None
    colour.do(others.try_acquire(*RUN))
    found = colour.do(locks.get(*RUN))
    assert isinstance(found, RunLock)
    assert found.holder.startswith("another worker")
    assert found.backend == url.partition(":")[0]
    assert found.token == colour.do(others.token(*RUN))
    assert found.expires_at.tzinfo is UTC


def test_the_token_is_that_of_this_client_alone(locks, others, colour):
    assert colour.do(locks.token(*RUN)) is None
    colour.do(locks.try_acquire(*RUN))
    first = colour.do(locks.token(*RUN))
    assert first > 0
    assert colour.do(others.token(*RUN)) is None
    colour.do(locks.release(*RUN))
    assert colour.do(locks.token(*RUN)) is None
    colour.do(others.try_acquire(*RUN))
    assert colour.do(others.token(*RUN)) > first


def test_only_ones_own_hold_is_renewed_and_released(locks, others, colour):
    colour.do(locks.try_acquire(*RUN))
    assert colour.do(others.renew(*RUN)) is False
    colour.do(others.release(*RUN))
    assert colour.do(locks.get(*RUN)) is not None
    assert colour.do(locks.renew(*RUN)) is True
    colour.do(locks.release(*RUN))
    assert colour.do(locks.get(*RUN)) is None
    assert colour.do(locks.renew(*RUN)) is False
    assert colour.do(locks.release(*RUN)) is None


def test_renew_may_give_another_ttl_longer_or_shorter_and_the_heartbeat_follows(locks, hf, colour):
    colour.do(locks.try_acquire(*RUN, 60))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    assert colour.do(locks.renew(*RUN, "1 hour")) is True
    assert renewal.held.remaining() > 3000
    assert renewal.interval == 1200
    assert colour.do(locks.renew(*RUN, 30)) is True
    assert 20 < renewal.held.remaining() <= 30
    assert renewal.interval == 10
    assert colour.do(locks.get(*RUN)).expires_at - datetime.now(UTC) <= timedelta(seconds=30)


def test_an_answer_is_judged_by_the_ttl_that_was_sent_although_another_is_asked_for_meanwhile(
    locks, hf, colour, monkeypatch
):
    colour.do(locks.try_acquire(*RUN, 60))
    heartbeats = hf.runtime.heartbeats
    (renewal,) = heartbeats._renewals.values()
    judge, judged = heartbeats._apply, []

    def meanwhile(*args):
        if not judged:
            heartbeats._ttl_changes.append((renewal, 3_600_000_000, 1_200.0, Notifier()))
            heartbeats._check()
            judge(*args)
            judged.append(renewal.held.remaining())
        else:
            judge(*args)

    monkeypatch.setattr(heartbeats, "_apply", meanwhile)
    assert colour.do(locks.renew(*RUN)) is True
    eventually(lambda: judged)
    assert judged[0] <= 60


def test_a_shorter_ttl_counts_from_the_moment_it_was_asked_for_even_if_the_answer_never_comes(
    plan, locks, hf, colour, monkeypatch
):
    monkeypatch.setattr("holdfast.locks.run_locks.RESEND_FOR", 0.6)
    colour.do(locks.try_acquire(*RUN, 3600))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    plan.refuse = Renew
    with pytest.raises(StoreUnavailable) as caught:
        colour.do(locks.renew(*RUN, 30))
    assert caught.value.ambiguous
    assert renewal.held.remaining() <= 30
    assert renewal.interval == 10


def test_a_renewal_that_its_caller_gave_up_costs_nobody_the_run(plan, hf, colour, monkeypatch):
    """The keeper goes on with the shorter ttl, at its pace."""
    monkeypatch.setattr("holdfast.locks.run_locks.RESEND_FOR", 0.3)
    colour.do(hf.run_locks.try_acquire(*RUN, 3600))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    plan.refuse = Renew
    with pytest.raises(StoreUnavailable):
        colour.do(hf.run_locks.renew(*RUN, 1.2))
    plan.refuse = None
    beats = []
    hf.events.subscribe(lambda event: beats.append(event.name) if event.name == "leases_renewed" else None)
    eventually(lambda: len(beats) >= 4)
    assert colour.do(hf.run_locks.token(*RUN)) is not None
    assert renewal.held.ttl == 1_200_000


def test_a_longer_ttl_is_not_undone_by_a_heartbeat_that_was_under_way(plan, hf, colour):
    """A heartbeat with the old ttl is on its way when the longer one is asked for: it cannot come after it."""
    colour.do(hf.run_locks.try_acquire(*RUN, 2))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    under_way, go_on = threading.Event(), threading.Event()

    def hold_up(commands):
        if any(isinstance(command, Renew) and command.ttl == 2_000_000 for command in commands):
            under_way.set()
            go_on.wait(20)

    plan.before = hold_up
    assert under_way.wait(20)
    threading.Timer(0.2, go_on.set).start()
    assert colour.do(hf.run_locks.renew(*RUN, 60)) is True
    assert colour.do(hf.run_locks.get(*RUN)).expires_at - datetime.now(UTC) > timedelta(seconds=50)
    assert renewal.held.remaining() > 50
    ttls = [command.ttl for command in plan.sent if isinstance(command, Renew)]
    assert ttls == sorted(ttls)


def test_a_client_that_was_dropped_gives_its_runs_back(colour, url):
    staying = colour.client(url)
    leaving = (Client if colour.name == "sync" else AsyncClient)(url)
    colour.do(leaving.run_locks.try_acquire(*RUN, 60))
    with pytest.warns(ResourceWarning, match="was not closed|was dropped"):
        del leaving
        gc.collect()
    eventually(lambda: colour.do(staying.run_locks.get(*RUN)) is None)


def test_a_hold_that_was_taken_away_is_not_ones_own_any_more(locks, hf, others, colour):
    colour.do(locks.try_acquire(*RUN))
    colour.do(hf.locks.force_release("run/import/run-7", reason="stuck"))
    assert colour.do(others.try_acquire(*RUN)) is True
    assert colour.do(locks.renew(*RUN)) is False
    assert colour.do(locks.token(*RUN)) is None
    colour.do(locks.release(*RUN))
    assert colour.do(others.renew(*RUN)) is True


def test_the_guard_yields_the_lease_and_gives_it_back(locks, others, colour):
    with colour.block(locks.guard(*RUN)) as lease:
        assert lease.token == colour.do(others.get(*RUN)).token
        assert colour.do(others.try_acquire(*RUN)) is False
        assert colour.do(locks.token(*RUN)) == lease.token
        assert colour.do(locks.renew(*RUN)) is True
    assert colour.do(locks.token(*RUN)) is None
    assert colour.do(others.try_acquire(*RUN)) is True


def test_the_guard_refuses_a_held_run_at_once_with_who_and_until_when(locks, others, colour):
    colour.do(others.try_acquire(*RUN, 60))
    with (
        pytest.raises(RunLocked, match="'run-7' of 'import' is driven by another worker") as caught,
        colour.block(locks.guard(*RUN)),
    ):
        raise AssertionError
    assert caught.value.holder.startswith("another worker")
    assert timedelta(0) < caught.value.expires_at - datetime.now(UTC) <= timedelta(seconds=60)
    assert caught.value.retryable
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.holder, copied.expires_at) == (caught.value.holder, caught.value.expires_at)


def test_the_guard_refuses_also_what_the_same_client_holds(locks, colour):
    colour.do(locks.try_acquire(*RUN))
    with pytest.raises(RunLocked), colour.block(locks.guard(*RUN)):
        raise AssertionError
    with (
        colour.block(locks.guard("import", "another")),
        pytest.raises(RunLocked),
        colour.block(locks.guard("import", "another")),
    ):
        raise AssertionError


def test_the_guard_as_a_decorator_and_by_acquire_says_run_locked_too(locks, others, colour):
    colour.do(others.try_acquire(*RUN))
    with pytest.raises(RunLocked):
        colour.do(locks.guard(*RUN).acquire())
    if colour.name == "sync":
        decorated = locks.guard(*RUN)(lambda: "ran")
    else:

        @locks.guard(*RUN)
        async def decorated():
            return "ran"

    with pytest.raises(RunLocked):
        colour.do(decorated())
    colour.do(others.release(*RUN))
    assert colour.do(decorated()) == "ran"


def test_losing_the_run_inside_the_guard_is_loud(locks, hf, colour):
    with pytest.raises(LeaseLost), colour.block(locks.guard(*RUN, ttl=60)):
        colour.do(hf.locks.force_release("run/import/run-7", reason="stuck"))


def test_names_with_slashes_do_not_meet(locks, colour):
    assert colour.do(locks.try_acquire("a/b", "c")) is True
    assert colour.do(locks.try_acquire("a", "b/c")) is True
    assert colour.do(locks.try_acquire("a%2Fb", "c")) is True


def test_bad_names_and_ttls_are_refused(locks, colour):
    with pytest.raises(InvalidKey, match="workflow name"):
        colour.do(locks.try_acquire("", "r"))
    with pytest.raises(InvalidKey, match="run id"):
        colour.do(locks.get("w", "\n"))
    with pytest.raises(InvalidDuration):
        colour.do(locks.try_acquire("w", "r", 0))
    with pytest.raises(InvalidDuration):
        colour.do(locks.renew("w", "r", "soon"))


def test_a_lost_reply_changes_nothing(plan, locks, colour):
    plan.lose_reply_of = Acquire
    assert colour.do(locks.try_acquire(*RUN)) is True
    plan.lose_reply_of = Renew
    assert colour.do(locks.renew(*RUN)) is True
    plan.lose_reply_of = Release
    colour.do(locks.release(*RUN))
    assert colour.do(locks.try_acquire(*RUN)) is True
    assert plan.lost == ["Acquire", "Renew", "Release"]


def test_closing_the_client_gives_its_runs_back(colour, url):
    leaving = colour.client(url)
    colour.do(leaving.run_locks.try_acquire(*RUN))
    staying = colour.client(url)  # a named memory store lives as long as somebody has it open
    colour.do(leaving.close())
    assert colour.do(staying.run_locks.get(*RUN)) is None
