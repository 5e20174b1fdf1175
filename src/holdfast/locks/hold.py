"""The TTL hold: acquired for a whole window, never renewed, never released early.

Use it for loops that run in many replicas: the replica that gets the hold does the work of this window. Each call is
a new owner. So a second call within the window returns None, also in the same process.
"""

from __future__ import annotations

from ..errors import LockTimeout
from ..runtime.base import BaseClient
from ..runtime.flows import Flow
from ..validation import Duration
from .acquire import LeaseT, take
from .options import checked_options


def hold(client: BaseClient, key: str, ttl: Duration, owner: str | None, kind: type[LeaseT]) -> Flow[LeaseT | None]:
    """Acquire the hold, or return None while it is held."""
    options = checked_options(key, kind="hold", ttl=ttl, wait=0, owner=owner)
    try:
        return (yield from take(client, options, 0, kind))
    except LockTimeout:
        return None
