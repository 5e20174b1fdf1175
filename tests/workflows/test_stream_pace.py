"""How soon the items of a step are sent to the store, and in how many batches, by a clock that only this test moves."""

from __future__ import annotations

import heapq
import itertools
import json

import pytest

from holdfast.commands.runs import WriteStream
from holdfast.rules.runs.outcomes import StreamWritten
from holdfast.workflow import step_streams
from holdfast.workflow.step_streams import StreamBuffer

PROMISED = 0.05
"""Seconds in which an item is sent, as documented; deliberately not imported from the code."""


class Clock:
    """The host of a buffer: it calls what is due in order of time, and notes when each item was sent."""

    def __init__(self, trip: float) -> None:
        self.now, self.trip = 0.0, trip
        self.sent: dict[int, float] = {}
        self.batches = 0
        self._due: list = []
        self._count = itertools.count()

    def later(self, seconds, call):
        heapq.heappush(self._due, (self.now + seconds, next(self._count), call))

    def call_threadsafe(self, call):
        self.later(0, call)

    def send(self, command, answer):
        self.batches += 1
        for text in command.values:
            self.sent[json.loads(text)] = self.now
        self.later(self.trip, lambda: answer(StreamWritten(next=command.number + len(command.values))))

    def play(self):
        while self._due:
            self.now, _, call = heapq.heappop(self._due)
            call()


@pytest.mark.parametrize("trip", [0.0005, 0.004, 0.02])
@pytest.mark.parametrize("pause", [0.0001, 0.003, 0.015, 0.3])
def test_each_item_is_sent_within_50_ms_and_many_go_together(trip, pause, monkeypatch):
    clock = Clock(trip)
    monkeypatch.setattr(step_streams, "elapsed", lambda: clock.now)
    batch = WriteStream(
        run="r", fence=1, first=1, name="s", step="a", attempt=1, serial=1, number=0, values=(), max_bytes=10**9
    )
    buffer = StreamBuffer(clock, batch)
    number = round(2 / pause)
    for n in range(number):
        clock.later(n * pause, lambda n=n: buffer.put(str(n)))
    clock.play()
    late = [(n, at - n * pause) for n, at in clock.sent.items() if at - n * pause > PROMISED]
    assert late == []
    assert sorted(clock.sent) == list(range(number))
    assert clock.sent[0] == 0, "the first item of a quiet stream is sent at once"
    assert clock.batches <= min(number, 2 / 0.02 + 2), "no more than a batch every 20 ms"
