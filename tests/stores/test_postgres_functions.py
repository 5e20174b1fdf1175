"""Releases of Holdfast side by side on one PostgreSQL database: each client calls its own functions."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
import real_servers
from commandline import answer, holdfast
from psycopg import sql
from run_lifecycle import assert_that_runs_can_be_driven

from holdfast.errors import StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.stores.postgresql import (
    functions as postgres_functions,
)
from holdfast.stores.postgresql import (
    schema as postgres_schema,
)
from holdfast.stores.postgresql import (
    store as postgresql,
)
from holdfast.stores.postgresql.functions import functions_for
from holdfast.testing.builders import acquire, release, wait

_names = count(1)
LATER = "another transaction was faster"
"""What a function of the later release says."""
CHILD = Path(__file__).with_name("other_release.py")


@pytest.fixture
def server():
    return real_servers.shared("postgres")


@pytest.fixture
def admin(server):
    with psycopg.connect(server.url, autocommit=True) as db:
        yield db


@pytest.fixture
def schema(admin):
    """The name of a schema that does not exist yet, with letters that must be quoted, of maximum length."""
    name = f"releases {next(_names)} % \"É'".ljust(62, "x")
    yield name
    admin.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def url(server, schema):
    return f"{server.url}?schema={quote(schema, safe='')}"


class Release:
    """A client of some release in a separate process."""

    def __init__(self, process):
        self._process = process
        self.first = self.read_answer()

    def read_answer(self):
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def send_line(self, line):
        print(line, file=self._process.stdin, flush=True)

    def ask(self, line):
        self.send_line(line)
        return self.read_answer()


@pytest.fixture
def releases(url):
    """Opens the store as a client of "this" release or of a later one does."""
    with ExitStack() as stack:

        def opened(*arguments):
            process = subprocess.Popen(
                [sys.executable, str(CHILD), url, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)  # closes its input, on which it ends, and waits
            return Release(process)

        yield opened


def rows_of(admin, schema, digest):
    """The functions of a set as the server has them; another row version means that one was replaced."""
    found = admin.execute(
        "SELECT p.proname, p.xmin::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
        "WHERE n.nspname = %s AND right(p.proname, 13) = %s",
        (schema, f"_{digest}"),
    )
    return dict(found.fetchall())


def digests_in(admin, schema):
    return {row[0] for row in admin.execute(sql.SQL("SELECT digest FROM {}.functions").format(sql.Identifier(schema)))}


# -- two releases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", ["functions", "tables"])
@pytest.mark.parametrize("first", ["old_first", "new_first"])
def test_two_releases_work_side_by_side_each_with_its_own_functions(releases, admin, schema, first, later):
    kinds = ("this", later) if first == "old_first" else (later, "this")
    one = releases(kinds[0])
    assert one.ask("work 1") == {"done": 1}
    before = rows_of(admin, schema, one.first["ready"])
    two = releases(kinds[1])
    for client in (one, two):
        client.send_line("work 12")
    assert [client.read_answer() for client in (one, two)] == [{"done": 12}] * 2, "at the same time, with the same lock"
    again = releases(kinds[0])
    assert again.ask("work 1") == {"done": 1}
    assert again.first == one.first != two.first
    assert before == rows_of(admin, schema, one.first["ready"]), "no function was replaced"
    assert digests_in(admin, schema) == {one.first["ready"], two.first["ready"]}
    texts = {
        kind: text_of(admin, schema, client.first["ready"]) for kind, client in zip(kinds, (one, two), strict=True)
    }
    assert {kind: LATER in text for kind, text in texts.items()} == {"this": False, later: True}


def text_of(admin, schema, digest):
    """The source of a function of a set."""
    name = sql.SQL("{}.{}").format(sql.Identifier(schema), sql.Identifier(f"insist_{digest}")).as_string(None)
    return admin.execute("SELECT pg_get_functiondef(%s::regproc)", (name,)).fetchone()[0]


@pytest.mark.parametrize("later", ["breaking", "breaking_tables_alone"])
def test_an_incompatible_client_is_refused_also_if_it_was_connected_before(releases, admin, schema, later):
    old = releases("this")
    assert old.ask("work 1") == {"done": 1}
    new = releases(later)
    assert new.ask("work 1") == {"done": 1}
    for refused in (old.ask("work 1"), releases("this").first):
        assert "newer Holdfast (version 2; it requires clients of version 2 at least" in refused["refused"]
    assert digests_in(admin, schema) == {new.first["ready"]}
    assert not rows_of(admin, schema, old.first["ready"])
    assert new.ask("work 1") == {"done": 1}


def test_an_incompatible_client_is_refused_also_if_an_owner_ran_the_newer_script(releases, admin, schema):
    old = releases("this")
    admin.execute(releases("breaking_tables_alone", "sql").first["sql"].encode())
    assert "newer Holdfast (version 2" in old.ask("work 1")["refused"]
    assert not rows_of(admin, schema, old.first["ready"])


def test_a_set_of_functions_has_the_same_name_in_every_schema_and_another_after_every_change(monkeypatch):
    first = functions_for("holdfast")
    assert first.digest == functions_for("elsewhere").digest
    source = postgres_functions.source
    with monkeypatch.context() as later:
        later.setattr(postgres_functions, "source", lambda name: source(name).replace("HF001", "HF002"))
        assert functions_for("holdfast").digest != first.digest
    monkeypatch.setattr(postgres_functions, "VERSION", postgres_functions.VERSION + 1)
    assert functions_for("holdfast").digest != first.digest


@pytest.fixture
def client(url, opened):
    """A connection of a client of this release."""
    return opened(url).connect()


# -- functions that are gone -----------------------------------------------------------------------------------


@pytest.fixture
def created(monkeypatch):
    """How often functions were created."""
    made = []
    missing_parts = postgres_schema.missing_parts

    def counted(*arguments):
        made.append(arguments)
        return missing_parts(*arguments)

    monkeypatch.setattr(postgres_schema, "missing_parts", counted)
    return made


def drop_functions(admin, schema, like="%"):
    """Remove the functions of all sets whose names are like this one."""
    found = admin.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
        "WHERE n.nspname = %s AND proname LIKE %s",
        (schema, like),
    ).fetchall()
    assert found
    admin.execute(f"DROP FUNCTION {', '.join(name for (name,) in found)} CASCADE")


@pytest.mark.parametrize("gone", ["%\\_____________", "clock\\_%"], ids=["all", "one"])
def test_missing_functions_are_created_again_within_the_call(client, admin, schema, gone, created):
    (granted,) = client.execute([acquire("k")])
    drop_functions(admin, schema, gone)
    created.clear()
    outcomes = client.execute([wait("k"), acquire("l", "b.2"), release("k", token=granted.token)])
    assert [type(one) for one in outcomes] == [out.Queued, out.Granted, out.Released], "nothing was lost with them"
    assert_that_runs_can_be_driven(client)
    assert len(created) == 1


def test_functions_that_cannot_be_created_are_an_error_after_one_try_per_call(client, admin, schema, monkeypatch):
    client.execute([acquire("k")])
    drop_functions(admin, schema, "clock%")
    monkeypatch.setattr(postgres_schema, "missing_parts", lambda *_: "SELECT 1")
    with pytest.raises(StoreUnusable, match="do not exist any more"):
        client.execute([wait("k")])
    monkeypatch.undo()
    assert isinstance(client.execute([wait("k")])[0], out.Queued)


def test_a_transaction_without_functions_fails_and_the_next_one_creates_them(url, opened, admin, schema):
    store = opened(url)
    with store.transaction() as mine:
        store.join(mine).execute([acquire("k")])
    drop_functions(admin, schema, "clock%")
    with pytest.raises(StoreUnusable, match="do not exist any more"), store.transaction() as mine:
        store.join(mine).execute([wait("k")])
    with store.transaction() as mine:
        assert isinstance(store.join(mine).execute([wait("k")])[0], out.Queued)


# -- rights ----------------------------------------------------------------------------------------------------


@pytest.fixture
def role(server, url, schema, opened, admin):
    """The address as a role of the application, of a database whose owner has revoked the default right to call
    functions."""
    admin.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    try:
        opened(url).connect()
        admin.execute(postgres_schema.script("roles.sql", schema).encode())
        admin.execute("CREATE ROLE \"an App\" LOGIN PASSWORD 'secret' IN ROLE holdfast_app")
        yield f"postgresql://an%20App:secret@{server.url.partition('@')[2]}?schema={quote(schema, safe='')}"
    finally:
        admin.execute("ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC")
        for name in ('"an App"', "holdfast_app", "holdfast_reader"):
            admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_role_that_may_not_create_functions_gets_an_error_and_may_call_them_later(role, url, opened, admin, schema):
    connection = opened(role).connect()
    connection.execute([acquire("k")])
    drop_functions(admin, schema)
    for call in (lambda: connection.execute([wait("k")]), opened(role).connect):
        with pytest.raises(StoreUnusable, match=r"may not create them .*'holdfast schema install'"):
            call()
    opened(url).connect()
    assert isinstance(connection.execute([wait("k")])[0], out.Queued)
    assert_that_runs_can_be_driven(opened(role).connect())


def test_the_owner_of_the_schema_can_create_its_functions_without_other_rights(role, opened, admin, schema, server):
    """The next release needs no right in the database."""
    here = sql.Identifier(schema)
    drop_functions(admin, schema)
    admin.execute(sql.SQL('GRANT CREATE, USAGE ON SCHEMA {} TO "an App"').format(here))
    admin.execute(sql.SQL('GRANT ALL ON {}.functions TO "an App"').format(here))
    assert isinstance(opened(role).connect().execute([acquire("k")])[0], out.Granted)


# -- sets that nobody uses -------------------------------------------------------------------------------------


def set_last_use(admin, schema, digest, days):
    """Set the last use of a set to so many days ago."""
    statement = "UPDATE {}.functions SET used_at = now() - make_interval(days => {}) WHERE digest = {}"
    admin.execute(sql.SQL(statement).format(sql.Identifier(schema), days, digest))


def used_seconds_ago(admin, schema, digest):
    statement = "SELECT extract(epoch FROM now() - used_at) FROM {}.functions WHERE digest = {}"
    return admin.execute(sql.SQL(statement).format(sql.Identifier(schema), digest)).fetchone()[0]


def test_a_client_records_from_time_to_time_that_its_functions_are_in_use(role, opened, admin, schema, monkeypatch):
    own = functions_for(schema).digest
    connection = opened(role).connect()
    set_last_use(admin, schema, own, 30)
    opened(role).connect()
    assert used_seconds_ago(admin, schema, own) < 3_600, "when it opens the store"
    set_last_use(admin, schema, own, 30)
    connection.execute([acquire("k")])
    assert used_seconds_ago(admin, schema, own) > 3_600, "not with every command"
    monkeypatch.setattr(postgresql, "NOTE_SECONDS", 0.0)
    connection.execute([acquire("l")])
    assert used_seconds_ago(admin, schema, own) < 3_600


def test_recording_the_use_of_functions_never_waits_for_a_lock(url, opened, admin, schema, server):
    opened(url).connect()
    set_last_use(admin, schema, functions_for(schema).digest, 30)
    with psycopg.connect(server.url) as other:
        other.execute(sql.SQL("SELECT FROM {}.functions FOR UPDATE").format(sql.Identifier(schema)))
        assert isinstance(opened(url).connect().execute([acquire("k")])[0], out.Granted)
        other.rollback()


def test_only_sets_of_functions_that_were_unused_for_long_are_removed(releases, admin, schema, url, command_line):
    old = releases("this")
    releases("functions").ask("work 1")
    digests = digests_in(admin, schema)
    (other,) = digests - {functions_for(schema).digest}
    for days, options, gone in ((5, (), []), (8, ("--unused-for", "9 days"), []), (8, (), [other])):
        set_last_use(admin, schema, functions_for(schema).digest, 30)
        set_last_use(admin, schema, other, days)
        answer = command_line("schema", "prune", *options)
        assert [one["digest"] for one in answer["removed"]] == gone
    assert digests_in(admin, schema) == {old.first["ready"]}
    assert not rows_of(admin, schema, other)
    assert old.ask("work 1") == {"done": 1}


def test_a_set_of_functions_that_was_removed_is_created_again_by_its_client(releases, admin, schema, command_line):
    later = releases("functions")
    releases("this")
    (other,) = digests_in(admin, schema) - {functions_for(schema).digest}
    assert [one["digest"] for one in command_line("schema", "prune", "--force")["removed"]] == [other]
    assert later.ask("work 2") == {"done": 2}
    assert digests_in(admin, schema) == {functions_for(schema).digest, other}


@pytest.fixture
def command_line(url):
    """The answer of a command of the command line, as JSON."""

    def run(*words):
        result = holdfast("--url", url, "--json", *words)
        assert result.exit_code == 0, result.output
        return answer(result)

    return run


def test_the_sql_that_the_command_line_prints_can_be_run_by_an_owner(role, opened, admin, schema, command_line):
    drop_functions(admin, schema)
    printed = holdfast("--url", role, "schema", "sql")
    assert printed.exit_code == 0, printed.output
    admin.execute(printed.stdout.encode())
    assert isinstance(opened(role).connect().execute([acquire("k")])[0], out.Granted)
    assert command_line("schema", "sql") == {"sql": ""}
    admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    admin.execute(command_line("schema", "sql")["sql"].encode())
    assert command_line("schema", "list")["own"] == functions_for(schema).digest
    admin.execute(postgres_schema.script("roles.sql", schema).encode())
    assert_that_runs_can_be_driven(opened(role).connect())


def test_a_read_does_not_create_functions_and_says_who_can(url, opened, admin, schema, command_line):
    opened(url).connect()
    drop_functions(admin, schema)
    refused = holdfast("--url", url, "locks", "list")
    assert refused.exit_code == 1
    assert "lacks the functions of this version" in refused.stderr
    assert command_line("schema", "install") == {"own": functions_for(schema).digest}
    assert holdfast("--url", url, "locks", "list").exit_code == 0


def test_doctor_names_the_sets_of_functions_and_warns_of_unused_ones(releases, admin, schema, url):
    releases("this")
    releases("functions")
    (other,) = digests_in(admin, schema) - {functions_for(schema).digest}

    def found():
        findings = answer(holdfast("--url", url, "--json", "doctor"))["findings"]
        return next(one for one in findings if one["check"] == "functions")

    assert found()["level"] == "ok"
    assert all(digest in found()["detail"] for digest in digests_in(admin, schema))
    set_last_use(admin, schema, other, 8)
    assert found()["level"] == "warning"
    assert "schema prune" in found()["advice"]


def test_schema_commands_on_other_stores_are_refused(tmp_path):
    refused = holdfast("--url", f"sqlite:///{tmp_path / 'hf.db'}", "schema", "list")
    assert refused.exit_code == 2
    assert "postgresql://" in refused.stderr
