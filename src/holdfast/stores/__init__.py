"""Stores, one package each, and the registry that opens them.

`open_store` finds a store by the scheme of its URL, or by the class of an existing pool, engine or client. A store of
another package registers an opener, `open_xxx(url, *, namespace, clock) -> Store`, under the entry point group
`holdfast.stores`; the name of the entry point is the scheme. The stores of Holdfast are listed here, so that a source
tree works without being installed. No error of this module shows a URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from ..errors import InvalidKey, InvalidOption, StoreNotInstalled
from ..platform import host_clock
from ..validation import checked_key
from .contract import Clock, Store
from .urls import anchored, redacted, scheme_of, with_options

__all__ = ["Handle", "anchored", "open_store", "opener_of", "redacted", "schemes", "unready"]

Handle = Any
"""An existing object of a driver: a psycopg_pool.ConnectionPool, a redis.Redis, a MongoClient, a boto3.Session."""

GROUP = "holdfast.stores"


class _Ours(NamedTuple):
    """A store that comes with Holdfast: its module, its opener, its driver, and the extra that installs the driver."""

    module: str
    opener: str
    driver: str = ""
    extra: str = ""


_POSTGRES = _Ours("postgresql.store", "open_postgres", "psycopg", "postgres")
_REDIS = _Ours("redis.store", "open_redis", "redis", "redis")
_MYSQL = _Ours("sql.store", "open_sql", "pymysql", "mysql")
_MONGODB = _Ours("mongodb.store", "open_mongodb", "pymongo", "mongodb")
_DYNAMODB = _Ours("dynamodb.store", "open_dynamodb", "boto3", "dynamodb")
_OURS = {
    "memory": _Ours("memory.store", "open_memory"),
    "sqlite": _Ours("sqlite.store", "open_sqlite"),
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "mssql": _Ours("sql.store", "open_sql", "mssql_python", "mssql"),
    "sql": _Ours("sql.store", "open_sql"),
    "mongodb": _MONGODB,
    "dynamodb": _DYNAMODB,
}
_HANDLES = {
    ("psycopg_pool", "ConnectionPool"): _POSTGRES._replace(opener="adopt_postgres"),
    ("psycopg_pool", "AsyncConnectionPool"): _POSTGRES._replace(opener="adopt_postgres"),
    ("sqlalchemy", "Engine"): _POSTGRES._replace(opener="adopt_postgres"),
    ("sqlalchemy", "AsyncEngine"): _POSTGRES._replace(opener="adopt_postgres"),
    ("redis", "Redis"): _REDIS._replace(opener="adopt_redis"),
    ("redis", "RedisCluster"): _REDIS._replace(opener="adopt_redis"),
    ("pymongo", "MongoClient"): _MONGODB._replace(opener="adopt_mongodb"),
    ("pymongo", "AsyncMongoClient"): _MONGODB._replace(opener="adopt_mongodb"),
    ("boto3", "Session"): _DYNAMODB._replace(opener="adopt_dynamodb"),
}
"""The package and the name of a class (or of a base class) -> the store that is opened from its objects."""


class Opener(Protocol):
    """The function that a store registers under its scheme."""

    def __call__(self, url: str, *, namespace: str, clock: Clock) -> Store:
        """Open the store behind the URL, bound to one namespace."""


def open_store(
    where: str | Handle, *, namespace: str, clock: Clock = host_clock, options: Mapping[str, object] | None = None
) -> Store:
    """Open the store of a URL, or of an existing pool, engine or client of a driver.

    `options` are the options that the URL could have. A `clock` other than the host's replaces the clock of the store,
    for tests.

    >>> store = open_store("memory://", namespace="default")
    >>> store.capabilities.durable
    False
    >>> store.close()
    """
    try:
        checked_key(namespace)
    except InvalidKey as error:
        raise InvalidOption(f"the namespace {namespace!r} cannot be used: {error}") from None
    opener = opener_of(where)
    if not isinstance(where, str):
        adopted: Store = opener(where, namespace=namespace, clock=clock, options=options or {})
        return adopted
    opened: Store = opener(with_options(where, options or {}), namespace=namespace, clock=clock)
    return opened


def opener_of(where: str | Handle) -> Any:
    """The function that opens this store. Raises `InvalidOption` or `StoreNotInstalled` where there is none."""
    if not isinstance(where, str) and (adopt := _adopter(where)) is not None:
        return adopt
    if where is not None and not isinstance(where, str):
        known = ", ".join(f"{package}.{name}" for package, name in _HANDLES if not name.startswith("Async"))
        raise InvalidOption(
            f"a store is opened from a URL, or from one of {known}; not from {type(where).__module__}."
            f"{type(where).__qualname__}"
        )
    return _opener(scheme_of(where))  # type: ignore[arg-type]  # None is refused there, like text without a scheme


def unready(url: str) -> str | None:
    """Why opening this URL would create or change something; None if it would not. For commands that only read."""
    ours = _OURS.get(scheme_of(url).partition("+")[0])
    look = None if ours is None else _loaded(ours._replace(opener="unready"), optional=True)
    reason: str | None = None if look is None else look(url)
    return reason


def schemes() -> tuple[str, ...]:
    """Every scheme that can be opened in this process."""
    ours = {scheme for scheme, store in _OURS.items() if not store.driver or find_spec(store.driver) is not None}
    return tuple(sorted({*ours, *(point.name for point in entry_points(group=GROUP))}))


def _adopter(handle: object) -> Any:
    for cls in type(handle).__mro__:
        ours = _HANDLES.get((cls.__module__.partition(".")[0], cls.__name__))
        if ours is not None and getattr(getattr(handle, "dialect", None), "name", "") in ("mysql", "mariadb", "mssql"):
            raise InvalidOption("a store on MySQL, MariaDB or SQL Server is opened from its URL, not from an engine")
        if ours is not None:
            return _loaded(ours)
    return None


def _opener(scheme: str) -> Opener:
    base = scheme.partition("+")[0]  # postgresql+psycopg, mongodb+srv
    if base in _OURS:
        opener: Opener = _loaded(_OURS[base])
        return opener
    for name in (scheme, base):
        for point in entry_points(group=GROUP, name=name):
            return _load(point, base)
    raise StoreNotInstalled(
        f"the scheme {scheme!r} is not known. Known schemes are {_known()}, as in sqlite:///relative/path.db, "
        "sqlite:////absolute/path.db, memory:// or memory://name. A store of another package is found through the "
        f"entry point group {GROUP!r}: install that package."
    )


def _loaded(ours: _Ours, *, optional: bool = False) -> Any:
    try:
        module = import_module(f"{__name__}.{ours.module}")
        return getattr(module, ours.opener, None) if optional else getattr(module, ours.opener)
    except ImportError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        raise StoreNotInstalled(
            f"the store needs the driver {ours.driver!r}, which cannot be loaded ({error}). Install it: "
            f"pip install 'holdfast[{ours.extra}]'."
        ) from error


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in schemes() if scheme != "sql")  # that one is for tests


def _load(point: EntryPoint, base: str) -> Opener:
    try:
        opener: Opener = point.load()
    except ImportError as error:
        raise StoreNotInstalled(
            f"the store for {base}:// cannot be loaded ({error}). Install the packages that {point.value!r} needs."
        ) from error
    return opener
