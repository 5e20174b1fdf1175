"""Health checks of a Redis or Valkey server: version, role, permissions, eviction, durability, cluster.

Eviction and durability matter most for locks: a process checks them when it first uses a server, and logs one warning
for each that is not right. The checks change nothing. A setting that cannot be read is a finding too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from ...errors import StoreError
from ...platform import after_fork_in_child
from ..contract import Finding
from . import permissions
from .connection import RedisAddress, RedisLink
from .keys import Layout

MIN_VERSION = (6, 2)

log = logging.getLogger("holdfast")

_lock = threading.Lock()
_known: dict[str, ServerInfo] = {}


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a server reports about itself. None: it refused to report it."""

    info: dict[str, str]
    policy: str | None
    append_only: str | None
    fsync: str | None

    @property
    def durable(self) -> bool:
        """Whether an answered command survives the loss of power, as far as is known."""
        return self.append_only == "yes" and self.fsync == "always"


def known(place: RedisAddress) -> ServerInfo | None:
    """What this process knows about the server; None if it has not checked it yet."""
    return _known.get(place.server)


def look_once(place: RedisAddress, link: RedisLink) -> None:
    """Check a server that this process has not used yet, and log a warning for each problem."""
    if place.server in _known:
        return
    look = look_at(link)
    with _lock:
        first = place.server not in _known
        _known[place.server] = look
    if first:
        for finding in (_eviction(look), _persistence(look)):
            if finding.level != "ok":
                log.warning("%s: %s. %s", place.server, finding.detail, finding.advice)


def look_at(link: RedisLink) -> ServerInfo:
    """Read version, role and settings from the server. A setting that it refuses to report stays unknown."""
    info: dict[str, str] = {}
    for section in ("server", "replication", "memory", "cluster"):
        info |= _info(link, section)
    settings = {**_settings(link, "maxmemory-policy"), **_settings(link, "append*")}
    return ServerInfo(
        info=info,
        policy=settings.get("maxmemory-policy", info.get("maxmemory_policy")),
        append_only=settings.get("appendonly"),
        fsync=settings.get("appendfsync"),
    )


def diagnose(place: RedisAddress, layout: Layout) -> tuple[Finding, ...]:
    """All findings about the server, in a fixed order."""
    try:
        link = RedisLink(place, layout.index)
    except StoreError as error:
        return (
            Finding(
                check="server",
                level="problem",
                detail=str(error),
                advice="The other checks need the server: fix this first.",
            ),
        )
    try:
        return tuple(_findings(place, link, layout))
    except StoreError as error:
        return (Finding(check="server", level="problem", detail=str(error), advice="Run the checks again."),)
    finally:
        link.close()


def _findings(place: RedisAddress, link: RedisLink, layout: Layout) -> Iterator[Finding]:
    look = look_at(link)
    if place.server in _known:
        _known[place.server] = look  # its settings may have changed since the first check
    yield _server(look)
    yield _role(look)
    yield permissions.finding(link, layout.index)
    yield _eviction(look)
    yield _persistence(look)
    if place.cluster or look.info.get("cluster_enabled") == "1":
        yield _cluster(place, link)


def _server(look: ServerInfo) -> Finding:
    version = look.info.get("redis_version")
    if version is None:
        return Finding(
            check="server",
            level="warning",
            detail="the server does not report its version",
            advice="Allow this user INFO, or check the version by hand: Redis 6.2 or newer, or any Valkey.",
        )
    name = f"Valkey {look.info['valkey_version']}" if "valkey_version" in look.info else f"Redis {version}"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < MIN_VERSION:
        return Finding(
            check="server",
            level="problem",
            detail=f"{name} is too old: Holdfast is tested with Redis 6.2 and newer",
            advice="Use Redis 6.2 or newer, or Valkey.",
        )
    return Finding(check="server", level="ok", detail=name)


def _role(look: ServerInfo) -> Finding:
    role = look.info.get("role")
    if role == "master":
        return Finding(check="role", level="ok", detail="the server is the primary")
    if role is None:
        return Finding(
            check="role",
            level="warning",
            detail="the server does not report whether it is the primary",
            advice="Allow this user INFO and ROLE. Locks must not be read from a replica.",
        )
    return Finding(
        check="role",
        level="problem",
        detail="the server is a replica",
        advice="Configure the address of the primary: Holdfast reads and writes locks only there.",
    )


