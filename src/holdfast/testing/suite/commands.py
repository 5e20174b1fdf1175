"""Every outcome of every command, and that each command of a batch is decided independently."""

from __future__ import annotations

from typing import Any

import pytest

from ... import commands as c
from ...rules import lock_outcomes as out
from ...rules.lock import OFFER_LIFE
from ...rules.lock_record import Holder
from ..builders import ME, SECOND, abandon, acquire, pass_over, release, renew, transfer, wait
from .base import SuiteBase, about, names


def unchecked(value: object) -> Any:
    """A value of the wrong type, hidden from the type checker."""
    return value


class CommandTests(SuiteBase):
    """What the docstrings of `holdfast.commands` promise."""

    def test_a_free_key_is_granted_under_a_token_that_follows_the_clock(self) -> None:
        granted = self.ask(acquire(), out.Granted)
        assert granted.token == granted.floor == granted.since
        assert granted.expires_at == granted.since + 30 * SECOND
        assert granted.woken == ()

    def test_asking_again_returns_the_same_grant_with_its_full_ttl(self) -> None:
        first = self.ask(acquire(), out.Granted)
        self.advance(1)
        again = self.ask(acquire(), out.Granted)
        assert (again.token, again.since) == (first.token, first.since)
        assert again.expires_at is not None
        assert first.expires_at is not None
        assert again.expires_at >= first.expires_at + SECOND

    def test_a_refused_acquire_returns_the_holder_and_its_remaining_time(self) -> None:
        self.ask(acquire(), out.Granted)
        self.advance(1)
        busy = self.ask(acquire(id="b.1"), out.Busy)
        assert [holder.label for holder in busy.holders] == [ME]
        assert about(busy.retry_in, 29)
        assert busy.waiting == 0

    def test_a_grant_without_a_ttl_does_not_expire(self) -> None:
        assert self.ask(acquire(ttl=None), out.Granted).expires_at is None
        self.advance(2)
        assert self.ask(acquire(id="b.1"), out.Busy).retry_in is None

    def test_a_grant_ends_with_its_ttl(self) -> None:
        held = self.ask(acquire(ttl=2), out.Granted)
        self.advance(1)
        self.ask(acquire(id="b.1"), out.Busy)
        self.advance(1)
        assert self.ask(acquire(id="b.1"), out.Granted).token > held.token

    def test_tokens_rise_strictly_also_within_one_moment(self) -> None:
        tokens = []
        for n in range(20):
            tokens.append(self.ask(acquire(id=f"a.{n}"), out.Granted).token)
            self.ask(release(id=f"a.{n}", token=tokens[-1]), out.Released)
        assert tokens == sorted(set(tokens))

    def test_tokens_rise_also_when_the_clock_is_set_back(self) -> None:
        first = self.ask(acquire(), out.Granted)
        self.advance(-3600)
        self.ask(release(token=first.token), out.Released)
        assert self.ask(acquire(id="b.1"), out.Granted).token > first.token

    def test_setting_the_clock_back_does_not_prolong_a_grant(self) -> None:
        self.ask(acquire(ttl=5), out.Granted)
        self.ask(wait(waiter_ttl=60 * SECOND), out.Queued)
        self.advance(-3600)
        self.ask(wait(waiter_ttl=60 * SECOND), out.Queued)
        self.advance(5)
        self.ask(wait(waiter_ttl=60 * SECOND), out.Granted)

    def test_a_waiter_gets_a_position_and_keeps_it(self) -> None:
        self.ask(acquire(), out.Granted)
        assert self.ask(wait(id="b.1"), out.Queued).position == 0
        assert self.ask(wait(id="b.2"), out.Queued).position == 1
        again = self.ask(wait(id="b.1"), out.Queued)
        assert again.position == 0
        assert [waiter.id for waiter in self.seen().waiters] == ["b.1", "b.2"]
        assert about(again.recheck_in, 10)

    def test_a_waiter_without_a_sign_of_life_loses_its_position(self) -> None:
        self.ask(acquire(), out.Granted)
        self.ask(wait(id="b.1", waiter_ttl=SECOND), out.Queued)
        self.advance(1)
        assert self.ask(wait(id="b.2"), out.Queued).position == 0

    def test_a_release_offers_the_key_to_the_head_of_the_queue(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(id="b.1"), out.Queued)
        self.ask(wait(id="b.2"), out.Queued)
        assert self.ask(release(token=held.token), out.Released).woken == ("b.1",)
        offered = self.seen().holders[0]
        granted = self.ask(wait(id="b.1"), out.Granted)
        assert granted.token == offered.token > held.token
        assert granted.expires_at == granted.since + 30 * SECOND

    def missed_offer(self) -> Holder:
        """An offer to b.1 that has just expired, with b.2 next in the queue."""
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(id="b.1", waiter_ttl=60 * SECOND), out.Queued)
        self.ask(wait(id="b.2", waiter_ttl=60 * SECOND), out.Queued)
        self.ask(release(token=held.token), out.Released)
        offered = self.seen().holders[0]
        assert offered.id == "b.1"
        self.advance(1)
        return offered

    def test_an_unconfirmed_offer_goes_to_the_first_waiter_that_sends_a_command(self) -> None:
        missed = self.missed_offer()
        assert self.ask(c.Settle(key="k"), out.Settled).hinted == ("b.2",)
        assert [(waiter.id, waiter.passed) for waiter in self.seen().waiters] == [("b.1", True), ("b.2", True)]
        assert self.ask(wait(id="b.2", waiter_ttl=60 * SECOND), out.Granted).token > missed.token
        assert self.ask(wait(id="b.1", waiter_ttl=60 * SECOND), out.Queued).position == 0

    def test_a_client_that_closes_hints_the_waiters_behind_its_offer(self) -> None:
        held = self.ask(acquire(), out.Granted)
        for number in (1, 2, 3):
            self.ask(wait(id=f"b.{number}"), out.Queued)
        assert self.ask(c.Settle(key="k", leaving=True), out.Settled).hinted == ()
        self.ask(release(token=held.token), out.Released)
        assert self.ask(c.Settle(key="k"), out.Settled).hinted == ()
        left = self.ask(c.Settle(key="k", leaving=True), out.Settled)
        assert (left.woken, left.hinted) == ((), ("b.2", "b.3"))
        queued = self.ask(wait(id="b.3"), out.Queued)
        assert queued.recheck_in is not None
        assert queued.recheck_in <= OFFER_LIFE, "the waiter checks again when the offer has expired"

    def test_an_expired_offer_cannot_be_confirmed(self) -> None:
        missed = self.missed_offer()
        self.ask(renew(id="b.1", token=missed.token), out.NotHolder)
        self.ask(release(id="b.1", token=missed.token), out.NotHolder)
        self.ask(pass_over(id="b.1", token=missed.token), out.NotHolder)
        assert self.ask(wait(id="b.1", waiter_ttl=60 * SECOND), out.Granted).token > missed.token

    def test_passed_over_waiters_do_not_block_other_waiters(self) -> None:
        self.missed_offer()
        self.ask(acquire(id="c.1"), out.Granted)

    def test_an_offer_is_passed_over_by_its_id_and_token_alone(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(id="b.1"), out.Queued)
        self.ask(wait(id="b.2"), out.Queued)
        self.ask(release(token=held.token), out.Released)
        offered = self.seen().holders[0]
        self.ask(pass_over(id="b.1", token=offered.token + 1), out.NotHolder)
        self.ask(pass_over(id="b.2", token=offered.token), out.NotHolder)
        passed = self.ask(pass_over(id="b.1", token=offered.token), out.PassedOver)
        assert passed == out.PassedOver(hinted=("b.2",))
        self.ask(pass_over(id="b.1", token=offered.token), out.NotHolder)
        assert self.ask(wait(id="b.2"), out.Granted).token > offered.token
        self.ask(pass_over(id="b.2", token=self.seen().holders[0].token), out.NotHolder)

    def test_a_new_attempt_does_not_overtake_the_queue_while_an_offer_is_open(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(id="b.1"), out.Queued)
        self.ask(release(token=held.token), out.Released)
        self.ask(acquire(id="c.1"), out.Busy)
        self.ask(wait(id="c.2"), out.Queued)
        self.ask(wait(id="b.1"), out.Granted)

    def test_a_small_weight_does_not_overtake_a_large_one_at_the_head_of_the_queue(self) -> None:
        def semaphore(id: str, weight: int = 1) -> c.Acquire:
            return wait(id=id, kind="semaphore", permits=3, weight=weight)

        held = [self.ask(semaphore(f"a.{n}"), out.Granted) for n in range(2)]
        self.ask(semaphore("b.1", 2), out.Queued)
        self.ask(acquire(id="c.1", kind="semaphore", permits=3), out.Busy)
        assert self.ask(semaphore("c.2"), out.Queued).position == 1
        assert self.ask(release(id="a.0", token=held[0].token), out.Released).woken == ("b.1",)
        self.ask(semaphore("c.2"), out.Queued)

    def test_permits_are_counted_by_weight_and_the_floor_is_the_lowest_token_of_a_holder(self) -> None:
        def semaphore(id: str, weight: int = 1) -> c.Acquire:
            return acquire(id=id, kind="semaphore", permits=3, weight=weight)

        first = self.ask(semaphore("a.1", 2), out.Granted)
        second = self.ask(semaphore("a.2"), out.Granted)
        assert second.floor == first.token < second.token
        self.ask(semaphore("a.3"), out.Busy)
        self.ask(release(token=first.token), out.Released)
        third = self.ask(semaphore("a.3", 2), out.Granted)
        assert third.floor == second.token

    def test_the_callers_number_of_permits_is_stored_and_the_change_reported(self) -> None:
        self.ask(acquire(kind="semaphore", permits=1), out.Granted)
        more = self.ask(acquire(id="a.2", kind="semaphore", permits=2), out.Granted)
        assert more.permits_before == 1
        fewer = self.ask(acquire(id="a.3", kind="semaphore", permits=1), out.Busy)
        assert fewer.permits_before == 2

    def test_a_waiter_whose_weight_no_longer_fits_gets_an_error(self) -> None:
        self.ask(acquire(kind="semaphore", permits=3), out.Granted)
        self.ask(wait(id="b.1", kind="semaphore", permits=3, weight=3), out.Queued)
        self.ask(acquire(id="c.1", kind="semaphore", permits=2), out.Granted)
        self.ask(wait(id="b.1", kind="semaphore", permits=3, weight=3), out.TooHeavy)

    def test_another_kind_on_the_same_key_is_a_mismatch_while_it_is_in_use(self) -> None:
        held = self.ask(acquire(), out.Granted)
        assert self.ask(acquire(id="b.1", kind="semaphore", permits=3), out.Mismatch).found == "mutex"
        self.ask(release(token=held.token), out.Released)
        self.ask(acquire(id="b.1", kind="semaphore", permits=3), out.Granted)

    def test_a_waiter_that_acquires_again_as_another_kind_is_refused_and_keeps_its_position(self) -> None:
        self.send(acquire(), wait())
        assert self.ask(wait(kind="lease"), out.Mismatch).found == "mutex"
        assert self.ask(wait(), out.Queued).position == 0

    @pytest.mark.parametrize(("kind", "permits"), [("mutex", 1), ("mutex", 2), ("lease", 1), ("semaphore", 3)])
    def test_the_first_grant_of_a_key_is_its_first_version_whatever_its_kind(self, kind: str, permits: int) -> None:
        granted = self.ask(acquire(kind=kind, permits=permits), out.Granted)
        assert self.seen().version == 1
        self.ask(release(token=granted.token), out.Released)
        assert self.seen().version == 2

    def test_a_weight_that_can_never_fit_is_too_heavy(self) -> None:
        assert self.ask(acquire(kind="semaphore", permits=3, weight=4), out.TooHeavy) == out.TooHeavy(permits=3)

    def test_an_abandoned_attempt_cannot_come_back_for_one_ttl(self) -> None:
        assert self.ask(abandon(ttl=2), out.Abandoned) == out.Abandoned(was="nothing")
        assert self.ask(acquire(), out.Gone) == out.Gone()
        self.advance(2)
        self.ask(acquire(), out.Granted)

    def test_abandon_returns_whether_it_held_or_waited_and_hands_over_the_lock(self) -> None:
        self.ask(acquire(), out.Granted)
        self.ask(wait(id="b.1"), out.Queued)
        self.ask(wait(id="b.2"), out.Queued)
        assert self.ask(abandon(id="b.1"), out.Abandoned) == out.Abandoned(was="waiter")
        assert self.ask(abandon(id="a.1"), out.Abandoned) == out.Abandoned(was="holder", woken=("b.2",))
        assert self.ask(abandon(id="a.1"), out.Abandoned).was == "nothing"

    def test_a_renewal_prolongs_a_grant_that_has_not_expired(self) -> None:
        held = self.ask(acquire(ttl=5), out.Granted)
        self.advance(2)
        renewed = self.ask(renew(token=held.token), out.Renewed)
        assert renewed.floor == held.token
        assert renewed.expires_at is not None
        assert renewed.expires_at >= held.since + 32 * SECOND
        assert self.ask(renew(token=held.token, ttl=None), out.Renewed).expires_at is None

    def test_a_renewal_at_the_moment_of_expiry_is_refused_even_without_a_waiter(self) -> None:
        held = self.ask(acquire(ttl=2), out.Granted)
        self.advance(2)
        assert self.ask(renew(token=held.token), out.NotHolder) == out.NotHolder()
        assert self.seen().holders == ()

    def test_each_renewal_of_a_batch_is_decided_independently(self) -> None:
        keys = [f"k{n}" for n in range(40)]
        grants = self.send(*(acquire(key, ttl=2 if n % 4 == 0 else 30) for n, key in enumerate(keys)))
        tokens = [grant.token for grant in grants if isinstance(grant, out.Granted)]
        assert len(tokens) == len(keys)
        self.advance(2)
        renewals = [
            renew(key, token=token + (n % 4 == 1)) for n, (key, token) in enumerate(zip(keys, tokens, strict=True))
        ]
        assert names(self.send(*renewals)) == ["NotHolder", "NotHolder", "Renewed", "Renewed"] * 10

    def test_a_renewal_or_release_with_a_wrong_token_or_id_changes_nothing(self) -> None:
        held = self.ask(acquire(), out.Granted)
        before = self.stored()
        for command in (
            renew(token=held.token + 1),
            renew(token=None),
            renew(id="b.1", token=held.token),
            release(token=held.token + 1),
            release(token=None),
            release(id="b.1", token=held.token),
            transfer(token=held.token + 1),
            transfer(id="b.1", token=held.token),
        ):
            assert self.ask(command, out.NotHolder) == out.NotHolder()
        assert [holder.id for holder in self.seen().holders] == ["a.1"]
        if not self.server_clock:
            assert self.stored() == before

    def test_a_lease_may_be_renewed_and_released_by_its_owners_name_without_a_token(self) -> None:
        self.ask(acquire(kind="lease"), out.Granted)
        self.ask(renew(id="b.1", token=None), out.NotHolder)
        self.ask(renew(token=None), out.Renewed)
        assert self.ask(release(token=None), out.Released) == out.Released()

    def test_a_second_release_finds_nothing(self) -> None:
        held = self.ask(acquire(), out.Granted)
        assert self.ask(release(token=held.token), out.Released) == out.Released()
        assert self.ask(release(token=held.token), out.NotHolder) == out.NotHolder()

    def test_a_transfer_gives_the_grant_to_another_attempt_with_a_higher_token(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(id="b.1"), out.Queued)
        self.ask(wait(id="c.1"), out.Queued)
        given = self.ask(transfer(token=held.token), out.Transferred)
        assert given.token == given.floor > held.token
        assert [holder.id for holder in self.seen().holders] == ["c.1"]
        assert [waiter.id for waiter in self.seen().waiters] == ["b.1"]
        self.ask(renew(token=held.token), out.NotHolder)
        self.ask(transfer(id="x.1", token=1), out.NotHolder)

    def test_a_transfer_to_a_holder_is_refused(self) -> None:
        first = self.ask(acquire(kind="semaphore", permits=2), out.Granted)
        self.ask(acquire(id="c.1", kind="semaphore", permits=2), out.Granted)
        assert self.ask(transfer(token=first.token), out.TargetHolds) == out.TargetHolds()

    def test_a_forced_release_removes_all_holders_and_keeps_the_reason_and_the_fence(self) -> None:
        held = self.ask(acquire(), out.Granted)
        forced = self.ask(c.ForceRelease(key="k", by="operator", reason="stuck"), out.ForceReleased)
        assert [holder.id for holder in forced.holders] == ["a.1"]
        record = self.seen()
        assert record.forced is not None
        assert (record.forced.by, record.forced.reason, record.fence) == ("operator", "stuck", held.token)
        assert self.ask(c.ForceRelease(key="k", by="operator", reason="again"), out.ForceReleased).holders == ()

    def test_a_key_stays_closed_for_its_lock_delay_after_a_lease_has_expired(self) -> None:
        self.ask(acquire(ttl=1, delay=2 * SECOND), out.Granted)
        self.advance(1)
        self.ask(acquire(id="b.1"), out.Busy)
        self.advance(2)
        self.ask(acquire(id="b.1"), out.Granted)

    def test_inspecting_an_unused_key_returns_nothing_and_writes_nothing(self) -> None:
        assert self.ask(c.Inspect(key="k"), out.LockSeen).record is None
        assert self.stored() == {}

    def test_inspect_returns_a_settled_record_and_writes_nothing(self) -> None:
        held = self.ask(acquire(ttl=2), out.Granted)
        self.ask(wait(id="b.1"), out.Queued)
        stored = self.dump(self.address, "default")
        self.advance(2)
        assert self.seen().holders == ()
        assert self.seen().fence == held.token
        assert self.dump(self.address, "default") == stored
        assert self.ask(c.Settle(key="k"), out.Settled).woken == ("b.1",)

    def test_commands_of_one_batch_on_one_key_see_each_other_in_order(self) -> None:
        outcomes = self.send(acquire(), acquire(id="b.1"), abandon(), acquire(id="b.1"))
        assert names(outcomes) == ["Granted", "Busy", "Abandoned", "Granted"]

    def test_an_inspect_within_a_batch_sees_the_commands_before_it(self) -> None:
        _, page, _, later = self.send(acquire("a"), c.ListLocks(), acquire("b"), c.ListLocks())
        assert isinstance(page, c.LockPage)
        assert isinstance(later, c.LockPage)
        assert [item.key for item in page.items] == ["a"]
        assert [item.key for item in later.items] == ["a", "b"]

    def test_an_empty_batch_has_no_outcomes(self) -> None:
        assert self.send() == []

    def test_the_outcomes_of_a_large_batch_are_in_the_order_of_its_commands(self) -> None:
        outcomes = self.send(*(acquire(f"k{n % 300}", f"a.{n}") for n in range(600)))
        assert names(outcomes) == ["Granted"] * 300 + ["Busy"] * 300

    def test_namespaces_do_not_see_each_other(self) -> None:
        other = self.connect(store=self.opened("other"))
        self.ask(acquire(), out.Granted)
        self.ask(acquire(id="b.1"), out.Granted, other)
        assert list(self.listed(other)) == ["k"]

    def test_two_connections_see_the_same_records(self) -> None:
        self.ask(acquire(), out.Granted)
        self.ask(acquire(id="b.1"), out.Busy, self.connect("heartbeats"))
        assert self.seen(connection=self.connect("queries")).holders[0].id == "a.1"

    def test_two_stores_with_one_address_share_records_and_have_equal_identities(self) -> None:
        same, other = self.opened(), self.opened("other")
        assert same.identity == self.store.identity != other.identity
        self.ask(acquire(), out.Granted)
        self.ask(acquire(id="b.1"), out.Busy, self.connect(store=same))

    def test_one_bad_command_fails_alone(self) -> None:
        bad = [
            acquire("bad-number", "a.2", permits=unchecked("three")),
            c.Acquire(key="bad-time", id="a.3", label=ME, ttl=2**70),
            c.Command(),
            c.ListLocks(limit=unchecked("many")),
            acquire("bad-\ud800-key"),
            acquire("bad-id", "a.\ud800"),
            acquire(unchecked(["no text"])),
        ]
        outcomes = self.send(acquire("good"), *bad, acquire("fine"))
        assert isinstance(outcomes[0], out.Granted)
        assert isinstance(outcomes[-1], out.Granted)
        assert {names(outcomes)[place] for place in (1, 3, 4)} == {"Failed"}
        assert {"good", "fine"} <= set(self.listed())
        assert "bad-number" not in self.listed()

    @pytest.mark.parametrize(
        "command",
        [
            acquire("\ud800"),
            acquire("k", "a.\ud800"),
            acquire(unchecked(["no text"])),
            acquire(permits=unchecked("three")),
            c.Command(),
        ],
        ids=["key", "id", "type", "number", "unknown"],
    )
    def test_a_single_bad_command_fails_or_has_no_effect(self, command: c.Command) -> None:
        (outcome,) = self.send(command)
        assert isinstance(outcome, c.Failed | out.Granted)
        self.ask(acquire("fine"), out.Granted)

    def test_a_bad_command_does_not_affect_other_commands_on_the_same_key(self) -> None:
        outcomes = self.send(acquire(), acquire(id="b.1", permits=unchecked("three")), acquire(id="c.1"))
        assert names(outcomes) == ["Granted", "Failed", "Busy"]

    def test_a_closed_connection_raises_an_error_that_says_so(self) -> None:
        connection = self.store.connect("commands")
        connection.close()
        connection.close()
        with pytest.raises(Exception, match="closed"):
            connection.execute([acquire()])

    def test_a_diagnosis_returns_findings_and_changes_nothing(self) -> None:
        self.ask(acquire(), out.Granted)
        before = self.dump(self.address, "default")
        for finding in self.store.diagnose():
            assert finding.level in {"ok", "warning", "problem"}
            assert finding.level == "ok" or finding.advice, f"no advice for {finding.check}"
        assert self.dump(self.address, "default") == before
