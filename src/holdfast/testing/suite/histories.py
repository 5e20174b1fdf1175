"""Random histories: the store answers and stores exactly what the pure rules say."""

from __future__ import annotations

import pytest

from ... import commands as c
from ..asking import SECOND, START, read
from ..stories import Model, Storyteller
from .base import Suite, names

CHUNKS = 5
ENOUGH = 20
"""From so many histories on, every kind of answer has been seen."""
EVERY_ANSWER = {
    "Granted", "Queued", "Busy", "Renewed", "Released", "Abandoned", "Transferred", "NotHeld", "TargetHolds",
    "Mismatch", "TooHeavy", "Gone", "ForceReleased", "Settled", "Seen", "Page", "Swept", "SlotSeen", "Swapped",
    "Conflict",
}  # fmt: skip


class Histories(Suite):
    """The comparison with the rules, over commands, re-sent commands, slots, and clocks that are set."""

    @pytest.mark.parametrize("chunk", range(CHUNKS))
    def test_a_random_history_has_the_answers_and_the_records_that_the_rules_say(self, chunk: int) -> None:
        kinds: set[str] = set()
        for seed in range(chunk, self.histories, CHUNKS):
            kinds |= self.tell(seed)
        if self.histories // CHUNKS >= ENOUGH:
            assert kinds >= EVERY_ANSWER

    def tell(self, seed: int) -> set[str]:
        """One history, in a namespace of its own. Returns the kinds of answers."""
        self.clock.now = START
        second = SECOND if self.steers else self.real_second
        model, teller, told, kinds = Model(), Storyteller(seed, second=second), 0, set()
        namespace = f"history-{seed}"
        store = self.open(self.address, namespace=namespace, clock=self.clock)
        connections = [store.connect("commands"), store.connect("heartbeats")]
        try:
            while told < self.story_length:
                self.pass_time(teller.time_passes() + teller.clock_jumps(), second)
                commands = teller.batch()
                connection = teller.random.choice(connections)
                outcomes, now = self.decided_at(connection, commands)
                expected = model.execute(commands, now)
                assert outcomes == expected, (
                    f"seed {seed}, after {told} commands: {first_difference(commands, outcomes, expected)}"
                )
                teller.heard(commands, expected)
                told += len(commands)
                kinds.update(names(outcomes))
            looks: list[c.Command] = [c.ListLocks(limit=1000), *(read(address) for address in model.slots)]
            outcomes, now = self.decided_at(connections[0], looks)
            assert outcomes == model.execute(looks, now), f"seed {seed}, at the end"
            stored = self.dump(self.address, namespace)
            assert stored is None or stored == model.records, f"seed {seed}, as stored"
        finally:
            for connection in connections:
                connection.close()
            store.close()
        return kinds


def first_difference(commands: list[c.Command], outcomes: object, expected: object) -> str:
    """The first command that was answered otherwise, and how."""
    if not isinstance(outcomes, list) or not isinstance(expected, list) or len(outcomes) != len(expected):
        return f"{commands} was answered {outcomes}"
    for command, outcome, wanted in zip(commands, outcomes, expected, strict=True):
        if outcome != wanted:
            return f"{command} was answered {outcome}, and the rules say {wanted}"
    return ""
