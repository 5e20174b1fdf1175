"""The tables of a relational store: their columns and keys, the names for one prefix, and how they are created.

A row of `locks` is the record of one key in one namespace. A row of `slots` is one value that changes only by
compare-and-swap. A row of `records` is one record of any other type. A row of `runs` is a run; its history is its rows
in `journal`, the first of which (number 0) is its input; its inbox is its rows in `events`. A row of `places` is a run
that a limit has admitted or queued, and that has not ended. A row of `starts` is a start that a limit on starts counts.
The rows of `guards` change whenever the runs that are counted under one name change. Every write gives a row a new
random `stamp`, which is how a client notices that a row is no longer what it has read. All times are microseconds since
1970 by the server's clock.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from .dialect import Dialect

VERSION = 1
"""The version of the tables."""


class TableShape(NamedTuple):
    """The columns of a table with their kinds (a question mark: may be NULL), and its keys."""

    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]


SHAPES = {
    "locks": TableShape(
        (("ns", "name"), ("k", "key"), ("record", "text"), ("due_at", "number?"), ("stamp", "number")),
        ("PRIMARY KEY (ns, k)", "INDEX due (ns, due_at)"),
    ),
    "slots": TableShape(
        (
            ("ns", "name"),
            ("id", "digest"),
            ("owner", "digest"),
            ("address", "text"),
            ("record", "text"),
            ("stamp", "number"),
        ),
        ("PRIMARY KEY (ns, id)", "INDEX owner (ns, owner)"),
    ),
    "records": TableShape(
        (("ns", "name"), ("kind", "name"), ("k", "id"), ("record", "text"), ("due_at", "number?"), ("stamp", "number")),
        ("PRIMARY KEY (ns, kind, k)", "INDEX due (ns, kind, due_at)"),
    ),
    "runs": TableShape(
        (
            ("ns", "name"),
            ("id", "id"),
            ("record", "text"),
            ("type", "name"),
            ("workflow", "name"),
            ("status", "name"),
            ("created_at", "number"),
            ("due_at", "number?"),
            ("worker", "name?"),
            ("start_key", "digest?"),
            ("ended_at", "number?"),
            ("stamp", "number"),
        ),
        (
            "PRIMARY KEY (ns, id)",
            "INDEX due (ns, type, due_at, id)",
            "INDEX worker (ns, worker, id)",
            "INDEX status (ns, status, created_at, id)",
            "INDEX workflow (ns, workflow, status, created_at, id)",
            "INDEX ended (ns, workflow, status, ended_at, id)",
            "UNIQUE INDEX start_key (ns, start_key)",
        ),
    ),
    "attributes": TableShape(
        (("ns", "name"), ("term", "digest"), ("created_at", "number"), ("run", "id")),
        ("PRIMARY KEY (ns, term, created_at, run)",),
    ),
    "journal": TableShape(
        (("ns", "name"), ("run", "id"), ("number", "number"), ("entry", "text")),
        ("PRIMARY KEY (ns, run, number)",),
    ),
    "events": TableShape(
        (("ns", "name"), ("run", "id"), ("number", "number"), ("event_key", "digest?"), ("event", "text")),
        ("PRIMARY KEY (ns, run, number)", "UNIQUE INDEX event_key (ns, run, event_key)"),
    ),
    "workers": TableShape(
        (("ns", "name"), ("id", "name"), ("lease", "key"), ("record", "text")),
        ("PRIMARY KEY (ns, id)",),
    ),
    "limits": TableShape(
        (("ns", "name"), ("workflow", "name"), ("record", "text"), ("stamp", "number")),
        ("PRIMARY KEY (ns, workflow)",),
    ),
    "places": TableShape(
        (
            ("ns", "name"),
            ("party", "digest"),
            ("queued", "number"),
            ("grade", "number"),
            ("arrival", "number"),
            ("run", "id"),
            ("workflow", "name"),
            ("place", "text"),
        ),
        ("PRIMARY KEY (ns, party, queued, grade, arrival, run)", "INDEX queue (ns, workflow, queued)"),
    ),
    "starts": TableShape(
        (("ns", "name"), ("party", "digest"), ("at", "number"), ("run", "id"), ("stamp", "number")),
        ("PRIMARY KEY (ns, party, at, run, stamp)",),
    ),
    "guards": TableShape(
        (("ns", "name"), ("name", "digest"), ("about", "text"), ("stamp", "number")),
        ("PRIMARY KEY (ns, name)",),
    ),
    "about": TableShape((("version", "number"), ("oldest_client", "number")), ("PRIMARY KEY (version)",)),
}
"""`places.grade` is the order of queued runs. `runs.ended_at` is when a run without a parent ended, else NULL.
A digest is that of a name which may be longer than an index permits."""


def digest(*names: str) -> bytes:
    """The digest of a name of several parts, which may be longer than an index permits.

    >>> digest("a", "bc") != digest("ab", "c")
    True
    """
    return hashlib.sha256("\0".join(names).encode()).digest()


class SqlTables:
    """The tables of one store: their names, and statements that create them."""

    def __init__(self, dialect: Dialect, prefix: str) -> None:
        self._dialect, self._prefix = dialect, prefix
        for name in SHAPES:
            setattr(self, name, f"{prefix}{name}")

    locks: str
    slots: str
    records: str
    runs: str
    attributes: str
    journal: str
    events: str
    workers: str
    limits: str
    places: str
    starts: str
    guards: str
    about: str

    def names(self) -> list[str]:
        """The names of all tables."""
        return [f"{self._prefix}{name}" for name in SHAPES]

    def creation(self) -> list[str]:
        """Statements that create whatever is missing; `about` comes last, and says that all others are there."""
        dialect = self._dialect
        found = []
        for name, shape in SHAPES.items():
            columns = ", ".join(
                f"{column} {dialect.column(kind.rstrip('?'))}{'' if kind.endswith('?') else ' NOT NULL'}"
                for column, kind in shape.columns
            )
            found += dialect.create(f"{self._prefix}{name}", columns, shape.keys)
        return found