def _eviction(look: ServerInfo) -> Finding:
    if look.policy == "noeviction":
        return Finding(check="eviction", level="ok", detail="nothing is evicted (maxmemory-policy noeviction)")
    if look.policy is None:
        return Finding(
            check="eviction",
            level="warning",
            detail="the server does not report its maxmemory-policy",
            advice="Make sure that it is noeviction: a lock that is evicted can be taken by another client.",
        )
    limit = look.info.get("maxmemory")
    if look.policy.startswith("volatile-"):
        return Finding(
            check="eviction",
            level="problem",
            detail=f"maxmemory-policy is {look.policy}: records of locks have no TTL and are not evicted, but a server "
            "whose memory is full refuses every write",
            advice="Use a separate server for locks, with CONFIG SET maxmemory-policy noeviction.",
        )
    now = " (maxmemory is not set, so nothing is evicted at present)" if limit == "0" else ""
    return Finding(
        check="eviction",
        level="problem",
        detail=f"maxmemory-policy is {look.policy}: when memory is full, locks are evicted while they are held{now}",
        advice="CONFIG SET maxmemory-policy noeviction, and write it into the configuration file. Do not share the "
        "server with a cache.",
    )


def _persistence(look: ServerInfo) -> Finding:
    if look.durable:
        return Finding(check="durability", level="ok", detail="every command is on disk before it is answered")
    if look.append_only is None:
        return Finding(
            check="durability",
            level="warning",
            detail="the server does not report how it persists its data (CONFIG GET is refused)",
            advice="Make sure that it has appendonly yes and appendfsync always. Otherwise the last answered commands "
            "may be lost in a power failure or a failover; writes that check the fencing token stay protected.",
        )
    if look.append_only != "yes":
        detail = "appendonly is no: after a crash, all locks that were granted since the last snapshot are lost"
    else:
        detail = f"appendfsync is {look.fsync}: the last answered commands may be lost in a power failure"
    return Finding(
        check="durability",
        level="warning",
        detail=detail,
        advice="CONFIG SET appendonly yes and appendfsync always, where a granted lock must survive. Tokens rise in "
        "any case, so writes that check the fencing token stay protected.",
    )


def _cluster(place: RedisAddress, link: RedisLink) -> Finding:
    if not place.cluster:
        return Finding(
            check="cluster",
            level="problem",
            detail="the server is a node of a cluster, and the URL lacks ?cluster=true",
            advice="Add ?cluster=true to the URL: Holdfast then finds the node that serves this namespace, also after "
            "a failover.",
        )
    try:
        state = _lines(link.ask("CLUSTER", "INFO")).get("cluster_state")
    except StoreError as error:
        return Finding(check="cluster", level="warning", detail=str(error), advice="Allow this user CLUSTER INFO.")
    if state == "ok":
        return Finding(check="cluster", level="ok", detail="all slots of the cluster are served")
    return Finding(
        check="cluster", level="problem", detail=f"the state of the cluster is {state}", advice="Check CLUSTER NODES."
    )


def _info(link: RedisLink, section: str) -> dict[str, str]:
    return _lines(_answer(link, "INFO", section))


def _settings(link: RedisLink, pattern: str) -> dict[str, str]:
    found = _answer(link, "CONFIG", "GET", pattern)
    if isinstance(found, dict):  # RESP3
        return {_text(name): _text(value) for name, value in found.items()}
    if isinstance(found, list):
        return {_text(name): _text(value) for name, value in zip(found[::2], found[1::2], strict=True)}
    return {}


def _answer(link: RedisLink, *command: str) -> Any:
    """The answer; None where the server refuses the command."""
    try:
        return link.ask(*command)
    except StoreError:
        if link.lost:
            raise
        return None


def _lines(text: Any) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _text(text or "").splitlines() if ":" in line)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _reset_after_fork() -> None:
    global _lock  # noqa: PLW0603  (the old one may be held by a thread that is not in this process)
    _lock = threading.Lock()


after_fork_in_child(_reset_after_fork)
