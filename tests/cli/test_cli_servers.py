"""The command line on server stores: it reads without creating anything, and reports problems of a server."""

from __future__ import annotations

import uuid

import psycopg
import pytest
import real_servers
from commandline import answer, failure, holdfast
from providers import sql_session

from holdfast import Client, LeaseLost
from holdfast.stores.urls import with_options

OPTIONS = {"postgres": "schema", "valkey": "prefix", "mariadb": "prefix", "mongodb": "collection"}


@pytest.fixture(params=OPTIONS)
def address(request):
    """The address of an unused namespace or schema on a real server; on PostgreSQL and MariaDB it is removed."""
    name = f"cli_{uuid.uuid4().hex[:16]}"
    server = real_servers.shared(request.param)
    url = with_options(server.url, {OPTIONS[request.param]: name})
    yield url
    if request.param == "mariadb":
        with sql_session(url) as (session, tables):
            session.run([f"DROP TABLE IF EXISTS {table}" for table in tables.names()])
    if request.param == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def test_the_holder_of_a_lock_is_shown_and_can_be_removed(address):
    with Client(address, name="billing") as hf:
        lease = hf.lock("invoice:42", ttl=60).acquire()
        (seen,) = answer(holdfast("locks", "list", "--json", "--url", address))["locks"]
        assert (seen["key"], seen["holders"][0]["token"]) == ("invoice:42", lease.token)
        done = holdfast("locks", "release", "invoice:42", "--reason", "stuck", "--yes", "--url", address)
        assert done.exit_code == 0
        assert "billing" in done.stdout
        with pytest.raises(LeaseLost):
            lease.release()


def test_the_doctor_checks_the_server(address):
    with Client(address) as hf, hf.lock("k"):
        done = holdfast("doctor", "--json", "--url", address)
        checks = {finding["check"]: finding["level"] for finding in answer(done)["findings"]}
        assert checks.pop("durability", "ok") in {"ok", "warning", "problem"}  # the tests' own servers are relaxed
        assert set(checks.values()) == {"ok"}
        assert {"server", "clock"} <= set(checks)


@pytest.mark.parametrize("command", [("locks", "list"), ("locks", "show", "k"), ("doctor",)])
def test_reading_creates_no_schema(command):
    server, name = real_servers.shared("postgres"), f"cli_{uuid.uuid4().hex}"
    done = holdfast(*command, "--url", f"{server.url}?schema={name}")
    assert f"there is no schema '{name}'" in done.output
    assert server.password not in done.output
    with psycopg.connect(server.url) as db:
        assert not db.execute("SELECT FROM pg_namespace WHERE nspname = %s", (name,)).fetchall()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/db",
        "redis://u:hunter2@127.0.0.1:1/0",
        "mariadb://u:hunter2@127.0.0.1:1/db",
    ],
)
def test_an_unreachable_server_is_reported_in_one_line(url):
    done = holdfast("locks", "list", "--url", url)
    assert "hunter2" not in failure(done, done.exit_code)
    assert done.exit_code == 1


@pytest.mark.parametrize("command", [("locks", "list"), ("state", "get", "k"), ("doctor",)])
def test_a_role_without_rights_gets_a_message_that_says_so(command):
    server = real_servers.shared("postgres")
    with Client(server.url) as hf:
        hf.lock("k").acquire().release()
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CREATE ROLE weak LOGIN PASSWORD 'x'")
        try:
            done = holdfast(*command, "--url", f"postgresql://weak:x@127.0.0.1:{server.port}/postgres")
        finally:
            db.execute("DROP ROLE weak; DROP SCHEMA holdfast CASCADE")
    assert "internal error" not in done.output
    assert "privilege" in done.output


@pytest.fixture
def schema_url():
    """The address of a schema on a real PostgreSQL that does not exist yet, and the same for a role without rights."""
    server, name, role = real_servers.shared("postgres"), f"cli_{uuid.uuid4().hex}", f"weak_{uuid.uuid4().hex}"
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
        yield f"{server.url}?schema={name}", f"postgresql://{role}:x@127.0.0.1:{server.port}/postgres?schema={name}"
        db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        db.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("command", ["list", "prune"])
def test_a_database_without_the_schema_is_reported_with_how_to_install_it(schema_url, command):
    line = failure(holdfast("schema", command, "--url", schema_url[0]), 1)
    assert "no client has used this store yet" in line
    assert line.endswith("or create the schema: holdfast schema install.\n")


def test_an_installation_without_rights_is_one_message(schema_url):
    line = failure(holdfast("schema", "install", "--url", schema_url[1]), 1)
    assert line.startswith("holdfast: this role may not create the tables and functions")
    assert "permission denied" in line
    assert "Nothing was changed." in line
    assert line.count("docs/stores/postgresql.md") == 1
    assert line.count("rights") == 0


def test_a_pruning_says_why_functions_are_kept(schema_url):
    done = holdfast("schema", "install", "--url", schema_url[0])
    assert (done.exit_code, done.stdout.endswith(") are installed.\n")) == (0, True)
    kept, last = holdfast("schema", "prune", "--url", schema_url[0]).stdout.splitlines()
    assert kept.startswith("kept: ")
    assert kept.endswith(": this release uses it")
    assert last == "Nothing was removed."
