"""Tests of `guard` on PostgreSQL that are the same for every driver; each driver has its own file for the rest."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from waiting import PATIENCE, eventually

from fencing.writers import sqlstate
from holdfast.errors import InvalidKey, InvalidOption, StaleToken, StoreUnusable

T0 = 1_790_000_000_000_000
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
SERIALIZATION_FAILURE = "40001"


@contextmanager
def meanwhile(call):
    """Run a function that waits in a thread. Yields its outcome: None, or the exception that it raised."""
    outcome = SimpleNamespace(error=None)

    def run():
        try:
            call()
        except BaseException as error:
            outcome.error = error

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it waits for ever"


def pid(writer):
    ((number,),) = writer.execute("SELECT pg_backend_pid()")
    return number


class Fencing:
    """The order of tokens."""

    def test_a_higher_token_passes_and_its_floor_is_remembered(self, connect, database):
        writer = connect()
        writer.write(T0)
        writer.write(T0 + 1)
        assert database.log() == [T0, T0 + 1]
        assert database.fences() == {"counter": T0 + 1}

    def test_the_same_token_may_write_again(self, connect, database):
        writer = connect()
        for _ in range(8):  # more often than it takes psycopg to prepare the statement
            writer.write(T0)
        assert database.log() == [T0] * 8

    def test_a_lower_token_is_refused_and_nothing_was_written(self, connect, database):
        writer = connect()
        writer.write(T0)
        with pytest.raises(StaleToken) as caught:
            writer.write(T0 - 1)
        assert (caught.value.resource, caught.value.offered, caught.value.highest) == ("counter", T0 - 1, T0)
        assert database.log() == [T0]
        assert database.fences() == {"counter": T0}

    def test_each_resource_has_its_own_fence(self, connect, database):
        writer = connect()
        names = ["a", "A", "ä", "a'; DROP TABLE log; --", "100%", "%s", ":b", "$1", "{x}", "x" * 512]
        for place, name in enumerate(names):
            writer.write(200 - place, name)
        assert database.fences() == {name: 200 - place for place, name in enumerate(names)}

    def test_holders_of_a_semaphore_do_not_refuse_each_other(self, connect, database):
        """Tokens 100 and 200 hold together, so both bring the floor 100."""
        writer = connect()
        writer.write(SimpleNamespace(token=200, floor=100))
        writer.write(SimpleNamespace(token=100, floor=100))
        assert database.log() == [200, 100]
        assert database.fences() == {"counter": 100}

    def test_a_holder_below_the_floor_is_refused_and_an_older_floor_lowers_nothing(self, connect, database):
        writer = connect()
        writer.write(SimpleNamespace(token=300, floor=200))
        writer.write(SimpleNamespace(token=200, floor=100))
        with pytest.raises(StaleToken):
            writer.write(SimpleNamespace(token=199, floor=100))
        assert database.fences() == {"counter": 200}

    def test_a_rollback_also_removes_the_stored_floor(self, connect, database):
        writer = connect()
        writer.write(100)
        writer.begin()
        writer.guard("counter", 200)
        writer.rollback()
        assert database.fences() == {"counter": 100}
        writer.write(150)

    def test_the_table_is_created_in_the_users_transaction_and_rolled_back_with_it(self, connect, database):
        writer = connect()
        for _ in range(2):
            writer.begin()
            writer.guard("counter", 200)
            assert not database.has_fences(), "the guard has committed"
            writer.rollback()
            assert not database.has_fences()
        writer.write(100)
        assert database.fences() == {"counter": 100}

    def test_a_refusal_leaves_the_users_own_transaction_open(self, connect, database):
        writer = connect()
        writer.write(200)
        writer.begin()
        writer.execute("INSERT INTO log (token) VALUES (1)")
        with pytest.raises(StaleToken):
            writer.guard("counter", 100)
        assert database.log() == [200], "the guard has committed something of the user's"
        writer.execute("INSERT INTO log (token) VALUES (2)")
        writer.commit()
        assert database.log() == [200, 1, 2]

    @pytest.mark.parametrize("token", [True, 0, -1, 2**53, "100", None])
    def test_a_bad_token_is_refused(self, connect, database, token):
        writer = connect()
        writer.begin()
        with pytest.raises(InvalidOption):
            writer.guard("counter", token)
        writer.rollback()
        assert not database.has_fences()

    @pytest.mark.parametrize("resource", ["", "a\nb", "x" * 513, 7])
    def test_a_bad_resource_is_refused(self, connect, database, resource):
        writer = connect()
        writer.begin()
        with pytest.raises(InvalidKey):
            writer.guard(resource, 100)
        writer.rollback()
        assert not database.has_fences()


class Concurrent:
    """Two transactions at the same time."""

    @pytest.fixture(params=["no-table", "no-row", "a-row"])
    def before(self, request, connect):
        """What the fence contains before the test."""
        if request.param != "no-table":
            connect().write(1, "another" if request.param == "no-row" else "counter")

    @pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.replace(" ", "-").lower())
    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_an_older_holder_waits_for_the_transaction_of_a_newer_one_and_depends_on_its_outcome(
        self, connect, database, before, level, ending
    ):
        newer, older = connect(), connect()
        newer.begin()
        newer.guard("counter", T0)
        older.begin(level)
        number = pid(older)
        with meanwhile(lambda: older.guard("counter", T0 - 1)) as outcome:
            eventually(lambda: database.waits(number))
            getattr(newer, ending)()
        if ending == "rollback":
            assert outcome.error is None
            older.commit()
            assert database.fences()["counter"] == T0 - 1
            return
        if level == "READ COMMITTED":
            assert isinstance(outcome.error, StaleToken)
            assert outcome.error.highest == T0
        else:
            assert sqlstate(outcome.error) == SERIALIZATION_FAILURE
        older.rollback()
        assert database.fences()["counter"] == T0

    @pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.replace(" ", "-").lower())
    def test_a_transaction_with_an_old_snapshot_of_the_fence_cannot_pass(self, connect, database, level):
        newer, older = connect(), connect()
        newer.write(T0 - 2)
        older.begin(level)
        older.execute("SELECT * FROM log")
        newer.write(T0)
        with pytest.raises(Exception) as caught:
            older.guard("counter", T0 - 1)
        assert isinstance(caught.value, StaleToken) or sqlstate(caught.value) == SERIALIZATION_FAILURE
        assert isinstance(caught.value, StaleToken) == (level == "READ COMMITTED")
        older.rollback()
        assert database.log() == [T0 - 2, T0]

    def test_a_newer_holder_waits_for_the_open_transaction_of_an_older_one(self, connect, database):
        newer, older = connect(), connect()
        connect().write(T0 - 2)
        older.begin()
        older.guard("counter", T0 - 1)
        newer.begin()
        number = pid(newer)
        with meanwhile(lambda: newer.guard("counter", T0)) as outcome:
            eventually(lambda: database.waits(number))
            older.execute("INSERT INTO log (token) VALUES (7)")
            older.commit()
        assert outcome.error is None
        assert newer.execute("SELECT token FROM log ORDER BY id") == [(T0 - 2,), (7,)], "it must see what came before"
        newer.commit()
        with pytest.raises(StaleToken):
            older.write(T0 - 1)

    def test_transactions_that_create_the_table_at_the_same_time_all_succeed(self, connect, database):
        writers = [connect() for _ in range(4)]
        together, failed = threading.Barrier(len(writers)), []

        def one(writer, token):
            together.wait(PATIENCE)
            try:
                writer.write(token, f"resource:{token}")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=one, args=(writer, 100 + n)) for n, writer in enumerate(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert failed == []
        assert database.fences() == {f"resource:{token}": token for token in range(100, 104)}


class FenceTable:
    """Which table is used as the fence."""

    def test_a_temporary_table_of_the_same_name_is_not_used_as_the_fence(self, connect, database):
        writer = connect()
        writer.write(200)
        writer.begin()
        writer.execute("CREATE TEMP TABLE holdfast_fences (resource text PRIMARY KEY, floor bigint)")
        writer.commit()
        with pytest.raises(StaleToken):
            writer.write(100)
        assert writer.execute("SELECT count(*) FROM pg_temp.holdfast_fences") == [(0,)]
        writer.rollback()

    def test_the_fence_is_not_created_as_a_temporary_table(self, connect, database):
        writer = connect()
        writer.begin()
        writer.execute("CREATE TEMP TABLE mine (id int)")
        writer.execute("SET search_path = pg_temp, public")
        writer.commit()
        writer.write(200)
        assert database.fences() == {"counter": 200}

    def test_a_schema_whose_name_must_be_quoted_is_found_and_used(self, connect, database):
        strange = 'Odd %s :y $1 {z} "q" é'
        quoted = '"' + strange.replace('"', '""') + '"'
        database.watcher.execute(f"CREATE SCHEMA {quoted}")
        role = database.watcher.info.user
        database.watcher.execute(f"ALTER ROLE {role} IN DATABASE {database.watcher.info.dbname} "
                                 f"SET search_path = {quoted}, public")  # fmt: skip
        writer = connect()
        writer.write(200)
        with pytest.raises(StaleToken):
            writer.write(100)
        assert database.rows(f"SELECT resource, floor FROM {quoted}.holdfast_fences") == [("counter", 200)]
        assert not database.has_fences()

    def test_each_schema_of_the_search_path_has_a_fence_of_its_own(self, connect, database):
        """For example one schema per tenant, with shared connections."""
        writer = connect()
        for schema, token in (("one", 200), ("two", 100)):
            database.watcher.execute(f"CREATE SCHEMA {schema}")
            writer.begin()
            writer.execute(f"SET LOCAL search_path = {schema}")
            writer.guard("counter", token)
            writer.commit()
        for schema, token in (("one", 200), ("two", 100)):
            assert database.rows(f"SELECT floor FROM {schema}.holdfast_fences") == [(token,)]

    def test_a_search_path_without_an_existing_schema_is_an_error(self, connect, database):
        writer = connect()
        writer.begin()
        writer.execute("SET LOCAL search_path = nowhere")
        with pytest.raises(StoreUnusable, match="search_path names no schema"):
            writer.guard("counter", 100)
        writer.rollback()

    def test_an_unlogged_table_is_refused_as_the_fence(self, connect, database):
        database.watcher.execute("CREATE UNLOGGED TABLE holdfast_fences (resource text PRIMARY KEY, floor bigint)")
        with pytest.raises(StoreUnusable, match=r"public\.holdfast_fences SET LOGGED"):
            connect().write(100)
        assert database.fences() == {}

    @pytest.mark.parametrize("before", ["another", "counter"])
    def test_a_trigger_that_drops_the_write_of_the_fence_does_not_let_a_token_pass(self, connect, database, before):
        connect().write(100, before)
        database.watcher.execute(
            "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        database.watcher.execute(
            "CREATE TRIGGER swallow BEFORE INSERT ON holdfast_fences FOR EACH ROW EXECUTE FUNCTION swallow()"
        )
        with pytest.raises(StoreUnusable, match="could not be written"):
            connect().write(200)
        assert database.log() == [100]


class Rights:
    """A role that may write rows and nothing else."""

    @pytest.fixture
    def unprivileged(self, database):
        """The address for a role that cannot create tables."""
        role = f"{database.watcher.info.dbname}_app"
        database.watcher.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        database.watcher.execute(f"GRANT SELECT, INSERT ON log TO {role}")
        database.watcher.execute(f"GRANT USAGE ON SEQUENCE log_id_seq TO {role}")
        url = urlsplit(database.url)
        yield url._replace(netloc=f"{role}:secret@{url.hostname}:{url.port}").geturl()
        database.watcher.execute(f"DROP OWNED BY {role}")
        database.watcher.execute(f"DROP ROLE {role}")

    def test_a_table_that_was_created_by_the_packaged_sql_works(self, connect, database, unprivileged, shipped):
        database.watcher.execute(shipped)
        role = urlsplit(unprivileged).username
        database.watcher.execute(f"GRANT SELECT, INSERT, UPDATE ON holdfast_fences TO {role}")
        writer = connect(url=unprivileged)
        writer.write(200)
        with pytest.raises(StaleToken):
            writer.write(100)
        assert database.fences() == {"counter": 200}

    def test_without_the_table_the_error_says_what_to_do_and_the_transaction_continues(
        self, connect, database, unprivileged
    ):
        writer = connect(url=unprivileged)
        writer.begin()
        writer.execute("INSERT INTO log (token) VALUES (1)")
        with pytest.raises(StoreUnusable, match=r"may not create one in public.*fences\.sql"):
            writer.guard("counter", 100)
        writer.commit()
        assert database.log() == [1]


class Guarding(Fencing, Concurrent, FenceTable, Rights):
    """All of these tests."""
