"""What users write to their own tables in MariaDB, in one transaction with a run's record or its start."""

from __future__ import annotations

import uuid

import pymysql
import pytest
import sqlalchemy
from providers import PROVIDERS

from holdfast import Client, Context, WorkflowFailed, current_step, workflow
from holdfast.errors import InvalidOption, StoreContended, StoreUnavailable, UnknownRun
from holdfast.stores import open_store
from holdfast.stores.sql.address import parse


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["mariadb"].url(tmp_path)


@pytest.fixture
def payments(url):
    """The name of a table of the user's."""
    name = f"payments_{uuid.uuid4().hex}"
    with pymysql.connect(**parse(url).dialect._options, autocommit=True) as db, db.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} (k VARCHAR(200) PRIMARY KEY, amount INT) ENGINE=InnoDB")
        yield name
        cursor.execute(f"DROP TABLE {name}")


@pytest.fixture
def connect(url, payments):
    """Open PyMySQL connections to the database of the store; closed before the table is dropped."""
    made = []

    def open_one(**options):
        made.append(pymysql.connect(**parse(url).dialect._options, **options))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def paid(connect, payments):
    with connect(autocommit=True).cursor() as cursor:
        cursor.execute(f"SELECT k, amount FROM {payments} ORDER BY k")
        return list(cursor.fetchall())


def test_what_a_transaction_writes_is_there_with_its_record_or_not_at_all(url, connect, payments, played, engine_on):
    def pay(connection, amount: int) -> str:
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {payments} VALUES ('{current_step().idempotency_key}', {amount})")
        if amount < 0:
            raise ValueError("nobody pays that")
        return "paid"

    @workflow
    async def pays(ctx: Context, amount: int) -> str:
        return await ctx.transaction("pay", pay, amount)

    async def scenario():
        async with engine_on(url, [pays]) as engine:
            good = await (await engine.start(pays, 7, id="good")).result()
            with pytest.raises(WorkflowFailed, match="nobody pays that"):
                await (await engine.start(pays, -1, id="bad")).result()
            return good

    assert played(scenario) == "paid"
    assert paid(connect, payments) == [("good:pay", 7)]


@pytest.mark.parametrize("later", [False, True], ids=["last", "followed-by-a-statement"])
def test_a_function_that_ends_its_transaction_itself_fails_with_what_to_do(  # noqa: PLR0917  (fixtures)
    url, connect, payments, played, engine_on, later
):
    def pay(connection) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {payments} VALUES ('lost', 1)")
        connection.rollback()
        if later:
            with connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {payments} VALUES ('other', 1)")

    @workflow
    async def pays(ctx: Context) -> None:
        await ctx.transaction("pay", pay)

    async def scenario():
        async with engine_on(url, [pays]) as engine:
            with pytest.raises(WorkflowFailed, match="has ended the transaction itself"):
                await (await engine.start(pays, id="r")).result()

    played(scenario)
    assert paid(connect, payments) == []


@workflow
async def nothing(ctx: Context, _: None) -> str:
    return "done"


@pytest.mark.parametrize("driver", ["pymysql", "sqlalchemy"])
def test_a_start_within_a_transaction_happens_with_it_or_not_at_all(url, connect, payments, driver):
    place = url.partition("?")[0].replace("mariadb://", "mysql+pymysql://")
    alchemy = sqlalchemy.create_engine(place)
    with Client(url) as hf:
        if driver == "pymysql":
            db = connect()
            db.begin()
            hf.runs.start(nothing, None, id="gone", connection=db)
            db.rollback()
            db.begin()
            hf.runs.start(nothing, None, id="there", connection=db)
            db.commit()
        else:
            with alchemy.connect() as db:
                with db.begin() as begun:
                    hf.runs.start(nothing, None, id="gone", connection=db)
                    begun.rollback()
                with db.begin():
                    hf.runs.start(nothing, None, id="there", connection=db)
        assert hf.runs.get("there").status == "pending"
        with pytest.raises(UnknownRun):
            hf.runs.get("gone")
    alchemy.dispose()


def test_with_autocommit_off_the_driver_opens_the_transaction_of_a_start(url, connect):
    """As it does for every statement of the user's: commit() makes the run exist, and without it there is none."""
    with Client(url) as hf:
        db = connect()
        hf.runs.start(nothing, None, id="gone", connection=db)
        db.rollback()
        hf.runs.start(nothing, None, id="there", connection=db)
        with pytest.raises(UnknownRun):
            hf.runs.get("there")
        db.commit()
        assert hf.runs.get("there").status == "pending"
        with pytest.raises(UnknownRun):
            hf.runs.get("gone")


@pytest.mark.parametrize("driver", ["pymysql", "sqlalchemy"])
def test_a_serializable_transaction_is_refused_because_workers_would_wait_for_it(url, connect, driver):
    with Client(url) as hf:
        if driver == "pymysql":
            db = connect(init_command="SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            db.begin()
            with pytest.raises(InvalidOption, match="workers could neither register"):
                hf.runs.start(nothing, None, id="r", connection=db)
        else:
            place = url.partition("?")[0].replace("mariadb://", "mysql+pymysql://")
            alchemy = sqlalchemy.create_engine(place, isolation_level="SERIALIZABLE")
            with alchemy.begin() as db, pytest.raises(InvalidOption, match="workers could neither register"):
                hf.runs.start(nothing, None, id="r", connection=db)
            alchemy.dispose()
        with pytest.raises(UnknownRun):
            hf.runs.get("r")


def test_a_start_sees_what_was_committed_after_the_snapshot_of_the_transaction(url, connect, payments):
    """REPEATABLE READ is the default of these servers: a plain read would return the older state."""
    with Client(url) as hf:
        db = connect()
        db.begin()
        with db.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {payments}")  # makes the snapshot
        hf.runs.start(nothing, None, id="r", idempotency_key="k")
        same = hf.runs.start(nothing, None, id="r2", idempotency_key="k", connection=db)
        db.commit()
        assert getattr(same, "id", same) == "r"


def test_connections_that_cannot_be_joined_are_refused_with_the_reason(url, connect):
    with Client(url) as hf:
        with pytest.raises(InvalidOption, match="no transaction is open"):
            hf.runs.start(nothing, None, connection=connect(autocommit=True))
        with pytest.raises(InvalidOption, match="PyMySQL or SQLAlchemy connection"):
            hf.runs.start(nothing, None, connection=object())
        other = connect()
        with other.cursor() as cursor:
            cursor.execute("USE mysql")
        other.begin()
        with pytest.raises(InvalidOption, match="another database"):
            hf.runs.start(nothing, None, connection=other)


def test_a_connection_that_is_lost_during_a_block_is_not_a_mistake_of_the_function(url):
    """The error can be retried, and nothing was committed."""
    store = open_store(url, namespace="default")
    with pytest.raises(StoreUnavailable) as lost, store.transaction() as connection:
        connection._force_close()
    assert not lost.value.ambiguous
    store.close()


def test_a_conflict_at_the_commit_of_a_block_can_be_retried_and_is_not_ambiguous(url, monkeypatch):
    store = open_store(url, namespace="default")
    with pytest.raises(StoreContended) as refused, store.transaction() as connection:
        deadlock = pymysql.err.OperationalError(1213, "Deadlock found")
        monkeypatch.setattr(connection, "commit", lambda: (_ for _ in ()).throw(deadlock))
    assert not refused.value.ambiguous
    store.close()
