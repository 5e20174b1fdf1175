"""Executes a batch by the rules in Python, over a store that answers questions and writes changes.

Such a store implements `RecordSource`. A batch is one read of all records that its commands will probably need, one
pass of the rules (`decisions.py`), and one write. If a rule needs more records, it is executed again after a larger
read. If another transaction has locked a record, or another client has changed it in the meantime, the commands about
this record are left for the next try. If commands cannot be written together, the batch is split in halves, down to
the one command that fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from ..commands import Cleanup, Command, Failed, ListDueRecords, ListLocks, ListRecords, SettleDue
from ..commands.purging import PURGE_SCANS, PURGES
from ..commands.runs import ClaimRuns, CountRuns, ListRuns
from ..errors import StoreError, StoreUnavailable
from ..rules.lock_outcomes import Outcome
from .batch_cost import parts_of
from .common import failed
from .decisions import LOOKS, Decisions
from .footprint import followed, footprint, is_written
from .questions import Changes, DueRecords, Members, Question, QueuedLimitKeys, RunsOf, Snapshot
from .repository import BatchRepository

SCANS: tuple[type[Command], ...] = (ListLocks, ListRuns, CountRuns, *PURGE_SCANS)
"""Commands that read any number of rows: the store answers them itself, outside of decisions."""
SWEEPS: tuple[type[Command], ...] = (SettleDue, Cleanup, ListRecords, ListDueRecords, *PURGES)
"""Decisions that depend on a list: each goes by itself, so that the list contains all earlier changes."""
LISTS = (Members, RunsOf, QueuedLimitKeys, DueRecords)
TRIES = 60
"""How often one command is decided, at most, if other clients change its records each time."""
TRIES_TOGETHER = 3
"""How often several commands are decided together before they are decided in halves: only one of them may be about a
record that other clients change all the time."""
ROUNDS = 1_000
"""How often a batch is read again, at most, if a rule needs more each time."""


class StepRefused(Exception):
    """A step was refused, and nothing of it was done: a smaller step may succeed."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error
        """The failure of the command, if the step has only one."""


class RecordSource(Protocol):
    """What a store implements so that the rules can decide on its records.

    `read`, `write` and `scan` raise `StepRefused` where the store refuses a request but still works: a missing
    permission, or data of another type under the key of an index. Any other error is about the connection.
    """

    @property
    def guesses(self) -> Snapshot | None:
        """Older answers, used only to predict what a command will read. No decision depends on them."""

    def read(self, questions: Collection[Question], *, changing: Collection[Question]) -> Snapshot:
        """Read the answers in one step, with the store's time taken with or after the records, never before.

        `changing` are those of the questions whose rows a decision may write; none where the commands only read. Where
        the store has locks, these rows stay locked until `write` or `undo`; a row that another transaction has locked
        is answered with `RowLocked`. The snapshot may contain further answers that will probably be needed.
        """

    def write(self, repository: BatchRepository, hints: Sequence[str], woken: Sequence[str]) -> bool:
        """Write the changes in one durable step. False: another client was faster, and nothing was written.

        `woken` are the attempts that were granted something, `hints` those that must check for another reason.
        """

    def check(self, changes: Changes) -> None:
        """Raise for a change that this store cannot hold: the command that made it fails alone."""

    def undo(self) -> None:
        """End the step of the last `read` without writing."""

    def scan(self, command: Command) -> Outcome:
        """Answer one of the `SCANS`."""


class Executed(NamedTuple):
    """The result of a batch."""

    outcomes: list[Outcome | None]
    """One for each command, in order; None: another transaction has locked a row of it, and nothing was done."""
    hints: list[str]
    """Attempts to notify, besides those in the outcomes' `woken` and `hinted`."""
    moments: list[int]
    """When each command was decided, by the store's clock."""


