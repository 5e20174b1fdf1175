"""The rules of a state slot, on plain values."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules import slot
from holdfast.rules.slot import EMPTY_SLOT, RECENT, WRITERS, Conflict, Slot, Swap, Swapped, WriteHistory, Writer

NOW = 1_790_000_000_000_000


def swap(before, request, value="1", *, now=NOW, base=None, **options):
    """Write on what `base` (or the slot itself) shows."""
    seen = before if base is None else base
    return slot.swap(before, now, request=request, expected=seen.last, version=seen.version, value=value, **options)


def written(times, start=EMPTY_SLOT, by="w"):
    for _ in range(times):
        start, outcome = swap(start, f"{by}.{start.version}", str(start.version))
        assert isinstance(outcome, Swapped)
    return start


def test_a_slot_that_was_never_written_has_version_0_and_no_value():
    assert slot.read(EMPTY_SLOT) == slot.SlotSeen(version=0, last="", value=None)


def test_a_write_on_the_current_value_succeeds_and_increments_the_version():
    after, outcome = swap(EMPTY_SLOT, "a.1", '"x"')
    assert outcome == Swapped(version=1)
    assert (after.version, after.value, after.last) == (1, '"x"', "a.1")


def test_a_write_on_an_older_value_is_refused_with_the_current_value():
    base = written(1)
    newer, _ = swap(base, "b.1", "2")
    after, outcome = swap(newer, "a.1", "3", base=base)
    assert after is newer
    assert outcome == Conflict(version=2, last="b.1", value="2")


def test_a_stale_write_after_a_delete_is_refused():
    base = written(1)
    deleted, _ = swap(base, "b.1", None)
    after, outcome = swap(deleted, "a.1", "3", base=base)
    assert after is deleted
    assert (outcome.version, outcome.value) == (2, None)


def test_a_write_is_compared_by_its_id_so_an_equal_number_of_other_writes_does_not_match():
    base = written(2)
    elsewhere = Slot(2, "1", WriteHistory(last="x.2"))
    assert isinstance(swap(elsewhere, "a.1", base=base)[1], Conflict)


def test_a_write_that_is_sent_again_is_recognised_and_not_made_again():
    after, first = swap(EMPTY_SLOT, "a.1", "1")
    for n in range(5):
        after, _ = swap(after, f"b.{n}", "2")
    again, outcome = slot.swap(after, NOW, request="a.1", expected="", version=0, value="1")
    assert again is after
    assert outcome == first == Swapped(version=1)


def test_a_refused_write_states_whether_it_was_made_earlier():
    base = written(5)
    later = written(5, base, by="x")
    assert swap(later, "a.1", base=base)[1].decided  # this client never wrote here
    assert swap(later, "w.99", base=base)[1].decided  # this one did, and not this
    assert swap(base, "w.99", base=later)[1].decided  # what it was built on is not there


def test_writes_that_a_client_has_acknowledged_are_removed_and_the_others_kept():
    slot_ = EMPTY_SLOT
    for number in range(1, 50):
        slot_, _ = swap(slot_, f"a.{number}", acked=max(1, number - 3))
    (writer,) = slot_.past.writers
    assert writer.numbers == (46, 47, 48, 49)
    again = slot.swap(slot_, NOW, request="a.46", expected="x.1", version=45, value="1")
    assert again == (slot_, Swapped(version=46))
    assert not slot.swap(slot_, NOW, request="a.45", expected="x.1", version=44, value="1")[1].decided


def test_of_a_client_that_never_acknowledges_the_last_writes_are_kept():
    after = written(RECENT + 10)
    (writer,) = after.past.writers
    assert len(writer.numbers) == RECENT
    assert not slot.swap(after, NOW, request="w.9", expected="w.8", version=9, value="1")[1].decided
    assert slot.swap(after, NOW, request="w.10", expected="w.9", version=10, value="1") == (after, Swapped(version=11))


def test_the_latest_writers_are_kept_and_a_resend_of_a_removed_writer_is_undecided():
    after = EMPTY_SLOT
    for client in range(WRITERS + 1):
        after, _ = swap(after, f"c{client}.1")
    assert len(after.past.writers) == WRITERS
    assert not slot.swap(after, NOW, request="c0.1", expected="", version=0, value="1")[1].decided
    assert slot.swap(after, NOW, request="c1.1", expected="c0.1", version=1, value="1")[1] == Swapped(version=2)
    assert slot.swap(after, NOW, request="new.1", expected="c0.1", version=1, value="1")[1].decided
    back, _ = swap(after, "c0.2", acked=1)
    assert not slot.swap(back, NOW, request="c0.1", expected="", version=0, value="1")[1].decided


def test_a_writer_that_lost_a_conflict_may_reserve_the_next_write():
    base = written(1)
    newer, _ = swap(base, "b.1")
    reserved, outcome = swap(newer, "a.1", base=base, reserve=50_000)
    assert isinstance(outcome, Conflict)
    assert (reserved.past.reserved_by, reserved.past.reserved_until) == ("a", NOW + 50_000)
    refused, outcome = swap(reserved, "b.2")
    assert refused is reserved
    assert (outcome.wait, outcome.last) == (50_000, newer.last)
    mine, outcome = swap(reserved, "a.2")
    assert isinstance(outcome, Swapped)
    assert mine.past.reserved_by == ""


def test_a_reservation_expires_and_setting_the_clock_back_does_not_prolong_it():
    reserved = Slot(1, "1", WriteHistory(last="w.1", reserved_by="a", reserved_until=NOW + 50_000))
    assert isinstance(swap(reserved, "b.1", now=NOW + 50_000)[1], Swapped)
    assert swap(reserved, "b.1", now=NOW - 3_600_000_000)[1].wait == slot.MAX_RESERVATION


def test_a_second_writer_that_lost_does_not_take_over_the_reservation():
    base = written(1)
    newer, _ = swap(base, "c.1")
    reserved, _ = swap(newer, "a.1", base=base, reserve=50_000)
    again, outcome = swap(reserved, "b.1", base=base, reserve=50_000)
    assert again is reserved
    assert outcome.wait == 50_000


PLACE = ("global", "", "k")


def test_a_write_with_a_journal_record_is_compared_by_id_and_version():
    base = written(2)
    for expected, version in (("w.0", 2), ("w.1", 1), ("", 0)):
        assert slot.written(base, Swap(PLACE, expected, version, "x"), "r:1") is None
    after = slot.written(base, Swap(PLACE, "w.1", 2, None), "run-1:3.2")
    assert (after.version, after.value, after.last) == (3, None, "run-1:3.2")


def test_a_write_with_a_journal_record_keeps_the_writers_and_ends_a_reservation():
    writers = (Writer("a", 1, (1, 2), 2), Writer("b", 0, (7,), 5))
    reserved = WriteHistory(last="b.7", writers=writers, forgotten=3, reserved_by="c", reserved_until=NOW + 50_000)
    after = slot.written(Slot(5, "1", reserved), Swap(PLACE, "b.7", 5, "2"), "r:1")
    assert after == Slot(6, "2", WriteHistory(last="r:1", writers=writers, forgotten=3))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=40))
def test_no_write_is_lost_and_none_is_made_twice(steps):
    """Each writer adds one to what it saw some steps ago; the value is the number of writes that succeeded."""
    now, record, seen, made = NOW, EMPTY_SLOT, [EMPTY_SLOT], 0
    for n, (who, ago, again) in enumerate(steps):
        base = seen[max(0, len(seen) - 1 - ago)]
        value = str(int(base.value or 0) + 1)
        request = f"{who}.{n}"
        for _ in range(2 if again else 1):
            record, outcome = swap(record, request, value, now=now, base=base, reserve=1_000 if ago else 0)
        made += isinstance(outcome, Swapped)
        seen.append(record)
        now += 700
    assert int(record.value or 0) == made == record.version
