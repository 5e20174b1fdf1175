"""Mutants of the workflow runtime: what drives a run, what its code sees, who may go on."""

from __future__ import annotations

from .runner import Mutant

BARRIER = "tests/workflows/test_barrier.py::"
FLOWS = "tests/workflows/test_workflows.py::"
OWNERSHIP = "tests/workflows/test_ownership.py::"
STATE = "tests/workflows/test_run_state.py::"
MISTAKES = "tests/workflows/test_mistakes.py::"

WORKFLOWS = [
    Mutant(
        "a step begins before what was before it is durable",
        "workflow/driver.py",
        "while effects and effects[0][0] <= self._durable and self.end is None and not self._draining:",
        "while effects and self.end is None and not self._draining:",
        (BARRIER + "test_a_step_begins_when_what_was_before_it_is_recorded[memory]",),
    ),
    Mutant(
        "a worker that drains begins further steps",
        "workflow/driver.py",
        "while effects and effects[0][0] <= self._durable and self.end is None and not self._draining:",
        "while effects and effects[0][0] <= self._durable and self.end is None:",
        (MISTAKES + "test_no_step_begins_while_a_worker_drains",),
    ),
    Mutant(
        "ctx works in the body of a step",
        "workflow/code.py",
        "        if current_context.get() is not self.context:\n",
        "        if False:\n",
        (MISTAKES + "test_ctx_in_the_body_of_a_step_is_refused[session]",),
    ),
    Mutant(
        "an exception on the way leaves a run in the air",
        "workflow/driver.py",
        "        except Exception as error:  # as above\n            self._fail(error)\n        self._busy = False\n",
        "        except HoldfastError as error:\n            self._fail(error)\n        self._busy = False\n",
        (MISTAKES + "test_a_fault_of_the_runtime_itself_is_a_failed_run",),
    ),
    Mutant(
        "a worker that drives nothing never looks for what it was given",
        "workflow/worker.py",
        "        worker, driven = self.id, dict(self.drivers)\n",
        "        worker, driven = self.id, dict(self.drivers)\n        if not driven:\n            return\n",
        (MISTAKES + "test_a_claim_whose_answer_was_lost_is_found_by_a_worker_that_drives_nothing_else[memory]",),
    ),
    Mutant(
        "two drivers of one fence give their records the same names",
        "workflow/driver.py",
        "self._mark = secrets.token_hex(4)",
        'self._mark = "" and secrets.token_hex(4)',
        (MISTAKES + "test_a_worker_that_drives_a_run_a_second_time_does_not_repeat_the_names_of_its_records[memory]",),
    ),
    Mutant(
        "a record that found the store away is forgotten",
        "workflow/driver.py",
        "            self.host.later(RETRY_SECONDS, self._send_again)\n",
        "            pass\n",
        (BARRIER + "test_a_record_that_found_the_store_away_is_sent_again_and_nothing_is_begun_meanwhile[memory]",),
    ),
    Mutant(
        "a step with other arguments gets the recorded result",
        "workflow/code.py",
        "        if call.arguments != arguments:\n",
        "        if False:\n",
        (BARRIER + "test_code_that_does_not_follow_its_history_is_told_both_sides",),
    ),
    Mutant(
        "what failed to follow its history leaves entries behind",
        "workflow/driver.py",
        "        self._fresh.clear()\n        self._delivered",
        '        self._fresh.append(\'{"kind":"timer","at":1,"number":1}\')\n        self._delivered',
        (BARRIER + "test_code_that_does_not_follow_its_history_is_told_both_sides",),
    ),
    Mutant(
        "sets of tasks are in the order of memory",
        "workflow/loop.py",
        "        return self._number\n",
        "        return id(self)\n",
        (BARRIER + "test_sets_of_tasks_have_the_same_order_in_every_life[memory]",),
    ),
    Mutant(
        "a driver that is refused goes on",
        "workflow/driver.py",
        '        self.leave("refused")\n',
        "        self._recording = None\n        self._durable += 1\n        self._advance()\n",
        (OWNERSHIP + "test_a_driver_that_is_refused_begins_nothing_more[memory]",),
    ),
    Mutant(
        "an event whose hint was lost is never looked for",
        "workflow/worker.py",
        "            elif posted > driver.seen:  # the hint was lost\n",
        "            elif False:\n",
        (OWNERSHIP + "test_a_signal_without_a_hint_reaches_a_run_that_is_in_memory[memory]",),
    ),
    Mutant(
        "a child is told to stop once whether it is answered or not",
        "workflow/driver.py",
        "                self.host.later(RETRY_SECONDS, lambda: self._tell(word))\n",
        "                self._unanswered -= 1\n                self._flush()\n",
        (OWNERSHIP + "test_a_child_is_told_to_stop_although_the_store_is_away_for_a_while",),
    ),
    Mutant(
        "a cancelled run does not reach its children",
        "workflow/code.py",
        "        for child in list(self._children):\n            self.cancel_child(child)\n",
        "",
        (FLOWS + "test_cancelling_reaches_children_that_nobody_waits_for[memory]",),
    ),
    Mutant(
        "chance is another in every life",
        "workflow/code.py",
        'seed=f"{run.id}:{run.request}:{run.created_at}:{self.attempt}"',
        'seed=f"{id(self)}"',
        (FLOWS + "test_time_and_chance_are_the_same_in_every_life[memory]",),
    ),
    Mutant(
        "the log speaks on replay",
        "workflow/context.py",
        "        return not told and super().isEnabledFor(level)\n",
        "        return super().isEnabledFor(level)\n",
        (FLOWS + "test_the_log_is_silent_on_replay[memory]",),
    ),
    Mutant(
        "failed attempts are forgotten",
        "workflow/driver.py",
        "                self._fresh.append(j.encode_entry(entry))\n"
        "                self._delivered += 1\n"
        "                call.again_at",
        "                call.again_at",
        (BARRIER + "test_failed_attempts_are_counted_across_lives",),
    ),
    Mutant(
        "other things are delivered while a transaction has the journal",
        "workflow/driver.py",
        "        if self.left is not None or self._busy:\n            return\n        self._busy = True\n        code",
        "        if self.left is not None:\n            return\n        self._busy = True\n        code",
        (OWNERSHIP + "test_steps_beside_a_transaction_wait_for_it_and_nothing_is_lost",),
    ),
    Mutant(
        "a change of a state is made again although it was recorded",
        "workflow/slots.py",
        "                self._again(change, answer, lambda: self._send(change, record, entry))\n",
        "                self._again(change, answer, lambda: self._look(change))\n",
        (STATE + "test_a_lost_answer_does_not_change_the_value_twice[memory]",),
    ),
    Mutant(
        "a state is left as it is because of a value that nobody has seen",
        "workflow/slots.py",
        "        if new is None and not base.fresh:\n",
        "        if False:\n",
        (STATE + "test_to_leave_a_state_as_it_is_is_decided_by_what_it_is_now",),
    ),
    Mutant(
        "a run keeps its turn at a state for ever",
        "workflow/slots.py",
        "        self._host.later(0, lambda: self._host.turns.leave(address, tip))\n",
        "        del address, tip\n",
        (STATE + "test_each_method_does_what_it_does_outside[memory]",),
    ),
    Mutant(
        "a child has an execution of its own",
        "workflow/state.py",
        '("execution", self._code.run.root, checked_key(key))',
        '("execution", self._code.run.id, checked_key(key))',
        (STATE + "test_a_run_shares_its_execution_with_its_children_and_a_session_with_nobody[memory]",),
    ),
]
