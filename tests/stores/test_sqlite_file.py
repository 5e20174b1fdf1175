"""Which files are accepted, how they are created, and what happens when they are deleted."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import commands as c
from holdfast.errors import StoreUnavailable, StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import decode
from holdfast.stores import open_store
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite import store as sqlite_store
from holdfast.testing.builders import SECOND, acquire, release, renew
from holdfast.testing.processes import Process, running
from stores.forking import in_child


@pytest.fixture
def path(tmp_path):
    return tmp_path / "locks.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


def query(path, statement):
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement).fetchall()


OPENER = """
report("ready")
sys.stdin.readline()
store = open_store(sys.argv[1], namespace="default")
connection = store.connect("commands")
outcome, = connection.execute([acquire(f"key:{sys.argv[2]}")])
report(type(outcome).__name__)
connection.close()
store.close()
"""


def test_eight_processes_may_open_a_new_file_at_once(url, path):
    for attempt in range(3):
        processes = [Process(OPENER, url, f"{attempt}.{n}") for n in range(8)]
        try:
            for process in processes:
                assert process.read_line() == "ready"
            for process in processes:
                process.send_line()
            assert [process.read_line() for process in processes] == ["Granted"] * 8
        finally:
            for process in processes:
                process.end()
        assert query(path, "SELECT count(*) FROM locks") == [(8,)]
        for file in path.parent.glob("locks.db*"):
            file.unlink()


def test_the_file_has_the_application_id_and_the_journal_mode_of_holdfast(url, path, opened):
    opened(url).connect("commands").execute([acquire()])
    assert query(path, "PRAGMA application_id") == [(sqlite_file.APPLICATION_ID,)]
    assert query(path, "PRAGMA user_version") == [(sqlite_file.SCHEMA_VERSION,)]
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    assert query(path, "SELECT json_extract(record, '$.holders[0].label.name') FROM locks") == [("me",)]


def test_every_connection_is_durable(url, opened):
    for role in ("commands", "heartbeats", "queries"):
        handle = opened(url).connect(role)._handle
        with handle.active:
            assert handle.ready().execute("PRAGMA synchronous").fetchone() == (2,)


def corrupt(path):
    path.write_bytes(b"SQLite format 3\0" + os.urandom(4096))


def text(path):
    path.write_text("this is a letter to my aunt, and quite a long one at that. " * 100)


def foreign(path):
    query(path, "CREATE TABLE customers (name TEXT)")


def foreign_in_wal(path):
    """A file of another program, with a log that closing a writable connection would write into the file."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE customers (name TEXT)")
        db.commit()
        db.execute("INSERT INTO customers VALUES ('a')")
        db.commit()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{path}{suffix}.kept")
    for suffix in ("", "-wal"):
        shutil.move(f"{path}{suffix}.kept", f"{path}{suffix}")


def another_id(path):
    query(path, "PRAGMA application_id = 7")


def newer(path):
    open_store(f"sqlite:///{path}", namespace="default").close()
    query(path, "PRAGMA user_version = 99")


def of_development(path):
    open_store(f"sqlite:///{path}", namespace="default").close()
    query(path, f"PRAGMA user_version = {sqlite_file.FIRST_VERSION - 1}")


def without_table(path):
    open_store(f"sqlite:///{path}", namespace="default").close()
    query(path, "DROP TABLE locks")


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (corrupt, "damaged or not a SQLite database.*Restore"),
        (text, "not a SQLite database.*move it away"),
        (foreign, "another application.*separate file"),
        (foreign_in_wal, "another application.*separate file"),
        (another_id, "another application.*separate file"),
        (newer, "newer version of Holdfast.*Upgrade"),
        (of_development, "earlier development version.*Move it away"),
        (without_table, "damaged.*Restore"),
    ],
)
def test_a_file_that_is_not_of_holdfast_is_refused_and_unchanged(make, advice, url, path):
    make(path)
    (path.parent / "locks.db-turn").unlink(missing_ok=True)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=advice):
        open_store(url, namespace="default")
    assert path.read_bytes() == before
    assert not (path.parent / "locks.db-turn").exists()


