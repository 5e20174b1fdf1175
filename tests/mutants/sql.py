"""Mutants of the relational implementation: what must be unchanged when a decision is written, and what is locked."""

from __future__ import annotations

from .runner import Mutant

SWAP = "tests/stores/test_sql_swap.py::test_a_decision_is_made_again_if_another_client_changed_what_it_depends_on"
SWAPS = "tests/stores/test_sql_swap.py::"
STORE = "tests/stores/test_sql.py::"
PAUSES = "tests/stores/test_sql_pauses.py::"
MSSQL = "tests/stores/test_sql_server.py::"
STATEMENTS = "tests/stores/test_sql_server_statements.py::"
WRITING, READING, MYSQL = "stores/sql/writing.py", "stores/sql/reading.py", "stores/sql/mysql.py"
WITHIN = "tests/workflows/test_transactions_mysql.py::"
CLOCK = '        self._step(f"SELECT {self._clock}", self._take_time)\n'
READS = ("guards", "workers", "runs", "about_runs", "records", "groups", "lists")
RECORDS = "".join(f"        self._read_{name}()\n" for name in READS)


def on_mariadb(case: str) -> str:
    return f"{SWAP}[mariadb-{case.replace(' ', '-')}]"


SQL = [
    Mutant(
        "stamps are not compared",
        WRITING,
        'self._dialect.insist(f"x.n = {len(there)} AND x.total = {sum(there)}", source)',
        'self._dialect.insist(f"x.n = {len(there)}", source)',
        (on_mariadb("a lock"), on_mariadb("a state")),
    ),
    Mutant(
        "a row that appeared is not noticed",
        WRITING,
        'self._dialect.insist(f"x.n = {len(there)} AND x.total = {sum(there)}", source)',
        'self._dialect.insist(f"x.n >= {len(there)} AND x.total >= {sum(there)}", source)',
        (on_mariadb("the published limits"),),
    ),
    Mutant(
        "the guards of groups are not compared",
        WRITING,
        '        self._same(tables.guards, "name", {name: known[name] for name in known.keys() - shared})\n',
        "",
        (on_mariadb("the number of admitted runs"), on_mariadb("the first run of a queue")),
    ),
    Mutant(
        "a change of a group leaves its guard as it was",
        WRITING,
        '            self._update(self._tables.guards, f"name IN {listing(old)}", stamp=self._stamp)\n',
        "            pass\n",
        (on_mariadb("the number of admitted runs"),),
    ),
    Mutant(
        "a run gets a worker without a look at the registered workers",
        WRITING,
        "        if moved:\n            guards.add(ALL_WORKERS)\n",
        "",
        (on_mariadb("the worker unregisters"),),
    ),
    Mutant(
        "the runs of a worker that unregisters are not counted again",
        WRITING,
        "            elif isinstance(question, q.RunsOf) and changes.workers.get(question.worker, question) is None:",
        "            elif isinstance(question, q.RunsOf) and changes.workers is None:",
        (on_mariadb("a worker that unregisters gets another run"),),
    ),
    Mutant(
        "new limits do not count the queued runs again",
        WRITING,
        "                elif isinstance(question, q.QueuedLimitKeys | q.RunsOf):",
        "                elif isinstance(question, q.RunsOf):",
        (on_mariadb("a limit key under which a run begins to wait"),),
    ),
    Mutant(
        "only the rows that are written are compared",
        WRITING,
        "                elif question in stamps:\n                    rows.add(question)\n",
        "",
        (on_mariadb("the lease of the worker ends"),),
    ),
    Mutant(
        "an old decision is written to a relational store",
        WRITING,
        "        if check_age:\n",
        "        if False:\n",
        (SWAPS + "test_a_decision_that_is_half_a_minute_old_is_made_again[mariadb]",),
    ),
    Mutant(
        "a paused client keeps its rows after an error",
        MYSQL,
        '            f"SET SESSION wait_timeout = {IDLE_SECONDS}",\n            "START',
        '            "START',
        (STORE + "test_the_server_ends_the_transaction_of_a_client_that_is_paused_after_an_error",),
    ),
    Mutant(
        "a batch waits for a row that another transaction has locked",
        MYSQL,
        "        how = f\"{self._share if share else 'FOR UPDATE'} SKIP LOCKED\"\n",
        "        how = f\"{self._share if share else 'FOR UPDATE'}\"\n",
        (STORE + "test_a_row_that_another_transaction_has_locked_fails_its_own_command_only",),
    ),
    Mutant(
        "keys are compared as text",
        MYSQL,
        '            "key": f"VARBINARY({self.key_bytes})",\n',
        '            "key": "VARCHAR(500) CHARACTER SET utf8mb4",\n',
        (STORE + "test_keys_that_text_columns_take_for_equal_are_distinct_and_listed_in_code_point_order[mariadb]",),
    ),
    Mutant(
        "a user's transaction decides on its old snapshot",
        "stores/sql/mysql_transactions.py",
        'CURRENT = " FOR UPDATE"',
        'CURRENT = ""',
        (WITHIN + "test_a_start_sees_what_was_committed_after_the_snapshot_of_the_transaction",),
    ),
    Mutant(
        "a relational store reads the clock before the records",
        READING,
        RECORDS + CLOCK,
        CLOCK + RECORDS,
        (STORE + "test_the_clock_is_read_after_the_records",),
    ),
    Mutant(
        "stamps repeat where programs seed random",
        "stores/sql/session.py",
        "    return secrets.randbits(RANDOM_BITS) + 1\n",
        "    return __import__('random').getrandbits(RANDOM_BITS) + 1\n",
        (STORE + "test_stamps_are_unique_also_if_programs_seed_random",),
    ),
    Mutant(
        "a user's transaction locks the guard of all workers",
        READING,
        '((workers, ""), (names - workers, self._current)):',
        "((workers, self._current), (names - workers, self._current)):",
        (STORE + "test_an_open_transaction_of_a_user_does_not_stop_other_workers",),
    ),
    Mutant(
        "a locked run prevents every claim",
        "stores/sql/source.py",
        "            passed_over=self._busy if claiming else (),\n",
        "            passed_over=(),\n",
        (STORE + "test_a_claim_leaves_out_a_run_whose_row_another_transaction_has_locked",),
    ),
    Mutant(
        "a request that is too large is sent",
        "stores/sql/session.py",
        "        if self._driver.max_bytes is not None and len(text) > self._driver.max_bytes:\n",
        "        if False:\n",
        (STORE + "test_a_value_that_is_too_large_for_the_server_fails_alone",),
    ),
    Mutant(
        "the number of an error of SQL Server is ignored",
        "stores/sql/mssql.py",
        "        if number := _NUMBER.search(text):\n",
        "        if False and (number := _NUMBER.search(text)):\n",
        (MSSQL + "test_an_error_that_the_statements_have_caught_is_recognised_in_every_language",),
    ),
    Mutant(
        "SQL Server rolls back without the number of the error",
        "stores/sql/mssql.py",
        '            *_caught(["BEGIN TRANSACTION", *statements, "COMMIT"]),\n        ]\n\n    @property',
        '            *["BEGIN TRANSACTION", *statements, "COMMIT"],\n        ]\n\n    @property',
        (f"{STATEMENTS}test_the_tables_and_transactions_are_those_that_were_reviewed",),
    ),
    Mutant(
        "a statement on SQL Server may take for ever",
        "stores/sql/mssql.py",
        "        connection.timeout = whole",
        "        connection.other = whole",
        (MSSQL + "test_the_timeout_of_the_url_bounds_the_login_and_each_statement",),
    ),
    Mutant(
        "a decision on MySQL is compared in an old snapshot",
        MYSQL,
        '            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",\n',
        "",
        (PAUSES + "test_the_isolation_of_a_transaction_does_not_depend_on_the_default_of_the_server",),
    ),
    Mutant(
        "a client that is paused within ctx.transaction keeps its rows",
        "stores/sql/mysql_transactions.py",
        '            self._statements.ask(f"SET SESSION wait_timeout = {IDLE_SECONDS}")\n',
        "            pass\n",
        (PAUSES + "test_a_client_that_is_paused_after_holdfast_has_written_in_its_transaction_frees_the_rows",),
    ),
    Mutant(
        "a guard of MySQL accepts a lower token",
        "fencing/mysql.py",
        "    if int(highest) > offer.token:\n",
        "    if False:\n",
        ("tests/fencing/test_mysql.py::test_a_higher_token_passes_the_same_one_again_and_a_lower_one_is_refused",),
    ),
    Mutant(
        "a guard of MySQL commits the transaction of the user",
        "fencing/mysql.py",
        "        if not may_create:\n",
        "        if False:\n",
        ("tests/fencing/test_mysql.py::test_the_table_is_not_created_where_that_would_commit_the_transaction",),
    ),
    Mutant(
        "a serializable transaction of a user is joined",
        "stores/sql/mysql_transactions.py",
        'if driver not in _lent and "SERIALIZABLE" in (level',
        'if driver in _lent and "SERIALIZABLE" in (level',
        (f"{WITHIN}test_a_serializable_transaction_is_refused_because_workers_would_wait_for_it[pymysql]",),
    ),
]  # fmt: skip
