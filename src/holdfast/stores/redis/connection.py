"""Addresses of Redis servers and clusters, and single connections to them.

Connections never come from a pool of the program: an exhausted pool must not cost a holder its lease. redis-py opens
them (TLS, login, database, timeouts), but its retries are not used: only the callers, which know their commands, can
decide what a lost connection means. Nothing here is used across a fork.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  (an interrupt during its import by the first connection would lock for ever)
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

import msgspec
import redis
import redis.exceptions
from redis import connection as driver
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.crc import key_slot

from ...errors import InvalidOption, StoreError, StoreUnavailable, StoreUnusable
from ..executor import StepRefused
from .errors import store_error
from .keys import PREFIX
from .scripts import Script

TIMEOUT_SECONDS = 5.0
"""Seconds to connect, and to wait for an answer; `?socket_connect_timeout=` and `?socket_timeout=` change them."""
DEFAULT_PORT = 6379

_OURS = {"prefix", "cluster"}
_NOT_OURS = {
    "connection_class", "connection_pool_class", "max_connections", "timeout", "retry", "retry_on_timeout",
    "retry_on_error", "health_check_interval", "decode_responses", "encoding", "encoding_errors", "parser_class",
    "redis_connect_func", "event_dispatcher", "himport_registry", "cache", "cache_config", "auto_close_connection_pool",
    "maint_notifications_config", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler",
    "legacy_responses", "command_packer", "load_balancing_strategy", "read_from_replicas", "startup_nodes", "url",
}  # fmt: skip
"""Options for a pool or for the client class of redis-py, which these connections do not use."""
_TRUE = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


_parse_url: Callable[[str], dict[str, Any]] = driver.parse_url


class RedisPyConnection(Protocol):
    """The methods used of redis-py's `Connection`, which has no type annotations."""

    _sock: Any

    def connect(self) -> None:
        """Connect and log in."""

    def disconnect(self) -> None:
        """Close the socket; a forked child closes only its own copy."""

    def send_command(self, *command: str, check_health: bool) -> None:
        """Send one command."""

    def send_packed_command(self, command: Sequence[bytes], *, check_health: bool) -> None:
        """Send bytes as they are."""

    def read_response(self, *, disable_decoding: bool) -> Any:
        """Wait for one answer."""

    def can_read(self, *, timeout: float) -> bool:
        """Wait until there is something to read."""


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A server or a cluster, and how connections to it are set up."""

    options: dict[str, Any]
    kind: Any = Connection
    seeds: tuple[tuple[str, int], ...] = ()
    """Nodes of a cluster that report the other nodes; empty: no cluster."""
    met: dict[tuple[str, int], None] = msgspec.field(default_factory=dict)
    """Nodes that other nodes reported: they are used when none of the first ones answers any more."""
    keeps: Any = None
    """An object that must not be garbage-collected while the address is in use."""

    def __repr__(self) -> str:
        """Omits the options, which may contain a password."""
        return f"<Place {self.name}>"

    @property
    def cluster(self) -> bool:
        """Whether the address is that of a cluster."""
        return bool(self.seeds)

    @property
    def name(self) -> str:
        """The address without secrets; equal for equivalent URLs."""
        if self.cluster:
            host, port = min(self.seeds)
            return f"cluster://{_known(host)}:{port}"
        if "path" in self.options:
            return f"unix://{os.path.realpath(self.options['path'])}/{self.options.get('db', 0)}"
        host, port = self.options.get("host", "localhost"), self.options.get("port", DEFAULT_PORT)
        return f"redis://{_known(host)}:{port}/{self.options.get('db', 0)}"

    @property
    def server(self) -> str:
        """The address without the number of the database."""
        return self.name if self.cluster else self.name.rpartition("/")[0]

    def open(self, key: str, **options: Any) -> RedisPyConnection:
        """A new connection to the node that serves the key, logged in. Raises `StoreError`."""
        settings = {**self.options, **options}
        if not self.cluster:
            return self._connected(settings)
        errors: list[StoreError] = []
        for host, port in dict.fromkeys((*self.seeds, *self.met)):
            try:
                host, port = self._serving({**settings, "host": host, "port": port}, key)  # noqa: PLW2901
                return self._connected({**settings, "host": host, "port": port})
            except StoreError as error:
                errors.append(error)
        raise errors[-1]

    def _connected(self, settings: Mapping[str, Any]) -> RedisPyConnection:
        try:
            connection: RedisPyConnection = self.kind(**settings)
            connection.connect()
        except Exception as error:  # any error of the driver: its text comes from the server or the driver
            raise store_error(error, self.name, sent=False) from error
        return connection

    def _serving(self, settings: Mapping[str, Any], key: str) -> tuple[str, int]:
        """The node of the cluster that serves the key."""
        connection = self._connected(settings)
        try:
            slots = ask(connection, self.name, "CLUSTER", "SLOTS")
        finally:
            connection.disconnect()
        wanted, found = key_slot(key.encode()), None
        for first, last, *nodes in slots:
            # A node that does not know its own name is the node that answered.
            known = [((node[0] or b"").decode() or settings["host"], int(node[1])) for node in nodes]
            self.met.update(dict.fromkeys(known))
            if first <= wanted <= last and known:
                found = known[0]
        if found is not None:
            return found
        raise StoreUnavailable(
            f"no node of {self.name} serves this namespace now. Nothing was sent. Check CLUSTER INFO."
        )

    def check(self) -> None:
        """Refuse invalid options before the first connection is needed."""
        try:
            self.kind(**self.options)
        except Exception as error:
            raise InvalidOption(
                f"a connection to Redis cannot be opened with the options {sorted(self.options)}: "
                f"{type(error).__name__}{'' if 'password' in str(error) else f': {error}'}"
            ) from None


def ask(connection: RedisPyConnection, name: str, *command: str) -> Any:
    """Send one command that changes nothing, and read its answer."""
    try:
        connection.send_command(*command, check_health=False)
        return connection.read_response(disable_decoding=True)
    except (redis.exceptions.RedisError, OSError) as error:
        raise store_error(error, name, sent=False) from error


class RedisLink:
    """One connection to the primary, for batches."""

    def __init__(self, place: RedisAddress, index: str) -> None:
        self._name, self._place, self._index = place.name, place, index
        self._pid = os.getpid()
        self.connection: RedisPyConnection | None = None
        self.open()
        name = index.encode()
        self._rest = b"\r\n$1\r\n1\r\n$%d\r\n%s\r\n" % (len(name), name)

    def open(self) -> None:
        """Connect; also again after the connection was lost."""
        self.connection = self._place.open(self._index)
        try:
            self._check_role()
        except BaseException:
            self.close()
            raise

    def _check_role(self) -> None:
        """Raise for a replica: a writable replica would accept batches that no other server knows of."""
        try:
            role = self.ask("ROLE")
        except StoreUnusable:
            if self.lost:
                raise
            return  # this user may not send ROLE; on most replicas the script itself fails
        if isinstance(role, list) and role and role[0] in (b"slave", b"replica"):
            raise store_error(redis.exceptions.ReadOnlyError("ROLE reports a replica"), self._name, sent=False)

    def ask(self, *command: str) -> Any:
        """Send one plain command and read its answer."""
        return ask(self._usable(), self._name, *command)

    @property
    def lost(self) -> bool:
        """Whether the connection was lost; an error reply of the server does not close it."""
        return self.connection is None or self.connection._sock is None  # noqa: SLF001  (redis-py has nothing public)

    def call(self, script: Script, *arguments: bytes) -> Any:
        """Run a script with the name of the index and these arguments, and return its answer."""
        connection = self._usable()
        count = b"*%d\r\n" % (4 + len(arguments))
        rest = self._rest
        for argument in arguments:
            rest += b"$%d\r\n%s\r\n" % (len(argument), argument)
        try:
            try:
                whole = b"%s$7\r\nEVALSHA\r\n$40\r\n%s%s" % (count, script.sha, rest)
                connection.send_packed_command((whole,), check_health=False)
                return connection.read_response(disable_decoding=True)
            except redis.exceptions.NoScriptError:  # the server was restarted, or its scripts were flushed
                whole = b"%s$4\r\nEVAL\r\n$%d\r\n%s%s" % (count, len(script.text), script.text, rest)
                connection.send_packed_command((whole,), check_health=False)
                return connection.read_response(disable_decoding=True)
        except redis.exceptions.ResponseError as error:
            raise self.refused(error) from error
        except BaseException as error:
            raise self.failed(error) from error

    def refused(self, error: redis.exceptions.ResponseError) -> BaseException:
        """The Holdfast error for an error reply. If it is about the commands, the connection stays open."""
        reason = store_error(error, self._name, sent=True)
        return StepRefused(reason) if isinstance(reason, StoreUnusable) else self.failed(error)

    def failed(self, error: BaseException) -> BaseException:
        """Close the connection, whose state is unknown now, and return the Holdfast error for the batch."""
        self.close()
        if isinstance(error, redis.exceptions.RedisError | OSError | ValueError | msgspec.MsgspecError):
            return store_error(error, self._name, sent=True)
        return error

    def close(self) -> None:
        """Close the connection. A forked child closes only its copy, because the connection belongs to the parent."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()

    def _usable(self) -> RedisPyConnection:
        if self.connection is None:
            raise StoreUnusable("this connection is closed. Open a new one.")
        if os.getpid() != self._pid:
            raise StoreUnusable(
                "this connection belongs to the parent process of a fork. Open a new client in this process."
            )
        return self.connection


