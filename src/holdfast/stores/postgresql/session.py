"""One session with a PostgreSQL server: one trip for one or many statements, with a deadline, and one table of errors.

A connection is made by psycopg and then driven through libpq itself, which costs a third of a cursor and lets us wait
with a deadline: a server that is paused, or a network that swallows packets, must not keep a caller for ever. Nothing
that is needed outlives a statement, no setting and no transaction, so that a pooler may be in between. One exception:
where the role or the database has another default, the session is set to READ COMMITTED and READ WRITE.
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
"""Opens a connection of our own."""

_HELLO = (
    b"SELECT pg_is_in_recovery()::text || ' ' || pg_backend_pid() || ' ' || current_setting('transaction_read_only') "
    b"|| ' ' || current_setting('transaction_isolation')"
)
PLAIN = b"off read committed"
"""What every transaction must be: not read-only, and one that sees what was committed before each of its statements."""
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
    """Nothing was done: another transaction wrote first what this one was about to write. Read again, and decide."""


class Contended(Exception):
    """Nothing was done: a row was locked, or two transactions met. Ask again, in smaller parts. No caller sees it."""


class BadData(Exception):
    """Nothing was done: one of the values is of a kind that the server cannot take."""


class Unprepared(Exception):
    """Nothing was done: this is not the session in which the statement was prepared."""


class NotInstalled(StoreUnusable):
    """The tables or functions are not there."""


class LacksRights(StoreUnusable):
    """The role may not do this."""


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
            # A pooler gives its clients process numbers of its own.
            self.pooled = process != str(self._pg.backend_pid).encode()
            if standby == b"true":
                raise StoreUnavailable(  # noqa: TRY301  (one place closes)
                    "this PostgreSQL server is a standby, whose records may be old: locks are never read there. Give "
                    "the address of the primary, or several hosts with target_session_attrs=read-write."
                )
            if self._mode != PLAIN:
                self._pin()
        except BaseException:
            self.close()
            raise

    def _pin(self) -> None:
        """Let the transactions of this session be what they must be, whatever the role's or the database's default is.

        Behind a pooler the session is somebody else's too, and is left as it is.
        """
        if self.pooled:
            read_only, _, isolation = self._mode.decode().partition(" ")
            raise StoreUnusable(
                f"transactions of this role are {isolation!r} by default{', read-only' * (read_only == 'on')}, and "
                "Holdfast needs READ COMMITTED and READ WRITE. A pooler is in between, so the session cannot be set: "
                "ALTER ROLE ... SET default_transaction_isolation = 'read committed', and SET "
                "default_transaction_read_only = off, for the role that Holdfast connects as; or give the server's own "
                "address."
            )
        self.ask(_PIN)

    @property
    def server_version(self) -> int:
        """Such as 180006."""
        return self._pg.server_version

    @property
    def connection(self) -> psycopg.Connection[tuple[object, ...]]:
        """The driver's connection, for what is seldom done."""
        return self._connection

    def ask_rows(self, statement: Statement) -> Rows:
        """Send one statement that is sent all the time, and wait for its rows: the server remembers it."""
        if not self.pooled:
            try:
                name = self._prepared.get(statement.text)
                if name is None:
                    name = _name_of(statement.text)
                    self._talk(lambda: self._pg.send_prepare(name, statement.text))
                    self._prepared[statement.text] = name
                return _rows(self._talk(lambda: self._pg.send_query_prepared(name, statement.values)))
            except Unprepared:
                self.pooled = True  # somebody in between changes the sessions, and does not show
                if self._mode != PLAIN:
                    self._pin()  # what was set is not for this session
        return _rows(self._talk(lambda: self._pg.send_query_params(*statement)))

    def run(self, script: str, *, timeout: float) -> None:
        """Send several statements at once, which are one transaction unless they say otherwise."""
        self._talk(lambda: self._pg.send_query(script.encode()), timeout)

    def ask(self, statement: bytes, values: Sequence[bytes | None] = ()) -> bytes | None:
        """Send one statement and wait for its first value. Raises as `_refusal` says."""
        first = self._talk(lambda: self._pg.send_query_params(statement, values))
        return first.get_value(0, 0) if first.status == _DONE and first.ntuples else None

    def trip(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send several statements at once, and wait for all their rows. The first that fails is raised.

        They are prepared where the session is ours alone. What failed has left the transaction broken, if one is open.
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
        """Raise if the server has ended the session meanwhile: then nothing that is sent now can be carried out."""
        pg = self._pg
        try:
            for _ in range(2):  # what it said, and that it has gone
                if pg.status == pq.ConnStatus.OK and self._waits(0, False):  # noqa: FBT003
                    pg.consume_input()
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL has ended the session ({error}). Nothing was done.") from error
        if pg.status != pq.ConnStatus.OK:
            raise StoreUnavailable("PostgreSQL has ended the session. Nothing was done.")

    def _send(self, statements: Sequence[Statement], fresh: list[tuple[int, bytes, bytes]]) -> int:
        """Send the statements; `fresh` gets the places, texts and names of those that are prepared now."""
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
        # The rows come before the commit: it is the last word that tells whether they are true.
        refused = [result for result in results if result.status not in _ANSWERED]
        if refused or not results or pg.status != pq.ConnStatus.OK:
            raise _refusal(refused[0] if refused else None)
        return results[0]

    def _next_result(self, deadline: float) -> PGresult | None:
        """The next part of the answer. Asked for only when it is there: libpq would wait without an end."""
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
                "out. Where that is too short, set ?timeout=SECONDS in the URL.",
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
        f"the connection to PostgreSQL was lost while a command was under way ({error}): it may or may not "
        "have been carried out",
        ambiguous=True,
    )


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Which of them have something to read, at the latest after so many seconds. Any number may be a descriptor's."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(seconds)]


