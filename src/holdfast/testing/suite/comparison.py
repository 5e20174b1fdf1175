"""Telling a random history to a store and to the rules, and comparing what both say."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from ... import commands as c
from ...rules.lock_outcomes import LockSeen, Outcome
from ..builders import SECOND, START
from .base import SuiteBase, names

CHUNKS = 5
ENOUGH = 32
"""From so many histories on, every kind of answer has been seen."""


class Rules(Protocol):
    """The rules on plain dictionaries."""

    def execute(self, commands: Sequence[c.Command], now: int) -> list[Outcome]:
        """What they answer to a batch at that moment."""


class Teller(Protocol):
    """Somebody who makes up commands."""

    random: random.Random

    def batch(self) -> list[c.Command]:
        """The next commands."""

    def heard(self, commands: Sequence[c.Command], outcomes: Sequence[Outcome]) -> None:
        """Remember what was answered."""

    def time_passes(self) -> float:
        """How long it is until the next batch, in seconds of the story."""

    def clock_jumps(self) -> float:
        """Now and then the clock is set."""


class Telling(SuiteBase):
    """The telling, for all kinds of histories."""

    @property
    def second(self) -> int:
        """How many microseconds a second of a story takes."""
        return SECOND if self.steers else self.real_second

    def chunk_of_seeds(self, chunk: int) -> range:
        """The histories of one chunk."""
        return range(chunk, self.histories, CHUNKS)

    def seen_all(self, kinds: set[str], wanted: set[str]) -> None:
        """So many histories must have led to every kind of answer."""
        if self.histories // CHUNKS >= ENOUGH:
            assert kinds >= wanted

    def told(self, name: str, model: Rules, teller: Teller, looks: Callable[[], list[c.Command]]) -> set[str]:
        """One history, in a namespace of its own, and a look at everything in the end. Returns the kinds of answers."""
        self.clock.now = START
        length, kinds = 0, set()
        store = self.open(self.address, namespace=name, clock=self.clock)
        connections = [store.connect("commands"), store.connect("heartbeats")]
        try:
            while length < self.story_length:
                self.pass_time(teller.time_passes() + teller.clock_jumps(), self.second)
                commands = teller.batch()
                outcomes, moments = self.decided_at(teller.random.choice(connections), commands)
                expected = _by_the_rules(model, commands, moments)
                assert list(map(unversioned, outcomes)) == list(map(unversioned, expected)), (
                    f"{name}, after {length}: {_difference(commands, outcomes, expected)}"
                )
                teller.heard(commands, expected)
                length += len(commands)
                kinds.update(names(outcomes))
            commands = looks()
            outcomes, moments = self.decided_at(connections[0], commands)
            expected = _by_the_rules(model, commands, moments)
            assert list(map(unversioned, outcomes)) == list(map(unversioned, expected)), f"{name}, at the end"
        finally:
            for connection in connections:
                connection.close()
            store.close()
        return kinds


def unversioned(outcome: Outcome) -> Outcome:
    """An answer without the versions of the records in it: of a batch they rise once, or with each command."""
    if isinstance(outcome, LockSeen) and outcome.record is not None:
        return replace(outcome, record=replace(outcome.record, version=0))
    if isinstance(outcome, c.LockPage):
        items = [
            item if item.record is None else replace(item, record=replace(item.record, version=0))
            for item in outcome.items
        ]
        return replace(outcome, items=tuple(items))
    return outcome


def _by_the_rules(model: Rules, commands: list[c.Command], moments: list[int]) -> list[Outcome]:
    """What the rules say to a batch, each of whose commands was decided at a moment of its own."""
    pairs = zip(commands, moments, strict=True)
    return [model.execute([command], moment)[0] for command, moment in pairs]


def _difference(commands: list[c.Command], outcomes: list[Outcome], expected: list[Outcome]) -> str:
    """The first command that was answered otherwise, and how."""
    if not isinstance(outcomes, list) or len(outcomes) != len(expected):
        return f"{commands} was answered {outcomes}"
    for command, outcome, wanted in zip(commands, outcomes, expected, strict=True):
        if unversioned(outcome) != unversioned(wanted):
            return f"{command} was answered {outcome}, and the rules say {wanted}"
    return ""
