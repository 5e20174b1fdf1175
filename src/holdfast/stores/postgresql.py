"""`postgresql://user:password@host/database`: many processes on many hosts, through psycopg 3.

One statement a batch (`holdfast.execute`), by the server's clock; an answered command survives the loss of power. The
tables live in a schema of their own. Who was granted something elsewhere hears of it by LISTEN/NOTIFY. Nothing that
safety rests on belongs to a session, so a pooler in transaction mode may be in between.
Besides libpq's own options the URL takes `?schema=holdfast`, `?timeout=5` (seconds to wait for an answer),
`?wakeup=auto|poll`, `?listen=URL` (the server's own address where the other one is a pooler's), and `?advisory=true`
(grants end at once with the process that has them, and with its connection: postgres_anchor.py).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg import conninfo

from .._platform import host_clock
from ..commands import Acquire, Command
from ..errors import InvalidKey, InvalidOption, StoreUnavailable, StoreUnusable
from ..rules.outcomes import Outcome
from ..values import checked_key, seconds
from . import postgres_health
from .contract import Capabilities, Clock, Finding, Hint, Role
from .postgres_anchor import Anchor, Severed
from .postgres_batch import Batch
from .postgres_schema import VERSION, prepare, quoted, version_of
from .postgres_session import Connect, Missing, Session
from .postgres_wakeup import Listening, near
from .shared import woken_by_channel
from .urls import scheme_of

if TYPE_CHECKING:
    from .contract import Connection, Store, Watch

CAPABILITIES = Capabilities(durable=True, shared=True, server_clock=True, notifies=True, workflows=True)
DEFAULT_SCHEMA = "holdfast"
TIMEOUT_SECONDS = 5.0
ADVISORY_LOOK_SECONDS = 0.25
"""How often the head of a queue looks whether the holder's session lives."""
MAX_IDENTIFIER = 63
QUIET = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "application_name": "holdfast",
    "client_encoding": "utf8",
}
"""What libpq is told unless the URL says otherwise."""
_OPTION = re.compile(r"[a-z_]{1,30}")
_UNKNOWN = re.compile(r'URI query parameter: "([^"]*)"')
OURS = ("schema", "timeout", "wakeup", "listen", "advisory")

_json = msgspec.json.Encoder()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said besides where the server is."""

    schema: str = DEFAULT_SCHEMA
    timeout: float = TIMEOUT_SECONDS
    wakeup: Literal["auto", "poll"] = "auto"
    advisory: bool = False
    listen: str = ""

    def __repr__(self) -> str:
        """Without the other address, which may have a password in it."""
        return f"<Options of the schema {self.schema!r}>"


def open_postgres(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the database of the URL. Nothing is sent before it is needed."""
    place, said = _parse(url)
    options = _options(said)
    direct = _parse(options.listen)[0] if options.listen else place
    return PostgresStore(
        _connector(place),
        listen=_connector(direct),
        where=_where(place),
        namespace=namespace,
        clock=clock,
        options=options,
    )


def _options(said: Mapping[str, object]) -> Options:
    unknown = sorted(set(said) - set(OURS))
    if unknown:
        raise InvalidOption(f"there is no option {unknown[0]!r} for PostgreSQL; there are {', '.join(OURS)}")
    timeout = seconds(said.get("timeout", TIMEOUT_SECONDS), what="timeout")  # type: ignore[arg-type]
    wakeup, advisory = said.get("wakeup", "auto"), str(said.get("advisory", "false")).lower()
    listen = str(said.get("listen", ""))
    if listen and scheme_of(listen).partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidOption("listen= takes the postgresql:// URL of the server itself, percent-encoded")
    if wakeup not in ("auto", "poll") or timeout <= 0 or advisory not in ("true", "false"):
        raise InvalidOption(
            "a PostgreSQL store takes wakeup=auto or poll, advisory=true or false, and a timeout above 0"
        )
    return Options(
        schema=_checked_schema(str(said.get("schema", DEFAULT_SCHEMA))),
        timeout=timeout,
        wakeup="poll" if wakeup == "poll" else "auto",
        advisory=advisory == "true",
        listen=listen,
    )


def adopt_postgres(handle: Any, *, namespace: str, clock: Clock, options: Mapping[str, object]) -> Store:
    """Open the database that a psycopg pool or an SQLAlchemy engine is set up for.

    Connections are opened in the same way and are our own: a pool that is used up must not cost a holder its lease.
    """
    package, name = type(handle).__module__.partition(".")[0], type(handle).__name__
    if name.startswith("Async"):
        raise InvalidOption(
            f"a store cannot be made from {package}.{name}: Holdfast talks to its store from a thread of its own, for "
            "AsyncClient too. Give the URL, a psycopg_pool.ConnectionPool, or a (sync) SQLAlchemy engine."
        )
    connect, place = _from_pool(handle) if package == "psycopg_pool" else _from_engine(handle)
    said = _options(options)
    listen = _connector(_parse(said.listen)[0]) if said.listen else connect
    return PostgresStore(
        connect,
        listen=listen,
        where=_where(place),
        namespace=namespace,
        clock=clock,
        options=said,
        apart=f"#engine-{id(handle)}" if package == "sqlalchemy" else "",
    )


