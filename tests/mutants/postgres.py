"""Mutants of the PostgreSQL store: of its locking protocol, its sessions, and of what a grant is tied to."""

from __future__ import annotations

from .runner import Mutant

STORE = "tests/stores/test_postgres.py::"
ADVISORY = "tests/stores/test_postgres_advisory.py::"
WAYS = "tests/stores/test_postgres_connections.py::"
SESSIONS = "tests/stores/test_postgres_sessions.py::"
JOIN = "tests/stores/test_postgres_transactions.py::"
DEFAULTS = "tests/stores/test_postgres_defaults.py::"
FUNCTIONS = "tests/stores/test_postgres_functions.py::"
PROTOCOL = "tests/stores/test_postgres_protocol.py::"
RUNS = "tests/stores/test_postgres_runs.py::"
SUITE = "tests/stores/test_conformance.py::TestPostgres::"
HISTORY = SUITE + "test_a_random_history_has_the_outcomes_and_records_of_the_rules[0]"

POSTGRES = [
    Mutant(
        "a locked row counts as a failed renewal",
        "runtime/heartbeats.py",
        "if renewal.notifiers or isinstance(trouble, StoreContended):",
        "if renewal.notifiers:",
        (STORE + "test_a_renewal_whose_row_is_locked_for_a_while_does_not_count_as_a_failure",),
    ),
    Mutant(
        "a command about a record in use is tried four times only",
        "runtime/flows.py",
        "pause = CONTENDED_AFTER if contended else next(pauses, None)",
        "pause = next(pauses, None)",
        (STORE + "test_a_caller_waits_for_a_row_that_is_locked_for_a_while",),
    ),
    Mutant(
        "holders are not notified that the anchor is lost",
        "stores/postgresql/advisory.py",
        '                self._lost(f"the session',
        '                str(f"the session',
        (ADVISORY + "test_a_lost_connection_loses_the_lease_and_the_holder_is_notified_at_once",),
    ),
    Mutant(
        "a standby is used",
        "stores/postgresql/session.py",
        'if standby == b"true":',
        'if standby == b"never":',
        (STORE + "test_a_standby_is_refused",),
    ),
    Mutant(
        "a lost connection is reported as if nothing was done",
        "stores/postgresql/session.py",
        '"The command may or may not have been carried out.", ambiguous=True)',
        '"The command may or may not have been carried out.")',
        (STORE + "test_a_shutdown_message_of_the_server_leaves_the_outcome_unknown",),
    ),
    Mutant(
        "all first clients create the schema at once",
        "stores/postgresql/schema.py",
        "'10s'; SELECT pg_advisory_xact_lock({_LOCK})",
        "'10s'; SELECT {_LOCK}",
        (STORE + "test_many_first_clients_at_once_create_one_schema",),
    ),
    Mutant(
        "a watch that lost its connection sends no hint",
        "stores/postgresql/listen.py",
        "            self.hint(None)  # earlier notifications were missed",
        "            pass",
        (STORE + "test_a_watch_continues_after_its_connection_was_lost",),
    ),
    Mutant(
        "the encoding is that of the surroundings",
        "stores/postgresql/session.py",
        'if connection.pgconn.parameter_status(b"client_encoding") != b"UTF8":',
        "if False:",
        (SESSIONS + "test_a_connection_of_an_engine_with_another_encoding_is_set_to_utf8",),
    ),
    Mutant(
        "an anchor may be in another database",
        "stores/postgresql/store.py",
        'if free == b"t" and self._advisory.holds(number):',
        'if free == b"never" and self._advisory.holds(number):',
        (SESSIONS + "test_an_anchor_in_another_database_is_refused",),
    ),
    Mutant(
        "a grant in progress when the anchor is lost is kept",
        "locks/acquire.py",
        'if runtime.severed_count != severed_count and options.kind != "hold":',
        'if runtime.severed_count < severed_count and options.kind != "hold":',
        (SESSIONS + "test_a_grant_in_progress_when_the_anchor_is_lost_is_lost_too",),
    ),
    Mutant(
        "a strange notification ends the listening",
        "stores/postgresql/listen.py",
        "    except msgspec.MsgspecError:  # any client of the database may notify\n        return None",
        "    except ZeroDivisionError:\n        return None",
        (SESSIONS + "test_an_invalid_notification_makes_waiters_check",),
    ),
    Mutant(
        "local waiters are not notified when the answer was lost",
        "stores/postgresql/store.py",
        "                local_hints.send(self._identity, channel, None)",
        "                pass",
        (SESSIONS + "test_local_waiters_are_notified_also_when_the_answer_is_lost",),
    ),
    Mutant(
        "a forked child keeps the session of its killed parent",
        "stores/postgresql/advisory.py",
        "            os.close(session.socket)",
        "            str(session.socket)",
        (ADVISORY + "test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent",),
    ),
    Mutant(
        "a command that never reached the server is abandoned",
        "runtime/flows.py",
        "if may_be_stored and not never_arrived:",
        "if may_be_stored:",
        ("tests/locks/test_on_servers.py::test_a_command_that_never_reached_a_server_is_not_abandoned",),
    ),
    Mutant(
        "what a joined transaction waits for it waits for as briefly as a batch",
        "stores/postgresql/transactions.py",
        'PATIENCE = b"2000"',
        'PATIENCE = b"20"',
        (JOIN + "test_a_joined_transaction_waits_for_a_locked_row_for_a_limited_time[url]",),
    ),
    Mutant(
        "an error that was caught passes for a commit",
        "stores/postgresql/transactions.py",
        "    if connection.info.transaction_status == TransactionStatus.INERROR:",
        "    if False:",
        (JOIN + "test_an_error_that_was_caught_within_the_block_is_not_taken_for_a_commit[url]",),
    ),
    Mutant(
        "a transaction of another database is joined",
        "stores/postgresql/store.py",
        "        if there != self._place:\n            raise InvalidOption(",
        "        if there == self._place + '.':\n            raise InvalidOption(",
        (JOIN + "test_a_connection_to_another_database_is_refused",),
    ),
    Mutant(
        "a connection that commits by itself is joined",
        "stores/postgresql/transactions.py",
        "    if driver.autocommit and status == TransactionStatus.IDLE:",
        "    if driver.autocommit and status == TransactionStatus.UNKNOWN:",
        (JOIN + "test_an_autocommit_connection_is_refused",),
    ),
    Mutant(
        "all releases call functions of the same name",
        "stores/postgresql/functions.py",
        '    digest = hashlib.sha256(f"{tables} {text}".encode()).hexdigest()[:DIGITS]',
        '    digest = "0" * DIGITS',
        (FUNCTIONS + "test_two_releases_work_side_by_side_each_with_its_own_functions[old_first-functions]",),
    ),
    Mutant(
        "only some of the functions are checked",
        "stores/postgresql/schema.py",
        "count_of(session, mine) == len(mine.names)",
        "count_of(session, mine) > 0",
        (FUNCTIONS + "test_missing_functions_are_created_again_within_the_call[one]",),
    ),
    Mutant(
        "every newer version of the tables is refused",
        "stores/postgresql/schema.py",
        "    if tables.oldest_client > VERSION:",
        "    if tables.version > VERSION:",
        (FUNCTIONS + "test_two_releases_work_side_by_side_each_with_its_own_functions[new_first-tables]",),
    ),
    Mutant(
        "a connected client continues with tables that it does not know",
        "stores/postgresql/functions.py",
        "        EXECUTE format('DROP FUNCTION",
        "        PERFORM format('DROP FUNCTION",
        (FUNCTIONS + "test_an_incompatible_client_is_refused_also_if_it_was_connected_before[breaking]",),
    ),
    Mutant(
        "clients of different tables share their functions",
        "stores/postgresql/functions.py",
        'f"{tables} {text}".encode()',
        "text.encode()",
        (FUNCTIONS + "test_an_incompatible_client_is_refused_also_if_it_was_connected_before[breaking_tables_alone]",),
    ),
    Mutant(
        "functions of a new release are not granted",
        "stores/postgresql/functions.py",
        "        EXECUTE format('GRANT EXECUTE",
        "        PERFORM format('GRANT EXECUTE",
        (FUNCTIONS + "test_a_role_that_may_not_create_functions_gets_an_error_and_may_call_them_later",),
    ),
    Mutant(
        "functions that were used today are removed as unused",
        "stores/postgresql/schema.py",
        "(force or one.idle > unused_for)",
        "(force or one.idle > 0)",
        (FUNCTIONS + "test_only_sets_of_functions_that_were_unused_for_long_are_removed",),
    ),
    Mutant(
        "a release removes its own functions",
        "stores/postgresql/schema.py",
        "one.digest != own and (force",
        "(force",
        (FUNCTIONS + "test_only_sets_of_functions_that_were_unused_for_long_are_removed",),
    ),
    Mutant(
        "a session has the isolation level of its role",
        "stores/postgresql/session.py",
        "            if self._mode != PLAIN:\n                self._pin()\n",
        "",
        (DEFAULTS + "test_a_role_or_database_with_another_default_can_do_everything[role-read_only]",),
    ),
    Mutant(
        "the transaction of a run is read-only where the role's are",
        "stores/postgresql/transactions.py",
        "            fresh.read_only = False\n",
        "",
        (DEFAULTS + "test_a_role_or_database_with_another_default_can_do_everything[role-read_only]",),
    ),
    Mutant(
        "the session of a pooler is changed for all who share it",
        "stores/postgresql/session.py",
        "        if self.pooled:\n            read_only",
        "        if False:\n            read_only",
        (WAYS + "test_a_shared_session_of_a_role_with_another_default_gets_an_error[serializable]",),
    ),
    Mutant(
        "a row that another transaction has is read as it was, and decided on",
        "stores/postgresql/answers.py",
        "        return RowLocked(question, answer)\n\n    def _put_runs",
        "        return answer\n\n    def _put_runs",
        (STORE + "test_a_batch_skips_a_locked_row_and_does_not_fail_as_a_whole",),
    ),
    Mutant(
        "a row that another transaction has is read as an empty record",
        "stores/postgresql/answers.py",
        "        return RowLocked(question, answer)\n\n    def _put_runs",
        "        return None\n\n    def _put_runs",
        (STORE + "test_a_locked_row_delays_only_its_own_key",),
    ),
    Mutant(
        "a later command of a batch overtakes one whose row was locked",
        "stores/decisions.py",
        "            self.repository.postpone()",
        "            self.repository.drop()",
        (RUNS + "test_a_record_waits_for_a_locked_slot_and_no_later_record_overtakes_it[True]",),
    ),
    Mutant(
        "a key that another transaction has just created is overwritten",
        "stores/postgresql/writing.py",
        '  FROM jsonb_to_recordset($2::jsonb) AS n(key text, record jsonb, due_at bigint)\n"""\n_SPOT_OF_LOCK',
        "  FROM jsonb_to_recordset($2::jsonb) AS n(key text, record jsonb, due_at bigint)\n"
        '    ON CONFLICT (namespace, key) DO UPDATE SET record = excluded.record\n"""\n_SPOT_OF_LOCK',
        (STORE + "test_a_command_waits_for_a_key_that_another_transaction_creates[commit]",),
    ),
    Mutant(
        "a lease that was only read is overwritten",
        "stores/postgresql/writing.py",
        "     WHERE o.ctid = x.spot AND o.record = n.old RETURNING 1)",
        "     WHERE o.ctid = x.spot AND n.old IS NOT NULL RETURNING 1)",
        (PROTOCOL + "test_a_lease_renewed_during_a_claim_is_not_overwritten",),
    ),
    Mutant(
        "a row outside of those that were locked is written",
        "stores/postgresql/repository.py",
        "        if writing.unlocked:",
        "        if False:",
        (PROTOCOL + "test_a_row_that_was_not_locked_is_not_written",),
    ),
    Mutant(
        "the clock is read before the rows are locked",
        "stores/postgresql/reading.py",
        "        if changing:\n            self._lock()\n",
        "        self._ask(sql.TIME, self._take_time, self._at, namespaced=False)\n        if changing:\n"
        "            self._lock()\n        self._take_time = _ignore\n",
        (SESSIONS + "test_a_command_that_waited_for_a_row_decides_by_the_time_after_the_wait[beside-others]",),
    ),
    Mutant(
        "the clock is read before one lock alone is waited for",
        "stores/postgresql/statements.py",
        "SELECT k.key, x.record::text, {_SEVERED}, set_config('holdfast_step.now', "
        "coalesce($3, holdfast.clock()::text), true)\n  FROM jsonb_array_elements_text($2::jsonb) AS k(key)\n",
        "SELECT k.key, x.record::text, {_SEVERED}, k.now FROM (SELECT e.key, set_config('holdfast_step.now', "
        "coalesce($3, holdfast.clock()::text), true) AS now\n"
        "  FROM jsonb_array_elements_text($2::jsonb) AS e(key) OFFSET 0) AS k\n",
        (SESSIONS + "test_a_command_that_waited_for_a_row_decides_by_the_time_after_the_wait[alone]",),
    ),
    Mutant(
        "one lock alone is not locked before it is decided on",
        "stores/postgresql/statements.py",
        "AND o.key = k.key FOR UPDATE) AS x\n    ON true",
        "AND o.key = k.key) AS x\n    ON true",
        (PROTOCOL + "test_nothing_is_decided_on_a_locked_row[alone]",),
    ),
    Mutant(
        "a client that is paused keeps its rows",
        "stores/postgresql/repository.py",
        'IDLE = b"1s"',
        'IDLE = b"60s"',
        (STORE + "test_a_client_that_is_paused_within_a_transaction_does_not_keep_its_row_locks",),
    ),
    Mutant(
        "a commit is not waited for where the role does not",
        "stores/postgresql/statements.py",
        "THEN set_config('synchronous_commit', 'on', x.local) END",
        "THEN set_config('synchronous_commit', 'off', x.local) END",
        (STORE + "test_commits_are_synchronous_although_the_role_has_another_default",),
    ),
    Mutant(
        "a waiter that is notified directly gets a notification as well",
        "stores/postgresql/writing.py",
        " and client_of(attempt) not in local_channels:",
        ":",
        (STORE + "test_only_waiters_of_other_clients_are_notified",),
    ),
    Mutant(
        "a notification is sent although nothing was committed",
        "stores/postgresql/repository.py",
        "        try:\n            self._trip((*writing.statements, *notes",
        "        self._transactions.trip((*self._transactions.rollback, *notes)) if notes else None\n"
        "        try:\n            self._trip((*self._transactions.begin, *writing.statements, *notes",
        (PROTOCOL + "test_no_notification_is_sent_for_changes_that_were_not_written",),
    ),
    Mutant(
        "a native form accepts a grant with unknown fields",
        "stores/postgresql/sql/fast_path.sql",
        "           AND s.me - ARRAY['id', 'label', 'token', 'since', 'ttl', 'expires_at'] = '{}'\n",
        "",
        (PROTOCOL + "test_a_native_form_leaves_unknown_fields_to_the_rules",),
    ),
    Mutant(
        "a native form accepts an expired grant",
        "stores/postgresql/sql/fast_path.sql",
        "BETWEEN s.at + 1 AND s.at + (s.me->>'ttl')::bigint",
        "> 0",
        (HISTORY,),
    ),
    Mutant(
        "a native form frees a lock that has waiters",
        "stores/postgresql/sql/fast_path.sql",
        "           AND s.record - ARRAY['kind', 'permits', 'fence', 'version', 'holders'] = '{}'\n",
        "",
        (HISTORY,),
    ),
    Mutant(
        "of several commands about one key some go before the others",
        "stores/postgresql/fast_path.py",
        "form if count[name] == 1 else None",
        "form if count[name] >= 1 else None",
        (HISTORY,),
    ),
    Mutant(
        "a session that has ended keeps its grants",
        "stores/postgresql/records.py",
        "        if holder.id in severed:",
        "        if holder.id in ():",
        (ADVISORY + "test_a_killed_holder_is_replaced_at_once_by_the_next_waiter",),
    ),
    Mutant(
        "an open session does not keep its grants",
        "stores/postgresql/statements.py",
        "AND pg_try_advisory_xact_lock_shared((h->>'session')::bigint)",
        "AND (h->>'session')::bigint > 0",
        (ADVISORY + "test_a_holder_whose_process_runs_keeps_its_lock",),
    ),
    Mutant(
        "a grant is tied to nothing",
        "stores/postgresql/session_bound.py",
        "        if isinstance(outcome, Granted | Queued):",
        "        if isinstance(outcome, Transferred):",
        (ADVISORY + "test_a_grant_after_a_wait_is_tied_to_the_session_too",),
    ),
    Mutant(
        "holds end with the session of their process",
        "stores/postgresql/session_bound.py",
        'UNTIED = ("hold", "lease")',
        'UNTIED = ("nothing",)',
        (SESSIONS + "test_holds_and_named_leases_do_not_end_with_a_session",),
    ),
    Mutant(
        "a grant that is refused at the commit counts as done",
        "stores/postgresql/session.py",
        "        refused = [result for result in results if result.status not in _ANSWERED]\n"
        "        if refused or len(results) != sent",
        "        refused = [result for result in results[:-1] if result.status not in _ANSWERED]\n"
        "        if refused or len(results) != sent",
        (SESSIONS + "test_a_grant_that_is_refused_at_the_commit_is_an_error[one]",),
    ),
    Mutant(
        "missing functions are not created again",
        "stores/postgresql/batch.py",
        "        if self._mended or not self._mend():",
        "        if True:",
        (FUNCTIONS + "test_missing_functions_are_created_again_within_the_call[all]",),
    ),
    Mutant(
        "a bad command breaks the user's transaction",
        "stores/postgresql/transactions.py",
        "            for statement in self.rollback:\n                _asked(self._run, statement.text)\n",
        "            pass\n",
        (JOIN + "test_a_bad_command_fails_neither_the_transaction_nor_other_commands[url]",),
    ),
    Mutant(
        "the settings of the user's transaction are not put back",
        "stores/postgresql/transactions.py",
        '        Statement(" ".join(_RESTORE.split()).encode()),\n',
        '        Statement(b"SELECT 1"),\n',
        (JOIN + "test_the_lock_timeout_of_the_users_transaction_is_unchanged[url]",),
    ),
    Mutant(
        "a command with an old snapshot is reported as waiting for a row",
        "stores/postgresql/transactions.py",
        "        if state in (SERIALIZATION_FAILURE, UNIQUE_VIOLATION) and",
        "        if state in (UNIQUE_VIOLATION,) and",
        (
            DEFAULTS
            + "test_a_transaction_with_an_old_snapshot_gets_an_error_for_the_command_that_needs_current_data"
            + "[REPEATABLE_READ]",
        ),
    ),
    Mutant(
        "the error of a command in a read-only transaction has no reason",
        "stores/postgresql/transactions.py",
        "        if state == READ_ONLY:",
        "        if state == ISOLATION:",
        (DEFAULTS + "test_a_read_only_transaction_gets_an_error_and_continues",),
    ),
]
