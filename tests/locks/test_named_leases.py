"""Leases by name: every case of the interface, on every store, in both colours."""

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


def test_the_first_caller_claims_the_lease_and_is_told_so(leases, colour):
    result = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert result.acquired
    assert result.owner == "run-1"
    assert result.token > 0


def test_another_caller_is_refused_and_told_who_holds_so_that_it_can_route_to_them(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.acquire_lease(KEY, "run-2", 15)) == LeaseResult(acquired=False, owner="run-1", token=None)


def test_the_same_owner_acquires_again_idempotently_with_the_same_token(leases, colour):
    first = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.acquire_lease(KEY, "run-1", 15)) == first


def test_acquiring_again_renews(leases, hf, colour):
    first = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.acquire_lease(KEY, "run-1", 3600)).token == first.token
    (holder,) = colour.do(hf.locks.inspect(KEY)).holders
    assert holder.time_left > 3000


def test_the_owner_string_is_the_identity_across_clients(leases, colour, url):
    mine = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    elsewhere = colour.client(url, name="another process").leases
    assert colour.do(elsewhere.acquire_lease(KEY, "run-1", 15)) == mine
    assert colour.do(elsewhere.renew_lease(KEY, "run-1", 15))
    colour.do(elsewhere.release_lease(KEY, "run-1"))
    assert colour.do(leases.get_lease_owner(KEY)) is None


def test_nobody_owns_a_lease_that_nobody_took(leases, colour):
    assert colour.do(leases.get_lease_owner(KEY)) is None


def test_the_owner_is_read_without_taking_anything(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.get_lease_owner(KEY)) == "run-1"
    assert colour.do(leases.get_lease_owner(KEY)) == "run-1"


def test_release_by_the_owner_frees_the_key(leases, colour):
    first = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    colour.do(leases.release_lease(KEY, "run-1"))
    assert colour.do(leases.get_lease_owner(KEY)) is None
    second = colour.do(leases.acquire_lease(KEY, "run-2", 15))
    assert second.acquired
    assert second.token > first.token


def test_release_is_a_no_op_for_anyone_but_the_owner(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-1", 15))
    colour.do(leases.release_lease(KEY, "run-2"))
    assert colour.do(leases.get_lease_owner(KEY)) == "run-1"


def test_release_of_a_key_that_nobody_holds_is_a_no_op(leases, colour):
    assert colour.do(leases.release_lease(KEY, "run-1")) is None


def test_a_release_after_expiry_does_not_clobber_the_next_owner(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-1", 0.1))
    eventually(lambda: colour.do(leases.acquire_lease(KEY, "run-2", 15)).acquired)
    colour.do(leases.release_lease(KEY, "run-1"))
    assert colour.do(leases.get_lease_owner(KEY)) == "run-2"


def test_renew_by_the_owner_succeeds(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.renew_lease(KEY, "run-1", 60)) is True


def test_renew_is_false_when_another_owner_has_it(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.renew_lease(KEY, "run-2", 15)) is False
    assert colour.do(leases.get_lease_owner(KEY)) == "run-1"


def test_renew_is_false_once_the_ttl_has_expired_and_nothing_renews_it_in_the_background(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-1", 0.3))
    eventually(lambda: colour.do(leases.get_lease_owner(KEY)) is None)
    assert colour.do(leases.renew_lease(KEY, "run-1", 15)) is False


def test_renew_of_a_key_that_nobody_holds_is_false(leases, colour):
    assert colour.do(leases.renew_lease(KEY, "run-1", 15)) is False


def test_transfer_hands_the_lease_over_under_a_higher_token(leases, colour):
    first = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is True
    assert colour.do(leases.get_lease_owner(KEY)) == "run-2"
    assert colour.do(leases.acquire_lease(KEY, "run-2", 15)).token > first.token
    assert colour.do(leases.renew_lease(KEY, "run-1", 15)) is False


def test_transfer_refreshes_the_ttl(leases, colour, hf):
    colour.do(leases.acquire_lease(KEY, "run-1", 15))
    colour.do(leases.transfer_lease(KEY, "run-1", "run-2", 3600))
    (holder,) = colour.do(hf.locks.inspect(KEY)).holders
    assert holder.time_left > 3000


def test_transfer_is_false_when_the_lease_was_lost_and_changes_nothing(leases, colour):
    colour.do(leases.acquire_lease(KEY, "run-3", 15))
    assert colour.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is False
    assert colour.do(leases.get_lease_owner(KEY)) == "run-3"


def test_transfer_of_a_key_that_nobody_holds_is_false_and_a_fresh_acquire_follows(leases, colour):
    assert colour.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is False
    assert colour.do(leases.acquire_lease(KEY, "run-2", 15)).acquired


def test_transfer_to_oneself_renews(leases, colour):
    first = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert colour.do(leases.transfer_lease(KEY, "run-1", "run-1", 15)) is True
    assert colour.do(leases.acquire_lease(KEY, "run-1", 15)).token == first.token
    assert colour.do(leases.transfer_lease(KEY, "run-2", "run-2", 15)) is False


def test_a_lost_reply_changes_no_answer(plan, leases, colour):
    plan.lose_reply_of = Acquire
    first = colour.do(leases.acquire_lease(KEY, "run-1", 15))
    assert first.acquired
    plan.lose_reply_of = Renew
    assert colour.do(leases.renew_lease(KEY, "run-1", 15)) is True
    plan.lose_reply_of = Transfer
    assert colour.do(leases.transfer_lease(KEY, "run-1", "run-2", 15)) is True
    plan.lose_reply_of = Release
    colour.do(leases.release_lease(KEY, "run-2"))
    assert plan.lost == ["Acquire", "Renew", "Transfer", "Release"]
    assert colour.do(leases.get_lease_owner(KEY)) is None


def test_a_key_that_is_a_lock_is_not_a_lease(leases, hf, colour):
    with colour.block(hf.lock(KEY)), pytest.raises(KindMismatch, match="used for a lock of kind 'mutex'"):
        colour.do(leases.acquire_lease(KEY, "run-1", 15))


@pytest.mark.parametrize("owner", ["", "x" * 600, "bell\a"])
def test_a_bad_owner_is_refused_with_the_reason(leases, colour, owner):
    with pytest.raises(InvalidKey, match="owner"):
        colour.do(leases.acquire_lease(KEY, owner, 15))


def test_a_bad_ttl_is_refused(leases, colour):
    with pytest.raises(InvalidDuration):
        colour.do(leases.acquire_lease(KEY, "run-1", 0))


def test_a_provider_is_known_by_its_five_methods_whatever_its_class(leases):
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


def test_the_no_op_provider_lets_everybody_win_is_inert_and_warns_once(colour):
    provider = NoopLeaseProvider() if colour.name == "sync" else AsyncNoopLeaseProvider()
    assert is_lease_provider(provider)
    with pytest.warns(RuntimeWarning, match="grants every lease to every caller"):
        first = colour.do(provider.acquire_lease(KEY, "run-1", 15))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = colour.do(provider.acquire_lease(KEY, "run-2", 15))
    assert (first.acquired, first.owner, second.acquired, second.owner) == (True, "run-1", True, "run-2")
    assert colour.do(provider.get_lease_owner(KEY)) is None
    assert colour.do(provider.renew_lease(KEY, "run-1", 15)) is True
    assert colour.do(provider.transfer_lease(KEY, "run-1", "run-2", 15)) is True
    assert colour.do(provider.release_lease(KEY, "run-1")) is None