def test_an_empty_file_becomes_a_store(url, path, opened):
    path.touch()
    opened(url).connect("commands").execute([acquire()])
    assert query(path, "SELECT count(*) FROM locks") == [(1,)]


def test_a_migration_that_fails_in_the_middle_changes_nothing(url, path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "_statements", lambda _: ["CREATE TABLE locks (x)", "CREATE nonsense"])
    with pytest.raises(StoreUnavailable, match="nonsense"):
        open_store(url, namespace="default")
    assert query(path, "SELECT count(*) FROM sqlite_schema") == [(0,)]
    monkeypatch.undo()
    open_store(url, namespace="default").close()


def test_a_migration_upgrades_an_older_file(url, path, monkeypatch, opened):
    opened(url).connect("commands").execute([acquire()])
    more = (*sqlite_file.MIGRATIONS, "later.sql")
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", more)
    later = sqlite_file.FIRST_VERSION + len(more)
    monkeypatch.setattr(sqlite_file, "SCHEMA_VERSION", later)
    monkeypatch.setattr(sqlite_store, "SCHEMA_VERSION", later)
    monkeypatch.setattr(sqlite_file, "_statements", lambda script: ["CREATE TABLE later (x)"] * (script == "later.sql"))
    store = opened(url)
    assert query(path, "PRAGMA user_version") == [(later,)]
    assert isinstance(store.connect("commands").execute([acquire(id="b.1")])[0], out.Busy)


@pytest.mark.parametrize(
    ("place", "advice"), [("missing/locks.db", "mkdir -p"), ("", "it is a folder"), ("file/locks.db", "not a folder")]
)
def test_a_path_where_no_file_can_be_created_says_what_to_do(tmp_path, place, advice):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match=advice):
        open_store(f"sqlite:///{tmp_path}/{place}", namespace="default")


