"""Mutants of purges."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestMemory::"
REDIS = "tests/stores/test_redis_swap.py::test_a_decision_is_repeated_when_another_client_changed_its_data"
SQL = "tests/stores/test_sql_swap.py::test_a_decision_is_made_again_if_another_client_changed_what_it_depends_on"
RULES = "rules/runs/purging.py"

PURGING = [
    Mutant(
        "a replaced run is removed while a run below it lives",
        "rules/runs/purging.py",
        "_kept(root, before) or _kept_for_others(repo, root)",
        "_kept(root, before)",
        (SUITE + "test_a_replaced_run_stays_while_a_run_below_it_lives",),
    ),
    Mutant(
        "a purge ignores a run below the first one that has not ended",
        RULES,
        "    if (verdict := _worst(found, before)) is not None:\n        return Tree(verdict)\n",
        "",
        (SUITE + "test_a_tree_goes_as_a_whole_when_its_last_run_has_ended_long_ago",),
    ),
    Mutant(
        "the age of a run counts from its start",
        RULES,
        "run.ended_at is None or run.ended_at >= before",
        "run.created_at >= before",
        (SUITE + "test_ended_runs_are_found_by_their_end_and_not_by_their_start",),
    ),
    Mutant(
        "ended runs are listed by their start",
        "rules/runs/record.py",
        "or not self.is_first else self.ended_at",
        "or not self.is_first else self.created_at",
        (SUITE + "test_ended_runs_are_found_by_their_end_and_not_by_their_start",),
    ),
    Mutant(
        "nothing is left of an id that had several runs",
        RULES,
        "    if run.generation <= 1 or run.replaced_by:",
        "    if run.generation >= 1:",
        (SUITE + "test_of_an_id_that_had_several_runs_the_number_stays",),
    ),
    Mutant(
        "a retry does not end the purge of its tree",
        RULES,
        '    repo.save(replace(root, purging=""))\n    return True',
        "    return True",
        (SUITE + "test_a_run_of_an_announced_tree_that_is_retried_ends_the_purge",),
    ),
    Mutant(
        "a run of a hidden tree can be retried",
        RULES,
        '    if root.status == "purged":\n        return False\n',
        "",
        (SUITE + "test_a_large_tree_is_removed_in_steps_and_absent_from_the_second_one_on",),
    ),
    Mutant(
        "a start does not finish a purge that was stopped under its id",
        "workflow/start.py",
        "                if not (yield from _removed(outcome.run)):\n                    break\n",
        "                break\n",
        ("tests/workflows/test_purging.py::test_a_start_finishes_the_purge_that_was_stopped_under_its_id[memory]",),
    ),
    Mutant(
        "an imported child stays in the tree of its root",
        "rules/runs/importing.py",
        'parent="", root=run.id, remembered=None',
        "remembered=None",
        (SUITE + "test_an_imported_child_is_a_first_run_and_is_purged_alone",),
    ),
    Mutant(
        "a run that is imported under a purged id takes a number that this had already",
        "rules/runs/importing.py",
        "max(run.generation, taken.generation)",
        "run.generation",
        (SUITE + "test_a_run_is_imported_under_an_id_that_was_purged_and_keeps_the_higher_number",),
    ),
    Mutant(
        "a defect in the purge of one workflow ends the purges of all",
        "workflow/retention.py",
        "            except Exception:\n",
        "            except StopIteration:\n",
        ("tests/workflows/test_purging.py::test_a_workflow_whose_runs_cannot_be_purged_does_not_keep_the_others",),
    ),
    Mutant(
        "the state of a tree stays when the tree goes",
        "stores/sqlite/runs.py",
        "    \"DELETE FROM slots WHERE namespace = ? AND scope = 'execution' AND owner = ?\",\n",
        '    "DELETE FROM slots WHERE namespace = ? AND false AND owner = ?",\n',
        (
            "tests/stores/test_conformance.py::TestSqlite::test_state_of_the_tree_goes_with_it_and_all_other_state_stays",
        ),
    ),
    Mutant(
        "a purge does not compare the rows that it removes, on Redis",
        "stores/redis/writing.py",
        "            way = self._ways.get(type(question))\n",
        "            way = self._ways.get(type(question))\n"
        "            if repository.changes.cleared and isinstance(question, q.RunById):\n"
        "                continue\n",
        (REDIS + "[valkey-a-run-that-is-purged]",),
    ),
    Mutant(
        "a purge does not compare the rows that it removes, on a relational store",
        "stores/sql/writing.py",
        "        if not self.missing:\n",
        "        if changes.cleared:\n"
        "            rows = {row for row in rows if not isinstance(row, q.RunById)}\n"
        "        if not self.missing:\n",
        (SQL + "[mariadb-a-run-that-is-purged]",),
    ),
]
