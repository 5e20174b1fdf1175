"""An empty PostgreSQL database for each test, with one user table, on the server that all tests share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from importlib.resources import files
from urllib.parse import urlsplit

import psycopg
import pytest
import real_servers
from waiting import eventually


class Database:
    """The address of the database, and a connection that commits each statement."""

    def __init__(self, url: str, watcher: psycopg.Connection) -> None:
        self.url = url
        self.watcher = watcher

    def rows(self, sql: str) -> list[tuple]:
        return self.watcher.execute(sql).fetchall()

    def log(self) -> list[int]:
        return [token for (token,) in self.rows("SELECT token FROM log ORDER BY id")]

    def fences(self) -> dict[str, int]:
        return dict(self.rows("SELECT resource, floor FROM holdfast_fences"))

    def has_fences(self) -> bool:
        return self.rows("SELECT to_regclass('holdfast_fences')") != [(None,)]

    def waits(self, pid: int) -> bool:
        """Whether that session waits for a lock of another session."""
        return self.rows(f"SELECT pg_blocking_pids({pid}) <> '{{}}'") == [(True,)]


@pytest.fixture(scope="session")
def own_database() -> Iterator[str]:
    """The address of a database for the tests of this folder."""
    url = real_servers.shared("postgres").url
    name = f"fences_{secrets.token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(own_database: str) -> Iterator[Database]:
    with psycopg.connect(own_database, autocommit=True) as watcher:
        made = Database(own_database, watcher)
        watcher.execute("CREATE TABLE log (id serial PRIMARY KEY, token bigint)")
        yield made
        clear(made)


def clear(database: Database) -> None:
    """Remove everything from the database. Fails if a connection was left within a transaction."""
    eventually(
        lambda: (
            database.rows(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
            )
            == []
        )
    )
    user, name = database.watcher.info.user, database.watcher.info.dbname
    database.watcher.execute(f"ALTER ROLE {user} IN DATABASE {name} RESET ALL")
    for (schema,) in database.rows(
        "SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^(pg_|information_)'"
    ):
        database.watcher.execute(f"DROP SCHEMA {schema} CASCADE")
    database.watcher.execute("CREATE SCHEMA public")
    database.watcher.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


@pytest.fixture
def connect(request: pytest.FixtureRequest, database: Database):
    """Create connections of the driver of the test's class; closed at the end."""
    made = []

    def open_one(kind=None, *, url=None):
        made.append((kind or request.cls.kind)(url or database.url))
        return made[-1]

    yield open_one
    for writer in made:
        writer.close()


@pytest.fixture
def shipped() -> str:
    """The SQL file of the package, for users who may not create tables."""
    return files("holdfast.fencing").joinpath("fences.sql").read_text(encoding="utf-8")
