"""Maintenance of the tables and functions of a PostgreSQL store: show, create, remove old functions.

For `holdfast schema`. Each call has a session of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from ...errors import StoreUnusable
from . import schema as postgres_schema
from .address import connector, options_of, parse, where_of
from .functions import FunctionSet, KnownSet, functions_for, known_sets
from .session import Session


@contextmanager
def _session(url: str) -> Iterator[tuple[Session, str]]:
    place, given = parse(url)
    options = options_of(given)
    with closing(Session(connector(place), timeout=options.timeout)) as session:
        yield session, options.schema


def own_set(url: str) -> FunctionSet:
    """The functions that this release calls."""
    return functions_for(options_of(parse(url)[1]).schema)


def sets_of(url: str) -> tuple[int, list[KnownSet]]:
    """The version of the tables, and the sets of functions in the database."""
    with _session(url) as (session, schema):
        version = postgres_schema.tables_of(session, schema).version
        if not version:
            raise StoreUnusable(f"there is no schema {schema!r} in {where_of(parse(url)[0])}")
        return version, known_sets(session, schema)


def install(url: str) -> None:
    """Create the tables and functions of this release, unless they exist."""
    with _session(url) as (session, schema):
        postgres_schema.prepare(session, schema)


def statements(url: str) -> str:
    """The SQL that an owner must run if this role may not create the missing parts; empty if nothing is missing."""
    with _session(url) as (session, schema):
        return postgres_schema.statements(session, schema)


def prune(url: str, *, unused_for: float, force: bool) -> tuple[list[KnownSet], list[KnownSet]]:
    """Remove sets that no client has used for so many seconds. Returns the removed sets, and those that stay."""
    with _session(url) as (session, schema):
        if not postgres_schema.tables_of(session, schema).version:
            raise StoreUnusable(f"there is no schema {schema!r} in {where_of(parse(url)[0])}")
        return postgres_schema.prune(session, schema, unused_for=unused_for, force=force)
