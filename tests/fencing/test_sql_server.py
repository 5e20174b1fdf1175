"""The fence on SQL Server, without a server: the statements that `guard` sends, in order, with their values.

No SQL Server can be run here. These statements were reviewed; whoever changes one reviews it again.
"""

from __future__ import annotations

import pytest
from sqlalchemy.dialects import mssql as dialects

from holdfast.errors import InvalidOption, StaleToken
from holdfast.fencing import guard, mssql, sqlalchemy
from holdfast.fencing.postgres import run
from holdfast.fencing.tokens import Offer

T0 = 1_790_000_000_000_000
CREATE = (
    "IF OBJECT_ID(N'holdfast_fences') IS NULL CREATE TABLE holdfast_fences "
    "(resource VARBINARY(512) NOT NULL PRIMARY KEY, floor BIGINT NOT NULL)"
)
HIGHEST = "SELECT floor FROM holdfast_fences WITH (UPDLOCK, HOLDLOCK) WHERE resource = ?"
INSERT = "INSERT INTO holdfast_fences (resource, floor) VALUES (?, ?)"
UPDATE = "UPDATE holdfast_fences SET floor = ? WHERE resource = ? AND floor < ?"


class Cursor:
    def __init__(self, connection):
        self.connection = connection

    def execute(self, text, *values):
        self.connection.sent.append((text, *values))

    def fetchall(self):
        return [] if self.connection.stored is None else [(self.connection.stored,)]

    def close(self):
        self.connection.open -= 1


class Connection:
    """In place of a connection of mssql-python."""

    def __init__(self, stored=None, *, autocommit=False):
        self.stored, self.autocommit = stored, autocommit
        self.sent, self.open = [], 0

    def cursor(self):
        self.open += 1
        return Cursor(self)


Connection.__module__ = "mssql_python.connection"


@pytest.mark.parametrize(
    ("stored", "last"),
    [(None, (INSERT, b"lamp \xc3\xa4", T0)), (T0 - 1, (UPDATE, T0, b"lamp \xc3\xa4", T0))],
    ids=["the first token", "a later token"],
)
def test_an_accepted_token_locks_its_row_before_it_writes(stored, last):
    db = Connection(stored)
    guard(db, "lamp ä", T0)
    assert db.sent == [(CREATE,), (HIGHEST, b"lamp \xc3\xa4"), last]
    assert db.open == 0


def test_a_lower_token_is_refused_and_nothing_is_written():
    db = Connection(T0 + 1)
    with pytest.raises(StaleToken) as refused:
        guard(db, "lamp", T0)
    assert (refused.value.offered, refused.value.highest) == (T0, T0 + 1)
    assert [text for text, *_ in db.sent] == [CREATE, HIGHEST]


def test_a_connection_that_commits_each_statement_is_refused():
    db = Connection(autocommit=True)
    with pytest.raises(InvalidOption, match="autocommit = False"):
        guard(db, "lamp", T0)
    assert db.sent == []


class Compiling:
    """In place of a connection of SQLAlchemy: compiles each statement for SQL Server."""

    def __init__(self, stored):
        self.stored, self.sent = stored, []

    def execute(self, clause):
        compiled = clause.compile(dialect=dialects.dialect(paramstyle="qmark"))
        self.sent.append((str(compiled), *(compiled.params[name] for name in compiled.positiontup or ())))
        return self

    def fetchall(self):
        return [] if self.stored is None else [(self.stored,)]


@pytest.mark.parametrize(
    ("stored", "last"),
    [(None, (INSERT, b"lamp \xc3\xa4", T0)), (T0 - 1, (UPDATE, T0, b"lamp \xc3\xa4", T0))],
    ids=["the first token", "a later token"],
)
def test_sqlalchemy_compiles_the_same_statements(stored, last):
    db = Compiling(stored)
    run(mssql.judge("lamp ä", Offer(T0, T0)), lambda statement: sqlalchemy._rows(db, statement))
    assert db.sent == [(CREATE,), (HIGHEST, b"lamp \xc3\xa4"), last]
