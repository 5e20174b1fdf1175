"""Run locks (`try_acquire`, `renew`, `get`, `release`): one driver per run, the same on every store of the README.

Each test runs on memory, SQLite, PostgreSQL, Redis, Valkey, MariaDB, MongoDB (a stand-in) and DynamoDB (dynoxide), sync
and async; on MySQL and SQL Server where `HOLDFAST_TEST_MYSQL_URL` and `HOLDFAST_TEST_MSSQL_URL` name a server.
"""

from __future__ import annotations

import gc
import itertools
import pickle
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import providers
import pytest
from waiting import eventually

from holdfast import AsyncClient, Client, LeaseLost, RunLocked, StoreUnavailable
from holdfast.commands import Acquire, Release, Renew
from holdfast.errors import InvalidDuration, InvalidKey
from holdfast.locks import RunLock
from holdfast.runtime.notifier import Notifier

RUN = ("import", "run-7")


STORES = {"memory", "sqlite", "postgres", "redis", "valkey", "mariadb", "mongodb", "dynamodb"}


IN_README = {
    "SQLite file (default)": ("sqlite",),
    "memory": ("memory",),
    "PostgreSQL": ("postgres",),
    "Redis and Valkey": ("redis", "valkey"),
    "MySQL and MariaDB": ("mariadb",),
    "SQL Server": (),
    "DynamoDB": ("dynamodb",),
    "MongoDB": ("mongodb",),
    "A store of your own": (),
}
"""The stores of the README, and the names under which these tests run on them."""


def test_the_tests_of_this_file_run_on_every_store_of_the_readme():
    file = Path(__file__)
    here = file.relative_to(file.parents[2]).as_posix()
    assert {name for name in providers.names() if providers.is_wanted(name, here)} - {"mysql", "mssql"} == STORES
    rows = (file.parents[2] / "README.md").read_text().partition("| store | workflows |")[2].splitlines()[2:]
    shown = [row.split("|")[1] for row in itertools.takewhile(lambda row: row.startswith("|"), rows)]
    named = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).strip() for cell in shown]
    assert named == list(IN_README)
    assert {name for names in IN_README.values() for name in names} == STORES


@pytest.fixture
def locks(hf):
    return hf.run_locks


@pytest.fixture
def others(mode, url):
    return mode.client(url, name="another worker").run_locks


def test_a_free_run_can_be_locked_and_a_locked_one_cannot_even_by_the_same_client(locks, others, mode):
    assert mode.do(locks.try_acquire(*RUN)) is True
    assert mode.do(locks.try_acquire(*RUN)) is False
    assert mode.do(others.try_acquire(*RUN)) is False
    assert mode.do(others.try_acquire("import", "run-8")) is True
    assert mode.do(others.try_acquire("export", "run-7")) is True


def test_the_default_is_30_minutes_renewed_every_10(locks, hf, mode):
    mode.do(locks.try_acquire(*RUN))
    left = mode.do(locks.get(*RUN)).expires_at - datetime.now(UTC)
    assert timedelta(minutes=29) < left <= timedelta(minutes=30)
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    assert renewal.interval == 600


def test_ttl_and_renewal_interval_can_be_set(locks, hf, mode):
    mode.do(locks.try_acquire(*RUN, "1 hour", renew_every="5 minutes"))
    assert mode.do(locks.get(*RUN)).expires_at - datetime.now(UTC) > timedelta(minutes=59)
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    assert renewal.interval == 300


def test_the_heartbeat_renews_a_run_lock_after_its_thread_has_ended(url):
    with Client(url) as client:
        thread = threading.Thread(target=lambda: client.run_locks.try_acquire(*RUN, 1.5))
        thread.start()
        thread.join()
        beats = []
        client.events.subscribe(lambda event: beats.append(event.name))
        eventually(lambda: beats.count("leases_renewed") >= 3)
        assert client.run_locks.token(*RUN) is not None
        assert "lease_neglected" not in beats


def test_get_returns_owner_expiry_workflow_and_token(locks, others, mode, url):
    assert mode.do(locks.get(*RUN)) is None
    mode.do(others.try_acquire(*RUN))
    found = mode.do(locks.get(*RUN))
    assert isinstance(found, RunLock)
    assert found.holder.startswith("another worker")
    assert found.backend == url.partition(":")[0]
    assert found.token == mode.do(others.token(*RUN))
    assert found.expires_at.tzinfo is UTC


