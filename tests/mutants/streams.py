"""Mutants of the streams of runs."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestMemory::"
STREAMS = "tests/workflows/test_streams.py::"
PACE = "tests/workflows/test_stream_pace.py::"

STREAM_RULES = [
    Mutant(
        "a worker that lost the run writes to its stream",
        "rules/runs/streams.py",
        '    if found is None or found.status != "running" or found.fence != fence:\n',
        '    if found is None or found.status != "running":\n',
        (SUITE + "test_a_worker_that_lost_the_run_writes_nothing",),
    ),
    Mutant(
        "an attempt of a step writes after a later one",
        "rules/runs/streams.py",
        "    if present.fence == fence and present.serial > serial:\n",
        "    if False:\n",
        (SUITE + "test_an_attempt_that_is_over_or_was_followed_by_another_writes_nothing",),
    ),
    Mutant(
        "an attempt that has begun a stream goes on after a later one has written to another stream",
        "rules/runs/streams.py",
        "    if present.fence == fence and present.serial > serial:\n",
        "    if present.fence == fence and present.serial > serial and number == 0:\n",
        (SUITE + "test_an_attempt_that_was_followed_by_another_writes_to_no_stream_of_the_run",),
    ),
    Mutant(
        "attempts of two drivers of a run are compared",
        "rules/runs/streams.py",
        "    if present.fence == fence and present.serial > serial:\n",
        "    if present.serial > serial:\n",
        (SUITE + "test_attempts_are_compared_under_one_fence_only",),
    ),
    Mutant(
        "a purge leaves the records of steps that have written",
        "rules/runs/purging.py",
        "    streams.KIND: (STREAM_CHUNK, STREAM, STREAM_STEP),\n",
        "    streams.KIND: (STREAM_CHUNK, STREAM),\n",
        (SUITE + "test_a_purge_removes_the_streams_of_a_run",),
    ),
    Mutant(
        "an attempt writes after its end",
        "rules/runs/streams.py",
        "    if writer.over or number > writer.written:\n",
        "    if number > writer.written:\n",
        (SUITE + "test_an_attempt_that_is_over_or_was_followed_by_another_writes_nothing",),
    ),
    Mutant(
        "items of a batch that is sent again are added twice",
        "rules/runs/streams.py",
        "    fresh = tuple(values[writer.written - number :])\n",
        "    fresh = tuple(values)\n",
        (SUITE + "test_a_write_that_is_sent_again_adds_what_is_missing",),
    ),
    Mutant(
        "the stream of a run is shared with the run that replaces it",
        "rules/runs/record.py",
        'return f"{without_generation(run.id) if run.replaced_by else run.id}@{run.first}"',
        "return without_generation(run.id)",
        (SUITE + "test_a_run_that_replaces_another_begins_an_empty_stream",),
    ),
    Mutant(
        "an imported run shares the streams of the run whose id its own begins with",
        "rules/runs/record.py",
        'return f"{without_generation(run.id) if run.replaced_by else run.id}@{run.first}"',
        'return f"{without_generation(run.id)}@{run.first}"',
        (
            "tests/workflows/test_importing.py::test_the_import_of_a_replaced_run_shares_nothing_with_the_run_of_that_id[sqlite]",
        ),
    ),
    Mutant(
        "a kept run loses its stream",
        "rules/runs/record.py",
        'return f"{without_generation(run.id) if run.replaced_by else run.id}@{run.first}"',
        'return f"{run.id}@{run.first}"',
        (SUITE + "test_a_run_that_replaces_another_begins_an_empty_stream",),
    ),
    Mutant(
        "a purge leaves the chunks of streams",
        "rules/runs/purging.py",
        "    streams.KIND: (STREAM_CHUNK, STREAM, STREAM_STEP),\n",
        "    streams.KIND: (STREAM, STREAM_STEP),\n",
        (SUITE + "test_a_purge_removes_the_streams_of_a_run",),
    ),
    Mutant(
        "a reader is not told that items are not kept any more",
        "rules/runs/streams.py",
        "    if start < head.first:\n",
        "    if False:\n",
        (SUITE + "test_the_oldest_items_of_a_long_stream_are_removed_and_their_reader_is_told",),
    ),
    Mutant(
        "a reader is not notified of items",
        "rules/runs/streams.py",
        "    return _written(head, _woken(before, now) if fresh else ())\n",
        "    return _written(head)\n",
        (SUITE + "test_a_reader_is_notified_of_new_items_and_of_the_end",),
    ),
    Mutant(
        "a reader that waits is not notified of the end",
        "rules/runs/streams.py",
        "        watchers = (*watchers, id)\n",
        "        pass\n",
        (SUITE + "test_a_reader_is_notified_of_new_items_and_of_the_end",),
    ),
]

STREAMING = [
    Mutant(
        "a result is recorded before the items of its attempt are stored",
        "workflow/step_runner.py",
        "            self._streams.close(call, partial(self._streams_stored, call, body))\n",
        "            self._streams.close(call, lambda _: None)\n            self._streams_stored(call, body, None)\n",
        (STREAMS + "test_what_an_attempt_wrote_is_stored_before_its_result_is_recorded_and_before_the_run_ends",),
    ),
    Mutant(
        "a run ends before the items of its steps are stored",
        "workflow/driver.py",
        "        return self.end is not None and not self._children.busy and not self._steps.streaming\n",
        "        return self.end is not None and not self._children.busy\n",
        (STREAMS + "test_the_items_of_a_step_that_nobody_waits_for_are_stored_before_the_run_ends",),
    ),
    Mutant(
        "items wait long for a batch",
        "workflow/step_streams.py",
        "PAUSE = 0.02\n",
        "PAUSE = 0.2\n",
        (PACE + "test_each_item_is_sent_within_50_ms_and_many_go_together",),
    ),
    Mutant(
        "each item is a batch of its own",
        "workflow/step_streams.py",
        "PAUSE = 0.02\n",
        "PAUSE = 0.0\n",
        (PACE + "test_each_item_is_sent_within_50_ms_and_many_go_together",),
    ),
    Mutant(
        "a thread writes after the timeout of its step",
        "workflow/step_streams.py",
        "            refused, self._error = self._error, error\n",
        "            refused = self._error\n",
        (STREAMS + "test_a_thread_that_goes_on_after_its_timeout_writes_nothing",),
    ),
    Mutant(
        "a replay writes items again",
        "workflow/code_streams.py",
        "        if count >= self._stored.get(name, 0):\n",
        "        if True:\n",
        (STREAMS + "test_a_replay_adds_nothing_and_encodes_nothing",),
    ),
    Mutant(
        "items of workflow code are not noted in the history",
        "workflow/recorder.py",
        "            code.preface = None\n        self._note_streams()\n",
        "            code.preface = None\n",
        (STREAMS + "test_a_replay_adds_nothing_and_encodes_nothing",),
    ),
    Mutant(
        "what follows from a history that is not recorded is written",
        "workflow/recorder.py",
        "        self._code.streams.discard()\n",
        "",
        (STREAMS + "test_items_of_a_run_that_fails_with_its_record_are_discarded",),
    ),
    Mutant(
        "a reader of a replaced run goes on with its successor",
        "workflow/streams.py",
        "        if found.first <= self._first:\n",
        "        if True:\n",
        (STREAMS + "test_a_reader_of_a_run_that_is_replaced_reads_that_run_to_its_end",),
    ),
]
