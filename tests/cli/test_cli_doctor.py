"""`holdfast doctor`: every problem is found, named, and reported with how to fix it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from types import SimpleNamespace

import providers
import pytest
from commandline import answer, failure, holdfast, other, shape
from waiting import eventually

from holdfast import Client
from holdfast.commands import ListLocks
from holdfast.rules.lock_record import Forced, Holder, Label, LockRecord, Waiter, encode
from holdfast.stores import open_store
from holdfast.stores.memory.store import CAPABILITIES
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite import health as sqlite_health

SECOND = 1_000_000
HOUR = 3_600 * SECOND
SQLITE_CHECKS = [
    "schema",
    "journal_mode",
    "synchronous",
    "clocks",
    "states",
    "permissions",
    "file_system",
    "disk_space",
]
RECORD_CHECKS = ["clock", "clock_set_back", "dead_waiters", "records", "blocked_runs"]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "hf.db"
    Client(f"sqlite:///{file}").close()
    return file


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.fixture
def plant(url):
    def put(key, record):
        text = record if isinstance(record, str) else encode(record).decode()
        providers.PROVIDERS["sqlite"].plant(url, "default", key, text)

    return put


def found(url, check, *, code):
    """The finding of one check, when the command ends with this code."""
    done = holdfast("doctor", "--json", "--url", url)
    assert done.exit_code == code, done.output
    (finding,) = [finding for finding in answer(done)["findings"] if finding["check"] == check]
    if finding["level"] != "ok":
        assert finding["advice"]
        printed = holdfast("doctor", "--url", url).stdout
        assert finding["detail"] in printed
        assert f"-> {finding['advice']}" in printed
    return finding["level"], finding["detail"]


def sql(path, statement):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return db.execute(statement).fetchone()


def now():
    return time.time_ns() // 1_000


def test_a_store_without_problems_is_reported_as_ok(url):
    with Client(url) as hf, hf.lock("a"), other(url, "print('ready', flush=True)\nwith hf.lock('a'): input()"):
        eventually(lambda: hf.locks.inspect("a").waiters)
        done = holdfast("doctor", "--url", url)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "No problems found."
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == ["ok"] * 14


def test_the_json_document_of_doctor_has_this_shape(url):
    document = answer(holdfast("doctor", "--json", "--url", url))
    finding = {"check": "str", "level": "str", "detail": "str", "advice": "str"}
    assert shape(document) == {"url": "str", "namespace": "str", "level": "str", "findings": [finding] * 14}
    assert (document["level"], document["namespace"]) == ("ok", "default")
    assert [each["check"] for each in document["findings"]] == ["store", *SQLITE_CHECKS, *RECORD_CHECKS]
    assert {each["level"] for each in document["findings"]} == {"ok"}


def test_a_password_in_an_address_is_not_shown(monkeypatch):
    monkeypatch.setattr("holdfast.runtime.base.open_store", lambda _url, **options: open_store("memory://", **options))
    document = answer(holdfast("doctor", "--json", "--url", "postgresql://me:secret@host/db"))
    assert document["url"] == "postgresql://me:***@host/db"


def test_memory_is_not_durable():
    assert found("memory://", "durability", code=0)[0] == "warning"
    document = answer(holdfast("doctor", "--json", "--url", "memory://"))
    assert document["level"] == "warning"
    assert [each["check"] for each in document["findings"]] == ["store", "durability", *RECORD_CHECKS]


def test_a_file_that_does_not_exist_is_a_problem_and_none_is_created(tmp_path):
    level, detail = found(f"sqlite:///{tmp_path}/missing.db", "store", code=1)
    assert level == "problem"
    assert "there is no file" in detail
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("version", "words"), [(3, "an earlier development version"), (99, "a newer version")])
def test_a_file_with_another_schema_is_a_problem_and_is_unchanged(path, url, version, words):
    sql(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    level, detail = found(url, "store", code=1)
    assert level == "problem"
    assert words in detail
    assert words in failure(holdfast("locks", "list", "--url", url), 1)
    assert path.read_bytes() == before


def test_a_file_with_an_older_schema_is_a_problem_and_is_unchanged(path, url, monkeypatch):
    later = sqlite_file.SCHEMA_VERSION + 1
    for module in (sqlite_file, sqlite_health):
        monkeypatch.setattr(module, "SCHEMA_VERSION", later)
    before = path.read_bytes()
    level, detail = found(url, "store", code=1)
    assert level == "problem"
    assert "of an older Holdfast" in detail
    assert "of an older Holdfast" in failure(holdfast("locks", "list", "--url", url), 1)
    assert path.read_bytes() == before


def test_a_file_that_is_replaced_while_it_is_in_use_is_a_problem(path, url, monkeypatch):
    with Client(url) as hf:
        with monkeypatch.context() as older:
            older.setattr(sqlite_health, "SCHEMA_VERSION", sqlite_file.SCHEMA_VERSION + 1)
            (finding,) = [each for each in hf.runtime.store.diagnose() if each.check == "schema"]
            assert (finding.level, "replaced" in finding.detail) == ("problem", True)
        sql(path, "PRAGMA user_version = 3")
        (finding,) = [each for each in hf.runtime.store.diagnose() if each.check == "schema"]
        assert (finding.level, "development" in finding.detail) == ("problem", True)
        sql(path, "PRAGMA user_version = 99")
        (finding,) = [each for each in hf.runtime.store.diagnose() if each.check == "schema"]
        assert (finding.level, "newer" in finding.detail) == ("problem", True)


def test_a_file_that_was_deleted_is_a_finding_and_no_exception(path, url):
    with Client(url) as hf:
        path.unlink()
        assert hf.runtime.store.diagnose()[0].level == "problem"


def test_a_journal_that_is_no_write_ahead_log_is_a_problem(path, url):
    assert sql(path, "PRAGMA journal_mode = DELETE") == ("delete",)
    level, detail = found(url, "journal_mode", code=1)
    assert (level, "delete" in detail) == ("problem", True)


def test_a_library_that_does_not_sync_is_a_problem(url, monkeypatch):
    monkeypatch.setattr("holdfast.stores.sqlite.health._set_up", lambda db: db.execute("PRAGMA synchronous = NORMAL"))
    level, detail = found(url, "synchronous", code=1)
    assert (level, "NORMAL" in detail) == ("problem", True)


def test_a_network_file_system_is_a_problem(url, monkeypatch):
    monkeypatch.setattr("holdfast.stores.sqlite.health.network_file_system", lambda _path: "nfs4")
    level, detail = found(url, "file_system", code=1)
    assert (level, "nfs4" in detail) == ("problem", True)


@pytest.mark.parametrize(("free", "level", "code"), [(511, "warning", 0), (31, "problem", 1), (512, "ok", 0)])
def test_a_disk_that_is_almost_full_is_reported(url, monkeypatch, free, level, code):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=free * 1024 * 1024))
    seen, detail = found(url, "disk_space", code=code)
    assert (seen, detail.startswith(f"{free} MiB free")) == (level, True)


def test_a_disk_that_cannot_be_read_is_reported(url, monkeypatch):
    def broken(_path):
        raise OSError("no such device")

    monkeypatch.setattr("shutil.disk_usage", broken)
    assert found(url, "disk_space", code=0)[0] == "warning"


def in_an_hour():
    """A record for each kind of time that may be in the future."""
    later = now() + HOUR
    times = {"label": Label("x"), "since": later, "ttl": None, "expires_at": None}
    return {
        "token": LockRecord(fence=later),
        "holder": LockRecord(holders=(Holder(id="h", token=1, **times),)),
        "waiter": LockRecord(waiters=(Waiter(id="w", **times),)),
        "forced release": LockRecord(forced=Forced(at=later, by="x", reason="x")),
    }


@pytest.mark.parametrize("what", in_an_hour())
def test_a_clock_that_was_set_back_is_a_problem(url, plant, what):
    plant("late", in_an_hour()[what])
    plant("fine", LockRecord(fence=now()))
    level, detail = found(url, "clock_set_back", code=1)
    assert level == "problem"
    assert "set back by 59 min" in detail
    assert "or more: 1 records are ahead of it (late)" in detail


def test_a_clock_that_was_never_set_is_a_problem(monkeypatch):
    def at_the_beginning(url, **options):
        return open_store(url, **options, clock=lambda: 5 * SECOND)

    monkeypatch.setattr("holdfast.runtime.base.open_store", at_the_beginning)
    level, detail = found("memory://", "clock", code=1)
    assert (level, "never set" in detail) == ("problem", True)


@pytest.mark.parametrize(("apart", "level"), [(0, "ok"), (60, "warning"), (-60, "warning")])
def test_a_server_whose_clock_differs_from_this_hosts_is_reported(monkeypatch, apart, level):
    capabilities = type(CAPABILITIES)(durable=True, shared=True, server_clock=True, notifies=True)
    monkeypatch.setattr("holdfast.stores.memory.store.CAPABILITIES", capabilities)
    monkeypatch.setattr("holdfast.cli.doctor.host_clock", lambda: now() + apart * SECOND)
    assert found("memory://", "clock", code=0)[0] == level


def waiter(name, left, ttl=300):
    since = now()
    return Waiter(id=name, label=Label(name), since=since, ttl=ttl * SECOND, expires_at=since + left * SECOND)


def test_waiters_that_missed_two_polls_are_reported(url, plant):
    holder = Holder(id="h", label=Label("h"), token=1, since=1, ttl=None, expires_at=None)
    plant("a", LockRecord(fence=1, holders=(holder,), waiters=(waiter("polling", 250), waiter("dead", 60))))
    plant("b", LockRecord(fence=1, holders=(holder,), waiters=(waiter("late", 150),)))
    level, detail = found(url, "dead_waiters", code=0)
    assert level == "warning"
    assert "1 waiters have missed two polls (a: dead, kept for " in detail


def test_many_findings_of_a_kind_are_counted_and_some_are_named(url, plant):
    for number in range(150):
        plant(f"broken:{number:03}", "nothing of ours")
    level, detail = found(url, "records", code=1)
    assert level == "problem"
    assert "150 of 150 cannot be read" in detail
    assert "broken:004 and 145 more" in detail


@pytest.mark.parametrize(
    "change",
    [
        "past = 'nothing of ours'",
        "past = '{\"writers\": 7}'",
        "past = x'ff'",
        "value = '{'",
        "value = ''",
        "value = CAST(x'22ff22' AS TEXT)",
        "version = 'many'",
    ],
)
def test_a_state_that_cannot_be_read_is_a_problem(path, url, change):
    with Client(url, namespace="elsewhere") as hf:
        for key in ("good", "bad", "deleted"):
            hf.state(key).set({"a": 1})
        hf.state("deleted").delete()
        hf.state.execution("run-7", "bad").set(1)
    assert found(url, "states", code=0) == ("ok", "all 4 can be read")
    sql(path, f"UPDATE slots SET {change} WHERE key = 'bad'")
    level, detail = found(url, "states", code=1)
    assert level == "problem"
    assert "2 of 4 cannot be read (bad of execution 'run-7' in elsewhere; bad in elsewhere)" in detail


def test_unreadable_states_are_counted_and_some_are_named(path, url):
    with Client(url) as hf:
        for number in range(8):
            hf.state(f"s{number}").set(number)
    sql(path, "UPDATE slots SET value = '{'")
    assert "8 of 8 cannot be read" in (detail := found(url, "states", code=1)[1])
    assert "s4 in default and 3 more" in detail


def test_a_store_that_does_not_answer_is_a_problem(url, plan):
    plan.refuse = ListLocks
    done = holdfast("doctor", "--json", "--url", url)
    assert done.exit_code == 1
    assert [each["check"] for each in answer(done)["findings"]] == ["store", *SQLITE_CHECKS, "store"]


def test_doctor_changes_nothing(path, url):
    with Client(url) as hf, hf.lock("a", ttl=300):
        files = {name: name.read_bytes() for name in (path, path.with_name("hf.db-wal"))}
        assert holdfast("doctor", "--url", url).exit_code == 0
        assert {name: name.read_bytes() for name in files} == files


@pytest.mark.parametrize("name", providers.names())
def test_every_store_has_checks_and_names_each_check_once(name, tmp_path):
    store = open_store(providers.url(name, tmp_path), namespace="default")
    checks = [finding.check for finding in store.diagnose()]
    store.close()
    assert checks
    assert len(set(checks)) == len(checks)
