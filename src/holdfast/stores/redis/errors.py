"""Errors of a Redis server, of the driver and of the connection, translated into the errors of Holdfast.

This module alone decides which errors are `ambiguous` (the batch may have been carried out), which are temporary, and
which an operator must resolve. The texts come from the server and the driver; neither repeats a password.
"""

from __future__ import annotations

import re

import redis.exceptions as r

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from .scripts import FAST, READ, WRITE

_SHAS = ", ".join(script.sha.decode() for script in (FAST, READ, WRITE))
_TEMPORARY = {
    "READONLY": "it is a replica, or has become one, and accepts no writes. Locks are never read from a replica "
    "either. After a failover this error is temporary; otherwise configure the address of the primary.",
    "LOADING": "it has just been started and is loading its data. This error is temporary.",
    "MASTERDOWN": "it is a replica that has lost its primary. Configure the address of the primary, or repair "
    "the replication link.",
    "CLUSTERDOWN": "the cluster does not serve this namespace now: a node is down and was not replaced. Check "
    "CLUSTER INFO.",
    "TRYAGAIN": "this namespace is being moved to another node. This error is temporary.",
    "MOVED": "this namespace has been moved to another node of the cluster, and the next request is sent there. If the "
    "URL does not have ?cluster=true yet, add it: this server is a node of a cluster.",
    "ASK": "this namespace is being moved to another node. This error is temporary.",
    "NONLOCAL": "this namespace is being moved to another node. This error is temporary.",
    "OOM": "its memory is full. Raise maxmemory, or remove other data; locks must not be evicted (noeviction).",
    "MISCONF": "it cannot write to its disk and accepts no writes. Check its log and the free space of its disk.",
    "BUSY": "a script has run for longer than busy-reply-threshold, and the server answers nothing else until the "
    f"script ends. It may belong to another program or to Holdfast (EVALSHA {_SHAS}): SLOWLOG GET shows which, once it "
    "has ended. This error is temporary. SCRIPT KILL ends a script that has not written yet, without harm to the data; "
    "a script that has written cannot be ended, and SHUTDOWN NOSAVE may lose everything that was answered since the "
    "last save.",
    "KILLED": "the script was ended by SCRIPT KILL before it had written anything. The batch can be sent again; if it "
    "was very large, send it as several smaller ones.",
    "UNBLOCKED": "it has become a replica. This error is temporary.",
    "NOREPLICAS": "fewer replicas are connected than min-replicas-to-write requires. Check INFO replication.",
    "MAXCLIENTS": "it has the maximum number of clients. Raise maxclients, or close connections (CLIENT LIST).",
}
_PERMANENT = {
    "NOAUTH": "it requires a password. Put it into the URL: redis://user:password@host.",
    "WRONGPASS": "it does not accept this user name and password.",
    "NOPERM": "this user lacks permissions that Holdfast needs; docs/stores/redis.md lists the minimal permissions.",
    "WRONGTYPE": "a key that Holdfast uses holds data of another program. Choose another ?prefix=.",
    "TOOLONG": "a command would be longer than a script can send, and nothing was written. This is a bug in "
    "Holdfast: please report it.",
    "DENIED": "it is in protected mode and refuses clients from other hosts. Set a password or a bind address for it.",
}
_CODES = {
    r.ReadOnlyError: "READONLY",
    r.BusyLoadingError: "LOADING",
    r.MasterDownError: "MASTERDOWN",
    r.ClusterDownError: "CLUSTERDOWN",
    r.TryAgainError: "TRYAGAIN",
    r.MovedError: "MOVED",
    r.AskError: "ASK",
    r.NoPermissionError: "NOPERM",
}
_TEXTS = {
    "max number of clients": "MAXCLIENTS",
    "non local key": "NONLOCAL",
    "used memory > 'maxmemory'": "OOM",
    "Script killed by user": "KILLED",
    "can't run this command": "NOPERM",
    "can't access at least one of the keys": "NOPERM",
    "ACL failure": "NOPERM",
    "No permissions": "NOPERM",
    "has no permissions": "NOPERM",
}
"""Error texts that some server versions send without a code, or prefix with the name of the script."""
_PLACE = re.compile(r"@user_script: ?\d+: -?")
"""Old servers put the position in the script before the error text."""


def store_error(error: Exception, place: str, *, sent: bool) -> StoreError:
    """The Holdfast error for an error of the driver. `sent`: the batch had been sent when the error occurred."""
    text = _PLACE.sub("", str(error))
    if "HALFWAY" in text:  # raised by the script itself: it had begun to write
        what = f"the server {place} failed in the middle of a batch; some of its commands may have been carried out"
        then = "Sending the batch again is safe."
        if "WRONGTYPE" in text:
            then = "The key of an index holds data of another program, so the index may be incomplete."
        return StoreUnavailable(f"{what}. {then} ({text})", ambiguous=True)
    code = _code(error, text)
    if code in _TEMPORARY:
        return StoreUnavailable(f"the server {place} refused, and nothing was done: {_TEMPORARY[code]} ({text})")
    if code in _PERMANENT or isinstance(error, r.AuthenticationError):
        return StoreUnusable(f"the server {place} refused: {_PERMANENT.get(code, 'the login failed.')} ({text})")
    if "unknown command" in text:
        return StoreUnusable(
            f"the server {place} lacks a command that Holdfast needs. Use Redis 6.2 or newer, or Valkey. ({text})"
        )
    return _lost(error, text, place) if sent else _not_reached(error, text, place)


def _lost(error: Exception, text: str, place: str) -> StoreError:
    timed_out = isinstance(error, r.TimeoutError)
    what = f"the server {place} did not answer in time" if timed_out else f"the connection to {place} failed"
    return StoreUnavailable(f"{what} ({text}). The batch may or may not have been carried out.", ambiguous=True)


def _not_reached(error: Exception, text: str, place: str) -> StoreError:
    if "certificate" in text.lower():
        return StoreUnusable(
            f"the server {place} has no certificate that can be trusted ({text}). Name its certificate authority with "
            "?ssl_ca_certs=FILE, and use the host name that the certificate was issued for."
        )
    if isinstance(error, r.TimeoutError):
        return StoreUnavailable(f"the server {place} could not be reached in time ({text}). Nothing was sent.")
    if isinstance(error, r.ConnectionError | OSError) and not isinstance(error, r.InvalidResponse):
        return StoreUnavailable(f"the server {place} cannot be reached ({text}). Nothing was sent.")
    return StoreUnusable(f"the server at {place} is not a Redis or Valkey server that Holdfast can use ({text})")


def _code(error: Exception, text: str) -> str:
    """The error code, which is the first word of the answer; redis-py keeps it in the class of some errors."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    for part, code in _TEXTS.items():
        if part in text:
            return code
    if isinstance(error, r.AuthenticationError) and "uthentication required" in text:
        return "NOAUTH"
    if not isinstance(error, r.ResponseError):
        return ""
    first = text.partition(" ")[0].lstrip("-")
    return first if first.isupper() else ""