def test_token_returns_only_the_token_of_this_client(locks, others, mode):
    assert mode.do(locks.token(*RUN)) is None
    mode.do(locks.try_acquire(*RUN))
    first = mode.do(locks.token(*RUN))
    assert first > 0
    assert mode.do(others.token(*RUN)) is None
    mode.do(locks.release(*RUN))
    assert mode.do(locks.token(*RUN)) is None
    mode.do(others.try_acquire(*RUN))
    assert mode.do(others.token(*RUN)) > first


def test_only_a_lock_of_this_client_is_renewed_and_released(locks, others, mode):
    mode.do(locks.try_acquire(*RUN))
    assert mode.do(others.renew(*RUN)) is False
    mode.do(others.release(*RUN))
    assert mode.do(locks.get(*RUN)) is not None
    assert mode.do(locks.renew(*RUN)) is True
    mode.do(locks.release(*RUN))
    assert mode.do(locks.get(*RUN)) is None
    assert mode.do(locks.renew(*RUN)) is False
    assert mode.do(locks.release(*RUN)) is None


def test_renew_may_set_a_longer_or_shorter_ttl_which_the_heartbeat_uses(locks, hf, mode):
    mode.do(locks.try_acquire(*RUN, 60))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    assert mode.do(locks.renew(*RUN, "1 hour")) is True
    assert renewal.held.remaining() > 3000
    assert renewal.interval == 1200
    assert mode.do(locks.renew(*RUN, 30)) is True
    assert 20 < renewal.held.remaining() <= 30
    assert renewal.interval == 10
    assert mode.do(locks.get(*RUN)).expires_at - datetime.now(UTC) <= timedelta(seconds=30)


def test_the_outcome_of_a_renewal_counts_for_the_ttl_that_was_sent_although_it_changed_meanwhile(
    locks, hf, mode, monkeypatch
):
    mode.do(locks.try_acquire(*RUN, 60))
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
    assert mode.do(locks.renew(*RUN)) is True
    eventually(lambda: judged)
    assert judged[0] <= 60


def test_a_shorter_ttl_counts_from_the_request_even_if_the_outcome_never_arrives(plan, locks, hf, mode, monkeypatch):
    monkeypatch.setattr("holdfast.locks.run_locks.RESEND_FOR", 0.6)
    mode.do(locks.try_acquire(*RUN, 3600))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    plan.refuse = Renew
    with pytest.raises(StoreUnavailable) as caught:
        mode.do(locks.renew(*RUN, 30))
    assert caught.value.ambiguous
    assert renewal.held.remaining() <= 30
    assert renewal.interval == 10


def test_a_renewal_that_its_caller_gave_up_does_not_lose_the_run_lock(plan, hf, mode, monkeypatch):
    """The heartbeat thread continues with the shorter ttl and its interval."""
    monkeypatch.setattr("holdfast.locks.run_locks.RESEND_FOR", 0.3)
    mode.do(hf.run_locks.try_acquire(*RUN, 3600))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    plan.refuse = Renew
    with pytest.raises(StoreUnavailable):
        mode.do(hf.run_locks.renew(*RUN, 1.2))
    plan.refuse = None
    beats = []
    hf.events.subscribe(lambda event: beats.append(event.name) if event.name == "leases_renewed" else None)
    eventually(lambda: len(beats) >= 4)
    assert mode.do(hf.run_locks.token(*RUN)) is not None
    assert renewal.held.ttl == 1_200_000


def test_a_longer_ttl_is_not_undone_by_a_heartbeat_in_progress(plan, hf, mode):
    """A heartbeat with the old ttl is in progress when the longer one is requested: it cannot take effect later."""
    mode.do(hf.run_locks.try_acquire(*RUN, 2))
    (renewal,) = hf.runtime.heartbeats._renewals.values()
    under_way, go_on = threading.Event(), threading.Event()

    def hold_up(commands):
        if any(isinstance(command, Renew) and command.ttl == 2_000_000 for command in commands):
            under_way.set()
            go_on.wait(20)

    plan.before = hold_up
    assert under_way.wait(20)
    threading.Timer(0.2, go_on.set).start()
    assert mode.do(hf.run_locks.renew(*RUN, 60)) is True
    assert mode.do(hf.run_locks.get(*RUN)).expires_at - datetime.now(UTC) > timedelta(seconds=50)
    assert renewal.held.remaining() > 50
    ttls = [command.ttl for command in plan.sent if isinstance(command, Renew)]
    assert ttls == sorted(ttls)


def test_a_garbage_collected_client_releases_its_run_locks(mode, url):
    staying = mode.client(url)
    leaving = (Client if mode.name == "sync" else AsyncClient)(url)
    mode.do(leaving.run_locks.try_acquire(*RUN, 60))
    with pytest.warns(ResourceWarning, match="was not closed|was dropped"):
        del leaving
        gc.collect()
    eventually(lambda: mode.do(staying.run_locks.get(*RUN)) is None)