UNPRIVILEGED = """
import os
import holdfast.stores.sqlite.store  # now: somebody else may not be able to read where Python lives
os.setgid(65534); os.setuid(65534)
try:
    open_store(sys.argv[1], namespace="default")
except Exception as error:
    report(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "advice"), [(0o755, None, "folder"), (0o777, 0o444, "chmod u+rw")]
)
def test_a_file_without_write_permission_says_what_to_do(tmp_path, folder_mode, file_mode, advice):
    if os.geteuid() != 0:
        pytest.skip("needs to be root to become somebody else")
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(folder_mode)
    for parent in folder.parents:
        if Path(tempfile.gettempdir()) in parent.parents and not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    if file_mode is not None:
        query(folder / "locks.db", "PRAGMA user_version = 0")
        (folder / "locks.db").chmod(file_mode)
    with running(UNPRIVILEGED, f"sqlite:///{folder}/locks.db") as process:
        printed = process.read_line()
    assert printed.startswith("StoreUnusable")
    assert advice in printed


def test_companion_files_have_the_permissions_of_the_database(url, path, opened):
    old = os.umask(0o077)
    try:
        path.touch()
        path.chmod(0o660)
        store = opened(url)
        watch = store.watch("b", print)
        watch.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.with_name("locks.db-turn").stat().st_mode) == 0o660
    assert stat.S_IMODE(path.with_name("locks.db-wake").stat().st_mode) == 0o770


def test_a_network_file_system_is_warned_about_once_per_path(url, opened, monkeypatch):
    monkeypatch.setattr(sqlite_store, "network_file_system", lambda _: "nfs4")
    with pytest.warns(RuntimeWarning, match="network file system .nfs4."):
        opened(url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(url)


def test_an_old_sqlite_is_refused(url, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(StoreUnusable, match=r"SQLite 3\.34\.1; Holdfast needs 3\.35\.0"):
        open_store(url, namespace="default")


def test_deleting_the_file_of_an_open_client_is_a_clear_error(url, path, opened, monkeypatch):
    monkeypatch.setattr(sqlite_file, "LOOK_SECONDS", 0)
    store = opened(url)
    connection, reader = store.connect("commands"), store.connect("queries")
    connection.execute([acquire()])
    for file in path.parent.glob("locks.db*"):
        file.unlink()
    with pytest.raises(StoreUnusable, match="deleted or replaced"):
        connection.execute([acquire("other")])
    with pytest.raises(StoreUnusable, match="deleted or replaced"):
        reader.execute([c.Inspect(key="k")])
    with pytest.raises(StoreUnusable, match="The file was deleted"):
        store.connect("commands")
    assert not path.exists()
    fresh = opened(url).connect("commands")
    assert isinstance(fresh.execute([acquire(id="b.1")])[0], out.Granted)
    with pytest.raises(StoreUnusable, match="deleted or replaced"):
        connection.execute([acquire("other")])


def test_a_full_disk_is_an_error_and_leaves_the_connection_usable(url, opened):
    connection = opened(url).connect("commands")
    connection.execute([acquire()])
    with connection._handle.active:
        db = connection._handle.ready()
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="full") as caught:
        connection.execute([acquire(f"{n}" * 100) for n in range(100)])
    assert not caught.value.ambiguous
    assert caught.value.retryable
    with connection._handle.active:
        db = connection._handle.ready()
        db.execute("PRAGMA max_page_count = 1000000")
    assert isinstance(connection.execute([acquire("0" * 100)])[0], out.Granted)


def test_corruption_that_is_found_later_makes_the_store_unusable(url, path, opened):
    connection = opened(url).connect("commands")
    connection.execute([acquire(f"{n:0200}") for n in range(200)])
    connection.close()
    half = path.stat().st_size // 8192 * 4096  # the schema is in the pages before it
    with path.open("r+b") as file:
        file.seek(half)
        file.write(os.urandom(half))
    damaged = opened(url).connect("commands")
    with pytest.raises(StoreUnusable, match="damaged"):
        damaged.execute([acquire(f"{n:0200}") for n in range(200)])


def test_a_batch_that_changes_nothing_writes_nothing(url, path, opened):
    connection = opened(url).connect("commands")
    connection.execute([acquire()])
    log = path.with_name("locks.db-wal")
    before = log.stat().st_size, log.stat().st_mtime_ns
    connection.execute([acquire(id="b.1"), renew(id="b.1", token=1), c.Settle(key="k"), c.Inspect(key="k")])
    assert (log.stat().st_size, log.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "extra",
    [
        {"top": {"new": 1}},
        {"holder": {"new": [1, {"a": None}]}},
        {"label": {"new": "x"}},
        {"holder": {"offered": False}},
        {"holder": {"offered": True}},
        {"top": {"waiters": []}},
        {"top": {"due_at": None}},
        {"top": {"closed_until": 0}},
        {"top": {"kind": "semaphore", "permits": 3}},
        {"holder": {"weight": 1, "delay": 5, "via": "z"}},
        {"holder": {"expires_at": 1}},
        {"holder": {"expires_at": None, "ttl": None}},
        {"holder": {"expires_at": 1_790_000_000_000_000 + 10**15}},
        {"top": {"forced": {"at": 1, "by": "o", "reason": "r"}}},
    ],
)
def test_renewing_many_leases_equals_the_rule_for_records_of_every_shape(url, path, opened, clock, extra):
    """Also for fields of another version, and for defaults that were written out."""
    connection = opened(url, clock=clock).connect("heartbeats")
    keys = [f"k{n}" for n in range(12)]
    grants = connection.execute([acquire(key) for key in keys])
    with closing(sqlite3.connect(path)) as db, db:
        value = json.loads(db.execute("SELECT record FROM locks WHERE key = 'k5'").fetchone()[0])
        value.update(extra.get("top", {}))
        value["holders"][0].update(extra.get("holder", {}))
        value["holders"][0]["label"].update(extra.get("label", {}))
        planted = json.dumps(value)
        db.execute("UPDATE locks SET record = ? WHERE key = 'k5'", (planted,))
    clock.pass_by(1)
    renewals = [renew(key, token=grant.token, ttl=40) for key, grant in zip(keys, grants, strict=True)]
    outcomes = connection.execute(renewals)
    expected, answer = renewals[5].apply(decode("k5", planted), clock.now)
    assert outcomes[5] == answer
    ((stored,),) = query(path, "SELECT record FROM locks WHERE key = 'k5'")
    assert decode("k5", stored) == expected
    assert {type(outcome) for outcome in outcomes[:5] + outcomes[6:]} == {out.Renewed}


# ---------------------------------------------------------------- fork


def test_a_forked_child_opens_its_own_connection_and_the_parent_continues(url, opened):
    store = opened(url)
    connection = store.connect("commands")
    watch = store.watch("b", print)
    (held,) = connection.execute([acquire()])

    def child():
        try:
            connection.execute([acquire("other")])
        except StoreUnusable as error:
            refused = "Open a new client" in str(error)
        own = store.reopen()
        mine = own.connect("commands")
        busy, granted = mine.execute([acquire(id="b.1"), acquire("child", "b.2", ttl=None)])
        own.watch("c", print).close()
        return refused, type(busy).__name__, type(granted).__name__

    assert in_child(child) == "(True, 'Busy', 'Granted')"
    assert connection.execute([release(token=held.token)]) == [out.Released()]
    assert isinstance(connection.execute([acquire("child")])[0], out.Busy)
    assert (store.path.parent / "locks.db-wake" / "b").exists()
    watch.close()


def test_what_a_child_writes_is_not_lost_when_its_parent_closes_the_file(url, opened):
    """SQLite's locks are in the memory of the process: a child that inherited them would hold no lock."""
    store = opened(url)
    connection = store.connect("commands")
    connection.execute([acquire("parent")])
    closed_reader, closed_writer = os.pipe()
    ready_reader, ready_writer = os.pipe()

    def child():
        mine = store.reopen().connect("commands")
        mine.execute([acquire("before", ttl=None)])
        os.write(ready_writer, b"x")
        os.read(closed_reader, 1)
        mine.execute([acquire("after", ttl=None)])
        other = subprocess.run(
            [sys.executable, "-c", LISTER, url], capture_output=True, text=True, check=True, env={"PATH": ""}
        )
        return other.stdout.strip()

    def meanwhile():
        os.read(ready_reader, 1)
        connection.execute([acquire("meanwhile")])
        connection.close()
        store.close()
        os.write(closed_writer, b"x")

    assert in_child(child, meanwhile) == "after before meanwhile parent"
    for descriptor in (closed_reader, closed_writer, ready_reader, ready_writer):
        os.close(descriptor)