# ---------------------------------------------------------------------------------------- addresses


def place_of_url(url: str) -> tuple[RedisAddress, str]:
    """The address and the prefix of keys that a URL contains."""
    scheme, _, rest = url.partition("://")
    scheme = {"valkey": "redis", "valkeys": "rediss"}.get(scheme.lower(), scheme.lower())
    address, _, query = rest.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in options if name in _OURS}
    theirs = urlencode([(name, value) for name, value in options if name not in _OURS])
    try:
        settings = _parse_url(f"{scheme}://{address}{theirs and '?' + theirs}")
    except ValueError as error:
        reason = str(error) if str(error).startswith("Invalid value for") else "it cannot be parsed"
        raise InvalidOption(f"the Redis URL cannot be used: {reason}") from None
    database = address.rpartition("@")[2].partition("/")[2].strip("/")
    if database and not database.isdigit():
        raise InvalidOption("the database in a Redis URL must be a number, as in redis://host:6379/0")
    cluster = _TRUE.get(ours.get("cluster", "false").lower())
    if cluster is None:
        raise InvalidOption("?cluster= must be true or false")
    kind = settings.get("connection_class", Connection)
    seeds = ((settings.get("host", "localhost"), settings.get("port", DEFAULT_PORT)),) if cluster else ()
    if cluster and settings.get("db"):
        raise InvalidOption("a cluster has only database 0: remove the number of the database from the URL")
    place = RedisAddress(options=_connection_options(settings), kind=kind, seeds=seeds)
    place.check()
    return place, ours.get("prefix", PREFIX)


