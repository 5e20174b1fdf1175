"""Atomic state: one value, many writers, no lost update, sync and async, on every store."""

from __future__ import annotations

import asyncio
import secrets
import threading
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sync_async import on_a_loop

from holdfast import AsyncClient, AtomicStateConflictError, Client
from holdfast.commands import ReadSlot, SwapSlot
from holdfast.errors import InvalidKey, InvalidOption, InvalidValue, StoreUnavailable, WouldDeadlock
from holdfast.rules.slot import WRITERS
from holdfast.state.compare_and_swap import RESERVE_AFTER
from holdfast.state.pending_writes import chains_of


@pytest.fixture
def n(hf):
    return hf.state("n", initial=0)


def test_initial_is_seen_until_the_first_write(hf, mode):
    state = hf.state("s", initial={"mode": "slow"})
    assert mode.do(state.get()) == {"mode": "slow"}
    assert mode.do(hf.state("s").get()) is None
    mode.do(state.set({"mode": "fast"}))
    assert mode.do(hf.state("s").get()) == {"mode": "fast"}


def test_after_a_delete_the_value_reads_as_none_and_initial_does_not_come_back(n, mode):
    mode.do(n.set(5))
    mode.do(n.delete())
    assert mode.do(n.get()) is None
    mode.do(n.set(1))
    assert mode.do(n.get()) == 1


def test_deleting_an_unwritten_state_counts_as_a_write(n, mode):
    mode.do(n.delete())
    assert mode.do(n.get()) is None


def test_a_returned_value_is_a_copy(hf, mode):
    state = hf.state("list", initial=[1])
    got = mode.do(state.get())
    got.append(2)
    assert mode.do(state.get()) == [1]


def test_update_replaces_the_value_by_the_result_of_the_function(n, mode):
    assert mode.do(n.update(lambda value: value + 5)) == 5
    assert mode.do(n.get()) == 5


def test_update_passes_none_to_the_function_after_a_delete(n, mode):
    mode.do(n.delete())
    seen = []
    mode.do(n.update(lambda value: seen.append(value) or 1))
    assert seen == [None]


def test_an_exception_of_the_function_changes_nothing(n, mode):
    mode.do(n.set(3))
    with pytest.raises(ZeroDivisionError):
        mode.do(n.update(lambda value: value / 0))
    assert mode.do(n.get()) == 3


def test_a_function_that_returns_none_is_refused_and_changes_nothing(hf, mode):
    settings = hf.state("settings", initial={"a": 1})
    with pytest.raises(InvalidValue, match="returned None"):
        mode.do(settings.update(lambda value: value.update(b=2)))
    assert mode.do(settings.get()) == {"a": 1}


def test_a_change_within_its_own_update_is_refused(url):
    with Client(url) as client:
        state = client.state("n", initial=0)
        with pytest.raises(WouldDeadlock, match="within its own update"):
            state.update(lambda _value: state.increment())
        assert state.get() == 0
        assert state.update(lambda value: value + client.state("other", initial=4).increment()) == 5


def test_a_value_of_another_type_can_be_replaced_and_deleted(hf, mode):
    mode.do(hf.state("k").set("text"))
    typed = hf.state("k", type=int)
    mode.do(typed.set(4))
    assert mode.do(typed.get()) == 4
    mode.do(hf.state("k").set("text"))
    mode.do(typed.delete())
    assert mode.do(typed.get()) is None


def test_a_type_given_as_text_is_refused(hf):
    with pytest.raises(InvalidOption, match="the type itself"):
        hf.state("k", type="int")


def test_a_mapping_with_number_keys_is_read_back_if_it_has_a_type(hf, mode):
    state = hf.state("k", type=dict[int, str])
    mode.do(state.set({1: "a"}))
    assert mode.do(state.get()) == {1: "a"}


def test_numbers_count_up_and_down(n, mode):
    assert mode.do(n.increment()) == 1
    assert mode.do(n.increment(2.5)) == 3.5
    assert mode.do(n.decrement(0.5)) == 3
    assert mode.do(n.decrement()) == 2


def test_a_missing_number_counts_from_zero(hf, mode):
    assert mode.do(hf.state("absent").increment(3)) == 3
    assert mode.do(hf.state("other").decrement()) == -1


def test_merge_sets_fields_and_keeps_the_others(hf, mode):
    state = hf.state("settings", initial={"a": 1})
    assert mode.do(state.merge({"b": 2})) == {"a": 1, "b": 2}
    assert mode.do(state.merge({"a": 3})) == {"a": 3, "b": 2}
    assert mode.do(hf.state("fresh").merge({"x": None})) == {"x": None}


def test_lists_are_appended_at_the_end_and_removed_from_both_ends(hf, mode):
    state = hf.state("jobs")
    assert mode.do(state.append("a")) == ["a"]
    mode.do(state.append({"n": 2}))
    mode.do(state.append("c"))
    assert mode.do(state.remove_first()) == "a"
    assert mode.do(state.remove_last()) == "c"
    assert mode.do(state.get()) == [{"n": 2}]


