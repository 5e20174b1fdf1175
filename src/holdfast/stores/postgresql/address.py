"""The address of a PostgreSQL database: a URL and its options, or a pool or an engine that is there already."""

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
"""What libpq is told unless the URL says otherwise."""
_OPTION = re.compile(r"[a-z_]{1,30}")
_UNKNOWN = re.compile(r'URI query parameter: "([^"]*)"')
OURS = ("schema", "timeout", "wakeup", "listen", "advisory")


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


def options_of(given: Mapping[str, object]) -> Options:
    """The options as they were said, checked."""
    unknown = sorted(set(given) - set(OURS))
    if unknown:
        raise InvalidOption(f"there is no option {unknown[0]!r} for PostgreSQL; there are {', '.join(OURS)}")
    timeout = seconds(given.get("timeout", TIMEOUT_SECONDS), what="timeout")  # type: ignore[arg-type]
    wakeup, advisory = given.get("wakeup", "auto"), str(given.get("advisory", "false")).lower()
    listen = str(given.get("listen", ""))
    if listen and scheme_of(listen).partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidOption("listen= takes the postgresql:// URL of the server itself, percent-encoded")
    if wakeup not in ("auto", "poll") or timeout <= 0 or advisory not in ("true", "false"):
        raise InvalidOption(
            "a PostgreSQL store takes wakeup=auto or poll, advisory=true or false, and a timeout above 0"
        )
    return Options(
        schema=_checked_schema(str(given.get("schema", DEFAULT_SCHEMA))),
        timeout=timeout,
        wakeup="poll" if wakeup == "poll" else "auto",
        advisory=advisory == "true",
        listen=listen,
    )


def from_pool(pool: Any) -> tuple[Connect, dict[str, Any]]:
    """How to connect as a psycopg pool does, and where that leads."""

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
    """How to connect as an SQLAlchemy engine does, and where that leads."""
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


def parse(url: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Take a URL apart: what libpq is to know, and what we are."""
    rest, _, query = url.partition("://")[2].partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    ours = {name: given.pop(name) for name in OURS if name in given}
    try:
        place = conninfo.conninfo_to_dict(
            f"postgresql://{rest}{'?' if given else ''}{urlencode(given, quote_via=quote)}"
        )
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


def connector(place: dict[str, Any]) -> Connect:
    """How to connect to this place."""
    return lambda: psycopg.connect("", **place)


def where_of(place: dict[str, Any]) -> str:
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