LISTER = """
import sys
import tempfile
from holdfast import commands as c
from holdfast.stores import open_store
store = open_store(sys.argv[1], namespace="default")
connection = store.connect("queries")
print(*[item.key for item in connection.execute([c.ListLocks()])[0].items])
connection.close()
store.close()
"""


def test_forks_beside_busy_threads_harm_neither_process(url, opened):
    store = opened(url)
    stop = threading.Event()
    done = []

    def write(n):
        connection = store.connect("heartbeats" if n else "commands")
        count = 0
        while not stop.is_set():
            (outcome,) = connection.execute([acquire(f"busy:{n}", f"a.{count}", ttl=None)])
            connection.execute([release(f"busy:{n}", f"a.{count}", token=outcome.token)])
            count += 1
        done.append(count)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for n in range(10):

            def child(n=n):
                (outcome,) = store.reopen().connect("commands").execute([acquire(f"child:{n}", ttl=None)])
                return type(outcome).__name__

            assert in_child(child) == "Granted"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(done) == 3
    (page,) = store.connect("queries").execute([c.ListLocks(prefix="child:")])
    assert len(page.items) == 10


def test_a_child_that_inherited_an_open_transaction_is_refused(url, opened, monkeypatch):
    monkeypatch.setattr(sqlite_file, "FORK_PATIENCE_SECONDS", 0.01)
    store = opened(url)
    connection = store.connect("commands")

    def child():
        try:
            store.reopen().connect("commands")
        except StoreUnusable as error:
            return "spawn" in str(error)

    with connection._handle.active:
        db = connection._handle.ready()
        db.execute("BEGIN IMMEDIATE")
        assert in_child(child) == "True"
        connection._handle.tidy()
    assert isinstance(connection.execute([acquire()])[0], out.Granted)


def databases_open():
    """The SQLite files that this process has open, as the system sees it."""
    targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]  # noqa: PTH115, PTH208
    return sorted({Path(target).name for target in targets if "locks.db" in target and not target.endswith("-turn")})


