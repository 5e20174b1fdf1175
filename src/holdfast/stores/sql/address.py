"""Addresses of relational stores: which dialect a scheme means, the options of Holdfast, and those of the driver."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from ...errors import InvalidOption, StoreNotInstalled
from ...validation import seconds
from .dialect import Dialect

DEFAULT_PREFIX = "holdfast_"
TIMEOUT_SECONDS = 5.0
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,30}")
_MYSQL_OPTIONS: dict[str, Callable[[str], Any]] = {
    "unix_socket": str,
    "ssl_ca": str,
    "ssl_cert": str,
    "ssl_key": str,
    "ssl_verify_cert": lambda value: value.lower() == "true",
    "ssl_verify_identity": lambda value: value.lower() == "true",
    "read_default_file": str,
    "read_default_group": str,
}
"""The options of `pymysql.connect` that a URL may have."""
_FILES = {"ssl_ca", "ssl_cert", "ssl_key", "read_default_file"}
"""Those that name a file of this host."""


class Address(NamedTuple):
    """A parsed URL."""

    dialect: Dialect
    where: str
    """The address without any password."""
    prefix: str
    """The beginning of the names of all tables."""
    timeout: float
    """Seconds to wait for an answer."""


def parse(url: str) -> Address:
    """Parse a URL, or raise `InvalidOption`. No message contains the password."""
    scheme = url.partition("://")[0].lower()
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = given.pop("prefix", DEFAULT_PREFIX)
    if not _PREFIX.fullmatch(prefix):
        raise InvalidOption(f"the prefix {prefix!r} cannot be used: it must consist of letters, digits and _")
    timeout = seconds(given.pop("timeout", str(TIMEOUT_SECONDS)), what="timeout")
    if not timeout:
        raise InvalidOption("?timeout= must be longer than 0 s: no server answers at once")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InvalidOption(f"the port of a {scheme}:// URL must be a number from 1 to 65535")
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise InvalidOption(f"a {scheme}:// URL needs the name of a database: {scheme}://user@host/database")
    name = scheme.removeprefix("sql+").partition("+")[0]
    make = _DIALECTS.get(name)
    if make is None:
        raise InvalidOption(f"{scheme}:// is not a relational database that Holdfast knows")
    where = f"{scheme}://{_host(parts)}/{quote(database)}"
    return Address(make(parts, database, given), where, prefix, timeout)


def _host(parts: SplitResult) -> str:
    user = f"{quote(unquote(parts.username))}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"{user}{parts.hostname or 'localhost'}{port}"


def _missing(driver: str, extra: str, error: ImportError) -> StoreNotInstalled:
    return StoreNotInstalled(
        f"the store needs the driver {driver!r}, which cannot be loaded ({error}). Install it: "
        f"pip install 'holdfast[{extra}]'."
    )


def _mysql(parts: SplitResult, database: str, given: dict[str, str]) -> Dialect:
    try:
        from .mysql import MySqlDialect  # noqa: PLC0415  (its driver may not be installed)
    except ImportError as error:
        raise _missing("pymysql", "mysql", error) from error

    if unknown := given.keys() - _MYSQL_OPTIONS.keys():
        raise InvalidOption(
            f"a mysql:// URL accepts ?prefix=, ?timeout= and {', '.join(sorted(_MYSQL_OPTIONS))}, not "
            f"{', '.join(sorted(unknown))}"
        )
    for name in sorted(given.keys() & _FILES):
        if not Path(given[name]).expanduser().is_file():  # PyMySQL would ignore a missing option file
            raise InvalidOption(f"?{name}= of a mysql:// URL must name a file, and there is no file {given[name]}")
    options: dict[str, Any] = {name: _MYSQL_OPTIONS[name](value) for name, value in given.items()}
    options |= {"host": parts.hostname or "localhost", "database": database}
    if parts.port:
        options["port"] = parts.port
    if parts.username:
        options["user"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)
    return MySqlDialect(options)


def _postgres(parts: SplitResult, database: str, given: dict[str, str]) -> Dialect:
    from .postgresql import PostgresDialect  # noqa: PLC0415  (likewise)

    query = f"?{urlencode(given, quote_via=quote)}" if given else ""
    return PostgresDialect(f"postgresql://{parts.netloc}/{quote(database)}{query}")


def _mssql(parts: SplitResult, database: str, given: dict[str, str]) -> Dialect:
    from .mssql import SqlServerDialect, connection_string  # noqa: PLC0415  (likewise)

    if find_spec("mssql_python") is None:
        raise _missing("mssql_python", "mssql", ImportError("there is no module mssql_python"))
    return SqlServerDialect(connection_string(parts, database, given))


_DIALECTS: dict[str, Callable[[SplitResult, str, dict[str, str]], Dialect]] = {
    "mysql": _mysql,
    "mariadb": _mysql,
    "postgresql": _postgres,
    "mssql": _mssql,
}
