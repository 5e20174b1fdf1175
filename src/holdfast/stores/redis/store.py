"""`redis://`, `rediss://` (TLS), `valkey://`, `valkeys://`: the server's clock, hints by pub/sub.

Frequent commands of a batch are one script and one round trip (locks.lua). All others are decided by the rules in
Python: one script reads, another one writes if nothing has changed (record_source.py). Durability depends on how the
server persists its data: health.py checks that when a server is first used, and logs a warning for each problem.
Options in the URL: `?prefix=holdfast` (the beginning of all keys), `?cluster=true`, and those of redis-py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...commands import Command
from ...errors import InvalidOption, StoreError, StoreUnusable
from ...platform import host_clock
from ...rules.lock_outcomes import Outcome
from ..batch_cost import parts_of
from ..common import flaw, offers_to, pass_overs
from ..contract import Capabilities, Clock, Finding, Hint, Role
from ..executor import StepRefused, execute
from ..urls import redacted
from . import fast_path, health, permissions
from .connection import RedisAddress, RedisLink, place_of_client, place_of_url, shown
from .keys import PREFIX, Layout
from .record_source import RedisSource
from .scripts import FAST
from .subscribe import RedisWatch

if TYPE_CHECKING:
    from ..contract import Connection, Store, Watch


def open_redis(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the server or the cluster of the URL. The first connection is made when it is needed."""
    place, prefix = place_of_url(url)
    return RedisStore(place, Layout(prefix, namespace), url=redacted(url), clock=clock)


def adopt_redis(handle: Any, *, namespace: str, clock: Clock, options: Mapping[str, object] | None = None) -> Store:
    """Open the server of a client of redis-py, with separate connections. The only option is `prefix`."""
    ours = dict(options or {})
    prefix = str(ours.pop("prefix", PREFIX))
    if ours:
        raise InvalidOption(
            f"with a client of redis-py the only option is prefix; set {sorted(ours)} on the client itself"
        )
    place = place_of_client(handle)
    return RedisStore(place, Layout(prefix, namespace), url=shown(place), clock=clock)


class RedisStore:
    """The records of one namespace in one server or cluster."""

    out_of_process: Literal[True] = True

    def __init__(self, place: RedisAddress, layout: Layout, *, url: str, clock: Clock) -> None:
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
        """What this store can promise; durability is checked once per process and server."""
        look = health.known(self._place)
        if look is None and not self._closed:
            try:
                link = self._link()
                look = health.known(self._place)
                link.close()
            except StoreError:
                look = None
        durable = look is not None and look.durable
        return Capabilities(durable=durable, shared=True, server_clock=self._now is None, notifies=True, workflows=True)

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (no caller waits for a turn here)
        """Open a connection of its own."""
        return RedisConnection(self._link(), self.layout, self._now, cluster=self._place.cluster)

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Subscribe to hints, from a thread with a connection of its own."""
        self._check_open()
        return RedisWatch(self._place, self.layout, channel, on_hint)

    def diagnose(self) -> tuple[Finding, ...]:
        """Check the server's version, role, permissions and settings."""
        return health.diagnose(self._place, self.layout)

    def reopen(self) -> Store:
        """The same, for the child of a fork."""
        return RedisStore(self._place, self.layout, url=self.url, clock=self._clock)

    def close(self) -> None:
        """Refuse new connections. They share nothing that must be closed."""
        self._closed = True

    def _link(self) -> RedisLink:
        self._check_open()
        link = RedisLink(self._place, self.layout.index)
        try:
            health.look_once(self._place, link)
            permissions.check_once(self._place, link, self.layout.index)
        except BaseException:
            link.close()
            raise
        return link

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed. Open a new one.")


class RedisConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, link: RedisLink, layout: Layout, now: Clock | None, *, cluster: bool) -> None:
        self._link, self._now, self._cluster = link, now, cluster
        self._source = RedisSource(link, layout, now)
        self._reopen = False  # whether the link was lost after a batch had been carried out
        self.moments: list[int] = []
        """When each command of the last batch was decided, by the server's clock."""

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the batch out: simple commands by the fast path, in one round trip, the others by the rules."""
        source = self._source
        if self._reopen:
            self._link.open()
            self._reopen = False
        source.begin()
        outcomes: list[Outcome | None] = []
        self.moments = []
        try:
            parts = parts_of(commands)
            for part in parts:
                self._execute(commands if len(parts) == 1 else commands[part.start : part.stop], outcomes)
        except StoreError as error:
            error.ambiguous = error.ambiguous or source.began  # an earlier script of this batch has written
            raise
        if source.unheard and not self._cluster:
            self._pass_over(commands, outcomes)
        return outcomes  # type: ignore[return-value]  # rows are never locked here

    def _execute(self, commands: Sequence[Command], outcomes: list[Outcome | None]) -> None:
        """Carry out commands that fit into one script; add their outcomes and the moments of the decisions."""
        asked, before = fast_path.asked(commands, self._source.guesses), len(outcomes)
        outcomes += [None] * len(commands)
        self.moments += [0] * len(commands)
        if asked is not None:
            with suppress(StepRefused):  # nothing was done: the rules find the command that the server refuses
                self._try_fast(commands, asked, outcomes, before)
        rest = []
        for place, command in enumerate(commands):
            if outcomes[before + place] is None:
                outcomes[before + place] = wrong = flaw(command)
                rest += [place] if wrong is None else []
        if rest:
            answers, _, moments = execute(self._source, [commands[place] for place in rest])
            for place, answer, moment in zip(rest, answers, moments, strict=True):
                outcomes[before + place], self.moments[before + place] = answer, moment

    def _pass_over(self, commands: Sequence[Command], outcomes: Sequence[Any]) -> None:
        """End the offers to processes that have ended, for the next waiters. The commands have been carried out.

        A node of a cluster does not know the subscribers of other nodes, so in a cluster such offers expire instead.
        """
        unheard = self._source.unheard
        looks = offers_to(unheard, commands, outcomes)
        try:
            if looks:
                seen = [outcome for outcome in execute(self._source, looks).outcomes if outcome is not None]
                execute(self._source, pass_overs(unheard, looks, seen))
        except StoreError:  # such offers expire in any case
            self._reopen = self._link.lost

    def _try_fast(
        self, commands: Sequence[Command], asked: fast_path.ScriptCall, outcomes: list[Outcome | None], first: int
    ) -> None:
        """Fill in the answers of the script, from the index `first` on; declined or unsent commands stay unanswered."""
        if self._now is None:
            answer = self._link.call(FAST, asked.payload)
        else:
            answer = self._link.call(FAST, asked.payload, b"%d" % self._now())
        try:
            reply = fast_path.read_reply(answer)
        except (ValueError, msgspec.MsgspecError) as error:
            raise self._link.failed(error) from error
        self.moments[first:] = [reply.now] * len(commands)
        for place, row in zip(asked.places, reply.answers, strict=True):
            outcomes[first + place] = outcome = fast_path.outcome_of(commands[place], row, reply)
            if outcome is not None:
                self._source.began = True
        if reply.unheard:
            self._source.unheard += reply.unheard

    def close(self) -> None:
        """Close the connection."""
        self._reopen = False
        self._link.close()