def execute(source: RecordSource, commands: Sequence[Command], *, in_halves: bool = True) -> Executed:
    """Answer the commands, in order. A batch that is too much work for one step is divided (`batch_cost.py`).

    With `in_halves=False` a step that is refused raises `StepRefused`, and nothing of it was done. That is for a store
    that handles errors of `write` by trying again: the outcomes of a half that was written would be lost.
    """
    done = Executed([], [], [])
    for kind, some in groupby(commands, kind_of):
        if kind == "scans":
            for command in some:
                outcome = _scanned(source, command)
                done.outcomes.append(outcome)
                done.moments.append(getattr(outcome, "now", 0))
            continue
        for together in [[command] for command in some] if kind == "sweeps" else _cut(list(some)):
            _decide_all(source, together, done, in_halves=in_halves)
    return done


def _decide_all(source: RecordSource, commands: Sequence[Command], done: Executed, *, in_halves: bool) -> None:
    """Add the results of some commands: in one step or, where that is refused, in halves."""
    try:
        decisions = _decide(source, commands)
    except StepRefused as refused:
        if len(commands) == 1:
            done.outcomes.append(Failed(error=refused.error))
            done.moments.append(0)
            return
        if not in_halves:
            raise
        half = len(commands) // 2
        _decide_all(source, commands[:half], done, in_halves=True)
        _decide_all(source, commands[half:], done, in_halves=True)
        return
    done.outcomes.extend(decisions.outcomes)
    done.hints.extend(decisions.hints)
    done.moments.extend([decisions.now] * len(commands))


def _cut(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    return (commands[part.start : part.stop] for part in parts_of(commands))


def kind_of(command: Command) -> str:
    """How a command is executed: adjacent "decisions" are executed together, each other command by itself."""
    if isinstance(command, SCANS):
        return "scans"
    return "sweeps" if isinstance(command, SWEEPS) else "decisions"


def _scanned(source: RecordSource, command: Command) -> Outcome:
    try:
        return source.scan(command)
    except StoreUnavailable:
        raise
    except StepRefused as refused:
        return Failed(error=refused.error)
    except Exception as error:  # a bad command fails alone
        return failed(command, error)


def _decide(source: RecordSource, commands: Sequence[Command]) -> Decisions:
    asked: dict[Question, None] = {}
    changing: dict[Question, None] = {}
    lists: dict[Question, Command] = {}  # lists that a rule needed: it needs their items next
    known: Snapshot | None = source.guesses
    tries, most = 0, TRIES if len(commands) == 1 else TRIES_TOGETHER
    for _ in range(ROUNDS):
        for command in commands:
            _note(command, _forecast(footprint(command, known)), asked, changing)
        for names, command in lists.items():
            _note(command, _forecast(followed(names, known)), asked, changing)
        known = source.read(asked, changing=changing)
        decisions = Decisions(known, source.check)
        decisions.decide(commands)
        if decisions.unanswered:
            source.undo()
            for command, question in decisions.unanswered:
                _note(command, (question,), asked, changing)
                if isinstance(question, LISTS):
                    lists[question] = command
        elif not decisions.repository.changes and not (changing and decisions.woken):
            source.undo()
            return decisions
        elif source.write(decisions.repository, decisions.hints, decisions.woken):
            return decisions
        else:
            asked.clear()
            changing.clear()
            lists.clear()
            known, tries = None, tries + 1
            if tries == most:
                break
            if len(commands) == 1:
                commands = (_narrowed(commands[0]),)
    raise StepRefused(
        StoreUnavailable(
            f"other clients changed the records of this command before it could be written, {tries} times in a row. "
            "Nothing was changed for it. It can be sent again."
        )
    )


def _narrowed(command: Command) -> Command:
    """The command to try next if another client was faster: a claim depends on all its runs, so half as many."""
    if isinstance(command, ClaimRuns) and command.limit > 1:
        return replace(command, limit=command.limit // 2)
    return command


def _forecast(expected: Iterator[Question]) -> dict[Question, None]:
    questions: dict[Question, None] = {}
    try:
        for question in expected:
            question.check()
            questions[question] = None
    except Exception:  # values of the wrong type: the rule will report them
        return questions
    return questions


def _note(
    command: Command, questions: Iterable[Question], asked: dict[Question, None], changing: dict[Question, None]
) -> None:
    """Note the questions of a command, and which of them are about rows that it may write."""
    writes = not isinstance(command, LOOKS)
    for question in questions:
        asked[question] = None
        if writes and is_written(command, question):
            changing[question] = None
