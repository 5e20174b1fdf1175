"""Batches for PostgreSQL: which commands use native forms, which the rules decide, and which are tried again.

A row or a limit that another transaction has locked is tried again for some hundredths of a second, and then the
commands that need it fail: their callers send them again, and all other commands are carried out meanwhile. A batch
that has waited for a key which another transaction has inserted is divided into parts that hardly wait, down to the
command with that key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import groupby

from ...commands import Command, Failed, LockCommand, RecordCommand, SlotCommand
from ...commands.runs import RecordRun, RunCommand, StartRun
from ...errors import StoreContended, StoreError
from ...platform import elapsed
from ...rules.lock_outcomes import Outcome
from ...rules.runs.record import Finish
from .. import batch_cost, executor
from ..common import failed, flaw
from ..footprint import footprint
from ..questions import GroupSize, LimitsOf, LockByKey, Question, RecordAt, RunById, SlotAt
from .contention import kept_locked, table_locked
from .fast_path import Part, outcomes_of, parts_of, statement_for
from .reading import busy_name
from .repository import OwnTransactions, PostgresSource, Transactions
from .session import BadData, Contended, LacksRights, NotInstalled, WriteConflict
from .session_bound import tied

PATIENCE = b"40"
"""Milliseconds for which one command waits for a row or a limit that another transaction has locked."""
LOOKS_FOR = 0.06
"""Seconds for which locked rows are tried again: other commands may already wait for them."""
PAUSES = (0.002, 0.005, 0.010, 0.020)
"""Seconds between two tries of the locked rows, of all commands of a batch together."""

STAYS_CROWDED = 8
"""For how many commands after the last contention a lock is left to the rules at once."""
MOST_CROWDED = 1_000

ROWS = (RunById, LockByKey, RecordAt, SlotAt)
GROUPS = (GroupSize, LimitsOf)
"""Questions about rows and groups that can be waited for."""


class PostgresBatch:
    """Executes the batches of one connection."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        schema: str,
        namespace: str,
        patient: bool = False,
        mend: Callable[[], bool] = bool,
    ) -> None:
        """With `patient`, batches also wait for rows and limits that another transaction has locked.

        `mend` creates missing functions, and returns whether trying again makes sense.
        """
        self._transactions, self._schema, self._namespace = transactions, schema, namespace
        self._patient, self._mend = patient, mend
        self._source = PostgresSource(transactions, schema=schema, namespace=namespace, mend=self._make_functions)
        self._mended = False
        self.hints: list[str] = []
        """Attempts to notify, besides those that were granted something."""
        self._crowded: dict[str, int] = {}
        self._taken: list[Question] = []
        """What the last try found locked by other transactions."""
        self._busy: dict[int, Sequence[Question]] = {}
        """What each remaining command needed and could not lock at its last try, by the command's identity."""
        self._in_vain: set[Question] = set()
        """What was waited for and could not be locked."""
        self._moving: dict[Question, None] = {}
        """Groups that were locked and became free in time: commands that count wait for all of these at once."""
        self._together = False
        """Whether commands remain that may not need the row that the round trip failed for."""
        self._whole_table = False

    def run(
        self,
        commands: Sequence[Command],
        at: bytes | None,
        local_channels: Collection[str] | None,
        *,
        session: int | None = None,
    ) -> list[Outcome]:
        """Answer the commands, in order; grants are tied to the session, if there is one.

        `at` replaces the clock; the caller itself sends hints to `local_channels`; None: no hints are sent at all.
        Raises `StoreError` for the batch as a whole.
        """
        source = self._source
        source.at, source.local_channels, source.wrote = at, local_channels, False
        source.hasty = False
        self.hints, self._mended, self._whole_table = [], False, False
        for known in (self._taken, self._busy, self._in_vain):
            known.clear()
        try:
            outcomes = self._patiently([tied(command, session) for command in commands], elapsed() + LOOKS_FOR)
            source.close()
            _check_rights(outcomes)
        except BaseException as error:
            if isinstance(error, StoreError):  # an earlier part of the batch may have been carried out
                error.ambiguous = error.ambiguous or source.wrote
            with suppress(StoreError):
                source.close()
            raise
        return outcomes

    def _patiently(self, commands: Sequence[Command], until: float) -> list[Outcome]:
        """Try locked rows again for a while; then the commands that need them fail.

        No command fails because another one took long: if a round trip failed for several commands, each is tried once
        more without waiting. That try also shows which row a command waited for.
        """
        self._together = False
        outcomes = self._run(commands)
        for pause in PAUSES:
            if None not in outcomes or elapsed() >= until:
                break
            self._look_again(commands, outcomes, pause)
        if None in outcomes and (self._together or not self._busy):
            self._look_again(commands, outcomes, PAUSES[0], waiting=False)
        stuck = [place for place, outcome in enumerate(outcomes) if outcome is None]
        for place in stuck:
            outcomes[place] = Failed(error=self._stuck(commands[place], look=place == stuck[0]))
        return outcomes  # type: ignore[return-value]  # all are answered by now

    def _look_again(
        self, commands: Sequence[Command], outcomes: list[Outcome | None], pause: float, *, waiting: bool = True
    ) -> None:
        """Try locked rows again: when a row or a group becomes free, or after a pause."""
        taken = [place for place, outcome in enumerate(outcomes) if outcome is None]
        awaited = self._next_awaited() if waiting else ()
        self._taken.clear()
        self._together = False
        if not awaited:
            self._source.close()  # no row stays locked meanwhile
            time.sleep(pause)
        again = self._run([commands[place] for place in taken], awaited, again=True)
        for place, outcome in zip(taken, again, strict=True):
            outcomes[place] = outcome

    def _next_awaited(self) -> Sequence[Question]:
        """A row to wait for; or a group, with the groups that are soon free: a command may need several."""
        for busy in self._taken:
            if isinstance(busy, ROWS) and busy not in self._in_vain:
                return (busy,)
            if isinstance(busy, GROUPS) and busy not in self._in_vain:
                return (*(one for one in self._moving if one != busy), busy)
        return ()

    def _run(
        self, commands: Sequence[Command], awaited: Sequence[Question] = (), *, again: bool = False
    ) -> list[Outcome | None]:
        """Answer the commands; None for a command whose row is locked. Only what is `awaited` is waited for.

        Commands about runs and commands about locks do not overtake each other where a form has declined one of them:
        the lock may be the lease of the run's worker, or one that the run holds or waits for.
        """
        outcomes: list[Outcome | None] = [None] * len(commands)
        transactions = self._transactions
        native = isinstance(transactions, OwnTransactions) and transactions.out_of_process and not again
        declined: list[int] = []
        for part in parts_of(commands, self._crowded) if native else [Part(None, list(range(len(commands))), [])]:
            places = part.places
            overtakes = bool(declined) and any(
                isinstance(commands[place], RunCommand) for place in (*declined, *places)
            )
            if part.form is not None and isinstance(transactions, OwnTransactions) and not overtakes:
                answers = self._call(transactions, part, [commands[place] for place in places])
                declined += [place for place, answer in zip(places, answers, strict=True) if answer is None]
            else:
                places, declined = sorted([*declined, *places]), []
                answers = self._by_the_rules([commands[place] for place in places], awaited, again=again)
            for place, answer in zip(places, answers, strict=True):
                outcomes[place] = answer
        left = self._by_the_rules([commands[place] for place in declined], awaited, again=again)
        for place, answer in zip(declined, left, strict=True):
            outcomes[place] = answer
        return outcomes

    def _call(self, transactions: OwnTransactions, part: Part, commands: Sequence[Command]) -> list[Outcome | None]:
        """Send commands to their form. The rules decide commands that it declines or cannot accept."""
        source, namespace = self._source, self._namespace.encode()
        source.close()
        try:
            statement = statement_for(
                part, schema=self._schema, namespace=namespace, at=source.at, local_channels=source.local_channels or ()
            )
            rows = transactions.call(statement)
        except NotInstalled as missing:
            self._make_functions(missing)
            return self._call(transactions, part, commands)
        except (BadData, Contended, LacksRights, WriteConflict, TypeError, ValueError, OverflowError) as error:
            source.hasty = source.hasty or (isinstance(error, Contended) and len(commands) > 1)  # it has waited
            return [None] * len(commands)
        source.wrote = source.wrote or bool(rows)
        return outcomes_of(part, commands, rows)

    def _make_functions(self, missing: NotInstalled) -> None:
        """Create missing functions, once per batch; no command that needs them was carried out."""
        self._source.close()
        if self._mended or not self._mend():
            raise missing
        self._mended = True

    def _by_the_rules(
        self, commands: Sequence[Command], awaited: Sequence[Question], *, again: bool
    ) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [flaw(command) for command in commands]
        sound = [place for place, flaw in enumerate(outcomes) if flaw is None]
        for kind, some in groupby(sound, lambda place: executor.kind_of(commands[place])):
            neighbours = list(some)
            wanted = [commands[place] for place in neighbours]
            for part in (
                batch_cost.parts_of(wanted) if kind == "decisions" else ([place] for place in range(len(wanted)))
            ):
                answers = self._decide([wanted[place] for place in part], awaited, again=again)
                for place, answer in zip((neighbours[place] for place in part), answers, strict=True):
                    outcomes[place] = answer
        return outcomes

    def _decide(self, commands: Sequence[Command], awaited: Sequence[Question], *, again: bool) -> list[Outcome | None]:
        source, alone = self._source, len(commands) == 1 and not again
        if alone and (row := _row_of(commands[0])) is not None:
            awaited = (row,)
        at_once = not (alone or again or awaited) and all(map(_counts, commands))
        if at_once:
            awaited = tuple(self._moving)
        source.patient = self._patient and not source.hasty
        source.alone, source.awaited = alone, awaited
        try:
            outcomes, hints, _ = executor.execute(source, commands, in_halves=False)
        except NotInstalled as missing:
            self._make_functions(missing)
            return self._decide(commands, awaited, again=again)
        except executor.StepRefused:  # other clients were faster each time: each half is tried by itself
            source.close()
            return self._halves(commands)
        except (BadData, Contended, LacksRights, TypeError, ValueError, OverflowError) as error:
            source.close()
            if at_once and awaited and isinstance(error, Contended) and not source.writing:
                self._moving.clear()  # one of them does not become free
                source.hasty = True
                return self._by_the_rules(commands, (), again=True)
            return self._cut(commands, error, awaited)
        if awaited and isinstance(awaited[-1], GROUPS):
            if len(self._moving) >= MOST_CROWDED:
                self._moving.clear()
            self._moving[awaited[-1]] = None
        self.hints += hints
        self._taken += source.occupied
        for command, outcome in zip(commands, outcomes, strict=True):
            if outcome is None:
                self._note_busy(command, source.occupied)
        for command in commands:
            if isinstance(command, LockCommand):
                self._note_contention(command.key)
        return outcomes

    def _note_contention(self, key: str) -> None:
        """Remember for a few commands that a lock is contended: its form would decline, at the cost of a round trip."""
        if self._source.is_crowded(key):
            if len(self._crowded) >= MOST_CROWDED:
                self._crowded.clear()
            self._crowded[key] = STAYS_CROWDED
        elif (left := self._crowded.pop(key, 0) - 1) > 0:
            self._crowded[key] = left

    def _cut(self, commands: Sequence[Command], error: Exception, awaited: Sequence[Question]) -> list[Outcome | None]:
        """After an error of a whole batch: try halves, down to the one command that causes it."""
        source = self._source
        if not isinstance(error, Contended):
            return [failed(commands[0], error)] if len(commands) == 1 else self._halves(commands)
        self._together = self._together or len(commands) > 1
        if awaited and not source.writing:
            self._in_vain.add(awaited[-1])
            self._moving.pop(awaited[-1], None)
            return [None] * len(commands)
        if len(commands) == 1:
            if source.writing:
                self._busy[id(commands[0])] = source.inserted  # any of these rows may be the cause
            self._whole_table = self._whole_table or not (source.writing or source.alone)
            return [None]
        patient, source.hasty = source.patient, True
        if patient and not source.writing:
            return self._by_the_rules(commands, (), again=True)  # without waiting for them again
        if not source.writing and len({_table_of(command) for command in commands}) == 1:
            self._whole_table = True  # no row is waited for
            return [None] * len(commands)
        return self._halves(commands)

    def _halves(self, commands: Sequence[Command]) -> list[Outcome | None]:
        half = len(commands) // 2
        parts = commands[:half], commands[half:]
        return [outcome for part in parts for outcome in self._by_the_rules(part, (), again=False)]

    def _note_busy(self, command: Command, busy: Sequence[Question]) -> None:
        """Remember which of the locked rows a command needs."""
        with suppress(Exception):  # values of the wrong type have no name
            for question in footprint(command, self._source.snapshot):
                if (name := busy_name(question)) in busy:
                    self._busy[id(command)] = (name,)
                    return
        self._busy[id(command)] = busy[:1]

    def _stuck(self, command: Command, *, look: bool) -> StoreContended:
        """The error of a command that failed; `look`: find the process that has locked its row."""
        busy = self._busy.get(id(command), ())
        if not busy and self._whole_table:
            return table_locked(self._source.look, self._schema)
        if not busy and (row := _row_of(command)) is not None:
            busy = (row,)
        return kept_locked(
            command, busy, self._source.look if look else None, schema=self._schema, namespace=self._namespace
        )


def _check_rights(outcomes: Sequence[Outcome]) -> None:
    """Raise where the role has no privileges at all: that is not the failure of a single command."""
    errors = [outcome.error for outcome in outcomes if isinstance(outcome, Failed)]
    if outcomes and len(errors) == len(outcomes) and all(isinstance(error, LacksRights) for error in errors):
        raise errors[0]


def _table_of(command: Command) -> type[Command]:
    """The type of a command: commands of one type mostly need the same tables."""
    return LockCommand if isinstance(command, LockCommand) else type(command)


def _counts(command: Command) -> bool:
    """Whether a command is probably counted by limits: it starts or ends a run."""
    if isinstance(command, StartRun):
        return bool(command.new.places)
    return isinstance(command, RecordRun) and isinstance(command.then, Finish)


def _row_of(command: Command) -> Question | None:
    """The row that a command is about."""
    if isinstance(command, RunCommand):
        name = "" if isinstance(command, StartRun) else getattr(command, "run", "")
        return RunById(name) if name else None
    if isinstance(command, LockCommand):
        return LockByKey(command.key)
    if isinstance(command, RecordCommand):
        return RecordAt(command.record_type.name, command.key)
    return SlotAt(command.address) if isinstance(command, SlotCommand) else None
