"""The command line on server stores: it looks without making anything, and says what is wrong with a server."""

from __future__ import annotations

import uuid

import psycopg
import pytest
import real_servers
from commandline import answer, failure, holdfast

from holdfast import Client, LeaseLost


@pytest.fixture(params=["postgres", "valkey"])
def address(request):
    """A place on a real server that nobody has used yet; on PostgreSQL it is removed again."""
    option, name = {"postgres": "schema", "valkey": "prefix"}[request.param], f"cli_{uuid.uuid4().hex}"
    server = real_servers.shared(request.param)
    yield f"{server.url}?{option}={name}"
    if request.param == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def test_who_holds_is_seen_and_can_be_put_out(address):
    with Client(address, name="billing") as hf:
        lease = hf.lock("invoice:42", ttl=60).acquire()
        (seen,) = answer(holdfast("locks", "list", "--json", "--url", address))["locks"]
        assert (seen["key"], seen["holders"][0]["token"]) == ("invoice:42", lease.token)
        done = holdfast("locks", "release", "invoice:42", "--reason", "stuck", "--yes", "--url", address)
        assert done.exit_code == 0
        assert "billing" in done.stdout
        with pytest.raises(LeaseLost):
            lease.release()


def test_the_doctor_looks_at_the_server(address):
    with Client(address) as hf, hf.lock("k"):
        done = holdfast("doctor", "--json", "--url", address)
        checks = {finding["check"]: finding["level"] for finding in answer(done)["findings"]}
        assert checks.pop("durability", "ok") in {"ok", "problem"}  # the tests' own PostgreSQL has fsync off
        assert set(checks.values()) == {"ok"}
        assert {"server", "clock"} <= set(checks)


@pytest.mark.parametrize("command", [("locks", "list"), ("locks", "show", "k"), ("doctor",)])
def test_looking_makes_no_schema(command):
    server, name = real_servers.shared("postgres"), f"cli_{uuid.uuid4().hex}"
    done = holdfast(*command, "--url", f"{server.url}?schema={name}")
    assert f"there is no schema '{name}'" in done.output
    assert server.password not in done.output
    with psycopg.connect(server.url) as db:
        assert not db.execute("SELECT FROM pg_namespace WHERE nspname = %s", (name,)).fetchall()


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@127.0.0.1:1/db", "redis://u:hunter2@127.0.0.1:1/0"])
def test_a_server_that_is_not_there_is_said_in_one_line(url):
    done = holdfast("locks", "list", "--url", url)
    assert "hunter2" not in failure(done, done.exit_code)
    assert done.exit_code == 1


@pytest.mark.parametrize("command", [("locks", "list"), ("state", "get", "k"), ("doctor",)])
def test_a_role_without_rights_is_told_so_in_plain_words(command):
    server = real_servers.shared("postgres")
    with Client(server.url) as hf:
        hf.lock("k").acquire().release()
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CREATE ROLE weak LOGIN PASSWORD 'x'")
        try:
            done = holdfast(*command, "--url", f"postgresql://weak:x@127.0.0.1:{server.port}/postgres")
        finally:
            db.execute("DROP ROLE weak; DROP SCHEMA holdfast CASCADE")
    assert "should not have happened" not in done.output
    assert "rights" in done.output