def place_of_client(client: Any) -> RedisAddress:
    """The address of a client of redis-py. Its own connections are not used."""
    if not isinstance(client, redis.Redis | redis.RedisCluster):
        raise InvalidOption(
            f"{type(client).__module__}.{type(client).__name__} cannot be used here: Holdfast uses its connections "
            "from a thread of its own, also for AsyncClient. Pass a sync redis.Redis or redis.RedisCluster, or the URL."
        )
    handle: Any = client
    if isinstance(client, redis.RedisCluster):
        nodes = handle.get_nodes()
        settings = dict(handle.get_connection_kwargs())
        kind = SSLConnection if settings.pop("ssl", False) else Connection
        seeds = tuple(sorted((str(node.host), int(node.port)) for node in nodes))
        return _checked(RedisAddress(options=_connection_options(settings), kind=kind, seeds=seeds, keeps=client))
    pool = handle.connection_pool
    options = _connection_options(pool.connection_kwargs)
    return _checked(RedisAddress(options=options, kind=pool.connection_class, keeps=client))


def _checked(place: RedisAddress) -> RedisAddress:
    place.check()
    return place


def _connection_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in settings.items() if name not in _NOT_OURS and value is not None}
    for name in ("socket_timeout", "socket_connect_timeout"):
        options.setdefault(name, TIMEOUT_SECONDS)
    options.setdefault("protocol", 2)
    if "path" not in options:
        options.setdefault("socket_keepalive", True)
    return options


def shown(place: RedisAddress) -> str:
    """The address of an adopted client."""
    scheme = "rediss" if isinstance(place.kind, type) and issubclass(place.kind, SSLConnection) else "redis"
    if isinstance(place.kind, type) and issubclass(place.kind, UnixDomainSocketConnection):
        return place.name
    return f"{scheme}://{place.name.partition('://')[2]}"


def _known(host: str) -> str:
    """One name for localhost and its usual addresses."""
    host = host.lower()
    return "127.0.0.1" if host == "localhost" else host
