"""The commands of a batch about one record, from the first read to their outcomes, without I/O.

A group gets the record, decides, and returns what to write; then it gets the result of the write. If another client was
faster, the record is read and decided again. If the result is unknown, the record is read again, too: the write's own
stamp proves that it was applied; the stamp that it expected proves that it was not, and a new write with the same
condition makes the old one fail; any other stamp proves nothing (`cas_doubt.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from ..commands import Command
from ..errors import RecordUnreadable
from ..rules.lock_outcomes import ForceReleased, Outcome
from ..rules.lock_record import decode
from ..rules.runs.lock_requests import RUN_PREFIX
from .cas_adapter import LOCKS, RECORDS, CasWrite, StampedText
from .cas_doubt import LOOKS, may_be_decided_again, outcome_after_doubt, unknown
from .cas_subjects import Change, Subject

STAMP_BYTES = 12
"""The size of a stamp: random, so that no two writes ever have the same."""


class SentWrite(NamedTuple):
    """A write that was sent: its condition, its change, the outcomes if it was applied, and the time of decision."""

    expected: str | None
    stamp: str
    change: Change
    outcomes: tuple[tuple[int, Outcome], ...]
    now: int


class Group:
    """Commands about one record, each with its index in the batch."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.name = subject.name
        self.answers: dict[int, Outcome] = {}
        """The outcomes that are final, by the index of their commands."""
        self.applied: SentWrite | None = None
        """The last write that was applied."""
        self.moment = 0
        """When the commands were decided."""
        self._open: list[tuple[int, Command]] = []
        self._sent: SentWrite | None = None
        self._unknown: list[SentWrite] = []
        self._doubtful = False

    def add(self, place: int, command: Command) -> None:
        """Add a command, with its index."""
        self._open.append((place, command))

    @property
    def commands(self) -> Sequence[tuple[int, Command]]:
        """The commands that have no outcome yet."""
        return self._open

    @property
    def in_doubt(self) -> bool:
        """Whether a write of this group may have been applied although that is not known."""
        return self._doubtful or bool(self._unknown)

    def look(self, found: StampedText | None, now: int) -> CasWrite | None:
        """Decide by the record as it is stored now. Returns what to write; None where all outcomes are final."""
        if self._unknown and self._settle_unknown(found):
            return None
        if not self._open:
            return None
        self.moment = now
        change, outcomes = self.subject.decide(found, [command for _, command in self._open], now)
        answers = [
            (place, outcome_after_doubt(command, outcome) if self._doubtful else outcome)
            for (place, command), outcome in zip(self._open, outcomes, strict=True)
        ]
        if change is None:
            self._finish_without_write(answers)
            return None
        stamp = new_stamp()
        self._sent = SentWrite(None if found is None else found.stamp, stamp, change, tuple(answers), now)
        return CasWrite(
            name=self.name,
            text=change.text,
            due_at=change.due_at,
            stamp=stamp,
            expected=self._sent.expected,
            woken=_notified(outcomes),
            now=now,
        )

    def written(self, result: bool | None) -> None:  # noqa: FBT001  (as the adapter answers)
        """The result of the write that `look` returned."""
        sent, self._sent = self._sent, None
        if sent is not None and result:
            self._finish(sent)
        elif sent is not None and result is None:
            self._unknown.append(sent)

    def give_up(self, outcome: Outcome) -> None:
        """End the group: this is the outcome of the commands that have none."""
        for place, command in self._open:
            self.answers[place] = unknown(command) if self.in_doubt and not isinstance(command, LOOKS) else outcome
        self._open = []

    # -- writes whose result is unknown ----------------------------------------------------------------------

    def _settle_unknown(self, found: StampedText | None) -> bool:
        """Find out about earlier writes. True: one of them was applied, and the group is finished."""
        for tried in self._unknown:
            if (found is not None and found.stamp == tried.stamp) or self._is_recognised(tried, found):
                self._finish(tried)
                return True
        if self._is_as_before(found):
            return False
        self._unknown, self._doubtful = [], True
        for place, command in self._open:
            if not may_be_decided_again(command):
                self.answers[place] = unknown(command)
        self._open = [(place, command) for place, command in self._open if may_be_decided_again(command)]
        return False

    def _is_as_before(self, found: StampedText | None) -> bool:
        """Whether the record is still what the earlier writes expected: then none of them has been applied so far.

        Stamps are never used twice, so this proves it. An absent record proves it for locks and slots, which are not
        removed while they matter; another record may have been written and removed again.
        """
        if found is None:
            return not self.name.kind.startswith(RECORDS) and all(one.expected is None for one in self._unknown)
        return all(one.expected == found.stamp for one in self._unknown)

    def _is_recognised(self, tried: SentWrite, found: StampedText | None) -> bool:
        if self.name.kind != LOCKS or found is None:
            return False
        forced = [outcome for _, outcome in tried.outcomes if isinstance(outcome, ForceReleased) and outcome.holders]
        if not forced or tried.change.lock is None:
            return False
        try:
            stored = decode(self.name.key, found.text)
        except RecordUnreadable:
            return False
        return stored.forced == tried.change.lock.forced

    # -- outcomes --------------------------------------------------------------------------------------------

    def _finish(self, done: SentWrite) -> None:
        left = {place for place, _ in self._open}
        self.answers.update((place, outcome) for place, outcome in done.outcomes if place in left)
        self.applied, self.moment = done, done.now
        self._open, self._unknown = [], []

    def _finish_without_write(self, answers: Sequence[tuple[int, Outcome]]) -> None:
        """Nothing is to be written. If an earlier write may still arrive, the outcome is reported as unknown."""
        for (place, command), (_, outcome) in zip(self._open, answers, strict=True):
            under_way = bool(self._unknown) and not isinstance(command, LOOKS)
            self.answers[place] = unknown(command) if under_way else outcome
        self._open = []


def new_stamp() -> str:
    """A stamp that no other write has."""
    return secrets.token_hex(STAMP_BYTES)


def _notified(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """The attempts to notify. There are no runs on these stores."""
    return tuple(
        attempt
        for outcome in outcomes
        if outcome.woken or outcome.hinted
        for attempt in outcome.notified
        if not attempt.startswith(RUN_PREFIX)
    )
