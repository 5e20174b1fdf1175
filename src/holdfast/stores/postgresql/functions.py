"""The server-side functions of Holdfast in a PostgreSQL database: a set for each release that changed something.

The names of a set end with a digest of its text and of the version of the tables, so that each client calls the
functions it was written for: during a rolling deploy the sets of two releases exist side by side, and neither client
replaces functions that the other one calls. The first client that needs a set, and has the privileges, creates it. It
stays until it is removed (`holdfast schema prune`), or until the tables no longer support its clients; the table
`functions` records when a client last used it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from .session import Session, refusal

TABLES = ("001_tables.sql",)
"""The scripts that create each version of the tables from the previous one; the first creates them.

Each sets `about.version`, and `about.oldest_client` where clients of an earlier version cannot work with the result.
"""
VERSION = len(TABLES)
FILES = ("functions.sql",)
DIGITS = 12
"""How many digits of the digest are in the names of the functions."""
_CREATED = re.compile(r"CREATE OR REPLACE FUNCTION holdfast\.(\w+)")
_NAMED = re.compile(r"\bholdfast\.(\w+)")
_GRANTS = """
DO $grants$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT p.oid::regprocedure AS name, g.grantee::regrole AS role
          FROM pg_proc AS p JOIN pg_class AS c ON c.relnamespace = p.pronamespace AND c.relname = 'locks'
         CROSS JOIN LATERAL aclexplode(c.relacl) AS g
         WHERE c.oid = {locks}::regclass AND g.privilege_type = 'SELECT' AND g.grantee <> 0
           AND right(p.proname, {length}) = {suffix} AND NOT has_function_privilege(g.grantee, p.oid, 'EXECUTE')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', given.name, given.role);
    END LOOP;
END
$grants$;
"""
"""Grants EXECUTE to every role that has SELECT on `locks`, even where default privileges revoke it."""
_OUTDATED = """
DO $outdated$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS name
          FROM {place}.functions AS f JOIN pg_proc AS p ON right(p.proname, length(f.digest) + 1) = '_' || f.digest
          JOIN pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname = {schema}
         WHERE f.version < (SELECT oldest_client FROM {place}.about)
    LOOP
        EXECUTE format('DROP FUNCTION %s', one.name);
    END LOOP;
    DELETE FROM {place}.functions WHERE version < (SELECT oldest_client FROM {place}.about);
END
$outdated$;
"""
"""Removes the sets of clients that the tables no longer support: such a client is refused at its next command."""


class FunctionSet(NamedTuple):
    """The functions of this release for one schema."""

    schema: str
    tables: int
    """The version of the tables that the functions are written for."""
    digest: str
    names: frozenset[str]
    script: str

    def called(self, name: str) -> bytes:
        """The qualified SQL name of one of the functions."""
        return f"{quoted(self.schema)}.{name}_{self.digest}".encode()


class KnownSet(NamedTuple):
    """A set of functions in a database."""

    digest: str
    version: int
    release: str
    made_at: datetime
    used_at: datetime
    idle: float
    """Seconds since a client last used it, by the server's clock."""

    def __str__(self) -> str:
        return f"{self.digest} (of Holdfast {self.release}, last used {self.used_at:%Y-%m-%d %H:%M})"


def quoted(name: str) -> str:
    """A name, quoted as an SQL identifier."""
    return sql.Identifier(name).as_string(None)


def source(name: str) -> str:
    """One of the SQL files that come with the package."""
    return files(__package__).joinpath("sql", name).read_text(encoding="utf-8")


def functions_for(schema: str) -> FunctionSet:
    """The functions of this release for this schema."""
    return _made("\n".join(source(name) for name in FILES), VERSION, schema)


@lru_cache(maxsize=16)
def _made(text: str, tables: int, schema: str) -> FunctionSet:
    # Clients for different table versions share no set: a client that newer tables do not support must notice that its
    # set is missing.
    digest = hashlib.sha256(f"{tables} {text}".encode()).hexdigest()[:DIGITS]
    names = frozenset(_CREATED.findall(text))
    place = quoted(schema)

    def named(found: re.Match[str]) -> str:
        return f"{place}.{found[1]}_{digest}" if found[1] in names else f"{place}.{found[1]}"

    return FunctionSet(schema, tables, digest, names, _NAMED.sub(named, text))


def count_of(session: Session, mine: FunctionSet) -> int:
    """How many functions of a set exist."""
    found = session.ask(
        b"SELECT count(*)::text FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n "
        b"ON n.oid = p.pronamespace WHERE n.nspname = $1 AND pg_catalog.right(p.proname, $2) = $3",
        (mine.schema.encode(), str(DIGITS + 1).encode(), f"_{mine.digest}".encode()),
    )
    return int(found or b"0")


def creation(mine: FunctionSet) -> str:
    """The statements that create a set, or its missing parts, and remove sets that the tables no longer support."""
    place = sql.Identifier(mine.schema)
    note = sql.SQL(
        "INSERT INTO {}.functions (digest, version, release) VALUES ({}, {}, {}) "
        "ON CONFLICT (digest) DO UPDATE SET used_at = now();\n"
    ).format(place, mine.digest, mine.tables, _release())
    grants = sql.SQL(_GRANTS).format(locks=f"{quoted(mine.schema)}.locks", length=DIGITS + 1, suffix=f"_{mine.digest}")
    outdated = sql.SQL(_OUTDATED).format(place=place, schema=mine.schema)
    return f"{mine.script}\n{note.as_string(None)}{grants.as_string(None)}{outdated.as_string(None)}"


def note_use(session: Session, mine: FunctionSet) -> None:
    """Note in the database that this set is in use."""
    session.ask(b"SELECT %b($1)::text" % mine.called("note_use"), (mine.digest.encode(),))


def known_sets(session: Session, schema: str) -> list[KnownSet]:
    """The sets that are in the database, the last used first."""
    rows = _asked(
        session,
        sql.SQL(
            "SELECT digest, version, release, made_at, used_at, "
            "extract(epoch FROM clock_timestamp() - used_at)::float8 FROM {}.functions ORDER BY used_at DESC, digest"
        ).format(sql.Identifier(schema)),
    )
    return [KnownSet(*row) for row in rows]


def drop(session: Session, schema: str, digests: Iterable[str]) -> None:
    """Remove sets, within a transaction that the caller ends."""
    named = sql.SQL(
        "SELECT p.oid::regprocedure::text FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n "
        "ON n.oid = p.pronamespace WHERE n.nspname = {} AND pg_catalog.right(p.proname, {}) = {}"
    )
    for digest in digests:
        found = _asked(session, named.format(schema, len(digest) + 1, f"_{digest}"))
        if found:
            _asked(session, sql.SQL("DROP FUNCTION ") + sql.SQL(", ").join(sql.SQL(name) for (name,) in found))
        _asked(session, sql.SQL("DELETE FROM {}.functions WHERE digest = {}").format(sql.Identifier(schema), digest))


def _asked(session: Session, statement: sql.Composed) -> list[tuple[Any, ...]]:
    """The rows of a statement that is sent rarely."""
    try:
        cursor = session.connection.execute(statement)
        return cursor.fetchall() if cursor.description else []
    except psycopg.Error as error:
        raise refusal(error.sqlstate or "", error.diag.message_primary or str(error)) from error


def _release() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
