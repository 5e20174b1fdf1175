"""Applies the rules to one snapshot: the outcomes of a batch, its changes, and the questions that are still open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from ..commands import (
    READS,
    Cleanup,
    Command,
    ListDueRecords,
    ListRecords,
    LockCommand,
    RecordCommand,
    RecordPage,
    RecordsDue,
    Settle,
    SettleDue,
    SlotCommand,
    Swept,
)
from ..commands.purging import PURGE_READS
from ..commands.runs import RUN_READS, ClaimRuns, RunCommand
from ..errors import RecordUnreadable
from ..rules import lock
from ..rules.lock_outcomes import Outcome
from ..rules.lock_record import EMPTY, LockRecord
from ..rules.runs.lock_queue import reader_of
from ..rules.runs.lock_requests import run_of_attempt
from ..rules.runs.locks import notify_offered
from .common import at_least_one, by_key, decided, decided_alone, failed, swept
from .footprint import list_of
from .questions import Changes, DueLocks, DueRecords, LocksAfter, Question, RowLocked, Snapshot, Unanswered
from .records import by_record, decided_record, is_about_a_record, listed_record, page_size
from .repository import BatchRepository

Check = Callable[[Changes], None]
LOOKS: tuple[type[Command], ...] = (*READS, *RUN_READS, *PURGE_READS)
"""Commands that never write."""


class Decisions:
    """The outcomes of a batch, and its changes."""

    def __init__(self, snapshot: Snapshot, check: Check) -> None:
        self.repository = BatchRepository(snapshot)
        self.now = snapshot.now
        self.outcomes: list[Outcome | None] = []
        self.hints: list[str] = []
        self.woken: list[str] = []
        self.unanswered: list[tuple[Command, Question]] = []
        self._check = check

    def decide(self, commands: Sequence[Command]) -> None:
        """Answer all commands, or collect the questions that must be answered first."""
        for what, some in groupby(commands, _subject):
            if what == "locks":
                self._decide_locks(list(some))
            elif what == "records":
                self._decide_records(list(some))
            else:
                for command in some:
                    self._decide_one(command)

    # -- locks ----------------------------------------------------------------------------------------------

    def _decide_locks(self, commands: list[Any]) -> None:
        """Decide on commands about locks, those about one key together; runs are notified in the order of the commands.

        Where a row is locked by another transaction, each command is decided by itself, so that no other waits for it.
        """
        if len(commands) == 1:
            self._decide_one(commands[0])
            return
        self.repository.looking = self.repository.claiming = False
        try:
            answers: dict[int, Outcome] = {}
            for key, some in by_key(commands).items():
                outcomes = self._decide_key(key, [command for _, command in some])
                answers.update(zip([place for place, _ in some], outcomes, strict=True))
            ordered = [answers[place] for place in range(len(commands))]
            hints = self._notify_runs(ordered)
        except (Unanswered, RowLocked):
            self._decide_apart(commands)
            return
        self._keep(ordered, hints)

    def _decide_apart(self, commands: Sequence[Command]) -> None:
        """Decide each command by itself, where they could not be decided together."""
        self.repository.drop()
        for command in commands:
            self._decide_one(command)

    def _keep(self, answers: Sequence[Outcome], hints: Sequence[str]) -> None:
        """Keep what these commands changed, and their answers."""
        self.repository.keep()
        self.outcomes += answers
        self.hints += hints
        for answer in answers:
            self.woken += answer.notified

    def _notify_runs(self, answers: Sequence[Outcome]) -> list[str]:
        return [
            hint for one in answers if one.notified for hint in notify_offered(self.repository, self.now, one.notified)
        ]

    def _decide_key(self, key: str, commands: Sequence[LockCommand]) -> list[Outcome]:
        def write(record: LockRecord) -> LockRecord:
            changes = Changes()
            changes.locks[key] = record
            self._check(changes)
            self.repository.put_lock(key, record)
            return record

        try:
            before = self.repository.lock(key) or EMPTY
        except RecordUnreadable as error:
            return [failed(command, error) for command in commands]
        return decided(before, commands, self.now, write, reader_of(self.repository, key, before))[1]

    # -- records of any type --------------------------------------------------------------------------------

    def _decide_records(self, commands: list[Any]) -> None:
        """Decide on commands about records, those about one record together; where that is impossible, one by one."""
        if len(commands) == 1:
            self._decide_one(commands[0])
            return
        self.repository.looking = self.repository.claiming = False
        answers: dict[int, Outcome] = {}
        try:
            for some in by_record(commands).values():
                outcomes = self._decide_record([command for _, command in some])
                answers.update(zip([place for place, _ in some], outcomes, strict=True))
            ordered = [answers[place] for place in range(len(commands))]
            hints = self._notify_runs(ordered)
            self._check(self.repository.made)
        except Exception:  # not read yet, locked by another transaction, or not storable
            self._decide_apart(commands)
            return
        self._keep(ordered, hints)

    def _decide_record(self, commands: Sequence[RecordCommand]) -> list[Outcome]:
        kind, key = commands[0].record_type, commands[0].key
        try:
            before = self.repository.record(kind, key)
        except RecordUnreadable as error:
            return [failed(command, error) for command in commands]
        change, outcomes = decided_record(kind, before, commands, self.now)
        if change is not None:
            self.repository.put_written(kind, key, change)
        return outcomes

    # -- one command ----------------------------------------------------------------------------------------

    def _decide_one(self, command: Command) -> None:
        self.repository.looking = isinstance(command, LOOKS)
        self.repository.claiming = isinstance(command, ClaimRuns)
        outcome: Outcome | None = None
        hints: Sequence[str] = ()
        try:
            outcome = self._answer(command)
            if outcome.notified and not isinstance(command, RunCommand):
                hints = notify_offered(self.repository, self.now, outcome.notified)
            if made := self.repository.made:
                self._check(made)
        except Unanswered as missing:
            outcome = self._ask_for(missing.question, command)
            self.repository.drop()
        except RowLocked:
            outcome = None
            self.repository.postpone()
        except Exception as error:  # a bad command fails alone
            outcome = failed(command, error)
            self.repository.drop()
        else:
            self.repository.keep()
            self.woken += outcome.notified
            self.hints += hints
        self.outcomes.append(outcome)

    def _ask_for(self, question: Question, command: Command) -> Outcome | None:
        """Note a question of a command. Returns the failure of the command if the question is not valid."""
        try:
            question.check()
        except (TypeError, ValueError) as error:
            return failed(command, error)
        self.unanswered.append((command, question))
        return None

    def _answer(self, command: Command) -> Outcome:
        repository, now = self.repository, self.now
        if isinstance(command, LockCommand):
            return self._apply(command)[1]
        if isinstance(command, SlotCommand):
            slot = repository.slot(command.address)
            changed, outcome = command.apply(slot, now)
            if changed is not slot:
                repository.put_slot(command.address, changed)
            return outcome
        if isinstance(command, RunCommand):
            return command.apply(repository, now)
        if isinstance(command, RecordCommand | ListRecords | ListDueRecords):
            return self._answer_about_records(command)
        if isinstance(command, SettleDue):
            return self._settle_due(command)
        if isinstance(command, Cleanup):
            return self._clean_up(command)
        raise TypeError(f"{type(command).__name__} is not a command that this store supports")

    def _apply(self, command: LockCommand) -> tuple[bool, Outcome]:
        """Decide on one command about a lock. Also returns whether its record changed."""
        repository, key = self.repository, command.key
        before = repository.lock(key) or EMPTY
        reader = reader_of(repository, key, before)
        after, outcome = decided_alone(before, command, self.now, reader)
        if after is not before:
            repository.put_lock(key, after)
        if reader is not None:
            reader.save()
        return after is not before, outcome

    def _answer_about_records(self, command: RecordCommand | ListRecords | ListDueRecords) -> Outcome:
        if isinstance(command, ListRecords):
            return self._list_records(command)
        if isinstance(command, ListDueRecords):
            return self._list_due_records(command)
        before = self.repository.record(command.record_type, command.key)
        after, outcome = command.apply(before, self.now)
        self.repository.put_record(command.record_type, command.key, after)
        return outcome

    def _list_records(self, command: ListRecords) -> RecordPage:
        limit = page_size(command.limit)
        question = list_of(command)
        keys = self.repository.known(question).items
        items = (listed_record(command.kind, key, text) for key, text in self.repository.record_texts(question))
        following = keys[limit - 1] if len(keys) > limit else None
        shown = tuple(item for item in items if following is None or item.key <= following)
        return RecordPage(items=shown, next=following, now=self.now)

    def _list_due_records(self, command: ListDueRecords) -> RecordsDue:
        """The due records that can be read."""
        limit = page_size(command.limit)
        wanted = limit + 1
        while True:
            question = DueRecords(wanted, command.kind)
            texts = self.repository.record_texts(question)
            items = [item for item in (listed_record(command.kind, *one) for one in texts) if not item.error]
            if len(items) > limit or self.repository.known(question).complete:
                return RecordsDue(items=tuple(items[:limit]), more=len(items) > limit, now=self.now)
            wanted *= 2

    # -- sweeps ---------------------------------------------------------------------------------------------

    def _settle_due(self, command: SettleDue) -> Swept:
        """Settle the due locks. An unreadable or locked one is skipped, so that it does not hide those after it."""
        limit = at_least_one(command.limit)
        wanted = limit + 1
        repository, changed = self.repository, 0
        while True:
            found = repository.known(DueLocks(wanted))
            due = [key for _, key in found.items if self._is_there(key) and self._can_be_notified(key)]
            if len(due) > limit or found.complete:
                break
            wanted *= 2
        outcomes = []
        for key in due[:limit]:
            has_changed, outcome = self._apply(Settle(key=key))
            changed += has_changed
            outcomes.append(outcome)
        return swept(outcomes, changed, due[limit - 1] if len(due) > limit else None)

    def _clean_up(self, command: Cleanup) -> Swept:
        limit, repository = at_least_one(command.limit), self.repository
        keys = repository.known(LocksAfter(limit + 1, command.after)).items
        gone = 0
        for key in keys[:limit]:
            if self._legible(key):
                record = repository.lock(key)
                if record is not None and lock.removable(record, self.now, retention=command.retention):
                    repository.put_lock(key, None)
                    gone += 1
        return Swept(seen=len(keys[:limit]), changed=gone, next=keys[limit - 1] if len(keys) > limit else None)

    def _is_there(self, key: str) -> bool:
        """Whether a lock that an index lists can be read. One that was deleted by hand is removed from the index."""
        if not self._legible(key):
            return False
        if self.repository.lock(key) is None:
            self.repository.put_lock(key, None)
            return False
        return True

    def _can_be_notified(self, key: str) -> bool:
        """Whether the runs that a settled lock would be offered to can be notified."""
        before = self.repository.lock(key) or EMPTY
        reader = reader_of(self.repository, key, before)
        try:
            _, outcome = decided_alone(before, Settle(key=key), self.now, reader)
            for asker in filter(None, map(run_of_attempt, outcome.notified)):
                with suppress(RecordUnreadable):
                    self.repository.run(asker[0])
        except RowLocked:
            return False
        finally:
            if reader is not None:
                reader.forget()
        return True

    def _legible(self, key: str) -> bool:
        try:
            self.repository.lock(key)
        except (RecordUnreadable, RowLocked):
            return False
        return True


def _subject(command: Command) -> str:
    """The kind of record of a command; commands about the same kind are decided together."""
    if isinstance(command, LockCommand) and type(command.key) is str:
        return "locks"
    return "records" if is_about_a_record(command) else ""