def unready(url: str) -> str | None:
    """Why opening this URL would change the database; None where it would not."""
    place, said = _parse(url)
    options = _options(said)
    session = Session(_connector(place), timeout=options.timeout)
    try:
        version = version_of(session, options.schema)
    finally:
        session.close()
    if version == 0:
        return (
            f"there is no schema {options.schema!r} in {_where(place)}: nothing was ever locked there. Look at the URL "
            "and its ?schema=, or use the store once, which makes it."
        )
    if version < VERSION:
        return f"the schema {options.schema!r} is of an older version: the next client that opens the store updates it."
    return None


def _from_pool(pool: Any) -> tuple[Connect, dict[str, Any]]:
    def settings() -> tuple[str, dict[str, Any]]:
        text = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
        return text, dict((pool.kwargs() if callable(pool.kwargs) else pool.kwargs) or {})

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        text, options = settings()
        options.pop("row_factory", None)
        missing = {name: value for name, value in QUIET.items() if name not in conninfo.conninfo_to_dict(text)}
        return psycopg.connect(text, **{**missing, **options, "client_encoding": "utf8"})

    text, options = settings()
    said = {name: value for name, value in options.items() if isinstance(value, (str, int))}
    return connect, {**conninfo.conninfo_to_dict(text), **said}


def _from_engine(engine: Any) -> tuple[Connect, dict[str, Any]]:
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        raise InvalidOption(
            f"a store can be made from an engine for postgresql+psycopg://, not for {engine.dialect.name}+"
            f"{engine.dialect.driver}://: give the URL, or such an engine."
        )
    if type(engine.pool).__name__ in ("StaticPool", "SingletonThreadPool", "AssertionPool"):
        raise InvalidOption(
            f"an engine with a {type(engine.pool).__name__} has one connection for all, and Holdfast needs its own: "
            "give the URL, or an engine with another pool."
        )
    pool = engine.pool.recreate()

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        borrowed = pool.connect()
        borrowed.detach()
        connection: psycopg.Connection[tuple[object, ...]] = borrowed.dbapi_connection
        return connection

    url = engine.url
    return connect, {"host": url.host, "port": url.port, "dbname": url.database, "user": url.username, **url.query}


