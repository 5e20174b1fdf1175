"""The fence within a user's own SQLite transaction."""

import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import InvalidKey, InvalidOption, StaleToken
from holdfast.fencing import guard

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(params=["wal", "delete"])
def path(request, tmp_path):
    """A database in each journal mode, with one table of the user."""
    file = tmp_path / "user.db"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode={request.param}")
    connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, token INTEGER)")
    connection.close()
    return file


@pytest.fixture
def connect(path):
    """Connections that do not wait for each other, closed at the end."""
    made = []

    def open_one(**options):
        made.append(sqlite3.connect(path, **{"timeout": 0, **options}))
        return made[-1]

    yield open_one
    for connection in made:
        connection.close()


def write(connection, token, resource="counter"):
    with connection:
        guard(connection, resource, token)
        connection.execute("INSERT INTO log (token) VALUES (?)", (getattr(token, "token", token),))


def log(connection):
    return [token for (token,) in connection.execute("SELECT token FROM log ORDER BY id")]


def fences(connection):
    return dict(connection.execute("SELECT resource, floor FROM holdfast_fences"))


def test_a_higher_token_passes_and_its_floor_is_remembered(connect):
    db = connect()
    write(db, 100)
    write(db, 200)
    assert log(db) == [100, 200]
    assert fences(db) == {"counter": 200}


def test_the_same_token_may_write_again(connect):
    db = connect()
    write(db, 100)
    write(db, 100)
    assert log(db) == [100, 100]


def test_a_lower_token_is_refused_and_nothing_was_written(connect):
    db = connect()
    write(db, 200)
    with pytest.raises(StaleToken) as caught:
        write(db, 100)
    assert (caught.value.resource, caught.value.offered, caught.value.highest) == ("counter", 100, 200)
    assert log(db) == [200]
    assert fences(db) == {"counter": 200}


def test_each_resource_has_its_own_fence(connect):
    db = connect()
    write(db, 200, "a")
    write(db, 100, "b")
    assert fences(db) == {"a": 200, "b": 100}


def test_holders_of_a_semaphore_do_not_refuse_each_other(connect):
    """Tokens 100 and 200 hold together, so both bring the floor 100."""
    db = connect()
    write(db, SimpleNamespace(token=200, floor=100))
    write(db, SimpleNamespace(token=100, floor=100))
    assert log(db) == [200, 100]
    assert fences(db) == {"counter": 100}


def test_a_semaphore_holder_that_fell_below_the_floor_is_refused(connect):
    """Holder 100 has expired; 300 was granted beside 200."""
    db = connect()
    write(db, SimpleNamespace(token=300, floor=200))
    with pytest.raises(StaleToken):
        write(db, SimpleNamespace(token=100, floor=100))
    write(db, SimpleNamespace(token=200, floor=200))


def test_an_older_floor_never_lowers_the_fence(connect):
    """Holder 200 does not know yet that 100 has ended."""
    db = connect()
    write(db, SimpleNamespace(token=300, floor=200))
    write(db, SimpleNamespace(token=200, floor=100))
    assert fences(db) == {"counter": 200}


def test_in_the_default_mode_the_guard_opens_the_transaction_and_leaves_it_open(connect):
    db, other = connect(), connect()
    guard(db, "counter", 100)
    assert db.in_transaction
    assert other.execute("SELECT count(*) FROM sqlite_master WHERE name = 'holdfast_fences'").fetchone() == (0,)
    db.rollback()
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'holdfast_fences'").fetchone() == (0,)


def test_a_rollback_also_removes_the_stored_floor(connect):
    db = connect()
    write(db, 100)
    guard(db, "counter", 200)
    db.rollback()
    assert fences(db) == {"counter": 100}


@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_isolation_level_of_the_default_mode_is_guarded(connect, level):
    db = connect(isolation_level=level)
    write(db, 200)
    with pytest.raises(StaleToken):
        write(db, 100)
    assert log(db) == [200]


def test_a_refusal_rolls_back_a_transaction_that_the_guard_opened(connect):
    db, other = connect(), connect()
    write(db, 200)
    with pytest.raises(StaleToken):
        guard(db, "counter", 100)
    assert not db.in_transaction
    write(other, 300)


def test_a_refusal_leaves_the_users_own_transaction_open(connect):
    db, other = connect(), connect()
    write(db, 200)
    db.execute("INSERT INTO log (token) VALUES (1)")
    with pytest.raises(StaleToken):
        guard(db, "counter", 100)
    assert db.in_transaction
    assert log(other) == [200], "the guard has committed something of the user's"
    db.rollback()
    assert log(db) == [200]


def test_an_error_other_than_a_refusal_also_rolls_back_the_guards_transaction(connect):
    db = connect()
    db.execute("CREATE TABLE holdfast_fences (something TEXT)")
    with pytest.raises(sqlite3.OperationalError):
        guard(db, "counter", 100)
    assert not db.in_transaction


