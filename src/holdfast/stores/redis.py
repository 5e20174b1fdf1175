"""`redis://`, `rediss://` (TLS), `valkey://`, `valkeys://`: one script a batch, the server's clock, waking by pub/sub.

The rules run in the server (redis.lua), a whole batch in one step and in one trip. What is promised depends on how the
server keeps its data: redis_health.py looks at that when a server is first used, and says what is missing.
Options in the URL: `?prefix=holdfast` (what all names begin with), `?cluster=true`, and those of redis-py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .._platform import host_clock
from ..commands import Command
from ..errors import InvalidOption, StoreError, StoreUnavailable, StoreUnusable
from ..rules.outcomes import Outcome
from . import redis_foreign, redis_health
from .contract import Capabilities, Clock, Finding, Hint, Role
from .redis_batch import Reply
from .redis_keys import PREFIX, Layout
from .redis_link import Link, Place, place_of_client, place_of_url, shown
from .redis_watch import RedisWatch
from .urls import redacted

if TYPE_CHECKING:
    from .contract import Connection, Store, Watch


def open_redis(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the server or the cluster of the URL. It is reached when the first connection is made."""
    place, prefix = place_of_url(url)
    return RedisStore(place, Layout(prefix, namespace), url=redacted(url), clock=clock)


def adopt_redis(handle: Any, *, namespace: str, clock: Clock, options: Mapping[str, object] | None = None) -> Store:
    """Open what a client of redis-py is set up for, by connections of our own. The one option is `prefix`."""
    ours = dict(options or {})
    prefix = str(ours.pop("prefix", PREFIX))
    if ours:
        raise InvalidOption(
            f"with a client of redis-py there is the option prefix; {sorted(ours)} are the client's own"
        )
    place = place_of_client(handle)
    return RedisStore(place, Layout(prefix, namespace), url=shown(place), clock=clock)


class RedisStore:
    """The records of one namespace in one server or cluster."""

    swift: Literal[True] = True

    def __init__(self, place: Place, layout: Layout, *, url: str, clock: Clock) -> None:
        self.url = url
        self.identity = f"{place.name}#{layout.base}"
        self.layout = layout
        self._place, self._clock = place, clock
        self._now: Clock | None = None if clock is host_clock else clock
        self._closed = False

    def __repr__(self) -> str:
        return f"<RedisStore {self.identity}>"

    @property
    def capabilities(self) -> Capabilities:
        """What this store can promise; whether it is durable has to be asked, once a process and server."""
        look = redis_health.known(self._place)
        if look is None and not self._closed:
            try:
                link = self._link()
                look = redis_health.known(self._place)
                link.close()
            except StoreError:
                look = None
        durable = look is not None and look.durable
        return Capabilities(durable=durable, shared=True, server_clock=self._now is None, notifies=True, workflows=True)

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (the server makes nobody wait for a turn)
        """Open a connection of its own."""
        return RedisConnection(self._link(), self._now)

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Subscribe to hints, from a thread with a connection of its own."""
        self._check_open()
        return RedisWatch(self._place, self.layout, channel, on_hint)

    def diagnose(self) -> tuple[Finding, ...]:
        """Look at the server's role, its settings and its clock."""
        return redis_health.diagnose(self._place, self.layout)

    def reopen(self) -> Store:
        """The same, for the child of a fork."""
        return RedisStore(self._place, self.layout, url=self.url, clock=self._clock)

    def close(self) -> None:
        """Open no more connections. There is nothing that they share."""
        self._closed = True

    def _link(self) -> Link:
        self._check_open()
        link = Link(self._place, self.layout.index)
        try:
            redis_health.look_once(self._place, link)
        except BaseException:
            link.close()
            raise
        return link

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed: open a new one")


class RedisConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, link: Link, now: Clock | None) -> None:
        self._link, self._now = link, now
        self._began = False

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the batch out, in one step and one trip unless a record is not ours to decide for the server."""
        self._began = False
        try:
            return redis_foreign.execute(commands, self._call) if commands else []
        except StoreUnavailable as error:
            error.ambiguous = error.ambiguous or self._began  # an earlier trip of this batch has done its part
            raise

    def _call(self, payload: bytes) -> Reply:
        reply = self._link.call(payload, None if self._now is None else self._now())
        self._began = True
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
