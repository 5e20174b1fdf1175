"""One session with a PostgreSQL server: round trips of one or many statements with a deadline, and a table of errors.

psycopg opens the connection; the statements are then sent through libpq directly, which costs a third of a cursor and
allows a deadline: a server that is paused, or a network that drops packets, must not block a caller for ever. No
setting and no transaction outlives a statement, so connections may go through a pooler. One exception: where the role
or the database has another default, the session is set to READ COMMITTED and READ WRITE.
"""

from __future__ import annotations

import hashlib
import select
import selectors
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from ...platform import elapsed

Connect = Callable[[], "psycopg.Connection[tuple[object, ...]]"]
"""Opens a connection that only Holdfast uses."""

_HELLO = (
    b"SELECT pg_is_in_recovery()::text || ' ' || pg_backend_pid() || ' ' || current_setting('transaction_read_only') "
    b"|| ' ' || current_setting('transaction_isolation')"
)
PLAIN = b"off read committed"
"""The mode of every transaction: not read-only, and each statement sees what was committed before it."""
_PIN = (
    b"SELECT set_config('default_transaction_isolation', 'read committed', false) "
    b"|| set_config('default_transaction_read_only', 'off', false)"
)
Rows = list[tuple[bytes | None, ...]]
_DONE = pq.ExecStatus.TUPLES_OK
_ANSWERED = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}


class Statement(NamedTuple):
    """A statement and its values, as text."""

    text: bytes
    values: tuple[bytes | None, ...] = ()


class WriteConflict(Exception):
    """Nothing was done: another transaction has written one of the rows first. Read again, and decide again."""


class Contended(Exception):
    """Nothing was done: a row was locked, or transactions conflicted. Send smaller parts again. Internal."""


class BadData(Exception):
    """Nothing was done: one of the values has a type that the server cannot store."""


class Unprepared(Exception):
    """Nothing was done: this is not the session in which the statement was prepared."""


class NotInstalled(StoreUnusable):
    """The tables or functions do not exist."""


class LacksRights(StoreUnusable):
    """The role lacks a privilege."""