def test_without_an_open_transaction_an_autocommit_connection_is_refused(connect):
    db = connect(isolation_level=None)
    with pytest.raises(InvalidOption, match="'BEGIN IMMEDIATE' first"):
        guard(db, "counter", 100)
    assert not db.in_transaction


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
def test_an_autocommit_connection_is_guarded_within_an_explicit_transaction(connect, begin):
    db = connect(isolation_level=None)
    for token in (200, 100):
        db.execute(begin)
        try:
            guard(db, "counter", token)
            db.execute("INSERT INTO log (token) VALUES (?)", (token,))
        except StaleToken:
            assert db.in_transaction
            db.execute("ROLLBACK")
        else:
            db.execute("COMMIT")
    assert log(db) == [200]


def test_the_autocommit_attribute_of_newer_pythons_is_respected(path):
    """Python 3.12 has this attribute; before, a subclass simulates it."""
    if sys.version_info >= (3, 12):
        db = sqlite3.connect(path, autocommit=True)
    else:
        db = sqlite3.connect(path, factory=type("Newer", (sqlite3.Connection,), {"autocommit": True}))
    with pytest.raises(InvalidOption, match="open transaction"):
        guard(db, "counter", 100)
    db.execute("BEGIN")
    guard(db, "counter", 100)
    db.execute("COMMIT")
    assert fences(db) == {"counter": 100}
    db.close()


def test_the_users_row_factory_has_no_effect(connect):
    db = connect()
    db.row_factory = lambda cursor, row: {"columns": row}
    db.text_factory = bytes
    write(db, 200)
    with pytest.raises(StaleToken) as caught:
        write(db, 100)
    assert caught.value.highest == 200
    assert db.row_factory is not None


def test_a_temporary_table_of_the_same_name_is_not_used_as_the_fence(connect):
    db = connect()
    write(db, 200)
    db.execute("CREATE TEMP TABLE holdfast_fences (resource TEXT PRIMARY KEY, floor INTEGER)")
    with pytest.raises(StaleToken):
        write(db, 100)


def test_a_subclass_of_the_connection_is_recognised(path):
    class Mine(sqlite3.Connection):
        pass

    db = sqlite3.connect(path, factory=Mine)
    write(db, 100)
    assert log(db) == [100]
    db.close()


@pytest.mark.parametrize("wrong", [object(), None, "user.db"])
def test_an_unknown_connection_is_refused_with_the_known_types(wrong):
    with pytest.raises(InvalidOption, match=r"supported are: sqlite3\.Connection"):
        guard(wrong, "counter", 100)


def test_a_bad_resource_or_token_is_refused_before_a_transaction_is_opened(connect):
    db = connect()
    for resource in ("", "a\nb", "x" * 513, 7):
        with pytest.raises(InvalidKey):
            guard(db, resource, 100)
    for token in (True, -1, "100", None):
        with pytest.raises(InvalidOption):
            guard(db, "counter", token)
    assert not db.in_transaction


def test_between_check_and_commit_no_other_connection_can_write(connect):
    db, newer = connect(), connect()
    guard(db, "counter", 100)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        guard(newer, "counter", 200)
    assert not newer.in_transaction
    db.execute("INSERT INTO log (token) VALUES (100)")
    db.commit()
    write(newer, 200)
    assert log(db) == [100, 200]


def test_a_transaction_with_an_old_snapshot_of_the_fence_cannot_pass(connect):
    """A deferred transaction reads; a newer holder writes; the old one does not pass in any case."""
    old, newer = connect(isolation_level=None), connect()
    write(newer, 50)
    old.execute("BEGIN")
    old.execute("SELECT * FROM log").fetchall()
    try:
        write(newer, 200)
    except sqlite3.OperationalError:  # with the rollback journal no connection can write while another reads
        old.execute("ROLLBACK")
        write(newer, 200)
        old.execute("BEGIN")
    with pytest.raises((sqlite3.OperationalError, StaleToken)):
        guard(old, "counter", 100)
    old.execute("ROLLBACK")
    assert log(newer) == [50, 200]


def test_threads_that_create_the_table_at_the_same_time_all_succeed(path):
    start, failed = threading.Barrier(4), []

    def one(token):
        db = sqlite3.connect(path, timeout=60)
        start.wait(60)
        try:
            write(db, token)
        except StaleToken:
            pass
        except sqlite3.Error as error:
            failed.append(error)
        db.close()

    threads = [threading.Thread(target=one, args=(token,)) for token in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    db = sqlite3.connect(path)
    assert fences(db) == {"counter": 4}
    db.close()


def test_processes_with_random_tokens_pass_the_fence_in_rising_order_only(path):
    rounds, processes = 60, 4
    seed = random.randrange(10**6)
    racing = [
        subprocess.Popen(
            [sys.executable, WORKER, "sql_race", path, str(seed + number), "100000", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for racer in racing:
        assert racer.stdout.readline() == "ready\n"
    for racer in racing:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate(timeout=120)[0].split() for racer in racing]
    assert [racer.returncode for racer in racing] == [0] * processes
    accepted, refused = (sum(int(answer[place]) for answer in answers) for place in (0, 1))
    assert accepted + refused == rounds * processes
    assert refused > 0, "too quiet to show anything"
    db = sqlite3.connect(path)
    written = log(db)
    assert len(written) == accepted
    assert written == sorted(written), f"an older token came after a newer one (seed {seed})"
    assert fences(db) == {"counter": written[-1]}
    db.close()
