"""MariaDB: the isolation of the store's transactions, and clients that are paused within a user's transaction."""

from __future__ import annotations

import pytest
from providers import PROVIDERS, sql_session
from waiting import eventually

from holdfast.rules.runs.outcomes import Started
from holdfast.stores import open_store
from holdfast.stores.sql.mysql import IDLE_SECONDS
from holdfast.testing.suite.runs import start
from stores.runs_asking import add_worker


@pytest.fixture
def maria(tmp_path):
    return PROVIDERS["mariadb"].url(tmp_path)


@pytest.mark.parametrize("default", ["REPEATABLE READ", "SERIALIZABLE"], ids=["repeatable-read", "serializable"])
def test_the_isolation_of_a_transaction_does_not_depend_on_the_default_of_the_server(maria, default):
    """A transaction that compares sees what was committed before each statement; one that reads, one state of all."""
    store = open_store(maria, namespace="default")
    store.connect("commands").close()
    store.close()
    level = "SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = CONNECTION_ID()"
    refreshed = "SELECT SLEEP(0.15)"  # the server shows transactions as they were up to 0.1 s ago
    with sql_session(maria) as (session, tables):
        session.run([f"SET SESSION TRANSACTION ISOLATION LEVEL {default}"])
        some = f"SELECT COUNT(*) FROM {tables.locks}"
        seen = session._send(session.dialect.writing([f"{some} FOR UPDATE", refreshed, level]), writes=False)
        assert seen[2] == (("READ COMMITTED",),)
        assert session.read([some, refreshed, level])[2] == (("REPEATABLE READ",),)


def test_a_client_that_is_paused_after_holdfast_has_written_in_its_transaction_frees_the_rows(maria):
    """As in `ctx.transaction`: the commit should follow at once, and here it never does."""
    store = open_store(maria, namespace="default")
    connection = store.connect("commands")
    add_worker(connection)
    with pytest.raises(ConnectionAbortedError), store.transaction() as lent:
        (started,) = store.join(lent).execute([start("r")])
        assert isinstance(started, Started)
        with lent.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.wait_timeout")
            assert cursor.fetchone() == (IDLE_SECONDS,)
        eventually(lambda: isinstance(connection.execute([start("r")])[0], Started))  # the row is free, and not there
        raise ConnectionAbortedError
    connection.close()
    store.close()


def test_a_user_may_take_longer_before_holdfast_writes(maria):
    store = open_store(maria, namespace="default")
    with store.transaction() as lent, lent.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.wait_timeout")
        assert cursor.fetchone()[0] > 60
    store.close()
