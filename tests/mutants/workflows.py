"""Mutants of the workflow runtime: drivers, replay, recorded entries."""

from __future__ import annotations

from .runner import Mutant

BARRIER = "tests/workflows/test_barrier.py::"
FLOWS = "tests/workflows/test_workflows.py::"
OWNERSHIP = "tests/workflows/test_ownership.py::"
STATE = "tests/workflows/test_run_state.py::"
MISTAKES = "tests/workflows/test_user_errors.py::"
ATTEMPTS = "tests/workflows/test_attempts.py::"
POLLING = "tests/workflows/test_polling.py::"
ORDER = "tests/workflows/test_order.py::"
HINTS = "tests/workflows/test_hints.py::"
IO = "tests/workflows/test_io_in_workflows.py::"
FAILURES = "tests/workflows/test_failures.py::"
LIMITS = "tests/workflows/test_limits.py::"
BY_NAME = "tests/workflows/test_starts_by_name.py::"
UNKNOWN_WORKFLOWS = "tests/workflows/test_unknown_workflows.py::"
METHODS = "tests/workflows/test_methods.py::"
RETRYING = "tests/workflows/test_retrying.py::"
PATCHES = "tests/workflows/test_patches.py::"
REPLAY_TOOLS = "tests/workflows/test_replay_tools.py::"
ALL_TASKS = "test_all_tasks_is_refused_in_workflow_code_and_works_everywhere_else"
OF_ANOTHER_ATTEMPT = "test_a_grandchild_with_an_explicit_id_below_a_child_without_is_refused_in_the_next_attempt"
QUERIES = (
    "tests/runtime/test_queries.py::test_a_slow_read_of_an_engine_delays_neither_an_acquire_nor_a_claim_of_its_client"
)
BEFORE_ITS_RECORD = "test_a_restarted_run_that_ended_before_its_first_record_starts_its_children_again"

