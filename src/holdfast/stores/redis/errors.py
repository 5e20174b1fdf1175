"""Everything that a Redis, or the way to it, can answer instead of an outcome; told in the words of the house.

One place decides what is `ambiguous` (the batch may have been carried out), what will pass by itself, and what needs a
person. The texts come from the server and the driver; neither repeats a password.
"""

from __future__ import annotations

import re

import redis.exceptions as r

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from .scripts import FAST, READ, WRITE

_SHAS = ", ".join(script.sha.decode() for script in (FAST, READ, WRITE))
_PASSING = {
    "READONLY": "it is a replica, or has become one, and takes no writes. Locks are never read from a replica either. "
    "After a failover this passes by itself; otherwise give the address of the primary.",
    "LOADING": "it has just been started and is reading its data. This passes by itself.",
    "MASTERDOWN": "it is a replica that has lost its primary. Give the address of the primary, or mend its link.",
    "CLUSTERDOWN": "the cluster does not serve this namespace now: a node is down and was not replaced. Look at "
    "CLUSTER INFO.",
    "TRYAGAIN": "this namespace is being moved to another node. This passes by itself.",
    "MOVED": "this namespace has been moved to another node of the cluster, which is asked next. If the address is not "
    "meant to be a cluster's: it is, so add ?cluster=true to the URL.",
    "ASK": "this namespace is being moved to another node. This passes by itself.",
    "NONLOCAL": "this namespace is being moved to another node. This passes by itself.",
    "OOM": "its memory is full. Raise maxmemory, or remove other data; locks must not be evicted (noeviction).",
    "MISCONF": "it cannot write to its disk and takes no changes. Look at its log and at its disk's free space.",
    "BUSY": "a script has run for longer than busy-reply-threshold, and nothing else is answered until it ends. It may "
    f"be another program's or one of Holdfast's own (EVALSHA {_SHAS}): SLOWLOG GET tells which, once it has "
    "ended. This passes by itself when it ends. SCRIPT KILL ends a script that has not written yet, without harm to "
    "the data; one that has written cannot be ended, and SHUTDOWN NOSAVE may lose what was answered since the last "
    "save.",
    "KILLED": "somebody has ended the script by SCRIPT KILL, before it had written anything. It can be sent again; if "
    "the batch was very large, as several smaller ones.",
    "UNBLOCKED": "it has become a replica. This passes by itself.",
    "NOREPLICAS": "fewer replicas are connected than min-replicas-to-write asks for. Look at INFO replication.",
    "MAXCLIENTS": "it has as many clients as it may have. Raise maxclients, or close connections (CLIENT LIST).",
}
_FOR_GOOD = {
    "NOAUTH": "it asks for a password. Give it in the URL: redis://user:password@host.",
    "WRONGPASS": "it does not accept this user name and password.",
    "NOPERM": "this user may not do what Holdfast needs; docs/stores/redis.md has the minimal rights.",
    "WRONGTYPE": "something that is not Holdfast's stands in the place of one of its names. Choose another ?prefix=.",
    "TOOLONG": "a command would be longer than a script can send, and nothing was written. This is a fault of "
    "Holdfast: please report it.",
    "DENIED": "it is in protected mode and refuses clients from other hosts. Give it a password or a bind address.",
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
_WORDS = {
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
"""What servers of one version or another say without a code, or in the name of the script."""
_PLACE = re.compile(r"@user_script: ?\d+: -?")
"""Old servers put the place in the script before what they say."""


def store_error(error: Exception, place: str, *, sent: bool) -> StoreError:
    """What the error means for the batch. `sent`: it was on its way to the server when this happened."""
    text = _PLACE.sub("", str(error))
    if "HALFWAY" in text:  # the script's own word: it had begun to write
        what = f"the server {place} refused in the middle of a batch; some of its commands may have been carried out"
        then = "Sending it again is safe."
        if "WRONGTYPE" in text:
            then = "Something that is not Holdfast's stands in the place of an index, so that one may be half done."
        return StoreUnavailable(f"{what}. {then} ({text})", ambiguous=True)
    code = _code(error, text)
    if code in _PASSING:
        return StoreUnavailable(f"the server {place} refused, and nothing was done: {_PASSING[code]} ({text})")
    if code in _FOR_GOOD or isinstance(error, r.AuthenticationError):
        return StoreUnusable(f"the server {place} refused: {_FOR_GOOD.get(code, 'the login failed.')} ({text})")
    if "unknown command" in text:
        return StoreUnusable(f"the server {place} does not know what Holdfast needs of a Redis or Valkey ({text})")
    return _lost(error, text, place) if sent else _not_reached(error, text, place)


def _lost(error: Exception, text: str, place: str) -> StoreError:
    what = f"the server {place} did not answer in time" if isinstance(error, r.TimeoutError) else ""
    return StoreUnavailable(f"{what or f'the connection to {place} failed'} ({text})", ambiguous=True)


def _not_reached(error: Exception, text: str, place: str) -> StoreError:
    if "certificate" in text.lower():
        return StoreUnusable(
            f"the server {place} does not show a certificate that can be trusted ({text}). Give its authority by "
            "?ssl_ca_certs=FILE, and the host name that the certificate is for."
        )
    if isinstance(error, r.TimeoutError):
        return StoreUnavailable(f"the server {place} could not be reached in time ({text})")
    if isinstance(error, r.ConnectionError | OSError) and not isinstance(error, r.InvalidResponse):
        return StoreUnavailable(f"the server {place} cannot be reached ({text})")
    return StoreUnusable(f"what answers at {place} is no Redis or Valkey that can be used ({text})")


def _code(error: Exception, text: str) -> str:
    """The first word of the server's answer; redis-py keeps it in the class of some errors."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    for words, code in _WORDS.items():
        if words in text:
            return code
    if isinstance(error, r.AuthenticationError) and "uthentication required" in text:
        return "NOAUTH"
    if not isinstance(error, r.ResponseError):
        return ""
    first = text.partition(" ")[0].lstrip("-")
    return first if first.isupper() else ""
