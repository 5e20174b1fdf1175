"""Mutants of the compare-and-swap of the Redis store: what must be unchanged when a decision is written."""

from __future__ import annotations

from .runner import Mutant

RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"
SWAP = "tests/stores/test_redis_swap.py::test_a_decision_is_repeated_when_another_client_changed_its_data"
SWAPS = "tests/stores/test_redis_swap.py::"
WRITING = "stores/redis/writing.py"


def _unchecked(name: str, what: str, case: str) -> Mutant:
    """One of the questions is read and used in a decision, and not compared again."""
    return Mutant(
        name,
        WRITING,
        f"    q.{what},\n",
        "",
        (f"{SWAP}[valkey-{case.replace(' ', '-')}]",),
    )


REDIS_SWAP = [
    _unchecked(
        "a start does not compare the number of admitted runs",
        "GroupSize",
        "the number of admitted runs",
    ),
    _unchecked("a start does not compare the limits", "LimitsOf", "the published limits"),
    _unchecked("a start does not compare its key", "RunByKey", "a run with the same key"),
    _unchecked(
        "newly published limits do not compare the limit keys with a queue",
        "QueuedLimitKeys",
        "a limit key under which a run begins to wait",
    ),
    _unchecked("a state is written over another's write", "SlotAt", "a state"),
    _unchecked("a lock is written over another's write", "LockByKey", "a lock"),
    _unchecked("an end does not compare the first of the queue", "Members", "the first run of a queue"),
    _unchecked(
        "the removal of a worker does not compare its runs",
        "RunsOf",
        "a worker that unregisters gets another run",
    ),
    _unchecked(
        "a start does not compare the latest arrival",
        "LatestArrivals",
        "the position of another run in the queue",
    ),
    _unchecked("a start does not compare the latest start", "LatestStarts", "a start that a limit on starts counts"),
    Mutant(
        "a record does not compare the inbox of its run",
        WRITING,
        "        return zip(*known[question], strict=True)\n",
        "        return list(zip(*known[question], strict=True))[:2]\n",
        (SWAP + "[valkey-an-event-that-a-run-has-not-seen]", SWAP + "[valkey-an-event-with-the-same-key]"),
    ),
    Mutant(
        "a record does not compare its run",
        WRITING,
        "        return zip(*known[question], strict=True)\n",
        "        return list(zip(*known[question], strict=True))[len(known[question][0]) // 3 :]\n",
        (SWAP + "[valkey-the-fence-of-a-run]",),
    ),
    Mutant(
        "a claim does not compare the registered workers",
        "stores/swap.py",
        "if not moved and isinstance(question, RegisteredWorkers):",
        "if isinstance(question, RegisteredWorkers):",
        (SWAP + "[valkey-the-worker-unregisters]",),
    ),
    Mutant(
        "a claim does not compare the lease of its worker",
        "stores/swap.py",
        "if not moved and isinstance(question, LockByKey) and _is_lease",
        "if isinstance(question, LockByKey) and _is_lease",
        (SWAP + "[valkey-the-lease-of-the-worker-ends]",),
    ),
    Mutant(
        "an event is posted again for every new worker",
        "stores/swap.py",
        "if not moved and isinstance(question, RegisteredWorkers):",
        "if moved and isinstance(question, RegisteredWorkers):",
        (SWAPS + "test_data_that_is_read_for_hints_only_may_change_meanwhile[valkey]",),
    ),
    Mutant(
        "the script writes whatever has changed",
        "stores/redis/lua/write.lua",
        '  if not same(reply, read) and not (command[1] == "HGETALL" and same_hash(reply, read)) then',
        "  if false then",
        (SWAP,),
    ),
    Mutant(
        "a run whose fields are returned in another order counts as changed",
        "stores/redis/lua/write.lua",
        ' and not (command[1] == "HGETALL" and same_hash(reply, read)) then',
        " then",
        (SWAPS + "test_the_order_of_a_runs_fields_does_not_matter[valkey]",),
    ),
    Mutant(
        "a hash with as many fields is the same hash",
        "stores/redis/lua/write.lua",
        "    if values[one[place]] ~= one[place + 1] then\n",
        "    if false then\n",
        (SWAPS + "test_the_order_of_a_runs_fields_does_not_matter[valkey]",),
    ),
    Mutant(
        "an old decision is written",
        "stores/redis/lua/write.lua",
        "local STALE = 30000000\n",
        "local STALE = 30000000000\n",
        (SWAPS + "test_a_decision_that_is_half_a_minute_old_is_repeated[valkey]",),
    ),
    Mutant(
        "the read data is not kept for the comparison",
        "stores/batch_view.py",
        "        self.asked |= self._asked\n",
        "",
        (SWAP,),
    ),
    Mutant(
        "a write of another client is taken for one of this client",
        "stores/redis/record_source.py",
        "        if failed:\n",
        "        if failed and False:\n",
        (SWAP,),
    ),
    Mutant(
        "bytes that are no text cannot be compared",
        "stores/redis/record_source.py",
        "    if isinstance(value, bytes):\n        return msgspec.Raw",
        "    if value is NotImplemented:\n        return msgspec.Raw",
        (RUN_FAULTS + "test_a_run_that_is_no_text_does_not_hide_due_runs_after_it[valkey]",),
    ),
    Mutant(
        "the fast path answers after a declined command on the same lock",
        "stores/redis/lua/locks.lua",
        "      declined[key] = true\n",
        "",
        (SWAPS + "test_commands_that_the_fast_path_declines_keep_their_order[valkey]",),
    ),
    Mutant(
        "the fast path answers before a command that is not sent to it",
        "stores/redis/fast_path.py",
        "            left_out.add(command.key)  # type: ignore[attr-defined]\n",
        "            pass\n",
        (SWAPS + "test_commands_of_the_fast_path_wait_for_earlier_commands_of_the_rules[valkey]",),
    ),
    Mutant(
        "the fast path records before a declined hand-over has written its event",
        "stores/redis/lua/entries.lua",
        "if operation == RECORD and not any then",
        "if operation == RECORD then",
        (SWAPS + "test_entries_after_an_offer_to_their_run_return_its_event[valkey]",),
    ),
]
