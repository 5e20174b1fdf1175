"""The check-up of a Redis or Valkey: its role, and whether it may lose or throw away what it was told.

The two that matter most for locks, eviction and persistence, are looked at when a server is first used by a process,
and said aloud once. Nothing here changes anything; what may not be looked at is a finding too.
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
    """What a server says of itself. None: it did not say."""

    info: dict[str, str]
    policy: str | None
    append_only: str | None
    fsync: str | None

    @property
    def durable(self) -> bool:
        """Whether an answered command survives the loss of power, as far as is known."""
        return self.append_only == "yes" and self.fsync == "always"


def known(place: RedisAddress) -> ServerInfo | None:
    """What this process knows of the server, if it has looked."""
    return _known.get(place.server)


def look_once(place: RedisAddress, link: RedisLink) -> None:
    """Look at a server that this process has not used yet, and say what is wrong with it."""
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
    """Ask the server. What it refuses to say stays unknown."""
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
    """Everything that can be said of the server, in a fixed order."""
    try:
        link = RedisLink(place, layout.index)
    except StoreError as error:
        return (Finding(check="server", level="problem", detail=str(error), advice="See to this first."),)
    try:
        return tuple(_findings(place, link, layout))
    except StoreError as error:
        return (Finding(check="server", level="problem", detail=str(error), advice="Ask again."),)
    finally:
        link.close()


def _findings(place: RedisAddress, link: RedisLink, layout: Layout) -> Iterator[Finding]:
    look = look_at(link)
    if place.server in _known:
        _known[place.server] = look  # it may have been set up anew since it was first looked at
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
            detail="the server does not tell what it is",
            advice="Allow this user INFO, or look at its version by hand: Redis 6.2 or newer, any Valkey.",
        )
    name = f"Valkey {look.info['valkey_version']}" if "valkey_version" in look.info else f"Redis {version}"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < MIN_VERSION:
        return Finding(
            check="server",
            level="problem",
            detail=f"{name} is older than what Holdfast was tested with",
            advice="Use Redis 6.2 or newer, or Valkey.",
        )
    return Finding(check="server", level="ok", detail=name)


def _role(look: ServerInfo) -> Finding:
    role = look.info.get("role")
    if role == "master":
        return Finding(check="role", level="ok", detail="it is the primary")
    if role is None:
        return Finding(
            check="role",
            level="warning",
            detail="the server does not tell whether it is the primary",
            advice="Allow this user INFO and ROLE. Locks must not be read from a replica.",
        )
    return Finding(
        check="role",
        level="problem",
        detail="it is a replica",
        advice="Give the address of the primary: locks live there.",
    )


def _eviction(look: ServerInfo) -> Finding:
    if look.policy == "noeviction":
        return Finding(check="eviction", level="ok", detail="nothing is evicted (maxmemory-policy noeviction)")
    if look.policy is None:
        return Finding(
            check="eviction",
            level="warning",
            detail="the server does not tell its maxmemory-policy",
            advice="See to it that it is noeviction: a lock that is evicted is free for everybody.",
        )
    limit = look.info.get("maxmemory")
    if look.policy.startswith("volatile-"):
        return Finding(
            check="eviction",
            level="problem",
            detail=f"maxmemory-policy is {look.policy}: it spares records of locks, which have no TTL, but a full "
            "memory then refuses every write",
            advice="Use a server of its own for locks, with CONFIG SET maxmemory-policy noeviction.",
        )
    now = " (there is no maxmemory now, so nothing is evicted yet)" if limit == "0" else ""
    return Finding(
        check="eviction",
        level="problem",
        detail=f"maxmemory-policy is {look.policy}: when memory is short, locks are thrown away while held{now}",
        advice="CONFIG SET maxmemory-policy noeviction, and keep it in the server's configuration. Do not share the "
        "server with a cache.",
    )


def _persistence(look: ServerInfo) -> Finding:
    if look.durable:
        return Finding(check="durability", level="ok", detail="every command is on the disk before it is answered")
    if look.append_only is None:
        return Finding(
            check="durability",
            level="warning",
            detail="the server does not tell how it keeps its data (CONFIG GET is refused)",
            advice="See to it that it is appendonly yes with appendfsync always. Otherwise the last answered commands "
            "may be lost with the power or at a failover; the fence still protects what checks it.",
        )
    if look.append_only != "yes":
        detail = "appendonly is no: after a crash, locks that were answered since the last snapshot are gone"
    else:
        detail = f"appendfsync is {look.fsync}: the loss of power may take the last answered commands with it"
    return Finding(
        check="durability",
        level="warning",
        detail=detail,
        advice="CONFIG SET appendonly yes and appendfsync always, where an answered lock must survive. Tokens rise "
        "nevertheless, so whoever checks them is safe.",
    )


def _cluster(place: RedisAddress, link: RedisLink) -> Finding:
    if not place.cluster:
        return Finding(
            check="cluster",
            level="problem",
            detail="the server is a node of a cluster, and the URL does not say so",
            advice="Add ?cluster=true to the URL: then the node that serves this namespace is found, also after a "
            "failover.",
        )
    try:
        state = _lines(link.ask("CLUSTER", "INFO")).get("cluster_state")
    except StoreError as error:
        return Finding(check="cluster", level="warning", detail=str(error), advice="Allow this user CLUSTER INFO.")
    if state == "ok":
        return Finding(check="cluster", level="ok", detail="all slots of the cluster are served")
    return Finding(
        check="cluster", level="problem", detail=f"the state of the cluster is {state}", advice="Look at CLUSTER NODES."
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
    """The answer; None where the server refuses to give one."""
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
