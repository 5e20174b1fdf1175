"""Whether the user of a connection may send what Holdfast needs, asked once a process, server and user.

A user who lacks one command would otherwise be refused later, by whatever command first needs it. A user who may change
nothing at all is taken for one that only looks, such as a dashboard's; it is refused what it is not allowed to do.
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
"""None of these makes a name that is not there, so they can be tried anywhere."""
ADDITIONS = ("ZADD", "MSET", "HSET", "RPUSH", "SADD")
NEEDED = (*READS, *REMOVALS, *ADDITIONS, "PUBLISH")

_known: set[tuple[str, str]] = set()
_SCRIPT = read_script("rights_asked.lua").decode()


def check_once(place: RedisAddress, link: RedisLink, index: str) -> None:
    """Raise `StoreUnusable` for a user who may do some of what Holdfast needs, and not all."""
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
    """What a check-up says about the user's rights."""
    missing = _missing(link, index)
    if missing is None:
        return Finding(
            check="rights",
            level="warning",
            detail="it could not be found out what this user may do",
            advice="Allow this user EVAL and EVALSHA; docs/stores/redis.md lists all rights.",
        )
    if missing:
        detail = f"this user may not do {_listed(missing)}, which Holdfast needs"
        return Finding(check="rights", level="problem", detail=detail, advice=_advice(missing))
    return Finding(check="rights", level="ok", detail="this user may do what Holdfast needs, or only look")


def _missing(link: RedisLink, index: str) -> Sequence[str] | None:
    """The commands that the user lacks; none for one that only looks. None: the server did not say."""
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
    return f"ACL SETUSER <user> {rights} allows it; docs/stores/redis.md lists all rights."
