"""Connections to a PostgreSQL server: a pool or an engine of the program, and poolers in transaction mode."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import psycopg.sql
import psycopg_pool
import pytest
import real_servers
import sqlalchemy
import sqlalchemy.ext.asyncio
from providers import PROVIDERS
from tls import tunnel
from waiting import eventually

from holdfast import AsyncClient, Client
from holdfast.errors import InvalidOption, StoreError, StoreUnusable
from holdfast.stores import open_store
from holdfast.stores.postgresql import session as postgres_session
from holdfast.testing.builders import acquire
from holdfast.testing.ports import HeldPort
from holdfast.testing.processes import running

SCHEMA = {"schema": "tests"}


@pytest.fixture
def server(tmp_path):
    PROVIDERS["postgres"].url(tmp_path)  # empties it
    return real_servers.shared("postgres")


@pytest.fixture
def pool(server):
    with psycopg_pool.ConnectionPool(
        server.url, min_size=1, max_size=1, open=True, kwargs={"application_name": "mine"}
    ) as made:
        yield made


@pytest.fixture
def engine(server):
    made = sqlalchemy.create_engine(
        server.url.replace("postgresql://", "postgresql+psycopg://"), pool_size=1, max_overflow=0
    )
    yield made
    made.dispose()


def test_a_client_is_made_from_a_psycopg_pool(server, pool):
    with Client(pool, store_options=SCHEMA) as hf, Client(server.url, store_options=SCHEMA) as other:
        with hf.lock("k") as lease:
            assert other.lock("k").try_acquire() is None
            assert other.locks.inspect("k").holders[0].token == lease.token
        assert hf.runtime.store.identity == other.runtime.store.identity


def test_a_client_is_made_from_an_sqlalchemy_engine(server, engine):
    with Client(engine, store_options=SCHEMA) as hf, Client(server.url, store_options=SCHEMA) as other:
        with hf.lock("k"):
            assert other.lock("k").try_acquire() is None
        assert server.password not in hf.url


def test_engines_with_equal_urls_are_distinguished(server):
    def made():
        return sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(server.url))

    stores = [open_store(made(), namespace="default", options=SCHEMA) for _ in range(2)]
    assert stores[0].identity != stores[1].identity
    for store in stores:
        store.close()


async def take(client):
    async with client, client.lock("k") as lease:
        return lease.token


def test_an_async_client_is_made_from_a_pool_and_from_an_engine(pool):
    assert asyncio.run(take(AsyncClient(pool, store_options=SCHEMA)))


def test_an_exhausted_pool_costs_no_lease(pool, engine):
    with pool.connection(), engine.connect():  # all connections of the pool
        for handle in (pool, engine):
            with Client(handle, store_options=SCHEMA) as hf, hf.lock("k", ttl=3, renew_every=0.3) as lease:
                first = lease.expires_at
                eventually(lambda: lease.expires_at > first)  # noqa: B023
                lease.check()


def test_a_pool_that_cannot_be_used_from_another_thread_is_refused(server):
    async_engine = sqlalchemy.ext.asyncio.create_async_engine(
        server.url.replace("postgresql://", "postgresql+psycopg://")
    )
    other_driver = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(InvalidOption, match="thread of its own"):
        open_store(async_engine, namespace="default")
    with pytest.raises(InvalidOption, match=r"not for sqlite\+pysqlite"):
        open_store(other_driver, namespace="default")
    with pytest.raises(InvalidOption, match="no option 'colour'"):
        open_store(other_driver_for_postgres(server), namespace="default", options={"colour": "red"})


def other_driver_for_postgres(server):
    return sqlalchemy.create_engine(server.url.replace("postgresql://", "postgresql+psycopg://"))


HOLDER = """
from holdfast import Client
with Client(sys.argv[1]) as hf, hf.lock("k"):
    report("held")
    sys.stdin.readline()