def _waits_for(descriptor: int) -> Callable[[float, bool], bool]:
    """A function that waits for the socket, at most so long, and tells whether something happened."""
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
        connection.rollback()  # whatever an event of an engine's has begun
        connection.autocommit = True
        connection.prepare_threshold = None
        if connection.pgconn.parameter_status(b"client_encoding") != b"UTF8":
            connection.execute("SET client_encoding TO 'UTF8'")  # or one key would be two
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
        return StoreUnusable(f"PostgreSQL refused the connection: {text}. Look at the user, the database and the URL.")
    return StoreUnavailable(f"PostgreSQL cannot be reached: {text}. Nothing was sent.")


class _Meaning(NamedTuple):
    """What an SQLSTATE means for a command: what is raised, whether it may have happened, and what to do."""

    error: type[StoreUnavailable | StoreUnusable | Contended | BadData | Unprepared | WriteConflict]
    advice: str = "Nothing was done; it may be tried again."
    ambiguous: bool = False


_UNKNOWN = _Meaning(StoreUnavailable, "The command may or may not have been carried out.", ambiguous=True)
_MISSING = _Meaning(
    NotInstalled, "The tables or functions of Holdfast are gone; nothing was done, and the next call makes them again."
)
_MEANINGS = {
    "40001": _Meaning(Contended),
    "40P01": _Meaning(Contended),
    "55P03": _Meaning(Contended),
    "23505": _Meaning(WriteConflict),  # a key or a run that another transaction has made
    "HF001": _Meaning(WriteConflict),
    "26000": _Meaning(Unprepared),
    "42P05": _Meaning(Unprepared),
    "22": _Meaning(BadData),
    "23502": _Meaning(BadData),
    "54": _Meaning(BadData),
    "20": _Meaning(BadData),
    "57P01": _UNKNOWN,  # the end of a session may come between the commit and its answer
    "57P02": _UNKNOWN,
    "57P05": _UNKNOWN,
    "08": _UNKNOWN,
    "": _UNKNOWN,
    "25006": _Meaning(
        StoreUnavailable,
        "The transaction is read-only: the server is a standby (give the address of the primary), or "
        "default_transaction_read_only is on (set it off). Nothing was done.",
    ),
    "42501": _Meaning(
        LacksRights,
        "This role lacks rights. The SQL for a role of the application comes with Holdfast: docs/stores/postgresql.md.",
    ),
    "3F000": _MISSING,
    "42P01": _MISSING,
    "42883": _MISSING,
    "42703": _MISSING,
    "42": _Meaning(StoreUnusable, "Nothing was done."),
}
"""By the whole SQLSTATE, else by its class."""


def meaning_of(state: str) -> _Meaning:
    """What an SQLSTATE means: by itself, else by its class."""
    return _MEANINGS.get(state) or _MEANINGS.get(state[:2]) or _Meaning(StoreUnavailable)


def refusal(state: str, text: str) -> Exception:
    """The error for what the server has said."""
    meaning = meaning_of(state)
    told = f"PostgreSQL says: {text} (SQLSTATE {state or 'none'}). {meaning.advice}"
    if issubclass(meaning.error, StoreUnavailable):
        return meaning.error(told, ambiguous=meaning.ambiguous)
    return meaning.error(told)


def _refusal(result: PGresult | None) -> Exception:
    """The error for a statement that the server did not carry out, or of which that is not known."""
    if result is None:
        return StoreUnavailable("PostgreSQL ended the session without an answer", ambiguous=True)
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode("utf-8", "replace")
    return refusal(state, text)