def test_removing_from_an_empty_list_returns_none_and_writes_nothing(plan, hf, mode):
    state = hf.state("jobs")
    assert mode.do(state.remove_first()) is None
    assert mode.do(state.remove_last()) is None
    assert plan.count(SwapSlot) == 0


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda s: s.increment(), "holds str, not a number"),
        (lambda s: s.merge({}), "holds str, not an object"),
        (lambda s: s.append(1), "holds str, not a list"),
        (lambda s: s.remove_last(), "holds str, not a list"),
    ],
)
def test_an_operation_on_another_kind_of_value_is_refused_and_changes_nothing(hf, mode, call, why):
    state = hf.state("s", initial="text")
    with pytest.raises(InvalidValue, match=why):
        mode.do(call(state))
    assert mode.do(state.get()) == "text"


def test_a_boolean_is_not_a_number(hf, mode):
    with pytest.raises(InvalidValue, match="holds bool"):
        mode.do(hf.state("s", initial=True).increment())
    with pytest.raises(InvalidOption, match="take a number"):
        mode.do(hf.state("n").increment("1"))
    with pytest.raises(InvalidOption, match="a dictionary"):
        mode.do(hf.state("n").merge([1]))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "it is nan"),
        ({"a": [1, float("inf")]}, r"a\[1\] is inf"),
        ({1: "x"}, "key that is not text"),
        ({"a": {"b": object()}}, r"a\.b is of type object"),
        (b"bytes", "is of type bytes"),
        (datetime(2026, 1, 1, tzinfo=UTC), "is of type datetime, .* or pass its type"),
        ({1, 2}, "is of type set"),
        (2**64, "beyond 64 bits"),
        ("\ud800", "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ("x" * 1_100_000, "1,048,576"),
    ],
)
def test_a_value_that_json_cannot_hold_is_refused_with_its_path(n, mode, value, why):
    with pytest.raises(InvalidValue, match=why):
        mode.do(n.set(value))
    with pytest.raises(InvalidValue, match=why):
        mode.do(n.update(lambda _: value))
    assert mode.do(n.get()) == 0


def test_a_value_that_contains_itself_is_refused(n, mode):
    knot = []
    knot.append(knot)
    with pytest.raises(InvalidValue, match="contains itself"):
        mode.do(n.set(knot))


@dataclass
class Seat:
    row: int
    taken_at: datetime | None = None


def test_a_value_is_read_as_the_type_of_the_state(hf, mode):
    seat = hf.state("seat", initial=Seat(1), type=Seat)
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert mode.do(seat.get()) == Seat(1)
    assert mode.do(seat.update(lambda s: Seat(s.row + 1, when))) == Seat(2, when)
    assert mode.do(seat.get()) == Seat(2, when)
    assert mode.do(hf.state("seat").get()) == {"row": 2, "taken_at": "2026-01-02T00:00:00Z"}


def test_a_value_of_a_wrong_type_is_refused_when_written_and_when_read(hf, mode):
    with pytest.raises(InvalidValue, match="not int"):
        mode.do(hf.state("k", type=int).set("text"))
    mode.do(hf.state("k").set("text"))
    with pytest.raises(InvalidValue, match="holds something that is not int"):
        mode.do(hf.state("k", type=int).get())


def test_an_asynchronous_function_is_refused(n, mode):
    async def fetch(value):
        return value

    with pytest.raises(InvalidOption, match="sync function"):
        mode.do(n.update(fetch))


@pytest.mark.parametrize("key", ["", "x" * 600, "a\nb"])
def test_a_bad_key_is_refused(hf, key):
    with pytest.raises(InvalidKey):
        hf.state(key)
    with pytest.raises(InvalidKey):
        hf.state.workflow(key, "k")
    with pytest.raises(InvalidKey):
        hf.state.execution(key, "k")


@pytest.mark.parametrize("retries", [-1, 1.5, True, None])
def test_a_bad_number_of_retries_is_refused(hf, retries):
    with pytest.raises(InvalidOption, match="max_retries"):
        hf.state("n", max_retries=retries)


def test_the_slots_of_workflows_are_addressed_by_name(hf, mode):
    mode.do(hf.state.workflow("transfer", "k", initial=0).increment())
    mode.do(hf.state.execution("run-1", "k", initial=0).increment(5))
    assert mode.do(hf.state.workflow("transfer", "k").get()) == 1
    assert mode.do(hf.state.execution("run-1", "k").get()) == 5
    assert mode.do(hf.state("k").get()) is None
    assert repr(hf.state.workflow("transfer", "k")).endswith("'k' of workflow 'transfer'>")


def test_a_conflict_is_retried_with_the_current_value(hf, mode, url):
    """Another client writes between this one's read and its write."""
    with Client(url) as other:
        state, seen = hf.state("n", initial=0), []

        def add_ten(value):
            seen.append(value)
            if len(seen) == 1:
                other.state("n", initial=0).increment()
            return value + 10

        assert mode.do(state.update(add_ten)) == 11
        assert seen == [0, 1]


