"""Leases by name: every case of the interface, on every store, sync and async."""

from __future__ import annotations

import warnings

import pytest
from waiting import eventually

from holdfast.commands import Acquire, Release, Renew, Transfer
from holdfast.errors import InvalidDuration, InvalidKey, KindMismatch
from holdfast.locks import AsyncNoopLeaseProvider, LeaseResult, NoopLeaseProvider, is_lease_provider

KEY = "thread:abc"


@pytest.fixture
def leases(hf):
    return hf.leases


def test_the_first_caller_acquires_the_lease(leases, mode):
    result = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert result.acquired
    assert result.owner == "run-1"
    assert result.token > 0


def test_another_caller_is_refused_with_the_name_of_the_owner(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.acquire_lease(KEY, "run-2", 15)) == LeaseResult(acquired=False, owner="run-1", token=None)


def test_the_same_owner_acquires_again_idempotently_with_the_same_token(leases, mode):
    first = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.acquire_lease(KEY, "run-1", 15)) == first


def test_acquiring_again_renews(leases, hf, mode):
    first = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.acquire_lease(KEY, "run-1", 3600)).token == first.token
    (holder,) = mode.do(hf.locks.inspect(KEY)).holders
    assert holder.time_left > 3000


def test_the_owner_string_is_the_identity_across_clients(leases, mode, url):
    mine = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    elsewhere = mode.client(url, name="another process").leases
    assert mode.do(elsewhere.acquire_lease(KEY, "run-1", 15)) == mine
    assert mode.do(elsewhere.renew_lease(KEY, "run-1", 15))
    mode.do(elsewhere.release_lease(KEY, "run-1"))
    assert mode.do(leases.get_lease_owner(KEY)) is None


def test_a_lease_that_was_never_acquired_has_no_owner(leases, mode):
    assert mode.do(leases.get_lease_owner(KEY)) is None


def test_reading_the_owner_acquires_nothing(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.get_lease_owner(KEY)) == "run-1"
    assert mode.do(leases.get_lease_owner(KEY)) == "run-1"


def test_release_by_the_owner_frees_the_key(leases, mode):
    first = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    mode.do(leases.release_lease(KEY, "run-1"))
    assert mode.do(leases.get_lease_owner(KEY)) is None
    second = mode.do(leases.acquire_lease(KEY, "run-2", 15))
    assert second.acquired
    assert second.token > first.token


