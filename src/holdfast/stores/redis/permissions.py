"""Whether a user may send the commands that Holdfast needs; checked once per process, server and user.

Without this check a missing permission would show only later, at the first command that needs it. A user who may write
nothing at all is taken for a read-only user, such as a dashboard's: the server refuses its writes one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import StoreError, StoreUnusable
from ..contract import Finding
from .connection import RedisAddress, RedisLink
from .scripts import read_script

READS = (
    "TIME", "TYPE", "GET", "EXISTS", "ZRANGE", "ZREVRANGE", "ZCARD", "ZCOUNT", "ZRANGEBYLEX", "ZREVRANGEBYLEX",
    "ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "HGET", "HMGET", "HGETALL", "LLEN", "LRANGE", "SMEMBERS", "SCARD",
)  # fmt: skip
REMOVALS = ("DEL", "ZREM", "ZREMRANGEBYRANK", "HDEL", "LTRIM", "LSET", "SREM", "PEXPIRE")
"""None of these commands creates a key, so they can be tried on any key."""
ADDITIONS = ("ZADD", "MSET", "HSET", "RPUSH", "SADD")
NEEDED = (*READS, *REMOVALS, *ADDITIONS, "PUBLISH")

_known: set[tuple[str, str]] = set()
_SCRIPT = read_script("permission_check.lua").decode()


def check_once(place: RedisAddress, link: RedisLink, index: str) -> None:
    """Raise `StoreUnusable` for a user who has some of the permissions that Holdfast needs, and not all."""
    who = place.server, str(place.options.get("username", ""))
    if who in _known:
        return
    missing = _missing(link, index)
    if missing:
        raise StoreUnusable(
            f"the server {place.name} does not allow this user {_listed(missing)}, which Holdfast needs. Nothing was "
            f"done. {_advice(missing)}"
        )
    _known.add(who)


def finding(link: RedisLink, index: str) -> Finding:
    """The finding about the permissions of the user."""
    missing = _missing(link, index)
    if missing is None:
        return Finding(
            check="rights",
            level="warning",
            detail="the permissions of this user could not be determined",
            advice="Allow this user EVAL and EVALSHA; docs/stores/redis.md lists all permissions.",
        )
    if missing:
        detail = f"this user may not send {_listed(missing)}, which Holdfast needs"
        return Finding(check="rights", level="problem", detail=detail, advice=_advice(missing))
    return Finding(
        check="rights", level="ok", detail="this user has the permissions that Holdfast needs, or is read-only"
    )


def _missing(link: RedisLink, index: str) -> Sequence[str] | None:
    """The commands that the user may not send; empty for a read-only user. None: the server did not report it."""
    try:
        refused = link.ask("EVAL", _SCRIPT, "1", index, *NEEDED)
    except StoreError:
        if link.lost:
            raise
        return None
    names = {name.decode() for name in refused}
    return () if names.issuperset(REMOVALS) else sorted(names)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _advice(names: Sequence[str]) -> str:
    rights = " ".join(f"+{name.lower()}" for name in names)
    return f"ACL SETUSER <user> {rights} allows it; docs/stores/redis.md lists all permissions."
