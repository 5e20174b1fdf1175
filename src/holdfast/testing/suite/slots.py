"""State slots: compare-and-swap, kept apart by their addresses."""

from __future__ import annotations

from ... import commands as c
from ...rules.slot import WRITERS, Address, Conflict, SlotSeen, Swapped
from ..builders import acquire, read, swap
from .base import SuiteBase, names
from .commands import unchecked


class SlotTests(SuiteBase):
    """What `ReadSlot` and `SwapSlot` promise."""

    def test_a_slot_is_written_and_read_by_other_connections(self) -> None:
        other = self.connect(store=self.opened())
        assert self.ask(read(), SlotSeen, other) == SlotSeen(version=0, last="", value=None)
        assert self.ask(swap("a.1"), Swapped) == Swapped(version=1)
        assert self.ask(read(), SlotSeen, other) == SlotSeen(version=1, last="a.1", value="1")

    def test_a_write_based_on_an_older_write_is_a_conflict_and_changes_nothing(self) -> None:
        self.ask(swap("a.1"), Swapped)
        there = Conflict(version=1, last="a.1", value="1")
        assert self.ask(swap("b.1", value="2"), Conflict) == there
        assert self.ask(swap("b.2", "a.1", 2, "2"), Conflict) == there
        assert self.ask(swap("b.3", "x.1", 1, "2"), Conflict) == there
        assert self.ask(read(), SlotSeen) == SlotSeen(version=1, last="a.1", value="1")

    def test_a_value_that_was_removed_and_written_again_is_not_taken_for_the_old_one(self) -> None:
        self.send(swap("a.1", value="1"), swap("a.2", "a.1", 1, None), swap("a.3", "a.2", 2, "1"))
        assert self.ask(swap("b.1", "a.1", 1, "2"), Conflict).version == 3

    def test_a_removed_value_reads_as_none_and_keeps_its_version(self) -> None:
        self.send(swap("a.1"), swap("a.2", "a.1", 1, None))
        assert self.ask(read(), SlotSeen) == SlotSeen(version=2, last="a.2", value=None)

    def test_namespaces_scopes_owners_and_keys_are_kept_apart(self) -> None:
        there = self.connect(store=self.opened("other"))
        addresses: list[Address] = [
            ("global", "", "k"),
            ("workflow", "w", "k"),
            ("workflow", "v", "k"),
            ("execution", "w", "k"),
            ("global", "", "l"),
        ]
        for n, address in enumerate(addresses):
            assert self.ask(swap(f"a.{n}", address=address, value=str(n)), Swapped) == Swapped(version=1)
        for n, address in enumerate(addresses):
            assert self.ask(read(address), SlotSeen).value == str(n)
            assert self.ask(read(address), SlotSeen, there).version == 0

    def test_a_chain_of_writes_in_one_batch_among_other_commands(self) -> None:
        outcomes = self.send(
            acquire(id="a.0"),
            swap("a.1", value="1"),
            swap("a.2", "a.1", 1, value="2"),
            acquire(id="b.0"),
            swap("a.3", "a.2", 2, value="3"),
            swap("b.1", "a.2", 2, value="4"),
            c.ListLocks(),
            read(),
        )
        expected = ["Granted", "Swapped", "Swapped", "Busy", "Swapped", "Conflict", "LockPage", "SlotSeen"]
        assert names(outcomes) == expected
        assert outcomes[-1] == SlotSeen(version=3, last="a.3", value="3")

    def test_reading_a_slot_does_not_create_it(self) -> None:
        self.ask(read(), SlotSeen)
        assert self.ask(swap("a.1", "x.1", 5), Conflict).version == 0
        assert self.ask(swap("a.2"), Swapped) == Swapped(version=1)

    def test_a_bad_write_fails_alone(self) -> None:
        nowhere: Address = ("global", "", unchecked([]))
        outcomes = self.send(
            swap("a.1"), swap("a.2", address=nowhere), swap(unchecked(7), "a.1", 1), swap("b.1", "a.1", 1)
        )
        assert names(outcomes) == ["Swapped", "Failed", "Failed", "Swapped"]

    def test_a_writer_that_lost_a_conflict_may_reserve_the_next_write_for_a_short_time(self) -> None:
        self.ask(swap("a.1"), Swapped)
        self.ask(swap("b.1", reserve=1_000_000), Conflict)
        kept_away = self.ask(swap("a.2", "a.1", 1), Conflict)
        assert 0 < kept_away.wait <= 1_000_000
        assert self.ask(swap("b.2", "a.1", 1), Swapped).version == 2
        self.ask(swap("a.3", "b.2", 2), Swapped)

    def test_a_reservation_expires(self) -> None:
        self.ask(swap("a.1"), Swapped)
        self.ask(swap("b.1", reserve=10**12), Conflict)
        self.advance(1)
        self.ask(swap("a.2", "a.1", 1), Swapped)

    def test_acknowledged_writes_are_removed_and_a_resend_of_one_is_undecided(self) -> None:
        self.send(swap("a.1"), swap("a.2", "a.1", 1, acked=2))
        assert self.ask(swap("a.2", "a.1", 1, acked=2), Swapped).version == 2
        assert not self.ask(swap("a.1"), Conflict).decided
        assert self.ask(swap("b.1"), Conflict).decided

    def test_a_resend_by_a_removed_writer_is_undecided(self) -> None:
        chain = [swap("w0.1"), *(swap(f"w{n}.1", f"w{n - 1}.1", n) for n in range(1, WRITERS + 1))]
        assert names(self.send(*chain)) == ["Swapped"] * (WRITERS + 1)
        assert self.ask(chain[1], Swapped).version == 2
        assert not self.ask(chain[0], Conflict).decided

    def test_any_text_is_kept_as_it_is(self) -> None:
        text = '"\\u0000 é 😀 \\" \' % _ ; -- \n"'
        self.ask(swap("a.1", value=text), Swapped)
        assert self.ask(read(), SlotSeen).value == text
