"""Random histories of records: a model (the rules on a dictionary) and a generator of plausible commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from .. import commands as c
from ..rules.lock_outcomes import Outcome
from .builders import SECOND
from .tally import TALLY, AddToTally, EndTally, LeaveTally, PokeTally, SeeTally, SetSticker


class RecordModel:
    """The rules on a plain dictionary. Every store must give the same outcomes and records."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Any] = {}

    def execute(self, commands: Sequence[c.Command], now: int) -> list[Outcome]:
        """The outcomes of a batch at that moment."""
        return [self._answer(command, now) for command in commands]

    def _answer(self, command: c.Command, now: int) -> Outcome:
        if isinstance(command, c.ListRecords):
            return self._list(command, now)
        if isinstance(command, c.ListDueRecords):
            return self._list_due(command, now)
        assert isinstance(command, c.RecordCommand)
        name = (command.record_type.name, command.key)
        record, outcome = command.apply(self.records.get(name), now)
        if record is None:
            self.records.pop(name, None)
        else:
            self.records[name] = record
        return outcome

    def _list(self, command: c.ListRecords, now: int) -> c.RecordPage:
        keys = [
            key
            for kind, key in sorted(self.records)
            if kind == command.kind and key.startswith(command.prefix) and key > command.after
        ]
        items = [c.ListedRecord(key=key, record=self.records[command.kind, key]) for key in keys[: command.limit]]
        more = keys[command.limit - 1] if len(keys) > command.limit else None
        return c.RecordPage(items=tuple(items), next=more, now=now)

    def _list_due(self, command: c.ListDueRecords, now: int) -> c.RecordsDue:
        counts = ((key, record.ends_at) for (kind, key), record in self.records.items() if kind == command.kind)
        due = sorted((ends_at, key) for key, ends_at in counts if ends_at is not None and ends_at <= now)
        items = [c.ListedRecord(key=key, record=self.records[command.kind, key]) for _, key in due]
        return c.RecordsDue(items=tuple(items[: command.limit]), more=len(items) > command.limit, now=now)


class RecordHistoryGenerator:
    """Generates commands about a few counts. `second` is the length of a second in this history, in microseconds."""

    def __init__(self, seed: int, *, second: int = SECOND) -> None:
        self.random = random.Random(seed)
        self.second = second
        self.keys = ["a", "a:1", "a:2", "b", "é", "😀"][: 2 if seed % 3 == 0 else 6]
        self.members = [f"{channel}.{n}" for channel in "abc" for n in (1, 2)]
        self.sent: list[c.Command] = []
        self._requests = 0

    def batch(self) -> list[c.Command]:
        """The next commands."""
        return [self._command() for _ in range(self.random.choice([1, 1, 2, 4, 12]))]

    def observe(self, commands: Sequence[c.Command], outcomes: Sequence[Outcome]) -> None:
        """Store nothing: no command depends on earlier outcomes."""

    def time_passes(self) -> float:
        """Time until the next batch, in seconds of the history."""
        return self.random.choice([0, 0.000_001, 0.001, 0.5, 1, 2, -1])

    def clock_jumps(self) -> float:
        """A step of the clock: rarely an hour forward or back, otherwise none."""
        return self.random.choice([0] * 30 + [3_600, -3_600])

    def _command(self) -> c.Command:
        pick = self.random
        if self.sent and pick.random() < 0.1:
            return pick.choice(self.sent)  # a reply was lost
        key, me = pick.choice(self.keys), pick.choice(self.members)
        self._requests += 1
        makers: list[Callable[[], c.Command]] = [
            lambda: AddToTally(
                key=key,
                id=me,
                request=f"q{self._requests}",
                by=pick.choice([1, 1, -3, 10**15]),
                note=pick.choice([None, "", 'a "note" \x00 é 😀']),
                ttl=pick.choice([None, 0, self.second, 2 * self.second]),
            ),
            lambda: LeaveTally(key=key, id=me),
            lambda: EndTally(key=key),
            lambda: PokeTally(key=key),
            lambda: SeeTally(key=key),
            lambda: SetSticker(key=key, text=me),
            lambda: c.ListRecords(
                kind=pick.choice([TALLY.name, "sticker"]),
                prefix=pick.choice(["", "a", "a:", "x"]),
                after=pick.choice(["", "a", "a:1"]),
                limit=pick.choice([1, 2, 100]),
            ),
            lambda: c.ListDueRecords(kind=TALLY.name, limit=pick.choice([1, 2, 100])),
        ]
        command = pick.choices(makers, weights=[40, 15, 8, 2, 10, 4, 8, 8])[0]()
        self.sent.append(command)
        return command