"""

# -- TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture
def secured(server, certificates):
    """The address of the server over TLS, which is required from the first byte on."""
    with tunnel(certificates, server.port) as port:
        userinfo = server.url.partition("://")[2].partition("@")[0]
        yield f"postgresql://{userinfo}@localhost:{port}/postgres?schema=tests&sslmode=verify-full&sslnegotiation=direct"


def test_commands_and_notifications_work_over_tls(secured, certificates, opened):
    url = f"{secured}&sslrootcert={certificates}/ca.crt"
    received = []
    with closing(opened(url).watch("b", received.append)), Client(url) as hf, hf.lock("k") as lease:
        assert lease.token
        eventually(lambda: received == [None])


def test_an_untrusted_certificate_is_refused(secured, opened):
    with pytest.raises(StoreError, match="certificate"):
        opened(secured).connect("commands")


# -- poolers ---------------------------------------------------------------------------------------------------


def contend(url, *, turns=10):
    """Processes take turns; returns the tokens in the order of the grants."""
    worker = (
        "from holdfast import Client\n"
        "with Client(sys.argv[1]) as hf:\n"
        "    report('ready')\n"
        "    for _ in range(int(sys.argv[2])):\n"
        "        with hf.lock('k', ttl=5) as lease:\n"
        "            report(lease.token)\n"
    )
    with running(worker, url, str(turns)) as one, running(worker, url, str(turns)) as two:
        for process in (one, two):
            assert process.read_line() == "ready"
        return [[int(process.read_line()) for _ in range(turns)] for process in (one, two)]


def test_locks_work_if_every_statement_runs_in_another_session(server, monkeypatch):
    """The worst case of a pooler in transaction mode: no two statements use the same session."""
    let_every_statement_have_a_session_of_its_own(monkeypatch)
    with Client(server.url, store_options={**SCHEMA, "wakeup": "poll"}) as hf:
        with hf.lock("k", ttl=3, renew_every=0.3) as lease, hf.semaphore("s", permits=2):
            first = lease.expires_at
            eventually(lambda: lease.expires_at > first)
            assert hf.lock("k").try_acquire() is None
        states = hf.state("n", initial=0)
        assert states.update(lambda n: n + 1) == 1


def let_every_statement_have_a_session_of_its_own(monkeypatch):
    talk = postgres_session.Session._talk

    def in_a_new_session(self, send, *options):
        self._connection.close()
        self._connection = postgres_session._opened(self._connect)
        self._pg = self._connection.pgconn
        self._pg.nonblocking = 1
        self._waits = postgres_session._waits_for(self._pg.socket)
        return talk(self, send, *options)

    monkeypatch.setattr(postgres_session.Session, "_talk", in_a_new_session)


OTHER_DEFAULTS = {
    "serializable": ("default_transaction_isolation", "serializable"),
    "repeatable_read": ("default_transaction_isolation", "repeatable read"),
    "read_only": ("default_transaction_read_only", "on"),
}


@pytest.fixture(params=OTHER_DEFAULTS.values(), ids=OTHER_DEFAULTS)
def other_default(server, request):
    """The role of these tests has another default while the test runs: the setting and its value."""
    name, value = request.param
    with psycopg.connect(server.url, autocommit=True) as admin:
        role = psycopg.sql.Identifier(server.user)
        alter = psycopg.sql.SQL("ALTER ROLE {} SET {} = {}").format(role, psycopg.sql.Identifier(name), value)
        admin.execute(alter)
        yield name, value
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(psycopg.sql.SQL("ALTER ROLE {} RESET {}").format(role, psycopg.sql.Identifier(name)))


def test_a_shared_session_of_a_role_with_another_default_gets_an_error(server, other_default, monkeypatch):
    """A pooler that is not detected: settings of the session are missing in the next statement."""
    let_every_statement_have_a_session_of_its_own(monkeypatch)
    with (
        closing(open_store(server.url, namespace="default", options=SCHEMA)) as store,
        pytest.raises(StoreError, match=f"read-only|transactions of this role are '{other_default[1]}'"),
        closing(store.connect("commands")) as connection,
    ):
        connection.execute([acquire()])


@contextmanager
def pgbouncer(server, folder):
    """A PgBouncer in transaction mode with two connections for all clients, run by an account that may run it."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("no pgbouncer is installed; the same is tested by closing the session between statements")
    with closing(HeldPort()) as held:
        port = held.number
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port} user={server.user} password={server.password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = transaction\n"
        "default_pool_size = 2\nunix_socket_dir =\nlogfile =\npidfile =\n"
    )
    folder.chmod(0o755)
    config.chmod(0o644)
    process = subprocess.Popen(
        [program, str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **({"user": "nobody", "cwd": "/"} if os.geteuid() == 0 else {}),
    )
    url = f"postgresql://any@127.0.0.1:{port}/postgres"

    def answers():
        assert process.poll() is None, process.stdout.read().decode()
        try:
            psycopg.connect(url, connect_timeout=1).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        eventually(answers)
        yield url
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture
def pooled(server):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, pgbouncer(server, Path(folder)) as url:
        yield url


def test_behind_pgbouncer_locks_work_and_waiters_are_notified_over_the_direct_connection(server, pooled):
    listen = quote(server.url, safe="")
    tokens = contend(f"{pooled}?schema=tests&listen={listen}")
    together = sorted(token for mine in tokens for token in mine)
    assert len(set(together)) == len(together)
    assert all(mine == sorted(mine) for mine in tokens)


def test_behind_pgbouncer_without_a_direct_connection_waiters_poll_and_an_event_reports_it(server, pooled, caplog):
    url = f"{pooled}?schema=tests"
    with running(HOLDER, url) as holder, Client(url) as hf:
        assert holder.read_line() == "held"
        waiting = threading.Thread(target=lambda: hf.lock("k", wait=60).acquire().release())
        waiting.start()
        eventually(lambda: hf.locks.inspect("k").waiters)
        holder.send_line()
        waiting.join()
        findings = {finding.check: finding for finding in hf.runtime.store.diagnose()}
        assert findings["wake-ups"].level == "warning"
        assert "does not work through a connection pooler" in caplog.text


def test_behind_pgbouncer_advisory_needs_a_direct_connection(server, pooled):
    store = open_store(f"{pooled}?schema=tests&advisory=true", namespace="default")
    connection = store.connect("commands")
    with pytest.raises(StoreUnusable, match="needs a direct session"):
        connection.execute([acquire()])
    connection.close()
    store.close()
    with (
        Client(f"{pooled}?schema=tests&advisory=true&listen={quote(server.url, safe='')}") as hf,
        hf.lock("k") as lease,
    ):
        lease.check()


def test_behind_pgbouncer_a_role_with_another_default_is_refused_with_what_to_change(server, other_default):
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        pgbouncer(server, Path(folder)) as url,
        closing(open_store(f"{url}?schema=tests", namespace="default")) as store,
        pytest.raises(StoreUnusable, match=rf"by default.*goes through a pooler.*SET {other_default[0]}"),
    ):
        store.connect("commands")