def test_when_the_retries_are_used_up_an_error_is_raised_and_nothing_is_written(hf, mode, url):
    with Client(url) as other:
        state = hf.state("n", initial=0, max_retries=1)
        with pytest.raises(AtomicStateConflictError) as caught:
            mode.do(state.update(lambda _: other.state("n", initial=0).increment() and -1))
        assert (caught.value.key, caught.value.retries, caught.value.retryable) == ("n", 1, True)
        assert mode.do(state.get()) == 2


def test_a_writer_that_lost_several_times_reserves_the_next_write(plan, hf, mode, url):
    """The other client writes as often as it can, and is refused for a moment."""
    with Client(url) as other:
        calls, blocked = 0, []

        def never_first(_value):
            nonlocal calls
            calls += 1
            if calls <= RESERVE_AFTER + 1:
                other.state("n").set(calls)
            else:
                try:
                    other.state("n", max_retries=0).set(calls)
                except AtomicStateConflictError as error:
                    blocked.append(error)
            return "mine"

        mode.do(hf.state("n").update(never_first))
        assert mode.do(hf.state("n").get()) == "mine"
        assert len(blocked) == 1
        assert [command.reserve > 0 for command in plan.sent if isinstance(command, SwapSlot)].count(True) >= 1


def test_a_lost_reply_does_not_count_twice(plan, n, mode):
    for lost in (SwapSlot, ReadSlot, SwapSlot):
        plan.lose_reply_of = lost
        mode.do(n.increment())
    assert plan.lost == ["SwapSlot", "ReadSlot", "SwapSlot"]
    assert mode.do(n.get()) == 3


def test_a_resend_after_a_lost_reply_is_recognised_after_many_other_writes(plan, hf, mode, url):
    with Client(url) as other:
        state = hf.state("n", initial=0)
        plan.lose_reply_of = SwapSlot
        flood(plan, lambda: [other.state("n").increment() for _ in range(200)])
        assert mode.do(state.increment()) == 1
        assert mode.do(state.get()) == 201


def test_a_resend_whose_write_was_removed_from_the_history_is_reported_as_unknown(plan, hf, mode, url):
    """So many other clients wrote in between that the slot no longer knows whether it was made."""
    with Client(url) as other:
        state = hf.state("n", initial=0)
        plan.lose_reply_of = SwapSlot

        def many_clients():
            for _ in range(WRITERS):
                other.runtime.channel = secrets.token_hex(8)
                other.state("n").increment()

        flood(plan, many_clients)
        with pytest.raises(StoreUnavailable, match="is not known") as caught:
            mode.do(state.increment())
        assert caught.value.ambiguous
        assert mode.do(state.get()) == WRITERS + 1


def flood(plan, write):
    """Let other clients write between the loss of a reply and the re-send."""

    def before(_commands):
        if plan.lost:
            plan.before = lambda _commands: None
            write()

    plan.before = before


@on_a_loop
async def test_many_tasks_share_commits_and_lose_nothing(url, plan):
    async with AsyncClient(url) as client:
        state = client.state("n", initial=0)
        answers = await asyncio.gather(*(state.increment() for _ in range(200)))
        assert sorted(answers) == list(range(1, 201))
        writes = [batch for batch in plan.batches if batch]
        assert len(writes) < 150


def test_many_threads_lose_nothing(url):
    with Client(url) as client:

        def work():
            for _ in range(20):
                client.state("n", initial=0).increment()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.state("n").get() == 160


@on_a_loop
async def test_the_result_of_a_function_on_a_speculative_value_that_was_not_written_is_discarded(url):
    """A speculative value that was never written never causes an error or a result."""
    async with AsyncClient(url) as client:
        stock = client.state("stock", initial=10)

        def take(value):
            if value < 1:
                raise ValueError("sold out")
            return value - 1

        results = await asyncio.gather(*(stock.update(take) for _ in range(15)), return_exceptions=True)
        assert sum(isinstance(result, ValueError) for result in results) == 5
        assert await stock.get() == 0


@on_a_loop
async def test_an_exception_of_a_function_on_a_speculative_value_that_was_not_written_is_discarded(url, plan):
    """The write that it was computed from fails: another process was faster."""
    async with AsyncClient(url) as client:
        with Client(url) as other:
            state = client.state("n", initial=0)
            await state.set(0)
            plan.before = lambda commands: (
                (setattr(plan, "before", lambda _: None), other.state("n").set(100))
                if any(isinstance(command, SwapSlot) for command in commands)
                else None
            )

            def refuse_one(value):
                if value == 1:
                    raise ValueError("one is not allowed")
                return value + 1

            first = asyncio.create_task(state.update(lambda value: value + 1))
            await asyncio.sleep(0)
            while not chains_of(client.runtime).tip(("global", "", "n")):
                await asyncio.sleep(0)
            assert await state.update(refuse_one) == 102
            assert await first == 101


@on_a_loop
async def test_a_cancelled_writer_does_not_affect_the_others(url):
    async with AsyncClient(url) as client:
        state = client.state("n", initial=0)
        tasks = [asyncio.create_task(state.increment()) for _ in range(30)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        done = sum(isinstance(result, int) for result in results)
        assert done >= 20
        assert done <= await state.get() <= 30
        assert await state.increment() == await state.get()