def _parse(url: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Take a URL apart: what libpq is to know, and what we are."""
    rest, _, query = url.partition("://")[2].partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    ours = {name: said.pop(name) for name in OURS if name in said}
    try:
        place = conninfo.conninfo_to_dict(f"postgresql://{rest}{'?' if said else ''}{urlencode(said, quote_via=quote)}")
    except psycopg.Error as error:
        unknown = _UNKNOWN.search(str(error))  # of what libpq says only a name may be repeated: the rest may be secret
        named = unknown is not None and f"{unknown[1]}=" in query and _OPTION.fullmatch(unknown[1]) is not None
        what = f"there is no option {unknown[1]!r}" if unknown and named else "it is not one that libpq reads"
        raise InvalidOption(
            f"the postgresql:// URL cannot be used: {what}. Besides libpq's options it takes {', '.join(OURS)}; "
            "special characters in a user's name or a password are percent-encoded."
        ) from None
    if any("@" in str(place.get(name, "")) for name in ("host", "port", "dbname")):
        raise InvalidOption(
            "the postgresql:// URL has an @ where none can be: percent-encode the special characters of its password"
        )
    return {**QUIET, **place}, ours


def _connector(place: dict[str, Any]) -> Connect:
    return lambda: psycopg.connect("", **place)


def _where(place: dict[str, Any]) -> str:
    """The address for people, and the same for all ways to it."""
    user = f"{quote(str(place['user']))}@" if place.get("user") else ""
    host, port = place.get("host") or place.get("hostaddr") or "", place.get("port") or 5432
    return f"postgresql://{user}{quote(str(host), safe=',')}:{port}/{quote(str(place.get('dbname') or ''))}"


def _checked_schema(schema: str) -> str:
    try:
        checked_key(schema, what="schema")
    except InvalidKey as error:
        raise InvalidOption(str(error)) from None
    if len(schema.encode()) > MAX_IDENTIFIER or schema.startswith("pg_") or schema == "public":
        raise InvalidOption(
            f"the schema {schema!r} cannot be used: it is Holdfast's alone, at most 63 bytes, and neither public nor "
            "pg_..."
        )
    return schema


class PostgresStore:
    """The records of one namespace in one database."""

    def __init__(
        self,
        connect: Connect,
        *,
        listen: Connect,
        where: str,
        namespace: str,
        clock: Clock,
        options: Options,
        apart: str = "",
    ) -> None:
        """`apart` tells stores apart whose address does not say where they lead: an engine's own settings do."""
        self.url = where if options.schema == DEFAULT_SCHEMA else f"{where}?schema={quote(options.schema)}"
        self.identity = f"{where.partition('@')[2] or where}{apart}#{options.schema}#{namespace}"
        self._apart = apart
        steered = clock is not host_clock
        self.capabilities = msgspec.structs.replace(CAPABILITIES, server_clock=False) if steered else CAPABILITIES
        self.options = options
        self._connect, self._listen, self._where = connect, listen, where
        self._namespace, self._clock = namespace, clock
        self._anchor = Anchor(listen, timeout=options.timeout) if options.advisory else None
        self._preparing = threading.Lock()
        self._prepared = self._closed = False

    def __repr__(self) -> str:
        return f"<PostgresStore {self.identity}>"

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (nobody waits for a turn here, so no role goes first)
        """Open a connection of its own; the first one makes the tables where there are none."""
        self._check_open()
        session = Session(self._connect, timeout=self.options.timeout)
        try:
            with self._preparing:
                if not self._prepared:
                    prepare(session, self.options.schema)
                    self._prepared = True
        except BaseException:
            session.close()
            raise
        return PostgresConnection(
            session,
            identity=self.identity,
            schema=self.options.schema,
            namespace=self._namespace,
            clock=self._clock,
            anchor=self._anchor,
            missed=self._make_again,
        )

    def _make_again(self) -> None:
        """The tables are gone: the next connection makes them again."""
        self._prepared = False

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Listen for hints on a connection of its own, or look from time to time where that cannot be."""
        self._check_open()
        return Listening(
            self.identity,
            self._namespace,
            channel,
            on_hint,
            connect=None if self.options.wakeup == "poll" else self._listen,
            timeout=self.options.timeout,
            look_every=ADVISORY_LOOK_SECONDS if self.options.advisory else None,
        )

    def on_severed(self, tell: Severed) -> None:
        """Call this, with the reason, when what was granted through this store has ended with its session."""
        if self._anchor is not None:
            self._anchor.on_severed(tell)

    def diagnose(self) -> tuple[Finding, ...]:
        """Look at the server, the schema, durability, poolers and transactions that were left open."""
        return postgres_health.diagnose(
            self._connect,
            self._listen,
            self.options.schema,
            timeout=self.options.timeout,
            advisory=self.options.advisory,
        )

    def reopen(self) -> Store:
        """Open the same database for the child of a fork."""
        return PostgresStore(
            self._connect,
            listen=self._listen,
            where=self._where,
            namespace=self._namespace,
            clock=self._clock,
            options=self.options,
            apart=self._apart,
        )

    def close(self) -> None:
        """End the anchor, if there is one."""
        self._closed = True
        if self._anchor is not None:
            self._anchor.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed: open a new one")


class PostgresConnection:
    """One session, used by one thread at a time."""

    def __init__(
        self,
        session: Session,
        *,
        identity: str,
        schema: str,
        namespace: str,
        clock: Clock,
        anchor: Anchor | None,
        missed: Callable[[], None],
    ) -> None:
        self._session: Session | None = session
        self._missed = missed
        self._anchor = anchor
        self._checked = 0
        self._batch = Batch(session, quoted(schema).encode(), namespace)
        self._identity = identity
        self._clock = None if clock is host_clock else clock

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the batch out in one statement; rows that somebody else has locked are asked for again, alone."""
        if self._session is None:
            raise StoreUnusable("this connection is closed: open a new one")
        told = near.channels(self._identity)
        at = None if self._clock is None else str(self._clock()).encode()
        try:
            number = self._tie(commands)
            outcomes = self._batch.run(commands, at, _json.encode(told), session=number)
            if number is not None and self._anchor is not None and not self._anchor.holds(number):
                raise StoreUnavailable(  # noqa: TRY301  (one place tells those who wait)
                    "the session to which grants are tied was lost meanwhile", ambiguous=True
                )
        except BaseException as error:
            if isinstance(error, Missing):
                self._missed()
            for channel in told:  # the server has left it to us to tell them, and it is not known of what
                near.tell(self._identity, channel, None)
            raise
        if told and any(outcome.woken for outcome in outcomes):
            for channel, ids in woken_by_channel(outcomes).items():
                near.tell(self._identity, channel, ids)
        return outcomes

    def _tie(self, commands: Sequence[Command]) -> int | None:
        """The number of the session that grants are tied to, if they are; checked once that it is of this database."""
        if self._anchor is None or not any(isinstance(command, Acquire) for command in commands):
            return None
        number = self._anchor.number()
        if number != self._checked and self._session is not None:
            free = self._session.ask(b"SELECT pg_try_advisory_xact_lock_shared($1)", (str(number).encode(),))
            if free == b"t" and self._anchor.holds(number):
                raise StoreUnusable(
                    "advisory=true needs one database for everything, and ?listen= leads to another one: locks of a "
                    "session are seen in its own database only. Give the same database in both."
                )
            self._checked = number
        return number

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
