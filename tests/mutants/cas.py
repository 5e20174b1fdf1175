"""Mutants of the compare-and-swap core: the fault, where it is, and the tests that must notice it."""

from __future__ import annotations

from .runner import Mutant

CAS = "tests/stores/test_cas.py::"
SUITE = "tests/stores/test_dict_adapter.py::TestDictStore::"


def core(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "stores/cas.py", old, new, caught_by)


def group(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "stores/cas_groups.py", old, new, caught_by)


def doubt(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "stores/cas_doubt.py", old, new, caught_by)


def lists(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "stores/cas_lists.py", old, new, caught_by)


CAS_CORE = [
    core(
        "the time of a read in parts is that of its last part",
        "now = max(now, read_now)",
        "now = read_now",
        CAS + "test_the_time_of_a_read_in_parts_is_that_of_the_latest_part",
    ),
    core(
        "clients that lost a race together come back together",
        "time.sleep(random.uniform(0, min(PAUSES[1], PAUSES[0] * 2 ** (tries - 1))))",
        "time.sleep(min(PAUSES[1], PAUSES[0] * 2 ** (tries - 1)))",
        CAS + "test_clients_that_lost_a_race_together_do_not_come_back_together",
    ),
    group(
        "a refused write counts as applied",
        "if sent is not None and result:",
        "if sent is not None and result is not None:",
        CAS + "test_only_the_commands_whose_records_others_changed_are_decided_again",
    ),
    group(
        "a write on a record is not conditional on its stamp",
        "self._sent = SentWrite(None if found is None else found.stamp, stamp,",
        "self._sent = SentWrite(None, stamp,",
        CAS + "test_an_uncontended_pair_takes_three_trips",
    ),
    group(
        "a write without a reply counts as applied",
        "        elif sent is not None and result is None:\n            self._unknown.append(sent)\n",
        "        elif sent is not None and result is None:\n            self._finish(sent)\n",
        CAS + "test_an_acquire_whose_reply_is_lost_is_granted_once",
    ),
    group(
        "a write without a reply counts as refused and is made again",
        "        elif sent is not None and result is None:\n            self._unknown.append(sent)\n",
        "",
        CAS + "test_a_change_of_a_record_is_never_repeated_on_what_another_client_wrote",
        CAS + "test_a_release_that_another_writer_may_have_covered_is_answered_as_unknown",
    ),
    group(
        "the stamp of another writer counts as one's own",
        "(found is not None and found.stamp == tried.stamp)",
        "(found is not None)",
        CAS + "test_a_release_that_was_certainly_not_made_is_made",
    ),
    group(
        "one's own stamp is not recognised",
        "(found is not None and found.stamp == tried.stamp) or ",
        "",
        CAS + "test_a_release_whose_reply_is_lost_is_made_once_and_answered",
    ),
    group(
        "an absent record counts as never written",
        "return not self.name.kind.startswith(RECORDS) and all(",
        "return all(",
        CAS + "test_a_record_that_is_not_there_may_have_been_made_and_removed",
    ),
    group(
        "a forced release is not recognised by its entry",
        "return stored.forced == tried.change.lock.forced",
        "return False",
        CAS + "test_a_forced_release_is_recognised_by_its_entry_in_the_record",
    ),
    doubt(
        "a release by the owner's name is repeated",
        "return command.token is not None",
        "return True",
        CAS + "test_a_release_by_the_owners_name_is_not_repeated_on_a_later_grant",
    ),
    doubt(
        "any command is repeated after a lost reply",
        "return isinstance(command, RECOGNISED)",
        "return True",
        CAS + "test_a_forced_release_is_not_repeated_on_a_holder_that_came_later",
        CAS + "test_a_change_of_a_record_is_never_repeated_on_what_another_client_wrote",
    ),
    doubt(
        "not the holder is said of a release that may have been made",
        "if isinstance(command, NAMED_BY_TOKEN) and isinstance(outcome, NotHolder):",
        "if False:",
        CAS + "test_a_release_that_another_writer_may_have_covered_is_answered_as_unknown",
        CAS + "test_a_transfer_whose_successor_has_released_since_is_answered_as_unknown",
    ),
    core(
        "a decision of any age is written",
        "if elapsed() - since > MAX_AGE:",
        "if False:",
        CAS + "test_a_decision_that_is_too_old_is_thrown_away_and_made_again",
    ),
    core(
        "a renewal without a read uses an upper bound of the time",
        "seen[group.name] = found, bounds.low",
        "seen[group.name] = found, bounds.high",
        CAS + "test_a_renewal_without_a_read_uses_a_lower_bound_of_the_time",
    ),
    core(
        "a renewal without a read revives what may have expired",
        "for now in (bounds.high + self._step, bounds.low):",
        "for now in (bounds.low,):",
        CAS + "test_a_grant_that_may_have_expired_is_not_renewed_by_memory",
    ),
    core(
        "another holder is removed without a read",
        "or _others(own.record, commands) != _others(change.lock, commands)",
        "",
        CAS + "test_another_holder_is_never_removed_by_memory",
    ),
    core(
        "a command is answered by memory although nothing is written",
        "if change is None or change.lock is None or _others(own.record, commands) != _others(change.lock, commands):",
        "if change and change.lock and _others(own.record, commands) != _others(change.lock, commands):",
        SUITE + "test_an_unreadable_record_does_not_affect_other_renewals_of_its_batch",
    ),
    core(
        "the clock is read before the records",
        "        found: dict[CasName, StampedText] = {}\n        now = 0\n",
        "        found: dict[CasName, StampedText] = {}\n        now = 0\n        early = self._now and self._now()\n"
        "        if early:\n            return CasRead(adapter.read(names).found, early)\n",
        CAS + "test_the_time_is_taken_after_the_records",
    ),
    core(
        "a batch that failed after a write is not ambiguous",
        "error.ambiguous = error.ambiguous or self._may_have_written",
        "pass",
        CAS + "test_where_the_record_cannot_be_read_back_the_whole_batch_is_unknown",
    ),
    lists(
        "an entry of the index is believed without reading the record",
        "due = sorted(one for one in moments if one[0] <= read.now)",
        "due = sorted(entries)",
        CAS + "test_entries_of_the_due_index_that_are_outdated_are_not_settled",
    ),
    lists(
        "cleanup removes a lock whatever its stamp is",
        "gone.append(CasWrite(name, None, None, new_stamp(), found[name].stamp))",
        "gone.append(CasWrite(name, None, None, new_stamp(), self._connection.read([name]).found[name].stamp))",
        CAS + "test_cleanup_compares_the_stamp_that_it_decided_by",
    ),
    Mutant(
        "a reading of the clock is used for ever",
        "stores/cas_recent.py",
        "if not 0 <= least <= MAX_AGE:",
        "if least < 0:",
        (CAS + "test_an_old_reading_of_the_clock_is_not_used",),
    ),
]