WORKFLOWS = [
    Mutant(
        "a step begins before what was before it is durable",
        "workflow/recorder.py",
        "        return delivered <= self._durable and max(writes",
        "        return max(writes",
        (BARRIER + "test_a_step_begins_only_when_earlier_results_are_recorded[memory]",),
    ),
    Mutant(
        "a worker that drains begins further steps",
        "workflow/driver.py",
        "        if self._draining or self._children.reclaiming",
        "        if self._children.reclaiming",
        (MISTAKES + "test_no_step_begins_while_a_worker_drains",),
    ),
    Mutant(
        "ctx works in the body of a step",
        "workflow/replay.py",
        "        if current_context.get() is not self.context:\n",
        "        if False:\n",
        (MISTAKES + "test_ctx_in_the_body_of_a_step_is_refused[session]",),
    ),
    Mutant(
        "an unexpected exception leaves a run without an end",
        "workflow/driver.py",
        "except Exception as error:  # as above\n            self._cannot_continue(error)\n        self._busy",
        "except HoldfastError as error:\n            self._cannot_continue(error)\n        self._busy",
        (MISTAKES + "test_an_error_in_the_runtime_itself_blocks_the_run",),
    ),
    Mutant(
        "an idle worker never looks for runs that it was given",
        "workflow/worker.py",
        "        worker, driven = self.id, dict(self.drivers)\n",
        "        worker, driven = self.id, dict(self.drivers)\n        if not driven:\n            return\n",
        (MISTAKES + "test_an_idle_worker_finds_runs_of_a_claim_whose_reply_was_lost[memory]",),
    ),
    Mutant(
        "two drivers with one fence give their records the same ids",
        "workflow/recorder.py",
        "self._mark = secrets.token_hex(4)",
        'self._mark = "" and secrets.token_hex(4)',
        (MISTAKES + "test_a_worker_that_drives_a_run_a_second_time_does_not_repeat_the_names_of_its_records[memory]",),
    ),
    Mutant(
        "a record that found the store away is forgotten",
        "workflow/recorder.py",
        "            self._host.later(RETRY_SECONDS, self._send_again)\n",
        "            pass\n",
        (BARRIER + "test_a_record_is_sent_again_after_an_outage_and_no_step_begins_meanwhile[memory]",),
    ),
    Mutant(
        "a step with other arguments gets the recorded result",
        "workflow/replay.py",
        "        if call.arguments != arguments and self._arguments_as_stored(call) != arguments:\n",
        "        if False:\n",
        (BARRIER + "test_an_error_about_changed_code_shows_the_history_and_the_code",),
    ),
    Mutant(
        "what failed to follow its history leaves entries behind",
        "workflow/recorder.py",
        "if entry is self._kept]\n",
        'if False]\n        self._unsent.append(\'{"kind":"timer","at":1,"number":1}\')\n',
        (BARRIER + "test_an_error_about_changed_code_shows_the_history_and_the_code",),
    ),
    Mutant(
        "sets of tasks are in the order of memory",
        "workflow/loop_futures.py",
        "        return self._number\n",
        "        return id(self)\n",
        (BARRIER + "test_sets_of_tasks_have_the_same_order_in_every_replay[memory]",),
    ),
    Mutant(
        "a driver whose record was refused continues",
        "workflow/driver.py",
        '        self.leave("refused")\n',
        "        self._recorder._under_way = None\n        self._recorder._durable += 1\n        self._advance()\n",
        (OWNERSHIP + "test_a_driver_whose_record_was_refused_begins_no_step[memory]",),
    ),
    Mutant(
        "an event whose hint was lost is never found",
        "workflow/worker.py",
        "            elif posted > driver.seen:  # the notification was lost\n",
        "            elif False:\n",
        (OWNERSHIP + "test_a_signal_without_a_hint_reaches_a_run_that_is_in_memory[memory]",),
    ),
    Mutant(
        "a child is cancelled once although the reply was lost",
        "workflow/children.py",
        "                self._host.later(RETRY_SECONDS, lambda: self._cancel(child, payload))\n",
        "                self._unanswered -= 1\n                self._settled()\n",
        (OWNERSHIP + "test_a_child_is_cancelled_although_the_store_is_unavailable_for_a_while",),
    ),
    Mutant(
        "a cancelled run does not reach its children",
        "workflow/replay.py",
        '        for child in [one for one in self.living_children if self.policy_of(one) != "abandon"]:\n',
        "        for child in ():\n",
        (FLOWS + "test_cancel_ends_children_that_are_not_awaited[memory]",),
    ),
    Mutant(
        "random numbers differ in every replay",
        "workflow/replay.py",
        'seed=f"{seed_of(run, self.forked)}:{self.attempt}"',
        'seed=f"{id(self)}"',
        (FLOWS + "test_time_and_random_numbers_are_the_same_in_every_replay[memory]",),
    ),
    Mutant(
        "the log is written on replay",
        "workflow/context.py",
        "        return not logged and super().isEnabledFor(level)\n",
        "        return super().isEnabledFor(level)\n",
        (FLOWS + "test_the_log_is_silent_on_replay[memory]",),
    ),
    Mutant(
        "failed attempts are forgotten",
        "workflow/driver.py",
        "                self._recorder.append(entry)\n                self._heartbeats.failed(call)\n",
        "                self._heartbeats.failed(call)\n",
        (BARRIER + "test_failed_attempts_are_counted_across_replays",),
    ),
    Mutant(
        "other things are delivered while a transaction has the journal",
        "workflow/driver.py",
        "        if self.left is not None or self._busy:\n            return\n"
        "        if self._block is not None:\n            self._flush()\n",
        "        if self.left is not None:\n            return\n"
        "        if self._block is not None:\n            self._flush()\n",
        (OWNERSHIP + "test_steps_beside_a_transaction_wait_for_it_and_nothing_is_lost",),
    ),
    Mutant(
        "a change of a state is made again although it was recorded",
        "workflow/driver_state.py",
        "                self._retry(change, answer, lambda: self._send(change, record, entry))\n",
        "                self._retry(change, answer, lambda: self._read(change))\n",
        (STATE + "test_a_lost_answer_does_not_change_the_value_twice[memory]",),
    ),
    Mutant(
        "a state is unchanged because of a speculative value",
        "workflow/driver_state.py",
        "        if new is None and not base.fresh:\n",
        "        if False:\n",
        (STATE + "test_an_update_that_changes_nothing_is_decided_by_the_current_value",),
    ),
    Mutant(
        "a run never releases its turn at a state",
        "workflow/driver_state.py",
        "        self._host.later(0, lambda: self._host.turns.leave(address, written))\n",
        "        del address, written\n",
        (STATE + "test_each_state_method_has_the_same_result_as_outside_a_run[memory]",),
    ),
    Mutant(
        "a child has an execution of its own",
        "workflow/context_state.py",
        '("execution", self._code.run.root, checked_key(key))',
        '("execution", self._code.run.id, checked_key(key))',
        (STATE + "test_execution_state_is_shared_with_children_and_session_state_is_not[memory]",),
    ),
    Mutant(
        "a signal ends the pause between two attempts",
        "workflow/pause.py",
        "        if now < self.entry.again_at:\n",
        "        if False:\n",
        (ATTEMPTS + "test_a_signal_during_the_delay_between_attempts_does_not_end_it[memory]",),
    ),
    Mutant(
        "a cancel in the pause between two attempts is left for the next attempt",
        "workflow/pause.py",
        "        if cancelled:\n",
        "        if False:\n",
        (ATTEMPTS + "test_a_cancel_during_the_delay_between_attempts_ends_the_run[memory]",),
    ),
    Mutant(
        "the next attempt begins beside the children of the failed one",
        "workflow/pause.py",
        "        if children:\n",
        "        if False:\n",
        (ATTEMPTS + "test_a_running_child_is_cancelled_and_awaited_before_the_next_attempt[memory-False]",),
    ),
    Mutant(
        "how a child failed in an earlier attempt fails the next one too",
        "workflow/replay.py",
        '                if event.number <= self.earlier and j.read_end(event.payload).status != "completed":\n',
        "                if False:\n",
        (ATTEMPTS + "test_a_failed_child_is_started_again_in_the_next_attempt[memory-True]",),
    ),
    Mutant(
        "a completed child runs again under its id in the next attempt",
        "workflow/children.py",
        '    elif child.status == "completed":\n',
        "    elif False:\n",
        (ATTEMPTS + "test_a_completed_child_with_an_explicit_id_gives_its_result_to_the_next_attempt[memory]",),
    ),
    Mutant(
        "a child that failed in this attempt is started again after a crash",
        "workflow/children.py",
        "    if number <= before.events:\n",
        '    if child.status != "completed":\n',
        (ATTEMPTS + "test_a_child_that_failed_in_this_attempt_is_not_started_again_after_a_crash[sqlite]",),
    ),
    Mutant(
        "a step begins before the child that was started before it",
        "workflow/recorder.py",
        " and max(writes, self._floor) <= self._written\n",
        "\n",
        (BARRIER + "test_a_step_after_a_child_waits_until_the_child_is_recorded[memory]",),
    ),
    Mutant(
        "a poll does not read the store",
        "workflow/recorder.py",
        "        self._polled = 0  # the last timer",
        "        self._polled = 10**9  # the last timer",
        (BARRIER + "test_a_poll_does_not_end_before_the_store_was_read[memory]",),
    ),
    Mutant(
        "a step under a timeout of 0 is begun",
        "workflow/driver.py",
        "        return min(self._code.loop.immediate, default=timer + 1) > timer\n",
        "        return True\n",
        (POLLING + "test_a_step_under_a_timeout_of_0_is_not_begun[memory]",),
    ),
    Mutant(
        "wait_for with a timeout of 0 cancels what it waits for before it began",
        "workflow/loop_futures.py",
        "        if this.done() or not is_poll(sys._getframe(1)):",
        "        if True:",
        (POLLING + "test_a_poll_takes_an_existing_signal_and_ends_if_there_is_none[memory-by_wait_for]",),
    ),
    Mutant(
        "asyncio.wait with a timeout of 0 ends before the store was read",
        "workflow/loop.py",
        "        if delay <= 0 and (code",
        "        if False and (code",
        (POLLING + "test_a_poll_takes_an_existing_signal_and_ends_if_there_is_none[memory-by_asyncio_wait]",),
    ),
    Mutant(
        "a poll is cancelled by one around it, with the signals that it has taken",
        "workflow/loop.py",
        "            if not self._has_within(poll.future, first, behind_shields=poll.patient)\n",
        "            if True\n",
        (
            POLLING
            + "test_signals_that_were_taken_within_a_timeout_of_0_are_not_lost[memory-signals_within_a_gathering]",
        ),
    ),
    Mutant(
        "a poll waits forever for a task that it would not cancel",
        "workflow/loop.py",
        "poll._replace(patient=False)\n",
        "poll\n",
        (POLLING + "test_a_poll_ends_although_a_shielded_task_polls_forever[memory-waited_for]",),
    ),
    Mutant(
        "workflow code gets all tasks in an order of addresses",
        "workflow/loop.py",
        "        if isinstance(events._get_running_loop(), WorkflowLoop):",
        "        if False:",
        (ORDER + ALL_TASKS + "[of_the_running_loop]",),
    ),
    Mutant(
        "all tasks are refused outside of workflow code",
        "workflow/loop.py",
        "        if isinstance(events._get_running_loop(), WorkflowLoop):",
        "        if events._get_running_loop() is not None:",
        (ORDER + ALL_TASKS + "[of_the_running_loop]",),
    ),
    Mutant(
        "a child of another attempt is reported like any other run",
        "workflow/children.py",
        "        if child.parent != parent and child.root == new.root and same_but_for_attempts(child.parent, parent):\n",  # noqa: E501
        "        if False:\n",
        (ATTEMPTS + OF_ANOTHER_ATTEMPT + "[memory-True]",),
    ),
    Mutant(
        "the first attempt of a run below a later attempt does not look for children of other attempts",
        "workflow/replay.py",
        " or is_marked(self.run.id)\n",
        "\n",
        (ATTEMPTS + OF_ANOTHER_ATTEMPT + "[memory-False]",),
    ),
    Mutant(
        "a workflow tries again what a step raised and it gives up on",
        "workflow/failures.py",
        " or (isinstance(error, StepFailed) and error.kind in map(_name, kinds))",
        "",
        (ATTEMPTS + "test_an_exception_that_is_not_retried_ends_the_workflow_also_if_a_step_raises_it[memory-Own]",),
    ),
    Mutant(
        "long reads of an engine go by the connection for commands",
        "workflow/worker_host.py",
        '"queries" if is_long else "commands"',
        '"commands"',
        (QUERIES + "[memory-ListOwnedRuns]",),
    ),
    Mutant(
        "claims wait for long reads",
        "workflow/worker.py",
        "        await self.lock_sweeper.settle()\n",
        "        await self._checking\n        await self.lock_sweeper.settle()\n",
        (QUERIES + "[memory-ListOwnedRuns]",),
    ),
    Mutant(
        "as_completed makes tasks in the order of their coroutines' addresses",
        "workflow/loop.py",
        "        if given is not None:\n",
        "        if False:\n",
        (ORDER + "test_every_replay_has_the_same_order[bare-sqlite]",),
    ),
    Mutant(
        "what gather returns is ordered by its address",
        "workflow/loop.py",
        "        if caller.f_code is GATHERING:\n",
        "        if False:\n",
        (ORDER + "test_every_replay_has_the_same_order[gatherings_and_tasks-sqlite]",),
    ),
    Mutant(
        "asyncio.wait takes futures that are ordered by their addresses",
        "workflow/loop.py",
        "        if caller.f_code is WAIT:\n",
        "        if False:\n",
        (ORDER + "test_futures_that_the_loop_did_not_create_are_refused_with_what_to_write[wait_for_own_futures]",),
    ),
    Mutant(
        "asyncio.as_completed takes futures that are ordered by their addresses",
        "workflow/loop.py",
        "            if caller.f_code is AS_COMPLETED:\n",
        "            if False:\n",
        (ORDER + "test_futures_that_the_loop_did_not_create_are_refused_with_what_to_write[own_futures_as_completed]",),
    ),
    Mutant(
        "a single future that the loop did not create is refused",
        "workflow/loop_futures.py",
        "    if len(futures) > 1 and not all(",
        "    if not all(",
        (ORDER + "test_futures_that_the_loop_did_not_create_are_refused_with_what_to_write[wait_for_own_futures]",),
    ),
    Mutant(
        "the class of a class method is recorded when it is called as Python 3.13 does",
        "workflow/definition.py",
        "isinstance(member, classmethod) and member.__func__ is self for",
        "member is None for",
        (METHODS + "test_neither_instance_nor_class_is_among_the_recorded_arguments[bound_by_python_3_13]",),
    ),
    Mutant(
        "ctx.step does not see the step in a class method of Python 3.13",
        "workflow/definition.py",
        "    if isinstance(function, MethodType) and isinstance(function.__func__, Step):\n",
        "    if False:\n",
        (METHODS + "test_neither_instance_nor_class_is_among_the_recorded_arguments[bound_by_python_3_13]",),
    ),
    Mutant(
        "a class that is an argument of a step is taken for its owner",
        "workflow/definition.py",
        " and self._is_class_method_of(args[0]):",
        ":",
        (METHODS + "test_a_class_that_is_an_argument_is_recorded",),
    ),
    Mutant(
        "a transaction of a failed attempt is executed in the delay",
        "workflow/driver.py",
        "        self._effects.clear()\n        self._transactions.clear()\n\n    # -- steps",
        "        self._effects.clear()\n\n    # -- steps",
        (ATTEMPTS + "test_a_transaction_that_a_failed_attempt_requested_is_not_executed[sqlite]",),
    ),
    Mutant(
        "a run that fails cancels what it never started",
        "workflow/children.py",
        "        never = {new.id for new in self._code.unstarted} | self._code.unclaimed\n",
        "        never = set()\n",
        (ATTEMPTS + "test_a_run_in_an_endless_loop_cancels_no_unrelated_run[memory]",),
    ),
    Mutant(
        "a poll waits for a clock that was set back",
        "workflow/driver.py",
        "            if number <= self._recorder.polled and number in code.loop.immediate and not code.done:\n",
        "            if False:\n",
        (POLLING + "test_a_poll_ends_although_the_clock_was_set_back",),
    ),
    Mutant(
        "a worker does not claim runs after a hint without names",
        "workflow/worker.py",
        "        if runs is None:\n            self._wake.set()\n",
        "",
        (HINTS + "test_a_hint_without_names_makes_a_worker_claim_runs[memory]",),
    ),
    Mutant(
        "a refusal of I/O within a group is not found",
        "workflow/failures.py",
        "        if isinstance(one, BaseExceptionGroup):\n",
        "        if False:\n",
        (IO + "test_io_in_workflow_code_fails_the_run_with_what_to_do[with_nested_groups]",),
    ),
    Mutant(
        "a refusal of I/O is not found behind an error that was raised while it was handled",
        "workflow/failures.py",
        " else one.__context__\n",
        " else None\n",
        (IO + "test_io_in_workflow_code_fails_the_run_with_what_to_do[with_another_error_without_a_cause]",),
    ),
    Mutant(
        "an error that was raised from None is reported as the refusal of I/O before it",
        "workflow/failures.py",
        " or one.__suppress_context__ else",
        " else",
        (IO + "test_an_error_unrelated_to_the_refusal_is_reported_unchanged[from_none]",),
    ),
    Mutant(
        "the causes of an error that is its own cause are followed forever",
        "workflow/failures.py",
        "            continue\n        seen.add",
        "            raise RecursionError\n        seen.add",
        (FAILURES + "test_an_error_that_is_its_own_cause_fails_the_attempt_like_any_other[from_itself]",),
    ),
    Mutant(
        "the nearest base of an exception is not kept",
        "workflow/failures.py",
        "    names = tuple(base.__qualname__ for base in found)\n",
        "    names: tuple[str, ...] = ()\n",
        (FAILURES + "test_an_exception_is_raised_as_its_nearest_known_base_class[OwnError-KeyError]",),
    ),
    Mutant(
        "an exception that cannot be created from a message has no base",
        "workflow/failures.py",
        "issubclass(one, Exception) and not issubclass(one, _NOT_REBUILT))",
        "not issubclass(kind, _NOT_REBUILT) or one is Exception)",
        (FAILURES + "test_an_exception_is_raised_as_its_nearest_known_base_class[UnicodeDecodeError-UnicodeError]",),
    ),
    Mutant(
        "a run is started although a definition is required",
        "workflow/start.py",
        "        elif require_definition:\n",
        "        elif False:\n",
        (BY_NAME + "test_a_start_by_name_before_any_engine_emits_an_event_or_is_refused[sqlite-sync_client]",),
    ),
    Mutant(
        "a run is started within a transaction although a definition is required",
        "workflow/start.py",
        "            self._check_published(new, known, require_definition=require_definition)\n",
        "            self._check_published(new, known, require_definition=False)\n",
        (
            BY_NAME
            + "test_a_start_by_name_before_any_engine_emits_an_event_or_is_refused[sqlite-engine_within_transactions]",
        ),
    ),
    Mutant(
        "the input itself cannot be the key of a limit",
        "workflow/limits.py",
        "given.key != WHOLE_INPUT and not all",
        "not all",
        (LIMITS + "test_the_input_itself_can_be_the_key[memory]",),
    ),
    Mutant(
        "an existing run is reported as of an unknown definition",
        "workflow/start.py",
        "isinstance(workflow, str) and started.fresh and name",
        "isinstance(workflow, str) and name",
        (BY_NAME + "test_the_event_about_an_unknown_definition_is_emitted_only_for_a_new_run[sqlite-engine]",),
    ),
    Mutant(
        "a start within a transaction emits no event about an unknown workflow",
        "workflow/client_runs.py",
        "            run(self._queries.look_for_workers_of(started.run), self._client.runtime.batchers)\n",
        "",
        (
            UNKNOWN_WORKFLOWS
            + "test_a_start_within_a_transaction_also_emits_an_event_if_no_worker_knows_the_workflow[sqlite-COMMIT]",
        ),
    ),
    Mutant(
        "no event is emitted about the unknown workflow of a child",
        "workflow/worker.py",
        "            self._follow(self._queries.look_for_workers(new.id, new.type))\n",
        "            pass\n",
        (UNKNOWN_WORKFLOWS + "test_an_event_is_emitted_if_no_worker_knows_the_workflow_of_a_child[memory]",),
    ),
    Mutant(
        "a cancel that comes with the failure waits for the end of the pause",
        "workflow/driver.py",
        "earlier=self._code.earlier)  # `_in_pause` decides how it begins\n",
        "earlier=self._code.earlier)\n            self.end = Park(again_at)\n",
        (ATTEMPTS + "test_a_cancel_that_arrives_with_the_failure_ends_the_run[memory]",),
    ),
    Mutant(
        "a retry forgets that the run was restarted",
        "workflow/queries.py",
        "restart or (keep == j.beginning(claim.entries) and run.last.startswith(RESTART))",
        "restart",
        (RETRYING + BEFORE_ITS_RECORD + "[cancelled-sqlite]",),
    ),
    Mutant(
        "a run that fails at once forgets that it was restarted",
        "workflow/recorder.py",
        "        self._unsent = [entry for entry in self._unsent if entry is self._kept]\n",
        "        self._unsent = []\n",
        (RETRYING + BEFORE_ITS_RECORD + "[unreadable-sqlite]",),
    ),
    Mutant(
        "a run is revived while its child still cleans up",
        "workflow/queries.py",
        "        if claim.run.living and claim.run.cancelling and is_child_of(claim.run, parent):\n",
        "        if False:\n",
        (
            RETRYING
            + "test_a_run_is_not_retried_while_a_child_that_was_cancelled_with_it_still_cleans_up[memory-restart]",
        ),
    ),
    Mutant(
        "a run that cannot be parked keeps others from being parked",
        "workflow/worker.py",
        "(one for one in self.drivers.values() if one.can_park)",
        "(one for one in self.drivers.values() if one.idle)",
        (FLOWS + "test_a_run_that_cannot_be_parked_does_not_prevent_others_from_being_parked[memory]",),
    ),
    Mutant(
        "a run is restarted while a child of a failed attempt still cleans up",
        "workflow/queries.py",
        "isinstance(entry, j.Left | j.BegunAgain)",
        "isinstance(entry, j.Left)",
        (RETRYING + "test_a_run_is_not_restarted_while_a_child_of_a_failed_attempt_still_cleans_up[memory]",),
    ),
    Mutant(
        "patched ignores the marker in the journal",
        "workflow/patches.py",
        "self._decided = dict.fromkeys(_marked(entries), True)",
        "self._decided: dict[str, bool] = {}",
        (PATCHES + "test_a_new_run_takes_the_new_branch_at_its_first_line_and_after_a_move",),
    ),
    Mutant(
        "patched is true in old histories",
        "workflow/patches.py",
        "self._fresh or not self._code.replaying",
        "True",
        (
            PATCHES + "test_a_run_that_passed_the_place_with_old_code_takes_the_old_branch_to_its_end[memory]",
            PATCHES + "test_a_run_that_was_driven_before_its_marker_was_stored_takes_the_old_branch",
        ),
    ),
    Mutant(
        "a later attempt takes the old branch because an earlier one has a history",
        "workflow/patches.py",
        "len(texts) > run.length or ",
        "",
        (PATCHES + "test_a_later_attempt_takes_the_new_branch_that_an_earlier_one_has_taken",),
    ),
    Mutant(
        "a later attempt decides again, so that an effect is repeated in another branch",
        "workflow/patches.py",
        "first and (self._allowed is None or name in self._allowed)",
        "first",
        (PATCHES + "test_a_later_attempt_takes_the_branch_of_the_attempts_before_it",),
    ),
    Mutant(
        "the marker of an earlier attempt counts",
        "workflow/replay.py",
        "Patches(self, entries[start:], fresh",
        "Patches(self, entries, fresh",
        (PATCHES + "test_an_attempt_that_old_code_began_after_a_rollback_keeps_the_old_branch",),
    ),
    Mutant(
        "a check of a history does not count the next claim",
        "workflow/history_check.py",
        "claims=run.claims + 1",
        "claims=run.claims",
        (REPLAY_TOOLS + "test_a_run_that_old_code_has_driven_and_that_recorded_nothing_takes_the_old_branch",),
    ),
    Mutant(
        "a check of a history does not compare the ends",
        "workflow/history_check.py",
        "        if not run.living:\n            _compare_ends",
        "        if False:\n            _compare_ends",
        (REPLAY_TOOLS + "test_the_end_of_a_failed_run_is_compared_by_the_type_of_its_error",),
    ),
]
