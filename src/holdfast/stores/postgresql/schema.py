"""The tables and functions of Holdfast in a PostgreSQL database: created when first needed, in a schema of their own.

Processes that start at the same moment are serialized by an advisory lock, so that one of them creates the schema and
the others find it. Older tables are upgraded in the same way. Newer tables record which clients may still use them
(`about.oldest_client`); an older client is refused. Each release has its own functions (functions.py): missing ones are
created, and those of other releases that may use the tables are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import psycopg

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from .functions import (
    TABLES,
    VERSION,
    FunctionSet,
    KnownSet,
    count_of,
    creation,
    drop,
    functions_for,
    known_sets,
    note_use,
    quoted,
    source,
)
from .session import BadData, Contended, LacksRights, Session

OLDEST_SERVER = 130_000
_PLACE = "holdfast."
# Not by to_regclass: after waiting for another process to create the table, it still returns what the session has
# cached.
_THERE = (
    b"SELECT 1::text FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    b"WHERE n.nspname = $1 AND c.relname = 'about'"
)
_OF_DEVELOPMENT = (  # identifies such a schema, because the message advises to drop it
    b"SELECT string_agg(table_name || '.' || column_name, ' ' ORDER BY table_name, ordinal_position) "
    b"FROM information_schema.columns WHERE table_schema = $1 "
    b"AND (table_name = 'about' OR table_name = 'locks' AND column_name IN ('namespace', 'key', 'record'))"
)
_LOCK = 0x686F6C6466617375
"""The number of the advisory lock that serializes processes; not the one of the fences."""
PATIENCE = 30.0
"""Seconds that the creation of a schema may take."""


class ForeignSchema(StoreUnusable):
    """The schema belongs to another application, or to an incompatible version."""


class Tables(NamedTuple):
    """The version of the tables in a schema."""

    version: int
    """0 where there are none."""
    oldest_client: int

    @property
    def usable(self) -> bool:
        """Whether this client may use them as they are."""
        return self.version >= VERSION >= self.oldest_client


def script(name: str, schema: str) -> str:
    """One of the SQL files for the tables and the roles, for this schema."""
    return source(name).replace(_PLACE, f"{quoted(schema)}.").replace("SCHEMA holdfast", f"SCHEMA {quoted(schema)}")


def tables_of(session: Session, schema: str) -> Tables:
    """The version of the tables. Raises `ForeignSchema` where they do not belong to Holdfast."""
    if session.ask(_THERE, (schema.encode(),)) != b"1":
        return Tables(0, 0)
    try:
        found = session.ask(b"SELECT version || ' ' || oldest_client FROM %b.about" % quoted(schema).encode())
    except LacksRights:
        raise
    except StoreUnusable:
        found = None
        if session.ask(_OF_DEVELOPMENT, (schema.encode(),)) == b"about.version locks.namespace locks.key locks.record":
            raise ForeignSchema(
                f"the schema {schema!r} was created by an earlier development version of Holdfast. It was not changed. "
                f"Stop its clients, and drop it (DROP SCHEMA {quoted(schema)} CASCADE) or use another ?schema=. The "
                "next client that opens the store creates the schema again."
            ) from None
    numbers = (found or b"").split()
    if len(numbers) != len(Tables._fields) or not all(number.isdigit() for number in numbers):
        raise ForeignSchema(
            f"the table {schema}.about has no version, so this schema does not belong to Holdfast. It was not changed. "
            "Use another ?schema=."
        )
    return Tables(*map(int, numbers))


def prepare(session: Session, schema: str) -> None:
    """Create missing tables and functions, or upgrade the tables."""
    mine = functions_for(schema)
    if not _is_ready(session, mine):
        try:
            _make(session, mine)
        except LacksRights as error:
            raise StoreUnusable(
                f"the schema {schema!r} lacks tables or functions that this version of Holdfast needs, and this role "
                f"may not create them ({error}). Nothing was changed. As an owner of the schema, run 'holdfast schema "
                "install' of this version, or the SQL that 'holdfast schema sql' prints: see docs/stores/postgresql.md."
            ) from error
        except ForeignSchema:
            raise
        except (Contended, BadData, StoreUnusable) as error:
            raise StoreUnavailable(f"the schema {schema!r} could not be created: {error}") from error
    note_use(session, mine)


def _make(session: Session, mine: FunctionSet) -> None:
    with _alone(session):
        if not _is_ready(session, mine):
            session.run(missing_parts(session, mine.schema), timeout=PATIENCE)


def statements(session: Session, schema: str) -> str:
    """A script for a role that may create what this client needs; empty if nothing is missing."""
    if _is_ready(session, functions_for(schema)):
        return ""
    alone = f"BEGIN;\nSELECT pg_advisory_xact_lock({_LOCK});"
    return f"{alone}\n{missing_parts(session, schema)}\nCOMMIT;\n"


def missing_parts(session: Session, schema: str) -> str:
    """The statements that create the missing tables and functions of this client."""
    missing = TABLES[tables_of(session, schema).version :]
    whole = () if session.ask(_SCHEMA_THERE, (schema.encode(),)) else (f"CREATE SCHEMA {quoted(schema)};",)
    return "\n".join((*whole, *(script(name, schema) for name in missing), creation(functions_for(schema))))


_SCHEMA_THERE = b"SELECT 1::text FROM pg_catalog.pg_namespace WHERE nspname = $1"


def prune(
    session: Session, schema: str, *, unused_for: float, force: bool = False
) -> tuple[list[KnownSet], list[KnownSet]]:
    """Remove the sets that no client has used for so many seconds. Returns the removed sets, and those that stay.

    With `force`, sets that were used since are removed too. The set of this client always stays.
    """
    own = functions_for(schema).digest
    with _alone(session):
        sets = known_sets(session, schema)
        gone = [one for one in sets if one.digest != own and (force or one.idle > unused_for)]
        drop(session, schema, [one.digest for one in gone])
    return gone, [one for one in sets if one not in gone]


@contextmanager
def _alone(session: Session) -> Iterator[None]:
    """A transaction that holds the advisory lock of the schema. Rolled back on any error."""
    session.run(f"BEGIN; SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock({_LOCK})", timeout=PATIENCE)
    try:
        yield
        session.run("COMMIT", timeout=PATIENCE)
    except BaseException:
        with suppress(StoreError, psycopg.Error):
            session.run("ROLLBACK", timeout=PATIENCE)
        raise


def _is_ready(session: Session, mine: FunctionSet) -> bool:
    if session.server_version < OLDEST_SERVER:
        raise StoreUnusable(
            f"this server is PostgreSQL {session.server_version // 10_000}; Holdfast needs PostgreSQL 13 or newer"
        )
    tables = tables_of(session, mine.schema)
    if tables.oldest_client > VERSION:
        raise ForeignSchema(
            f"the schema {mine.schema!r} was created by a newer Holdfast (version {tables.version}; it requires "
            f"clients of version {tables.oldest_client} at least, and this one uses {VERSION}). It was not changed. "
            "Upgrade Holdfast here."
        )
    return tables.usable and count_of(session, mine) == len(mine.names)
