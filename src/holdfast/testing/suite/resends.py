"""A command that is sent again after a lost reply: what its docstring states after "Again:"."""

from __future__ import annotations

from ... import commands as c
from ...rules import lock_outcomes as out
from ...rules.slot import SlotSeen, Swapped
from ..builders import abandon, acquire, read, release, renew, swap, transfer, wait
from .base import SuiteBase, names


class ResendTests(SuiteBase):
    """A command that is sent twice has one effect."""

    def test_an_acquire_sent_again_returns_the_same_grant(self) -> None:
        (lost,) = self.send(acquire(kind="semaphore", permits=3))
        again = self.ask(acquire(kind="semaphore", permits=3), out.Granted, self.connect())
        assert isinstance(lost, out.Granted)
        assert again.token == lost.token
        assert [holder.id for holder in self.seen().holders] == ["a.1"]

    def test_an_acquire_of_a_mutex_sent_again_is_not_refused_by_its_own_grant(self) -> None:
        lost = self.ask(acquire(), out.Granted)
        assert self.ask(acquire(), out.Granted, self.connect()).token == lost.token

    def test_a_waiting_acquire_sent_again_has_one_position_in_the_queue(self) -> None:
        self.send(acquire(), wait(), wait(id="b.2"), wait(), wait())
        assert [waiter.id for waiter in self.seen().waiters] == ["b.1", "b.2"]

    def test_an_acquire_sent_twice_in_one_batch_gets_one_grant(self) -> None:
        first, second = self.send(acquire(), acquire())
        assert isinstance(first, out.Granted)
        assert isinstance(second, out.Granted)
        assert first.token == second.token

    def test_a_confirmation_sent_again_keeps_the_token_of_the_offer(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(), out.Queued)
        self.ask(release(token=held.token), out.Released)
        lost = self.ask(wait(), out.Granted)
        assert self.ask(wait(), out.Granted, self.connect()).token == lost.token

    def test_a_renewal_sent_again_prolongs_the_lease_again(self) -> None:
        held = self.ask(acquire(), out.Granted)
        assert names(self.send(*[renew(token=held.token)] * 2)) == ["Renewed"] * 2
        assert len(self.seen().holders) == 1

    def test_a_release_sent_again_does_not_affect_the_next_holder(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(), out.Queued)
        self.ask(release(token=held.token), out.Released)
        successor = self.ask(wait(), out.Granted)
        self.ask(release(token=held.token), out.NotHolder)
        assert [holder.token for holder in self.seen().holders] == [successor.token]

    def test_a_release_sent_again_does_not_affect_a_later_grant_of_the_same_attempt(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(release(token=held.token), out.Released)
        anew = self.ask(acquire(), out.Granted)
        self.ask(release(token=held.token), out.NotHolder)
        assert [holder.token for holder in self.seen().holders] == [anew.token]

    def test_an_abandon_sent_again_finds_nothing_and_still_refuses_the_attempt(self) -> None:
        self.ask(acquire(), out.Granted)
        assert self.ask(abandon(), out.Abandoned).was == "holder"
        assert self.ask(abandon(), out.Abandoned).was == "nothing"
        self.ask(acquire(), out.Gone)

    def test_a_transfer_sent_again_has_one_new_holder_with_one_token(self) -> None:
        held = self.ask(acquire(), out.Granted)
        lost = self.ask(transfer(token=held.token), out.Transferred)
        again = self.ask(transfer(token=held.token), out.Transferred, self.connect())
        assert again.token == lost.token
        assert [(holder.id, holder.token) for holder in self.seen().holders] == [("c.1", lost.token)]

    def test_a_forced_release_sent_again_removes_the_current_holder(self) -> None:
        self.ask(acquire(), out.Granted)
        force = c.ForceRelease(key="k", by="operator", reason="stuck")
        self.ask(force, out.ForceReleased)
        assert self.ask(force, out.ForceReleased).holders == ()
        self.ask(acquire(id="b.1"), out.Granted)
        assert [holder.id for holder in self.ask(force, out.ForceReleased).holders] == ["b.1"]

    def test_settling_again_makes_no_second_offer(self) -> None:
        self.ask(acquire(ttl=1), out.Granted)
        self.ask(wait(), out.Queued)
        self.advance(1)
        assert self.ask(c.Settle(key="k"), out.Settled).woken == ("b.1",)
        assert self.ask(c.Settle(key="k"), out.Settled).woken == ()
        assert self.ask(c.SettleDue(), c.Swept) == c.Swept(seen=0, changed=0)

    def test_a_swap_sent_again_is_made_once_and_confirmed_twice(self) -> None:
        assert self.ask(swap("a.1", value="1"), Swapped) == Swapped(version=1)
        assert self.ask(swap("a.1", value="1"), Swapped, self.connect()) == Swapped(version=1)
        assert self.ask(read(), SlotSeen) == SlotSeen(version=1, last="a.1", value="1")

    def test_a_swap_sent_again_is_recognised_after_other_writes(self) -> None:
        self.send(swap("a.1", value="1"), swap("b.1", "a.1", 1, "2"), swap("b.2", "b.1", 2, "3"))
        assert self.ask(swap("a.1", value="1"), Swapped) == Swapped(version=1)
        assert self.ask(read(), SlotSeen) == SlotSeen(version=3, last="b.2", value="3")
