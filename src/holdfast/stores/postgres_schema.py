"""The tables and functions of Holdfast in a PostgreSQL database: made when first needed, in a schema of their own.

Processes that come at the same moment wait for one another at a lock of the server, so that one of them makes the
schema and the others find it. An older version is brought up to date in the same way; a newer one is refused.
"""

from __future__ import annotations

from importlib.resources import files

from psycopg import sql

from ..errors import StoreUnavailable, StoreUnusable
from .postgres_session import BadData, Contended, LacksRights, Session

TABLES = ("postgresql.sql", "postgresql_runs.sql")
"""What makes each version of the tables from the one before it; the first makes them from nothing."""
VERSION = len(TABLES)
_PARTS = (
    "tools", "rules", "slots", "run_rules", "belongings", "limits", "run_commands", "short", "claims", "batch",
)  # fmt: skip
FUNCTIONS = tuple(f"postgresql_{part}.sql" for part in _PARTS)
"""What is made anew with every version; the functions of an older one are replaced."""
OLDEST_SERVER = 130_000
_PLACE = "holdfast."
# Not by to_regclass: after waiting for another who made it, that still says what the session had heard before.
_THERE = (
    b"SELECT 1::text FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    b"WHERE n.nspname = $1 AND c.relname = 'about'"
)
_LOCK = 0x686F6C6466617375
"""The number under which processes wait for one another; another one than that of the fences."""
PATIENCE = 30.0
"""Seconds that the making of a schema may take."""


class NotOurs(StoreUnusable):
    """The schema is somebody else's, or a newer version's."""


def script(name: str, schema: str) -> str:
    """One of the SQL files that come with the package, for this schema."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return text.replace(_PLACE, f"{quoted(schema)}.").replace("SCHEMA holdfast", f"SCHEMA {quoted(schema)}")


def quoted(schema: str) -> str:
    """The schema's name as SQL has it."""
    return sql.Identifier(schema).as_string(None)


def version_of(session: Session, schema: str) -> int:
    """The version of the schema that is there; 0 where there is none."""
    if session.ask(_THERE, (schema.encode(),)) != b"1":
        return 0
    try:
        found = session.ask(b"SELECT version::text FROM %b.about" % quoted(schema).encode())
    except LacksRights:
        raise
    except StoreUnusable:
        found = None
    if found is None or not found.isdigit():
        raise NotOurs(f"the table {schema}.about says no version: this is not a schema of Holdfast's")
    return int(found)


def prepare(session: Session, schema: str) -> None:
    """Make the schema, or bring it up to date, unless it is as it should be."""
    if _is_ready(session, schema):
        return
    try:
        session.run(f"BEGIN; SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock({_LOCK})", timeout=PATIENCE)
        if not _is_ready(session, schema):
            missing = TABLES[version_of(session, schema) :]
            scripts = "\n".join(script(name, schema) for name in (*missing, *FUNCTIONS))
            session.run(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};\n{scripts}", timeout=PATIENCE)
        session.run("COMMIT", timeout=PATIENCE)
    except LacksRights as error:
        raise StoreUnusable(
            f"the schema {schema!r} is not there (or too old), and this role may not make it ({error}). Have an "
            "owner of the database open the store once, or run the SQL that comes with Holdfast: "
            "docs/stores/postgresql.md."
        ) from error
    except NotOurs:
        raise
    except (Contended, BadData, StoreUnusable) as error:
        raise StoreUnavailable(f"the schema {schema!r} could not be made: {error}") from error


def _is_ready(session: Session, schema: str) -> bool:
    if session.server_version < OLDEST_SERVER:
        raise StoreUnusable(
            f"this PostgreSQL is of version {session.server_version // 10_000}; Holdfast needs 13 or newer"
        )
    version = version_of(session, schema)
    if version > VERSION:
        raise NotOurs(
            f"the schema {schema!r} was made by a newer Holdfast (version {version}, this one knows {VERSION}): "
            "upgrade here"
        )
    return version == VERSION
