"""The tables and functions of Holdfast in a PostgreSQL database: made when first needed, in a schema of their own.

Processes that come at the same moment wait for one another at a lock of the server, so that one of them makes the
schema and the others find it. An older version is brought up to date in the same way; a newer one is refused.
"""

from __future__ import annotations

from importlib.resources import files

import psycopg
from psycopg import sql

from ..errors import StoreUnavailable, StoreUnusable

VERSION = 1
SCRIPTS = tuple(f"postgresql{part}.sql" for part in ("", "_tools", "_rules", "_slots", "_batch"))
OLDEST_SERVER = 130_000
_PLACE = "holdfast."
# Not by to_regclass: after waiting for another who made it, that still says what the session had heard before.
_THERE = (
    "SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relname = 'about'"
)
_LOCK = 0x686F6C6466617374
"""The number under which processes wait for one another: "holdfast" in ASCII."""


def script(name: str, schema: str) -> str:
    """One of the SQL files that come with the package, for this schema."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return text.replace(_PLACE, f"{quoted(schema)}.").replace("SCHEMA holdfast", f"SCHEMA {quoted(schema)}")


def quoted(schema: str) -> str:
    """The schema's name as SQL has it."""
    return sql.Identifier(schema).as_string(None)


def version_of(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> int:
    """The version of the schema that is there; 0 where there is none."""
    if connection.execute(_THERE, (schema,)).fetchone() is None:
        return 0
    found = connection.execute(sql.SQL("SELECT version FROM {}.about").format(sql.Identifier(schema))).fetchone()
    if found is None or not isinstance(found[0], int):
        raise StoreUnusable(f"the table {schema}.about says no version: this is not a schema of Holdfast's")
    return found[0]


def prepare(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> None:
    """Make the schema, or bring it up to date, unless it is as it should be."""
    try:
        if _is_ready(connection, schema):
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            if _is_ready(connection, schema):
                return
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
            for name in SCRIPTS:
                connection.execute(script(name, schema).encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreUnusable(
            f"the schema {schema!r} is not there (or too old), and this role may not make it ({_text(error)}). Have an "
            "owner of the database open the store once, or run the SQL that comes with Holdfast: "
            "docs/stores/postgresql.md."
        ) from error
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"the schema {schema!r} could not be made: {_text(error)}. Nothing was changed."
        ) from error


def _is_ready(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> bool:
    if connection.info.server_version < OLDEST_SERVER:
        raise StoreUnusable(
            f"this PostgreSQL is of version {connection.info.server_version // 10_000}; Holdfast needs 13 or newer"
        )
    version = version_of(connection, schema)
    if version > VERSION:
        raise StoreUnusable(
            f"the schema {schema!r} was made by a newer Holdfast (version {version}, this one knows {VERSION}): "
            "upgrade here"
        )
    return version == VERSION


def _text(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
