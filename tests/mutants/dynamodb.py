"""Mutants of the DynamoDB store and of its fence: the fault, where it is, and the test that must notice it."""

from __future__ import annotations

from .runner import Mutant

CLOCKS = "tests/stores/test_dynamodb_clocks.py::"
ADAPTER = "tests/stores/test_dynamodb_adapter.py::"
TABLE = "tests/stores/test_dynamodb_table.py::"
FENCE = "tests/fencing/test_dynamodb.py::"
NEVER_BOTH = CLOCKS + "test_clients_whose_clocks_differ_by_the_skew_never_hold_at_the_same_time"
HOUR_APART = CLOCKS + "test_with_clocks_an_hour_apart_a_holder_is_replaced_only_when_it_was_seen_unchanged_for_its_ttl"


def clocks(name: str, old: str, new: str, caught_by: str) -> Mutant:
    return Mutant(name, "stores/dynamodb/clocks.py", old, new, (caught_by,))


def connection(name: str, old: str, new: str, caught_by: str) -> Mutant:
    return Mutant(name, "stores/dynamodb/connection.py", old, new, (ADAPTER + caught_by,))


def fence(name: str, old: str, new: str, caught_by: str) -> Mutant:
    return Mutant(name, "fencing/dynamodb.py", old, new, (FENCE + caught_by,))