def _is_open(fd):
    return Path(f"/proc/self/fd/{fd}").is_symlink()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not tell which files are open")
@pytest.mark.parametrize("new", [True, False], ids=["made", "looked-at"])
def test_a_fork_while_another_thread_opens_the_file_inherits_no_connection(url, opened, monkeypatch, new):
    if not new:
        opened(url)
    looking, look = threading.Event(), sqlite_file._look

    def slowly(db, path):
        found = look(db, path)
        looking.set()
        time.sleep(0.3)  # the fork comes in the middle, and must wait
        return found

    monkeypatch.setattr(sqlite_file, "_look", slowly)
    opening = threading.Thread(target=lambda: open_store(url, namespace="other").close())
    opening.start()
    assert looking.wait(10)
    try:
        assert in_child(databases_open) == "[]"
    finally:
        opening.join(20)


def test_one_thread_forks_at_a_time_and_releases_only_its_own_fork_lock(url, opened, monkeypatch):
    monkeypatch.setattr(sqlite_file, "FORK_PATIENCE_SECONDS", 0.01)
    connection = opened(url).connect("commands")
    sqlite_file._before_fork()

    def fork_too():
        sqlite_file._before_fork()
        sqlite_file._after_fork_in_parent()

    second = threading.Thread(target=fork_too)
    try:
        second.start()
        second.join(0.3)  # it has waited, and must not have forked
        assert connection._handle.active.locked(), "nobody may open it before the first one has forked"
        assert second.is_alive()
    finally:
        sqlite_file._after_fork_in_parent()
        second.join(10)
    assert isinstance(connection.execute([acquire()])[0], out.Granted)


def test_many_threads_may_fork_and_open_clients_at_once(url, opened):
    store = opened(url)
    stop, answers = threading.Event(), []

    def work():
        while not stop.is_set():
            other = open_store(url, namespace="other")
            connection = other.connect("commands")
            connection.execute([acquire()])
            connection.close()
            other.close()

    def fork():
        for _ in range(8):
            answer = in_child(lambda: (databases_open(), store.reopen().connect("commands") is not None))
            answers.append(answer)

    workers = [threading.Thread(target=work) for _ in range(2)]
    forkers = [threading.Thread(target=fork) for _ in range(2)]
    for thread in workers + forkers:
        thread.start()
    for thread in forkers:
        thread.join(60)
    stop.set()
    for thread in workers:
        thread.join(20)
    assert answers == ["([], True)"] * 16


def test_the_error_of_a_locked_file_says_whether_something_was_done(path):
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    assert "Nothing was done" in str(sqlite_file.store_error(busy, path))
    unknown = sqlite_file.store_error(busy, path, ambiguous=True)
    assert unknown.ambiguous
    assert "Nothing was done" not in str(unknown)


def test_a_child_forked_while_a_file_is_being_opened_is_refused_too(url, opened, monkeypatch):
    """The file is being opened for longer than a fork waits: that connection is not registered yet."""
    monkeypatch.setattr(sqlite_file, "FORK_PATIENCE_SECONDS", 0.01)
    store = opened(url)
    looking, go_on, look = threading.Event(), threading.Event(), sqlite_file._look

    def slowly(db, path):
        found = look(db, path)
        looking.set()
        go_on.wait(20)
        return found

    def child():
        try:
            store.reopen()
        except StoreUnusable as error:
            return "spawn" in str(error)

    monkeypatch.setattr(sqlite_file, "_look", slowly)
    opening = threading.Thread(target=lambda: store.connect("commands"))
    opening.start()
    try:
        assert looking.wait(10)
        assert in_child(child) == "True"
    finally:
        go_on.set()
        opening.join(20)


def test_a_ttl_of_a_year_can_be_stored(url, opened):
    connection = opened(url).connect("commands")
    grants = connection.execute([acquire(f"k{n}", ttl=366 * 86_400) for n in range(9)])
    outcomes = connection.execute([renew(f"k{n}", token=g.token, ttl=366 * 86_400) for n, g in enumerate(grants)])
    assert all(outcome.expires_at > 366 * 86_400 * SECOND for outcome in outcomes)