class Session:
    """One connection, used by one thread at a time."""

    def __init__(self, connect: Connect, *, timeout: float) -> None:
        self._connect, self._timeout = connect, timeout
        self._prepared: dict[bytes, bytes] = {}
        self._connection = _opened(connect)
        try:
            self._pg = self._connection.pgconn
            self._pg.nonblocking = 1
            self._waits = _waits_for(self._pg.socket)
            standby, process, self._mode = (self.ask(_HELLO) or b"").split(b" ", 2)
            # A pooler reports process numbers of its own to its clients.
            self.pooled = process != str(self._pg.backend_pid).encode()
            if standby == b"true":
                raise StoreUnavailable(  # noqa: TRY301  (one place closes)
                    "this PostgreSQL server is a standby, whose records may be outdated: locks are never read there. "
                    "Configure the address of the primary, or several hosts with target_session_attrs=read-write."
                )
            if self._mode != PLAIN:
                self._pin()
        except BaseException:
            self.close()
            raise

    def _pin(self) -> None:
        """Set READ COMMITTED and READ WRITE as the defaults of this session.

        Behind a pooler the session is shared with other clients and must not be changed, so this raises.
        """
        if self.pooled:
            read_only, _, isolation = self._mode.decode().partition(" ")
            raise StoreUnusable(
                f"transactions of this role are {isolation!r} by default{', read-only' * (read_only == 'on')}, and "
                "Holdfast needs READ COMMITTED and READ WRITE. The connection goes through a pooler, so Holdfast "
                "cannot change the session. Use ALTER ROLE ... SET default_transaction_isolation = 'read committed', "
                "and SET default_transaction_read_only = off, for the role that Holdfast connects as; or configure the "
                "address of the server itself."
            )
        self.ask(_PIN)

    @property
    def server_version(self) -> int:
        """The version as a number, such as 180006."""
        return self._pg.server_version

    @property
    def connection(self) -> psycopg.Connection[tuple[object, ...]]:
        """The connection of psycopg, for statements that are sent rarely."""
        return self._connection

    def ask_rows(self, statement: Statement) -> Rows:
        """Send one frequent statement, which is prepared on the server, and wait for its rows."""
        if not self.pooled:
            try:
                name = self._prepared.get(statement.text)
                if name is None:
                    name = _name_of(statement.text)
                    self._talk(lambda: self._pg.send_prepare(name, statement.text))
                    self._prepared[statement.text] = name
                return _rows(self._talk(lambda: self._pg.send_query_prepared(name, statement.values)))
            except Unprepared:
                self.pooled = True  # a pooler in between changes sessions without showing it
                if self._mode != PLAIN:
                    self._pin()  # the settings were made in another session
        return _rows(self._talk(lambda: self._pg.send_query_params(*statement)))

    def run(self, script: str, *, timeout: float) -> None:
        """Send several statements at once, as one transaction unless they contain BEGIN or COMMIT."""
        self._talk(lambda: self._pg.send_query(script.encode()), timeout)

    def ask(self, statement: bytes, values: Sequence[bytes | None] = ()) -> bytes | None:
        """Send one statement and wait for its first value. Raises the error that `_refusal` returns."""
        first = self._talk(lambda: self._pg.send_query_params(statement, values))
        return first.get_value(0, 0) if first.status == _DONE and first.ntuples else None

    def trip(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send several statements at once, and wait for all their rows. Raises the first error.

        Statements are prepared unless the session goes through a pooler. After an error an open transaction is broken.
        """
        try:
            return self._trip(statements)
        except Unprepared as error:
            self.pooled = True  # another session than the one that prepared the statements
            raise Contended(str(error)) from error

    def _trip(self, statements: Sequence[Statement]) -> list[Rows]:
        pg, deadline = self._pg, elapsed() + self._timeout
        self._check_alive()
        fresh: list[tuple[int, bytes, bytes]] = []
        results: list[PGresult] = []
        try:
            pg.enter_pipeline_mode()
            sent = self._send(statements, fresh)
            pg.pipeline_sync()
            while pg.flush():
                self._wait(deadline, writing=True)
                pg.consume_input()
            for _ in range(sent):
                while (result := self._next_result(deadline)) is not None:
                    results.append(result)
            if pg.status == pq.ConnStatus.OK:
                self._next_result(deadline)  # the end of the pipeline
                pg.exit_pipeline_mode()
        except (psycopg.Error, OSError) as error:
            raise _lost(error) from error
        prepared = {place for place, _, _ in fresh}
        for place, text, name in fresh:
            if place < len(results) and results[place].status in _ANSWERED:
                self._prepared[text] = name
        refused = [result for result in results if result.status not in _ANSWERED]
        if refused or len(results) != sent or pg.status != pq.ConnStatus.OK:
            raise _refusal(refused[0] if refused else None)
        return [_rows(result) for place, result in enumerate(results) if place not in prepared]

    def _check_alive(self) -> None:
        """Raise if the server has ended the session: nothing that is sent now could be carried out."""
        pg = self._pg
        try:
            for _ in range(2):  # its last message, and the end of the connection
                if pg.status == pq.ConnStatus.OK and self._waits(0, False):  # noqa: FBT003
                    pg.consume_input()
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL has closed the session ({error}). Nothing was done.") from error
        if pg.status != pq.ConnStatus.OK:
            raise StoreUnavailable("PostgreSQL has closed the session. Nothing was done.")

    def _send(self, statements: Sequence[Statement], fresh: list[tuple[int, bytes, bytes]]) -> int:
        """Send the statements; `fresh` collects the positions, texts and names of those that are prepared now."""
        pg, sent = self._pg, 0
        known = dict(self._prepared)
        for text, values in statements:
            if self.pooled:
                pg.send_query_params(text, values)
            else:
                name = known.get(text)
                if name is None:
                    name = known[text] = _name_of(text)
                    pg.send_prepare(name, text)
                    fresh.append((sent, text, name))
                    sent += 1
                pg.send_query_prepared(name, values)
            sent += 1
        return sent

    def _talk(self, send: Callable[[], None], timeout: float | None = None) -> PGresult:
        pg = self._pg
        deadline = elapsed() + (timeout or self._timeout)
        try:
            send()
            while pg.flush():
                self._wait(deadline, writing=True)
                pg.consume_input()
            results = []
            while (result := self._next_result(deadline)) is not None:
                results.append(result)
        except (psycopg.Error, OSError) as error:
            raise _lost(error) from error
        # The rows arrive before the commit: only the last result shows whether the commit succeeded.
        refused = [result for result in results if result.status not in _ANSWERED]
        if refused or not results or pg.status != pq.ConnStatus.OK:
            raise _refusal(refused[0] if refused else None)
        return results[0]

    def _next_result(self, deadline: float) -> PGresult | None:
        """The next result. Read only when it has arrived: libpq would wait without a deadline."""
        pg = self._pg
        while pg.is_busy():
            self._wait(deadline)
            pg.consume_input()
        return pg.get_result()

    def close(self) -> None:
        """End the session. Safe to call twice."""
        with suppress(psycopg.Error):
            self._connection.close()

    def _wait(self, deadline: float, *, writing: bool = False) -> None:
        left = deadline - elapsed()
        if left <= 0 or not self._waits(left, writing):
            raise StoreUnavailable(
                f"PostgreSQL did not answer within {self._timeout:g} s: the command may or may not have been carried "
                "out. If this timeout is too short, set ?timeout=SECONDS in the URL.",
                ambiguous=True,
            )


def _name_of(statement: bytes) -> bytes:
    """The name under which a session prepares a statement."""
    return b"holdfast_" + hashlib.md5(statement, usedforsecurity=False).hexdigest().encode()


def _rows(result: PGresult) -> Rows:
    columns = range(result.nfields)
    return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]


def _lost(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"the connection to PostgreSQL was lost while a command was under way ({error}). The command may or may not "
        "have been carried out.",
        ambiguous=True,
    )


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """The descriptors that can be read, waiting at most so many seconds. Works for descriptors of any number."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(seconds)]


def _waits_for(descriptor: int) -> Callable[[float, bool], bool]:
    """A function that waits for the socket, at most so long, and returns whether it is ready."""
    if not hasattr(select, "poll"):  # Windows

        def selecting(seconds: float, writing: bool) -> bool:  # noqa: FBT001
            return any(select.select([descriptor], [descriptor] if writing else [], [], seconds))

        return selecting
    reading, both = select.poll(), select.poll()
    reading.register(descriptor, select.POLLIN)
    both.register(descriptor, select.POLLIN | select.POLLOUT)

    def polling(seconds: float, writing: bool) -> bool:  # noqa: FBT001
        return bool((both if writing else reading).poll(seconds * 1_000))

    return polling


def _opened(connect: Connect) -> psycopg.Connection[tuple[object, ...]]:
    try:
        connection = connect()
    except psycopg.Error as error:
        raise cannot_connect(error) from error
    try:
        connection.rollback()  # a transaction that an event listener of an SQLAlchemy engine may have begun
        connection.autocommit = True
        connection.prepare_threshold = None
        if connection.pgconn.parameter_status(b"client_encoding") != b"UTF8":
            connection.execute("SET client_encoding TO 'UTF8'")  # otherwise one key could be stored as two
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise StoreUnusable(
                f"this connection to PostgreSQL cannot be used: {' '.join(str(error).split())}"
            ) from error
        raise
    return connection


def cannot_connect(error: psycopg.Error) -> StoreError:
    """The error for a connection that could not be opened."""
    text = " ".join(str(error).split())
    if any(word in text for word in ("password authentication failed", "no pg_hba.conf entry", "does not exist")):
        return StoreUnusable(f"PostgreSQL refused the connection: {text}. Check the user, the database and the URL.")
    return StoreUnavailable(f"PostgreSQL cannot be reached: {text}. Nothing was sent.")


class _Meaning(NamedTuple):
    """The meaning of an SQLSTATE: the error, what to do, and whether the command may have been carried out."""

    error: type[StoreUnavailable | StoreUnusable | Contended | BadData | Unprepared | WriteConflict]
    advice: str = "Nothing was done; the command can be sent again."
    ambiguous: bool = False


_UNKNOWN = _Meaning(StoreUnavailable, "The command may or may not have been carried out.", ambiguous=True)
_MISSING = _Meaning(
    NotInstalled,
    "The tables or functions of Holdfast do not exist any more. Nothing was done; the next call creates them again.",
)
_MEANINGS = {
    "40001": _Meaning(Contended),
    "40P01": _Meaning(Contended),
    "55P03": _Meaning(Contended),
    "23505": _Meaning(WriteConflict),  # a key or a run that another transaction has inserted
    "HF001": _Meaning(WriteConflict),
    "26000": _Meaning(Unprepared),
    "42P05": _Meaning(Unprepared),
    "22": _Meaning(BadData),
    "23502": _Meaning(BadData),
    "54": _Meaning(BadData),
    "20": _Meaning(BadData),
    "57P01": _UNKNOWN,  # a session may end between the commit and its answer
    "57P02": _UNKNOWN,
    "57P05": _UNKNOWN,
    "08": _UNKNOWN,
    "": _UNKNOWN,
    "25006": _Meaning(
        StoreUnavailable,
        "The transaction is read-only: the server is a standby (configure the address of the primary), or "
        "default_transaction_read_only is on (set it to off). Nothing was done.",
    ),
    "42501": _Meaning(
        LacksRights,
        "This role lacks a privilege. Holdfast comes with SQL for the role of an application: "
        "docs/stores/postgresql.md.",
    ),
    "3F000": _MISSING,
    "42P01": _MISSING,
    "42883": _MISSING,
    "42703": _MISSING,
    "42": _Meaning(StoreUnusable, "Nothing was done."),
}
"""Keys are whole SQLSTATEs, or their classes."""


def meaning_of(state: str) -> _Meaning:
    """The meaning of an SQLSTATE, or else of its class."""
    return _MEANINGS.get(state) or _MEANINGS.get(state[:2]) or _Meaning(StoreUnavailable)


def refusal(state: str, text: str) -> Exception:
    """The error for an SQLSTATE and a message of the server."""
    meaning = meaning_of(state)
    message = f"PostgreSQL reports: {text} (SQLSTATE {state or 'none'}). {meaning.advice}"
    if issubclass(meaning.error, StoreUnavailable):
        return meaning.error(message, ambiguous=meaning.ambiguous)
    return meaning.error(message)


def _refusal(result: PGresult | None) -> Exception:
    """The error for a statement that failed, or whose result is unknown (None)."""
    if result is None:
        return StoreUnavailable(
            "PostgreSQL closed the session without an answer. The command may or may not have been carried out.",
            ambiguous=True,
        )
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode("utf-8", "replace")
    return refusal(state, text)
