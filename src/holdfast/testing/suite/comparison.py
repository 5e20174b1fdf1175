"""Executes random histories on a store and on the rules, and compares the outcomes."""

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
"""With so many histories in a chunk, every type of outcome must occur."""


class Rules(Protocol):
    """A model: the rules on plain dictionaries."""

    def execute(self, commands: Sequence[c.Command], now: int) -> list[Outcome]:
        """The outcomes of a batch at that moment."""


class HistoryGenerator(Protocol):
    """Generates random commands."""

    random: random.Random

    def batch(self) -> list[c.Command]:
        """The next commands."""

    def observe(self, commands: Sequence[c.Command], outcomes: Sequence[Outcome]) -> None:
        """Store what the next commands depend on."""

    def time_passes(self) -> float:
        """Time until the next batch, in seconds of the history."""

    def clock_jumps(self) -> float:
        """A step of the clock, in seconds; mostly 0."""


class HistoryComparison(SuiteBase):
    """The comparison, for all kinds of histories."""

    @property
    def second(self) -> int:
        """The length of a second of a history, in microseconds."""
        return SECOND if self.steers else self.real_second

    def chunk_of_seeds(self, chunk: int) -> range:
        """The seeds of the histories of one chunk."""
        return range(chunk, self.histories, CHUNKS)

    def seen_all(self, kinds: set[str], wanted: set[str]) -> None:
        """Check that every wanted type of outcome occurred, if there were enough histories."""
        if self.histories // CHUNKS >= ENOUGH:
            assert kinds >= wanted

    def compare_history(
        self, name: str, model: Rules, generator: HistoryGenerator, final_reads: Callable[[], list[c.Command]]
    ) -> set[str]:
        """Execute one history in its own namespace, and read everything at the end. Returns the types of outcomes."""
        self.clock.now = START
        length, kinds = 0, set()
        store = self.open(self.address, namespace=name, clock=self.clock)
        connections = [store.connect("commands"), store.connect("heartbeats")]
        try:
            while length < self.history_length:
                self.pass_time(generator.time_passes() + generator.clock_jumps(), self.second)
                commands = generator.batch()
                outcomes, moments = self.decided_at(generator.random.choice(connections), commands)
                expected = _by_the_rules(model, commands, moments)
                assert list(map(unversioned, outcomes)) == list(map(unversioned, expected)), (
                    f"{name}, after {length} commands: {_difference(commands, outcomes, expected)}"
                )
                generator.observe(commands, expected)
                length += len(commands)
                kinds.update(names(outcomes))
            commands = final_reads()
            outcomes, moments = self.decided_at(connections[0], commands)
            expected = _by_the_rules(model, commands, moments)
            assert list(map(unversioned, outcomes)) == list(map(unversioned, expected)), f"{name}, at the end"
        finally:
            for connection in connections:
                connection.close()
            store.close()
        return kinds


def unversioned(outcome: Outcome) -> Outcome:
    """An outcome without the versions of its records: a store may increase them once per batch or per command."""
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
    """The outcomes of the rules, each command decided at its own moment."""
    pairs = zip(commands, moments, strict=True)
    return [model.execute([command], moment)[0] for command, moment in pairs]


def _difference(commands: list[c.Command], outcomes: list[Outcome], expected: list[Outcome]) -> str:
    """The first command whose outcome differs from the rules, and both outcomes."""
    if not isinstance(outcomes, list) or len(outcomes) != len(expected):
        return f"{len(commands)} commands {commands} have the outcomes {outcomes}"
    for command, outcome, wanted in zip(commands, outcomes, expected, strict=True):
        if unversioned(outcome) != unversioned(wanted):
            return f"the outcome of {command} is {outcome}, but the rules require {wanted}"
    return ""