DYNAMODB = [
    *(
        Mutant(name, "stores/dynamodb/connection.py", old, new, (f"tests/stores/test_dynamodb_throttling.py::{test}",))
        for name, old, new, test in (
            (
                "throttling is not bounded by the deadline of the caller",
                "THROTTLED_SECONDS = 0.3",
                "THROTTLED_SECONDS = 5.0",
                "test_a_caller_whose_requests_are_throttled_waits_no_longer_than_it_wanted",
            ),
            (
                "each throttled write of a batch is repeated for as long as a single one",
                "partial(self._write, give_up=patience())",
                "lambda one: self._write(one, give_up=patience())",
                "test_a_large_batch_that_is_throttled_fails_as_fast_as_a_small_one",
            ),
            (
                "the requests of a batch are sent one after the other",
                "        return list(self._pool.map(call, given))",
                "        return [call(one) for one in given]",
                "test_the_writes_of_a_batch_are_under_way_at_the_same_time",
            ),
            (
                "clients that were throttled together come back together",
                "    time.sleep(random.uniform(pause / 2, pause))",
                "    time.sleep(pause)",
                "test_clients_that_were_throttled_together_do_not_come_back_together",
            ),
        )
    ),
    Mutant(
        "the skew is subtracted from the time instead of added to what is stored",
        "stores/dynamodb/store.py",
        "    return CasStore(DynamoService(address_of_url(url), namespace, clock, url=redacted(url)), clock=clock)\n",
        "    service = DynamoService(address_of_url(url), namespace, clock, url=redacted(url))\n"
        "    service.adjusted = lambda command: command\n"
        "    return CasStore(service, clock=lambda: clock() - (service._settings.skew if service._settings else 0))\n",
        (NEVER_BOTH,),
    ),
    clocks(
        "the skew is not added to anything",
        "return replace(command, **longer) if longer else command",
        "return command",
        NEVER_BOTH,
    ),
    clocks(
        "the skew is added to the ttl of holders only",
        'LENGTHS = ("ttl", "waiter_ttl", "delay")',
        'LENGTHS = ("ttl",)',
        CLOCKS + "test_the_skew_is_part_of_every_stored_length_and_expiry",
    ),
    clocks(
        "a renewal is not observed",
        "return replace(one, expires_at=ends(part, one.id, *entry, length, one.expires_at, length=length))",
        "return replace(one, expires_at=ends(part, one.id, *entry, length, length=length))",
        HOUR_APART,
    ),
    clocks(
        "a stored time is trusted although clocks may differ",
        "            return now + max(0, min(left, length - 1))",
        "            return entry[-1]",
        HOUR_APART,
    ),
    clocks(
        "a renewal at the moment of the first look is not written",
        "max(0, min(left, length - 1))",
        "max(0, left)",
        CLOCKS + "test_a_renewal_is_written_also_at_the_moment_at_which_the_entry_is_seen_first",
    ),
    clocks(
        "the writes of observers look like renewals",
        "known[one.id][1] if one.id in known and known[one.id][0] == one else one",
        "one",
        CLOCKS + "test_the_writes_of_observers_do_not_look_like_renewals",
    ),
    clocks(
        "an entry is observed from the last look, not from the first",
        "since = self._since.setdefault(entry, at)",
        "since = self._since[entry] = at",
        HOUR_APART,
    ),
    connection(
        "on DynamoDB the clock is read before the records",
        '        """Read the items, and then the clock."""\n',
        '        """Read the items, and then the clock."""\n'
        "        now = self._clock()\n        self._clock = lambda: now\n",
        "test_the_time_is_read_after_the_reply",
    ),
    connection(
        "one's own stamp in a refused write counts as a lost race",
        "return bool(item) and stored(item).stamp == write.stamp",
        "return False",
        "test_a_write_that_is_there_already_counts_as_applied",
    ),
    connection(
        "a write whose reply is lost counts as not applied",
        "return None if made.ambiguous else made",
        "return made",
        "test_a_write_whose_reply_is_lost_is_unknown_and_sent_once",
    ),
    connection(
        "a write whose reply is lost is sent again",
        "if code_of(error) not in THROTTLED or",
        "if connection_was_closed(error):\n                    continue\n"
        "                if code_of(error) not in THROTTLED or",
        "test_a_write_whose_reply_is_lost_is_unknown_and_sent_once",
    ),
    connection(
        "a write on DynamoDB is not conditional",
        'condition: dict[str, Any] = {"ConditionExpression": f"attribute_not_exists({PARTITION})"}',
        "condition: dict[str, Any] = {}",
        "test_a_write_is_applied_only_if_the_stamp_is_the_expected_one",
    ),
    connection(
        "keys that a read left out are taken for absent",
        'asked = answer.get("UnprocessedKeys")',
        "asked = None",
        "test_keys_that_a_read_left_out_are_read_again",
    ),
    connection(
        "a page of DynamoDB begins with the last key of the page before",
        "and key > after",
        "and key >= after",
        "test_a_page_has_the_keys_with_the_prefix_after_the_last_one",
    ),
    Mutant(
        "the namespace is not escaped in the partition key",
        "stores/dynamodb/layout.py",
        """{namespace.replace('%', '%25').replace('#', '%23')}""",
        "{namespace}",
        (ADAPTER + "test_the_keys_of_a_person_at_night_are_those_of_the_layout",),
    ),
    Mutant(
        "long keys are cut",
        "stores/dynamodb/layout.py",
        "hashlib.sha256(whole).hexdigest()",
        "'0' * 64",
        (ADAPTER + "test_keys_that_are_longer_than_a_sort_key_are_distinct",),
    ),
    Mutant(
        "a client with another skew is let in",
        "stores/dynamodb/table.py",
        "if address.skew not in (None, found.skew):",
        "if False:",
        (TABLE + "test_a_client_with_other_settings_than_those_of_the_table_is_refused",),
    ),
    Mutant(
        "an answer of a failed server counts as refused",
        "stores/dynamodb/errors.py",
        "if status >= _FIRST_SERVER_ERROR or not status:",
        "if not status:",
        (ADAPTER + "test_each_error_of_a_write_is_certain_or_unknown",),
    ),
    fence(
        "the fence on DynamoDB lets everybody through",
        " OR {_NAME} <= {_FLOOR})",
        " OR {_NAME} >= {_FLOOR} OR {_NAME} < {_FLOOR})",
        "test_a_lower_token_is_refused_and_nothing_was_written",
    ),
    fence(
        "the fence on DynamoDB lets a token through only once",
        " OR {_NAME} <= {_FLOOR})",
        " OR {_NAME} < {_FLOOR})",
        "test_a_higher_token_and_the_same_pass_and_the_floor_is_remembered",
    ),
    fence(
        "the fence on DynamoDB remembers tokens, not floors",
        "    floor = offer.floor\n    while True:",
        "    floor = offer.token\n    while True:",
        "test_holders_of_a_semaphore_do_not_shut_each_other_out",
    ),
    fence(
        "a read does not raise the fence",
        '"UpdateExpression": f"SET {fence.update}", ',
        '"UpdateExpression": "SET holdfast_read = :holdfast_floor", ',
        "test_a_read_behind_the_fence_shuts_out_older_holders",
    ),
]
