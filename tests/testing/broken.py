"""Stores that break one promise each: the rules in memory, with one deliberate fault.

`FAULTS` names them all; each states which tests of the public suite must detect it. Run by pytest under its own name,
this module is the suite on every one of them; `test_broken.py` does that, and checks what failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast import commands as c
from holdfast.errors import HoldfastError, RecordUnreadable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY
from holdfast.rules.record_type import StoredRecord
from holdfast.stores import open_store
from holdfast.testing import StoreConformance
from holdfast.testing.suite.clients import ClientTests
from holdfast.testing.suite.concurrency import ConcurrencyTests


class Broken:
    """A connection to memory; the faults override a step of it."""

    def __init__(self, store: Any, role: str) -> None:
        self._space = store._space
        self._clock = store._clock
        self._connection = store.connect(role)

    def execute(self, commands: Sequence[c.Command]) -> list[Any]:
        return [self.one(command) for command in commands]

    def one(self, command: c.Command) -> Any:
        with suppress(Exception):  # a bad command has nothing to do with this fault
            command = self.before(command) or command
        outcome = self._connection.execute([command])[0]
        return self.after(command, outcome) or outcome

    def before(self, command: c.Command) -> c.Command | None:
        """The command that is executed instead."""

    def after(self, command: c.Command, outcome: Any) -> Any:
        """The outcome that is returned instead."""

    def close(self) -> None:
        self._connection.close()

    # -- what faults do to records ----------------------------------------------------------------------------

    def record(self, key: str) -> Any:
        return self._space.records.get(key, EMPTY)

    def change(self, key: str, **fields: Any) -> None:
        if key in self._space.records:
            self._space.records[key] = replace(self._space.records[key], **fields)


class ReleasesForAnyone(Broken):
    def before(self, command):
        if isinstance(command, c.Release) and (holders := self.record(command.key).holders):
            return replace(command, id=holders[0].id, token=holders[0].token)
        return None


class TokensFollowTheClockOnly(Broken):
    def before(self, command):
        if isinstance(command, c.Acquire):
            self.change(command.key, fence=0)


class SmallWeightsOvertake(Broken):
    def one(self, command):
        if not isinstance(command, c.Acquire) or not isinstance(command.key, str):
            return super().one(command)
        waiters = self.record(command.key).waiters
        if any(waiter.id == command.id for waiter in waiters):
            return super().one(command)
        self.change(command.key, waiters=(), due_at=None)
        outcome = super().one(command)
        self.change(command.key, waiters=(*waiters, *self.record(command.key).waiters))
        return outcome


class WaitersNeverExpire(Broken):
    def before(self, command):
        return replace(command, waiter_ttl=None) if isinstance(command, c.Acquire) else None


class RenewalsRevive(Broken):
    def before(self, command):
        if isinstance(command, c.Renew):
            now = self._clock()
            self.change(
                command.key,
                holders=tuple(
                    replace(holder, expires_at=max(holder.expires_at or 0, now + 1))
                    for holder in self.record(command.key).holders
                ),
            )


class RenewsByIdOnly(Broken):
    def before(self, command):
        if isinstance(command, c.Renew):
            for holder in self.record(command.key).holders:
                if holder.id == command.id:
                    return replace(command, token=holder.token)
        return None


class OneFailureFailsTheOthers(Broken):
    def execute(self, commands):
        outcomes = super().execute(commands)
        if any(isinstance(outcome, c.Failed) for outcome in outcomes):
            return [c.Failed(error=HoldfastError("rolled back")) for _ in outcomes]
        return outcomes


class ResendsAreGrantedAgain(Broken):
    count = 0

    def before(self, command):
        if isinstance(command, c.Acquire) and any(h.id == command.id for h in self.record(command.key).holders):
            ResendsAreGrantedAgain.count += 1
            return replace(command, id=f"{command.id}again{ResendsAreGrantedAgain.count}")
        return None


class SwapsWithoutComparing(Broken):
    def before(self, command):
        if isinstance(command, c.SwapSlot):
            seen = self._connection.execute([c.ReadSlot(address=command.address)])[0]
            return replace(command, expected=seen.last, version=seen.version)
        return None


class SwapsTwice(Broken):
    """A write that is sent again counts as another write."""

    def before(self, command):
        if isinstance(command, c.SwapSlot):
            client, _, number = command.request.partition(".")
            SwapsTwice.count = getattr(SwapsTwice, "count", 0) + 1
            return replace(command, request=f"{client}.{int(number) + 1_000_000 * SwapsTwice.count}")
        return None


class CleanupRemovesAFenceAhead(Broken):
    def before(self, command):
        return replace(command, retention=-(10**18)) if isinstance(command, c.Cleanup) else None


class OffersForTheFullTtl(Broken):
    def after(self, command, outcome):
        for key, record in list(self._space.records.items()):
            if any(holder.offered and holder.expires_at is not None for holder in record.holders):
                self.change(
                    key,
                    holders=tuple(replace(h, expires_at=None, ttl=None) if h.offered else h for h in record.holders),
                )


class ListingSkipsAKey(Broken):
    def after(self, command, outcome):
        if isinstance(outcome, c.LockPage) and len(outcome.items) > 1:
            return replace(outcome, items=(outcome.items[0], *outcome.items[2:]))
        return None


class PagesEndEarly(Broken):
    def after(self, command, outcome):
        return replace(outcome, next=None) if isinstance(outcome, c.LockPage) else None


class AbandonedAttemptsAcquireAgain(Broken):
    def after(self, command, outcome):
        if isinstance(outcome, out.Abandoned):
            self.change(command.key, tombstones=())


class InspectWrites(Broken):
    def before(self, command):
        if isinstance(command, c.Inspect):
            self._connection.execute([c.Settle(key=command.key)])


class RemovedRecordsStay(Broken):
    def one(self, command):
        if not isinstance(command, c.RecordCommand):
            return super().one(command)
        before = self._space.typed.get(command.record_type.name, command.key) if type(command.key) is str else None
        outcome = super().one(command)
        if before and self._space.typed.get(command.record_type.name, command.key) is None:
            self._space.typed.put(command.record_type.name, command.key, before)
        return outcome


class DueTimesAreNotUpdated(Broken):
    def one(self, command):
        if not isinstance(command, c.RecordCommand) or type(command.key) is not str:
            return super().one(command)
        name = command.record_type.name, command.key
        before = self._space.typed.get(*name)
        outcome = super().one(command)
        if before and (after := self._space.typed.get(*name)):
            self._space.typed.put(*name, after._replace(due_at=before.due_at))
        return outcome


class ChangesOfRecordsAreLost(Broken):
    """What is read and what is written are two steps, and nothing is compared."""

    def one(self, command):
        if not isinstance(command, c.RecordCommand) or type(command.key) is not str:
            return super().one(command)
        name = command.record_type.name, command.key
        with self._space.mutex:
            before = self._space.typed.get(*name)
        outcome = super().one(command)
        with self._space.mutex:
            after = self._space.typed.get(*name)
        time.sleep(0.001)
        with self._space.mutex:
            if before != after:
                self._space.typed.put(*name, after)
        return outcome


class UnreadableRecordsAreEmpty(Broken):
    def before(self, command):
        if isinstance(command, c.RecordCommand):
            stored = self._space.typed.get(command.record_type.name, command.key)
            try:
                command.record_type.decode("", stored.text if stored else "{}")
            except RecordUnreadable:
                self._space.typed.put(command.record_type.name, command.key, None)


class ListsOfRecordsEndEarly(Broken):
    def after(self, command, outcome):
        return replace(outcome, next=None) if isinstance(outcome, c.RecordPage) else None


class NoHints:
    def __init__(self, *_: Any) -> None:
        self.closed = False

    def expect(self, id: str, *, eager: bool) -> None: ...

    def forget(self, id: str) -> None: ...

    def close(self) -> None: ...


class BrokenStore:
    """A store in memory whose connections are broken."""

    def __init__(self, store: Any, connect: Callable[[Any, str], Any], watch: Callable[..., Any] | None = None) -> None:
        self._store, self._connect = store, connect
        if watch is not None:
            self.watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def connect(self, role: str) -> Any:
        return self._connect(self._store, role)


class Fault(NamedTuple):
    """One fault, and some of the tests that must detect it."""

    connection: type[Broken]
    caught_by: tuple[str, ...]
    watch: Callable[..., Any] | None = None
    namespaces: bool = True


FAULTS = {
    "a release by anyone": Fault(
        ReleasesForAnyone,
        (
            "test_a_renewal_or_release_with_a_wrong_token_or_id_changes_nothing",
            "test_a_release_sent_again_does_not_affect_the_next_holder",
        ),
    ),
    "a token that does not rise": Fault(
        TokensFollowTheClockOnly,
        ("test_tokens_rise_strictly_also_within_one_moment", "test_tokens_rise_also_when_the_clock_is_set_back"),
    ),
    "overtaking the queue": Fault(
        SmallWeightsOvertake, ("test_a_small_weight_does_not_overtake_a_large_one_at_the_head_of_the_queue",)
    ),
    "a waiter that never expires": Fault(
        WaitersNeverExpire,
        (
            "test_a_waiter_without_a_sign_of_life_loses_its_position",
            "test_an_unconfirmed_offer_goes_to_the_first_waiter_that_sends_a_command",
        ),
    ),
    "a renewal that revives": Fault(
        RenewalsRevive,
        ("test_a_renewal_at_the_moment_of_expiry_is_refused_even_without_a_waiter",),
    ),
    "a renewal under any token": Fault(
        RenewsByIdOnly, ("test_a_renewal_or_release_with_a_wrong_token_or_id_changes_nothing",)
    ),
    "a failure that fails the others of its batch": Fault(
        OneFailureFailsTheOthers,
        (
            "test_one_bad_command_fails_alone",
            "test_a_bad_command_does_not_affect_other_commands_on_the_same_key",
            "test_a_bad_write_fails_alone",
            "test_a_value_that_cannot_be_stored_fails_alone",
        ),
    ),
    "a second grant for a lost reply": Fault(
        ResendsAreGrantedAgain,
        (
            "test_an_acquire_sent_again_returns_the_same_grant",
            "test_an_acquire_of_a_mutex_sent_again_is_not_refused_by_its_own_grant",
        ),
    ),
    "a swap without comparing": Fault(
        SwapsWithoutComparing,
        (
            "test_a_write_based_on_an_older_write_is_a_conflict_and_changes_nothing",
            "test_threads_that_increment_a_slot_lose_no_update",
        ),
    ),
    "a swap that is made twice": Fault(SwapsTwice, ("test_a_swap_sent_again_is_made_once_and_confirmed_twice",)),
    "a cleanup that forgets a fence ahead of the clock": Fault(
        CleanupRemovesAFenceAhead,
        (
            "test_cleanup_keeps_a_record_whose_fence_is_ahead_of_the_clock",
            "test_cleanup_keeps_a_key_that_was_used_recently",
        ),
    ),
    "an offer for the full ttl": Fault(
        OffersForTheFullTtl,
        (
            "test_an_unconfirmed_offer_goes_to_the_first_waiter_that_sends_a_command",
            "test_an_expired_offer_cannot_be_confirmed",
        ),
    ),
    "no hints": Fault(
        Broken,
        (
            "test_a_release_hints_the_next_waiter",
            "test_attempts_that_a_command_wakes_are_hinted_on_their_channel",
            "test_hints_of_a_command_are_sent_even_if_no_record_changes",
        ),
        watch=NoHints,
    ),
    "a record that cannot be removed": Fault(
        RemovedRecordsStay, ("test_a_record_is_created_changed_read_by_other_clients_and_removed",)
    ),
    "a due time that is not updated": Fault(
        DueTimesAreNotUpdated, ("test_records_that_are_due_are_found_by_their_time",)
    ),
    "a record that is written without comparing": Fault(
        ChangesOfRecordsAreLost, ("test_threads_that_change_one_record_lose_no_change",)
    ),
    "a record that is unreadable and taken for none": Fault(
        UnreadableRecordsAreEmpty, ("test_an_unreadable_record_is_refused_by_name_and_left_unchanged",)
    ),
    "lists of records that end early": Fault(ListsOfRecordsEndEarly, ("test_pages_of_records_come_in_order_and_end",)),
    "a listing that skips a key": Fault(ListingSkipsAKey, ("test_pages_come_in_order_and_end",)),
    "pages that end early": Fault(PagesEndEarly, ("test_a_list_of_many_keys_is_complete",)),
    "an abandoned attempt that acquires again": Fault(
        AbandonedAttemptsAcquireAgain, ("test_an_abandoned_attempt_cannot_come_back_for_one_ttl",)
    ),
    "a look that writes": Fault(InspectWrites, ("test_inspect_returns_a_settled_record_and_writes_nothing",)),
    "one namespace for all": Fault(Broken, ("test_namespaces_do_not_see_each_other",), namespaces=False),
}
SOUND = "sound"
"""The same harness without a fault."""


def suite_for(name: str, broken_by: Fault) -> type:
    class Suite(StoreConformance):
        histories = 10
        patience = 0.3
        rounds = 8

        def url(self, folder):
            return f"memory://{folder}"

        def open(self, url, *, namespace, clock):
            store = open_store(url, namespace=namespace if broken_by.namespaces else "default", clock=clock)
            return BrokenStore(store, broken_by.connection, broken_by.watch)

        def plant_record(self, url, namespace, kind, key, text):
            store = open_store(url, namespace=namespace)
            store._space.typed.put(kind, key, StoredRecord(text, 1))
            store.close()
            return True

    if name != SOUND:  # slow tests run only for the faults that they must detect
        for test in {*vars(ClientTests), *vars(ConcurrencyTests)} - set(broken_by.caught_by):
            if test.startswith("test_"):
                setattr(Suite, test, None)
    Suite.__name__ = Suite.__qualname__ = "Test_" + name.replace(" ", "_")
    return Suite


globals().update(
    {
        suite.__name__: suite
        for suite in (suite_for(*broken_by) for broken_by in {SOUND: Fault(Broken, ()), **FAULTS}.items())
    }
)
