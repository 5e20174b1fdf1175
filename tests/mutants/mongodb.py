"""Mutants of the MongoDB store: the fault, where it is, and the tests that must notice it."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/stores/test_mongodb.py::"
FENCE = "tests/fencing/test_mongodb.py::"


def adapter(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "stores/mongodb/adapter.py", old, new, caught_by)


MONGODB = [
    Mutant(
        "a collection with a collation is used",
        "stores/mongodb/store.py",
        "if locale := health.collation_of(collection, indexes):",
        "if locale := health.collation_of(collection, indexes)[:0]:",
        (HERE + "test_a_collection_that_takes_different_keys_for_equal_is_refused",),
    ),
    Mutant(
        "a document is replaced whatever its stamp is",
        "stores/mongodb/layout.py",
        'return {"_id": self.id(write.name), "stamp": write.expected or {"$exists": False}}',
        'return {"_id": self.id(write.name)}',
        (HERE + "test_many_that_make_the_same_records_at_once_see_no_duplicate_key",),
    ),
    adapter(
        "the time may be earlier than that of the records",
        "return CasRead(found, max(begun, min(latest, begun + STEP + int(took * MICROSECONDS))))",
        "return CasRead(found, begun)",
        HERE + "test_the_time_is_not_earlier_than_that_of_the_records",
    ),
    adapter(
        "the time follows records from the future",
        "max(begun, min(latest, begun + STEP + int(took * MICROSECONDS)))",
        "max(begun, latest)",
        HERE + "test_a_server_whose_clock_was_set_back_does_not_follow_the_times_of_old_records",
    ),
    adapter(
        "a record that was removed is made again by a late write",
        "upserts = [write.expected is None or not write.name.kind.startswith(RECORDS) for write in writes.values()]",
        "upserts = [True for write in writes.values()]",
        HERE + "test_a_record_that_was_removed_is_not_made_again_by_a_late_write",
    ),
    Mutant(
        "the driver repeats what it sends",
        "stores/mongodb/address.py",
        'FIXED: dict[str, Any] = {"retryWrites": False, "retryReads": False,',
        'FIXED: dict[str, Any] = {"retryWrites": True, "retryReads": True,',
        (HERE + "test_the_driver_sends_nothing_twice_and_asks_a_majority",),
    ),
    Mutant(
        "a lost reply to a write is not ambiguous",
        "stores/mongodb/errors.py",
        'The write may have been made.", ambiguous=True)',
        'The write may have been made.")',
        (HERE + "test_errors_of_the_driver_are_those_of_holdfast",),
    ),
    Mutant(
        "an interrupted client of the driver is kept",
        "stores/mongodb/client.py",
        "        except BaseException:\n            self._discard(client)\n",
        "        except BaseException:\n",
        (HERE + "test_an_interrupted_client_of_the_driver_is_replaced",),
    ),
    Mutant(
        "fenced_update accepts every token",
        "fencing/mongodb.py",
        '{"$lte": offer.token, ',
        '{"$gte": 0, ',
        (FENCE + "test_a_lower_token_is_refused_and_nothing_was_written",),
    ),
    Mutant(
        "fenced_update remembers the token instead of the floor",
        "fencing/mongodb.py",
        "_with_floor(update, offer.floor)",
        "_with_floor(update, offer.token)",
        (FENCE + "test_holders_of_a_semaphore_do_not_shut_each_other_out",),
    ),
]