def test_release_by_another_owner_does_nothing(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-1", 15))
    mode.do(leases.release_lease(KEY, "run-2"))
    assert mode.do(leases.get_lease_owner(KEY)) == "run-1"


def test_release_of_a_free_key_does_nothing(leases, mode):
    assert mode.do(leases.release_lease(KEY, "run-1")) is None


def test_a_release_after_expiry_does_not_affect_the_next_owner(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-1", 0.1))
    eventually(lambda: mode.do(leases.acquire_lease(KEY, "run-2", 15)).acquired)
    mode.do(leases.release_lease(KEY, "run-1"))
    assert mode.do(leases.get_lease_owner(KEY)) == "run-2"


def test_renew_by_the_owner_succeeds(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.renew_lease(KEY, "run-1", 60)) is True


def test_renew_is_false_when_another_owner_has_it(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.renew_lease(KEY, "run-2", 15)) is False
    assert mode.do(leases.get_lease_owner(KEY)) == "run-1"


def test_renew_is_false_once_the_ttl_has_expired_and_nothing_renews_it_in_the_background(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-1", 0.3))
    eventually(lambda: mode.do(leases.get_lease_owner(KEY)) is None)
    assert mode.do(leases.renew_lease(KEY, "run-1", 15)) is False


def test_renew_of_a_free_key_is_false(leases, mode):
    assert mode.do(leases.renew_lease(KEY, "run-1", 15)) is False


def test_transfer_hands_the_lease_over_under_a_higher_token(leases, mode):
    first = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is True
    assert mode.do(leases.get_lease_owner(KEY)) == "run-2"
    assert mode.do(leases.acquire_lease(KEY, "run-2", 15)).token > first.token
    assert mode.do(leases.renew_lease(KEY, "run-1", 15)) is False


def test_transfer_refreshes_the_ttl(leases, mode, hf):
    mode.do(leases.acquire_lease(KEY, "run-1", 15))
    mode.do(leases.transfer_lease(KEY, "run-1", "run-2", 3600))
    (holder,) = mode.do(hf.locks.inspect(KEY)).holders
    assert holder.time_left > 3000


def test_transfer_is_false_when_the_lease_was_lost_and_changes_nothing(leases, mode):
    mode.do(leases.acquire_lease(KEY, "run-3", 15))
    assert mode.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is False
    assert mode.do(leases.get_lease_owner(KEY)) == "run-3"


def test_transfer_of_a_free_key_is_false_and_the_key_can_be_acquired(leases, mode):
    assert mode.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is False
    assert mode.do(leases.acquire_lease(KEY, "run-2", 15)).acquired


def test_transfer_to_the_same_owner_renews(leases, mode):
    first = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert mode.do(leases.transfer_lease(KEY, "run-1", "run-1", 15)) is True
    assert mode.do(leases.acquire_lease(KEY, "run-1", 15)).token == first.token
    assert mode.do(leases.transfer_lease(KEY, "run-2", "run-2", 15)) is False


def test_a_lost_reply_changes_no_result(plan, leases, mode):
    plan.lose_reply_of = Acquire
    first = mode.do(leases.acquire_lease(KEY, "run-1", 15))
    assert first.acquired
    plan.lose_reply_of = Renew
    assert mode.do(leases.renew_lease(KEY, "run-1", 15)) is True
    plan.lose_reply_of = Transfer
    assert mode.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is True
    plan.lose_reply_of = Release
    mode.do(leases.release_lease(KEY, "run-2"))
    assert plan.lost == ["Acquire", "Renew", "Transfer", "Release"]
    assert mode.do(leases.get_lease_owner(KEY)) is None


def test_a_key_that_is_a_lock_is_not_a_lease(leases, hf, mode):
    with mode.block(hf.lock(KEY)), pytest.raises(KindMismatch, match="used for a lock of kind 'mutex'"):
        mode.do(leases.acquire_lease(KEY, "run-1", 15))


@pytest.mark.parametrize("owner", ["", "x" * 600, "bell\a"])
def test_a_bad_owner_is_refused_with_the_reason(leases, mode, owner):
    with pytest.raises(InvalidKey, match="owner"):
        mode.do(leases.acquire_lease(KEY, owner, 15))


def test_a_bad_ttl_is_refused(leases, mode):
    with pytest.raises(InvalidDuration):
        mode.do(leases.acquire_lease(KEY, "run-1", 0))


def test_a_provider_is_recognised_by_its_five_methods_whatever_its_class(leases):
    class Custom:
        acquire_lease = get_lease_owner = release_lease = renew_lease = transfer_lease = lambda *_: None

    class Lacking:
        acquire_lease = get_lease_owner = release_lease = renew_lease = lambda *_: None

    class NotAMethod(Custom):
        transfer_lease = None

    assert is_lease_provider(leases)
    assert is_lease_provider(Custom())
    assert not is_lease_provider(Lacking())
    assert not is_lease_provider(NotAMethod())


def test_the_no_op_provider_grants_every_request_stores_nothing_and_warns_once(mode):
    provider = NoopLeaseProvider() if mode.name == "sync" else AsyncNoopLeaseProvider()
    assert is_lease_provider(provider)
    with pytest.warns(RuntimeWarning, match="grants every lease to every caller"):
        first = mode.do(provider.acquire_lease(KEY, "run-1", 15))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = mode.do(provider.acquire_lease(KEY, "run-2", 15))
    assert (first.acquired, first.owner, second.acquired, second.owner) == (True, "run-1", True, "run-2")
    assert mode.do(provider.get_lease_owner(KEY)) is None
    assert mode.do(provider.renew_lease(KEY, "run-1", 15)) is True
    assert mode.do(provider.transfer_lease(KEY, "run-1", "run-2", 15)) is True
    assert mode.do(provider.release_lease(KEY, "run-1")) is None
