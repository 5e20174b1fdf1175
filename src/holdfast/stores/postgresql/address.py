"""The address of a PostgreSQL database: a URL with its options, or an existing pool or engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg import conninfo

from ...errors import InvalidKey, InvalidOption
from ...validation import checked_key, seconds
from ..urls import scheme_of
from .session import Connect

DEFAULT_SCHEMA = "holdfast"
TIMEOUT_SECONDS = 5.0
MAX_IDENTIFIER = 63
QUIET = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "application_name": "holdfast",
    "client_encoding": "utf8",
}
"""Options for libpq; those in the URL take precedence."""
_OPTION = re.compile(r"[a-z_]{1,30}")
_UNKNOWN = re.compile(r'URI query parameter: "([^"]*)"')
OURS = ("schema", "timeout", "wakeup", "listen", "advisory")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of Holdfast for a PostgreSQL store."""

    schema: str = DEFAULT_SCHEMA
    timeout: float = TIMEOUT_SECONDS
    wakeup: Literal["auto", "poll"] = "auto"
    advisory: bool = False
    listen: str = ""

    def __repr__(self) -> str:
        """Omits `listen`, which may contain a password."""
        return f"<Options of the schema {self.schema!r}>"


def options_of(given: Mapping[str, object]) -> Options:
    """The options as they were given, checked."""
    unknown = sorted(set(given) - set(OURS))
    if unknown:
        raise InvalidOption(f"there is no option {unknown[0]!r} for PostgreSQL; the options are {', '.join(OURS)}")
    timeout = seconds(given.get("timeout", TIMEOUT_SECONDS), what="timeout")  # type: ignore[arg-type]
    wakeup, advisory = given.get("wakeup", "auto"), str(given.get("advisory", "false")).lower()
    listen = str(given.get("listen", ""))
    if listen and scheme_of(listen).partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidOption("listen= must be the postgresql:// URL of the server itself, percent-encoded")
    if wakeup not in ("auto", "poll") or timeout <= 0 or advisory not in ("true", "false"):
        raise InvalidOption(
            "options of a PostgreSQL store: wakeup is auto or poll, advisory is true or false, and timeout is above 0"
        )
    return Options(
        schema=_checked_schema(str(given.get("schema", DEFAULT_SCHEMA))),
        timeout=timeout,
        wakeup="poll" if wakeup == "poll" else "auto",
        advisory=advisory == "true",
        listen=listen,
    )


def from_pool(pool: Any) -> tuple[Connect, dict[str, Any]]:
    """A function that connects as a psycopg pool does, and the parameters of its connections."""

    def settings() -> tuple[str, dict[str, Any]]:
        text = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
        return text, dict((pool.kwargs() if callable(pool.kwargs) else pool.kwargs) or {})

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        text, options = settings()
        options.pop("row_factory", None)
        missing = {name: value for name, value in QUIET.items() if name not in conninfo.conninfo_to_dict(text)}
        return psycopg.connect(text, **{**missing, **options, "client_encoding": "utf8"})

    text, options = settings()
    given = {name: value for name, value in options.items() if isinstance(value, (str, int))}
    return connect, {**conninfo.conninfo_to_dict(text), **given}


def from_engine(engine: Any) -> tuple[Connect, dict[str, Any]]:
    """A function that connects as an SQLAlchemy engine does, and the parameters of its connections."""
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        raise InvalidOption(
            f"a store can be opened from an engine for postgresql+psycopg://, not for {engine.dialect.name}+"
            f"{engine.dialect.driver}://. Pass the URL, or an engine for postgresql+psycopg://."
        )
    if type(engine.pool).__name__ in ("StaticPool", "SingletonThreadPool", "AssertionPool"):
        raise InvalidOption(
            f"an engine with a {type(engine.pool).__name__} has only one connection, and Holdfast needs connections of "
            "its own. Pass the URL, or an engine with another pool."
        )
    pool = engine.pool.recreate()

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        borrowed = pool.connect()
        borrowed.detach()
        connection: psycopg.Connection[tuple[object, ...]] = borrowed.dbapi_connection
        return connection

    url = engine.url
    return connect, {"host": url.host, "port": url.port, "dbname": url.database, "user": url.username, **url.query}


def parse(url: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse a URL. Returns the parameters for libpq, and the options of Holdfast."""
    rest, _, query = url.partition("://")[2].partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    ours = {name: given.pop(name) for name in OURS if name in given}
    try:
        place = conninfo.conninfo_to_dict(
            f"postgresql://{rest}{'?' if given else ''}{urlencode(given, quote_via=quote)}"
        )
    except psycopg.Error as error:
        unknown = _UNKNOWN.search(str(error))  # only the name may be repeated: the rest may be secret
        named = unknown is not None and f"{unknown[1]}=" in query and _OPTION.fullmatch(unknown[1]) is not None
        what = f"there is no option {unknown[1]!r}" if unknown and named else "libpq cannot parse it"
        raise InvalidOption(
            f"the postgresql:// URL cannot be used: {what}. Besides the options of libpq it accepts {', '.join(OURS)}. "
            "Special characters in a user name or a password must be percent-encoded."
        ) from None
    if any("@" in str(place.get(name, "")) for name in ("host", "port", "dbname")):
        raise InvalidOption(
            "the postgresql:// URL has an unexpected @: percent-encode the special characters of its password"
        )
    return {**QUIET, **place}, ours


def connector(place: dict[str, Any]) -> Connect:
    """A function that connects with these parameters."""
    return lambda: psycopg.connect("", **place)


def where_of(place: dict[str, Any]) -> str:
    """The address without its password; equal for equivalent URLs."""
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
            f"the schema {schema!r} cannot be used: Holdfast needs a schema of its own, whose name has at most 63 "
            "bytes, is not public and does not begin with pg_"
        )
    return schema
