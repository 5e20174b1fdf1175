"""Mutants of the PostgreSQL store: of its functions, of its sessions, and of what a grant is tied to."""

from __future__ import annotations

from .runner import Mutant

STORE = "tests/stores/test_postgres.py::"
ADVISORY = "tests/stores/test_postgres_advisory.py::"
WAYS = "tests/stores/test_postgres_ways.py::"
SESSIONS = "tests/stores/test_postgres_sessions.py::"
JOIN = "tests/stores/test_postgres_join.py::"
MIGRATION = "tests/stores/test_postgres_migration.py::"
SUITE = "tests/stores/test_conformance.py::TestPostgres::"
HISTORY = SUITE + "test_a_random_history_has_the_answers_and_the_records_that_the_rules_say[0]"

POSTGRES = [
    Mutant(
        "a later command of a batch overtakes one whose row was taken",
        "stores/postgresql_batch.sql",
        "AND o.key <> ALL (avoided)\n                 FOR UPDATE SKIP LOCKED) AS x",
        "\n                 FOR UPDATE SKIP LOCKED) AS x",
        (STORE + "test_a_row_that_is_set_free_in_the_middle_of_a_batch_is_not_had_by_a_later_command",),
    ),
    Mutant(
        "a row that somebody else has counts as a failed renewal",
        "keeper.py",
        "if kept.asked or isinstance(trouble, StoreContended):",
        "if kept.asked:",
        (STORE + "test_a_renewal_whose_row_is_taken_for_a_while_is_no_failure",),
    ),
    Mutant(
        "a record that somebody else has is asked for four times only",
        "flows.py",
        "pause = CONTENDED_AFTER if isinstance(error, StoreContended) else next(pauses, None)",
        "pause = next(pauses, None)",
        (STORE + "test_a_caller_waits_for_a_row_that_is_taken_for_a_while",),
    ),
    Mutant(
        "two who make the same key at once both get it",
        "stores/postgresql_batch.sql",
        "            IF wanted[n] <> ALL (born) THEN",
        "            IF false THEN",
        (STORE + "test_a_key_that_somebody_is_just_making_is_waited_for[commit]",),
    ),
    Mutant(
        "one who makes a key that another has just made gets it too",
        "stores/postgresql_batch.sql",
        "        IF NOT FOUND THEN\n            RETURN '[\"Taken\", {}]';\n        END IF;\n    ELSIF",
        "    ELSIF",
        (STORE + "test_one_who_is_alone_waits_for_a_key_that_somebody_is_just_making",),
    ),
    Mutant(
        "a commit is not waited for where the role does not",
        "stores/postgresql_batch.sql",
        "reply := set_config('synchronous_commit', 'on', true);",
        "reply := NULL;",
        (STORE + "test_a_commit_is_waited_for_also_where_the_role_does_not",),
    ),
    Mutant(
        "who is told directly is notified as well",
        "stores/postgresql_batch.sql",
        "WHERE NOT told ? channel;",
        "WHERE true OR told ? channel;",
        (STORE + "test_only_who_waits_elsewhere_is_notified",),
    ),
    Mutant(
        "the token does not follow the clock",
        "stores/postgresql_rules.sql",
        "        token := greatest(coalesce((rec->>'fence')::bigint, 0) + 1, at);\n        me := me ||",
        "        token := coalesce((rec->>'fence')::bigint, 0) + 1;\n        me := me ||",
        (HISTORY,),
    ),
    Mutant(
        "what a clock step has stretched lives on",
        "stores/postgresql_tools.sql",
        "jsonb_agg(CASE WHEN ends > at + ttl THEN",
        "jsonb_agg(CASE WHEN false THEN",
        (HISTORY,),
    ),
    Mutant(
        "a session that has ended keeps its grants",
        "stores/postgresql_rules.sql",
        "            IF pg_try_advisory_xact_lock_shared(",
        "            IF false AND pg_try_advisory_xact_lock_shared(",
        (ADVISORY + "test_a_killed_holder_is_replaced_at_once_by_the_one_who_waits",),
    ),
    Mutant(
        "a session that lives does not keep its grants",
        "stores/postgresql_rules.sql",
        "            IF pg_try_advisory_xact_lock_shared(",
        "            IF true OR pg_try_advisory_xact_lock_shared(",
        (ADVISORY + "test_a_holder_whose_process_lives_keeps_it",),
    ),
    Mutant(
        "a grant that was waited for is tied to nothing",
        "stores/postgresql_rules.sql",
        "me := holdfast.put(holdfast.put(me, 'delay', cmd->'delay'), 'session', cmd->'session');",
        "me := holdfast.put(me, 'delay', cmd->'delay');",
        (ADVISORY + "test_a_grant_is_tied_also_when_it_was_waited_for",),
    ),
    Mutant(
        "nobody is told that the anchor is lost",
        "stores/postgres_anchor.py",
        '                self._lost(f"the connection',
        '                str(f"the connection',
        (ADVISORY + "test_the_loss_of_the_connection_is_the_loss_of_the_lease_and_told_at_once",),
    ),
    Mutant(
        "a standby is asked",
        "stores/postgres_session.py",
        'if standby == b"true":',
        'if standby == b"never":',
        (STORE + "test_a_standby_is_refused",),
    ),
    Mutant(
        "a lost connection is taken for nothing done",
        "stores/postgres_session.py",
        '"The command may or may not have been carried out.", ambiguous=True)',
        '"The command may or may not have been carried out.")',
        (STORE + "test_what_a_server_says_when_it_goes_leaves_the_outcome_unknown",),
    ),
    Mutant(
        "a statement is taken to be prepared for ever",
        "stores/postgres_session.py",
        "                self.pooled = True  # somebody",
        "                raise StoreUnusable from None  # somebody",
        (WAYS + "test_every_statement_in_a_session_of_its_own_is_enough",),
    ),
    Mutant(
        "all who come first make the schema, at once",
        "stores/postgres_schema.py",
        "SELECT pg_advisory_xact_lock({_LOCK})",
        "SELECT {_LOCK}",
        (STORE + "test_many_who_come_first_at_once_make_one_schema",),
    ),
    Mutant(
        "a watch that lost its connection does not look",
        "stores/postgres_wakeup.py",
        "            self.hint(None)  # what was said before is gone",
        "            pass",
        (STORE + "test_a_watch_goes_on_after_its_connection_was_lost",),
    ),
    Mutant(
        "the last word of an answer is not listened to",
        "stores/postgres_session.py",
        "        refused = [result for result in results if result.status not in _ANSWERED]",
        "        refused = [result for result in results[:1] if result.status not in _ANSWERED]",
        (SESSIONS + "test_what_is_refused_at_the_commit_was_not_granted[one]",),
    ),
    Mutant(
        "one who waited for a row judges it by the time before",
        "stores/postgresql_batch.sql",
        "    there := FOUND;\n    at := coalesce(set_time, holdfast.clock());\n",
        "    there := FOUND;\n    at := (extract(epoch FROM statement_timestamp()) * 1000000)::bigint;\n",
        (SESSIONS + "test_one_who_waited_for_a_row_does_not_judge_it_by_the_time_before",),
    ),
    Mutant(
        "a record that is younger than the batch is judged",
        "stores/postgresql_batch.sql",
        "(l.record->>'fence')::numeric - at BETWEEN 1000 AND 2000000",
        "(l.record->>'fence')::numeric - at BETWEEN 1000 AND 1000",
        (SESSIONS + "test_a_record_that_is_younger_than_a_batchs_clock_is_left_alone",),
    ),
    Mutant(
        "the encoding is that of the surroundings",
        "stores/postgres_session.py",
        'if connection.pgconn.parameter_status(b"client_encoding") != b"UTF8":',
        "if False:",
        (SESSIONS + "test_an_engine_of_another_encoding_is_set_right",),
    ),
    Mutant(
        "an anchor may be in another database",
        "stores/postgresql.py",
        'if free == b"t" and self._anchor.holds(number):',
        'if free == b"never" and self._anchor.holds(number):',
        (SESSIONS + "test_an_anchor_in_another_database_is_refused",),
    ),
    Mutant(
        "a grant on its way when the anchor is lost is kept",
        "locks/taking.py",
        'if works.severings != severings and terms.kind != "hold":',
        'if works.severings < severings and terms.kind != "hold":',
        (SESSIONS + "test_a_grant_on_its_way_when_the_anchor_is_lost_is_lost_too",),
    ),
    Mutant(
        "holds end with the session of their process",
        "stores/postgres_batch.py",
        'UNTIED = ("hold", "lease")',
        'UNTIED = ("nothing",)',
        (SESSIONS + "test_holds_and_leases_by_name_do_not_end_with_a_session",),
    ),
    Mutant(
        "a strange notification ends the listening",
        "stores/postgres_wakeup.py",
        "    except msgspec.MsgspecError:  # anybody may notify\n        return None",
        "    except ZeroDivisionError:\n        return None",
        (SESSIONS + "test_a_notification_that_makes_no_sense_only_makes_them_look",),
    ),
    Mutant(
        "nobody is told when the answer was lost",
        "stores/postgresql.py",
        "                near.tell(self._identity, channel, None)",
        "                pass",
        (SESSIONS + "test_whoever_the_server_left_to_us_is_told_also_when_the_answer_is_lost",),
    ),
    Mutant(
        "a forked child keeps the session of its dead parent",
        "stores/postgres_anchor.py",
        "            os.close(rope.socket)",
        "            str(rope.socket)",
        (ADVISORY + "test_a_forked_child_does_not_keep_its_dead_parents_lock",),
    ),
    Mutant(
        "what never arrived is given back",
        "flows.py",
        "if trace and not never_arrived:",
        "if trace:",
        ("tests/test_on_servers.py::test_what_never_reached_a_server_is_not_given_back",),
    ),
    Mutant(
        "what a joined transaction waits for it waits for as briefly as a batch",
        "stores/postgres_join.py",
        'PATIENCE = b"2000"',
        'PATIENCE = b"20"',
        (JOIN + "test_a_row_that_somebody_else_has_is_waited_for_within_a_transaction_but_not_without_an_end[url]",),
    ),
    Mutant(
        "an error that was caught passes for a commit",
        "stores/postgres_join.py",
        "    if connection.info.transaction_status == TransactionStatus.INERROR:",
        "    if False:",
        (JOIN + "test_an_error_that_was_caught_within_the_block_does_not_pass_for_a_commit[url]",),
    ),
    Mutant(
        "a bad command breaks the user's transaction",
        "stores/postgresql_batch.sql",
        "    WHEN data_exception OR lock_not_available",
        "    WHEN lock_not_available",
        (JOIN + "test_a_bad_command_breaks_neither_the_transaction_nor_its_neighbours[url]",),
    ),
    Mutant(
        "a transaction of another database is joined",
        "stores/postgresql.py",
        "        if there != self._place:\n            raise InvalidOption(",
        "        if there == self._place + '.':\n            raise InvalidOption(",
        (JOIN + "test_a_connection_to_another_database_is_refused",),
    ),
    Mutant(
        "a connection that commits by itself is joined",
        "stores/postgres_join.py",
        "    if driver.autocommit and status == TransactionStatus.IDLE:",
        "    if driver.autocommit and status == TransactionStatus.UNKNOWN:",
        (JOIN + "test_a_connection_that_commits_by_itself_is_refused",),
    ),
    Mutant(
        "roles of version 1 cannot use the runs",
        "stores/postgresql_runs.sql",
        "        EXECUTE given.statement;",
        "        NULL;",
        (MIGRATION + "test_who_could_use_the_locks_of_version_1_can_use_the_runs",),
    ),
]
