"""SQL Server without a server: what the errors of its driver mean, and the statements that were reviewed."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from holdfast.errors import StoreUnavailable, StoreUnusable
from holdfast.stores.sql.mssql import SqlServerDialect
from holdfast.stores.sql.schema import prepare, version_of
from holdfast.stores.sql.session import LostRace, SqlSession
from holdfast.stores.sql.tables import SqlTables

FROM_SERVER = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
"""What the driver puts before the text of the server; it removes the second part itself."""

AS_REPORTED = "Driver Error: Syntax error or access violation; DDBC Error: [Microsoft][SQL Server]"


@pytest.fixture
def error_of():
    """Makes the exception that mssql-python raises for an SQLSTATE and a text of the server."""
    if os.environ.get("CI", "").lower() != "true":
        pytest.importorskip("mssql_python", reason="not installed: mssql-python (pip install 'holdfast[mssql]')")
    from mssql_python.exceptions import sqlstate_to_exception  # noqa: PLC0415  (it may not be installed)

    return lambda state, text: sqlstate_to_exception(state, f"{FROM_SERVER}{text}")


@pytest.mark.parametrize(
    ("cause", "state", "text"),
    [
        ("missing", "42S02", "Invalid object name 'holdfast_about'."),
        ("conflict", "42000", "a row was changed by another client"),
        ("conflict", "40001", "Transaction (Process ID 55) was deadlocked on lock resources"),
        ("conflict", "23000", "Violation of PRIMARY KEY constraint 'holdfast_locks_pk'."),
        ("busy", "HYT00", "Lock request time out period exceeded."),
        ("lost", "HYT00", "Query timeout expired"),
        ("refused", "28000", "Login failed for user 'sa'."),
        ("refused", "42000", "CREATE TABLE permission denied in database 'db'."),
        ("lost", "08S01", "Communication link failure"),
        ("lost", "08001", "TCP Provider: Error code 0x2749"),
        ("refused", "08001", "SSL Provider: [error:0A000086:SSL routines::certificate verify failed]"),
        ("bad value", "22001", "String or binary data would be truncated in table 'x', column 'k'."),
        ("unknown", "42000", "Incorrect syntax near 'x'."),
    ],
)
def test_an_error_without_its_number_is_recognised_by_the_phrase_of_the_driver(error_of, cause, state, text):
    assert SqlServerDialect("").cause_of(error_of(state, text)) == cause


@pytest.mark.parametrize(
    ("cause", "number", "text"),
    [
        ("conflict", 50001, "a row was changed by another client"),
        ("conflict", 1205, "Die Transaktion wurde als Deadlockopfer ausgewählt."),
        ("conflict", 2627, "Verletzung der PRIMARY KEY-Einschränkung (1222) "),
        ("busy", 1222, "Das Timeout für Sperranforderungen wurde überschritten."),
        ("refused", 229, "Die SELECT-Berechtigung wurde verweigert."),
        ("refused", 3906, "Die Datenbank ist schreibgeschützt."),
        ("bad value", 2628, "Zeichenfolgen- oder Binärdaten würden abgeschnitten: '[SQL Server](1205) '"),
        ("unknown", 8134, "Fehler: Division durch 0."),
    ],
    ids=lambda value: str(value).split()[0],
)
def test_an_error_that_the_statements_have_caught_is_recognised_in_every_language(cause, number, text):
    assert SqlServerDialect("").cause_of(RuntimeError(f"{AS_REPORTED}({number}) {text}")) == cause


def test_the_driver_reports_a_caught_error_with_its_number(error_of):
    assert str(error_of("42000", "(1205) a deadlock")) == f"{AS_REPORTED}(1205) a deadlock"


def test_the_first_opening_creates_the_tables_although_none_is_found(error_of):
    server = Server([error_of("42S02", "Invalid object name 'holdfast_about'.")])
    dialect = server.dialect()
    prepare(SqlSession(dialect, timeout=5), SqlTables(dialect, "holdfast_"))
    created = [text for text in server.sent if "CREATE TABLE" in text]
    assert len(created) == len(SqlTables(dialect, "").names())
    assert "INSERT INTO holdfast_about" in server.sent[-1]


def test_a_lost_race_is_not_ambiguous_and_rolls_back(error_of):
    server = Server([error_of("42000", "(50001) a row was changed by another client")])
    session = SqlSession(server.dialect(), timeout=5)
    with pytest.raises(LostRace):
        session.write(["SELECT 1"])
    assert server.sent[-1] == "IF @@TRANCOUNT > 0 ROLLBACK"


def test_a_timeout_of_the_driver_within_a_write_is_ambiguous(error_of):
    session = SqlSession(Server([error_of("HYT00", "Query timeout expired")]).dialect(), timeout=5)
    with pytest.raises(StoreUnavailable) as lost:
        session.write(["SELECT 1"])
    assert lost.value.ambiguous


def test_a_refused_login_is_reported_with_what_to_check(error_of):
    dialect = SqlServerDialect("")
    dialect.connect = lambda timeout: raised(error_of("28000", "Login failed for user 'sa'."))
    with pytest.raises(StoreUnusable, match=r"Login failed.* changed nothing"):
        SqlSession(dialect, timeout=5)


def test_the_version_is_asked_for_without_naming_a_table_that_may_be_missing(error_of):
    server = Server([])
    server.rows = [[(0,)]]
    session = SqlSession(server.dialect(), timeout=5)
    assert version_of(session, SqlTables(session.dialect, "holdfast_")) == 0
    assert "IF OBJECT_ID(N'holdfast_about') IS NULL SELECT 0 ELSE SELECT MAX(" in server.sent[0]


def test_the_timeout_of_the_url_bounds_the_login_and_each_statement(monkeypatch):
    """A module in place of the driver: without a server, only its object can be checked."""
    made = []

    class Connection:
        timeout = 0

        def __init__(self, text, **options):
            self.text, self.options = text, options
            made.append(self)

    module = ModuleType("mssql_python")
    module.connect = Connection
    monkeypatch.setitem(sys.modules, "mssql_python", module)
    SqlServerDialect("Server=host").connect(2.6)
    (connection,) = made
    assert connection.options == {"autocommit": True, "timeout": 3}
    assert connection.timeout == 3


class Server:
    """A connection that raises errors in turn, and otherwise answers with no rows."""

    max_bytes = None

    def __init__(self, errors):
        self.errors, self.sent, self.rows = list(errors), [], []

    def dialect(self):
        dialect = SqlServerDialect("")
        dialect.connect = lambda timeout: self
        return dialect

    def send(self, text):
        self.sent.append(text)
        if self.errors:
            raise self.errors.pop(0)
        return self.rows

    def close(self):
        pass


def raised(error):
    raise error
