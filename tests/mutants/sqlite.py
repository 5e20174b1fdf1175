"""Mutants of the SQLite store: files beside the database, clocks, and what a list reads."""

from __future__ import annotations

from .runner import Mutant

SIDE = "tests/stores/test_sqlite_side_files.py::"
CLOCK = "tests/stores/test_sqlite_clock.py::"
LISTS = "tests/stores/test_sqlite_lists.py::"


def side(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "stores/sqlite/side_files.py", old, new, caught_by)


SQLITE = [
    side(
        "a new database can be read by every local user",
        "PRIVATE = 0o600\n",
        "PRIVATE = 0o644\n",
        SIDE + "test_a_new_database_and_its_side_files_are_private_to_their_user",
    ),
    side(
        "a side file may belong to any user",
        "    if not _trusted(status, like):\n        _refuse(",
        "    if False:\n        _refuse(",
        SIDE + "test_a_side_file_of_another_user_is_refused",
    ),
    side(
        "hints are sent to a folder of any user",
        "    if not _trusted(status, like):\n        raise",
        "    if False:\n        raise",
        SIDE + "test_no_hint_is_received_or_sent_in_a_folder_of_another_user",
    ),
    side(
        "a side file is opened through a link",
        '_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _CLOSED_ON_EXEC',
        "_NO_LINK = _CLOSED_ON_EXEC",
        SIDE + "test_no_side_file_is_opened_through_a_link",
    ),
    side(
        "root gives away a file that replaced the turn file",
        "            if status.st_size:\n",
        "            if False:\n",
        SIDE + "test_a_file_with_content_is_neither_given_away_nor_used_as_a_turn_lock",
    ),
    side(
        "the mode of a socket is set by its path",
        'itself = f"/proc/self/fd/{file}"',
        'itself = f"{database}-wake/{name}"',
        SIDE + "test_owners_and_modes_are_never_changed_by_path",
    ),
    Mutant(
        "the timestamp of a socket is set by its path",
        "stores/sqlite/hints.py",
        "os.utime(self._name, dir_fd=folder, follow_symlinks=False)",
        "os.utime(self._folder / self._name)",
        (SIDE + "test_owners_and_modes_are_never_changed_by_path",),
    ),
    Mutant(
        "the timestamp of a socket is set through a link",
        "stores/sqlite/hints.py",
        "os.utime(self._name, dir_fd=folder, follow_symlinks=False)",
        "os.utime(self._name, dir_fd=folder)",
        (SIDE + "test_the_time_of_a_file_behind_a_link_is_not_changed_and_the_link_is_replaced",),
    ),
    Mutant(
        "a run is listed by an attribute that it had before",
        "stores/sqlite/runs.py",
        "        self._db.executemany(DROP_ATTRIBUTE, [(self._namespace, *row) for row in old - new])\n",
        "",
        (LISTS + "test_runs_are_listed_by_their_current_attributes",),
    ),
    Mutant(
        "a list ends after the first read of a source",
        "stores/sqlite/lists.py",
        "_length(db, source, rows) < rows:\n                    return",
        "_length(db, source, rows) <= rows:\n                    return",
        (LISTS + "test_pages_of_every_filter_equal_those_of_the_rule",),
    ),
    Mutant(
        "a list by status reads every run",
        "stores/sqlite/sql/003_runs.sql",
        "CREATE INDEX runs_status ON runs (namespace, status, created_at, id);",
        "CREATE INDEX runs_status ON runs (namespace, created_at, id, status);",
        (LISTS + "test_a_list_costs_the_same_with_many_more_ended_runs[status-none]",),
    ),
    Mutant(
        "a clock that is behind is not noticed",
        "stores/sqlite/clock.py",
        "not -TOLERANCE <= ahead <= TOLERANCE +",
        "not ahead <= TOLERANCE +",
        (CLOCK + "test_a_process_whose_clock_differs_is_named_in_every_process_and_by_doctor[-5.0]",),
    ),
    Mutant(
        "a process whose clock differs uses that clock",
        "stores/sqlite/clock.py",
        "                if self._differs:\n                    return stamp\n",
        "",
        (
            CLOCK + "test_workers_keep_their_leases_although_the_clock_of_one_differs[3600.0]",
            CLOCK + "test_workers_keep_their_leases_although_the_clock_of_one_differs[-3600.0]",
        ),
    ),
    Mutant(
        "a clock that was moved is noticed some seconds later",
        "stores/sqlite/clock.py",
        "self._differs or abs(now / MICROSECONDS - elapsed() - self._began) > TOLERANCE",
        'self._differs or self._began == float("-inf")',
        (CLOCK + "test_a_clock_that_differs_or_moves_neither_takes_nor_loses_a_lock[3600.0]",),
    ),
    Mutant(
        "a clock that differs is reported with every write",
        "stores/sqlite/clock.py",
        "            self._known = {one.process for one in found}\n",
        "",
        (CLOCK + "test_a_process_whose_clock_differs_is_named_in_every_process_and_by_doctor[5.0]",),
    ),
    Mutant(
        "damaged runs of a file hide later ones",
        "stores/sqlite/runs.py",
        "            while len(found) < limit and (row := rows.fetchone()) is not None:",
        "            for row in rows.fetchmany(limit):",
        ("tests/stores/test_sqlite_damaged.py::test_unreadable_runs_do_not_prevent_the_claim_of_others[1-run]",),
    ),
]