def test_a_run_lock_released_by_force_no_longer_belongs_to_this_client(locks, hf, others, mode):
    mode.do(locks.try_acquire(*RUN))
    mode.do(hf.locks.force_release("run/import/run-7", reason="stuck"))
    assert mode.do(others.try_acquire(*RUN)) is True
    assert mode.do(locks.renew(*RUN)) is False
    assert mode.do(locks.token(*RUN)) is None
    mode.do(locks.release(*RUN))
    assert mode.do(others.renew(*RUN)) is True


def test_the_guard_yields_the_lease_and_releases_it(locks, others, mode):
    with mode.block(locks.guard(*RUN)) as lease:
        assert lease.token == mode.do(others.get(*RUN)).token
        assert mode.do(others.try_acquire(*RUN)) is False
        assert mode.do(locks.token(*RUN)) == lease.token
        assert mode.do(locks.renew(*RUN)) is True
    assert mode.do(locks.token(*RUN)) is None
    assert mode.do(others.try_acquire(*RUN)) is True


def test_the_guard_refuses_a_locked_run_at_once_with_owner_and_expiry(locks, others, mode):
    mode.do(others.try_acquire(*RUN, 60))
    with (
        pytest.raises(RunLocked, match="'run-7' of 'import' is driven by another worker") as caught,
        mode.block(locks.guard(*RUN)),
    ):
        raise AssertionError
    assert caught.value.holder.startswith("another worker")
    assert timedelta(0) < caught.value.expires_at - datetime.now(UTC) <= timedelta(seconds=60)
    assert caught.value.retryable
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.holder, copied.expires_at) == (caught.value.holder, caught.value.expires_at)


def test_the_guard_refuses_a_run_that_the_same_client_has_locked(locks, mode):
    mode.do(locks.try_acquire(*RUN))
    with pytest.raises(RunLocked), mode.block(locks.guard(*RUN)):
        raise AssertionError
    with (
        mode.block(locks.guard("import", "another")),
        pytest.raises(RunLocked),
        mode.block(locks.guard("import", "another")),
    ):
        raise AssertionError


def test_the_guard_as_a_decorator_and_by_acquire_raises_run_locked_too(locks, others, mode):
    mode.do(others.try_acquire(*RUN))
    with pytest.raises(RunLocked):
        mode.do(locks.guard(*RUN).acquire())
    if mode.name == "sync":
        decorated = locks.guard(*RUN)(lambda: "ran")
    else:

        @locks.guard(*RUN)
        async def decorated():
            return "ran"

    with pytest.raises(RunLocked):
        mode.do(decorated())
    mode.do(others.release(*RUN))
    assert mode.do(decorated()) == "ran"


def test_losing_the_run_lock_inside_the_guard_raises_an_error(locks, hf, mode):
    with pytest.raises(LeaseLost), mode.block(locks.guard(*RUN, ttl=60)):
        mode.do(hf.locks.force_release("run/import/run-7", reason="stuck"))


def test_names_with_slashes_are_distinct(locks, mode):
    assert mode.do(locks.try_acquire("a/b", "c")) is True
    assert mode.do(locks.try_acquire("a", "b/c")) is True
    assert mode.do(locks.try_acquire("a%2Fb", "c")) is True


def test_bad_names_and_ttls_are_refused(locks, mode):
    with pytest.raises(InvalidKey, match="workflow name"):
        mode.do(locks.try_acquire("", "r"))
    with pytest.raises(InvalidKey, match="run id"):
        mode.do(locks.get("w", "\n"))
    with pytest.raises(InvalidDuration):
        mode.do(locks.try_acquire("w", "r", 0))
    with pytest.raises(InvalidDuration):
        mode.do(locks.renew("w", "r", "soon"))


def test_a_lost_reply_changes_nothing(plan, locks, mode):
    plan.lose_reply_of = Acquire
    assert mode.do(locks.try_acquire(*RUN)) is True
    plan.lose_reply_of = Renew
    assert mode.do(locks.renew(*RUN)) is True
    plan.lose_reply_of = Release
    mode.do(locks.release(*RUN))
    assert mode.do(locks.try_acquire(*RUN)) is True
    assert plan.lost == ["Acquire", "Renew", "Release"]


def test_closing_the_client_releases_its_run_locks(mode, url):
    leaving = mode.client(url)
    mode.do(leaving.run_locks.try_acquire(*RUN))
    staying = mode.client(url)  # a named memory store exists as long as a client has it open
    mode.do(leaving.close())
    assert mode.do(staying.run_locks.get(*RUN)) is None
