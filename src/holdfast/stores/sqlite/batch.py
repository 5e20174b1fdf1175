"""One batch of commands inside one SQLite transaction.

Records are read as text, the rules decide, and only changed records are written back. Many renewals are decided by
SQLite itself, in one statement that equals the rule for the simple case and leaves every other case to the rule. The
caller begins and ends the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any, get_args

import msgspec

from ...commands import (
    Cleanup,
    Command,
    ListDueRecords,
    ListLocks,
    ListRecords,
    LockCommand,
    LockPage,
    RecordCommand,
    Renew,
    Settle,
    SettleDue,
    SlotCommand,
    Swept,
)
from ...commands.runs import RunCommand
from ...errors import RecordUnreadable
from ...rules import lock
from ...rules.lock_outcomes import Outcome, Renewed
from ...rules.lock_record import EMPTY, Kind, LockRecord, decode, encode
from ...rules.runs.lock_queue import OverflowReader
from ...rules.runs.lock_requests import RUN_PREFIX
from ..common import at_least_one, by_key, decided, end_of_prefix, failed, listed, swept
from .records import list_due_records, list_records, run_records
from .runs import SqliteRunRepository, notify_runs, run_runs
from .slots import run_slots

FEW_KEYS = 8
"""Up to this number of keys, one SELECT per key is cheaper than one SELECT over a JSON list of keys."""
MANY_RENEWALS = 8
"""From this number of renewals on, the one statement is cheaper than reading, deciding and writing each record."""
MAX_INTEGER = 2**63 - 1
MAX_TTL = 2**53

LOAD = "SELECT record FROM locks WHERE namespace = ? AND key = ?"
# The driver releases the GIL for every row. While other threads compute, a batch that reads or writes many rows would
# wait for the GIL once per row: so many rows are passed in and out as one value.
LOAD_MANY = (
    "SELECT json_group_object(locks.key, record) FROM json_each(?) AS wanted CROSS JOIN locks "
    "WHERE locks.namespace = ? AND locks.key = wanted.value"
)
OVERWRITE = "ON CONFLICT (namespace, key) DO UPDATE SET record = excluded.record, due_at = excluded.due_at"
SAVE = "INSERT INTO locks (namespace, key, record, due_at) VALUES (?, ?, ?, ?) " + OVERWRITE
SAVE_MANY = (
    "INSERT INTO locks (namespace, key, record, due_at) SELECT json_extract(value, '$[0]'), "
    "json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]') FROM json_each(?) "
    "WHERE true " + OVERWRITE
)
DUE = "SELECT key, record FROM locks WHERE namespace = ? AND due_at <= ? ORDER BY due_at, key"
AFTER = "SELECT key, record FROM locks WHERE namespace = ? AND key > ? AND key < ? ORDER BY key LIMIT ?"
FROM = "SELECT key, record FROM locks WHERE namespace = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
REMOVE = "DELETE FROM locks WHERE namespace = ? AND key = ?"
BEYOND_ALL_TEXT = b""
"""SQLite sorts any blob after any text, so this is the end of a range that has none."""

# The payload is a list of [key, ttl, [id, token]]. Several paths in one json_extract yield a list, compared as text.
# A record is simple if it has exactly one holder, the right one, which is confirmed, has neither expired nor an expiry
# beyond its ttl after a clock step, and was not renewed at this same moment; and if time changes nothing else in it.
# The namespace is compared with an expression of the payload's row: otherwise the planner scans the
# whole namespace and searches the payload for each of its rows.
ABSENT = (
    "$.holders[1]",
    "$.holders[0].offered",
    "$.holders[0].unknown",
    "$.waiters",
    "$.tombstones",
    "$.closed_until",
    "$.closed_for",
    "$.due_at",
    "$.unknown",
)
ASKED = f"""
    FROM json_each(?) AS asked {{join}}
    WHERE locks.namespace = iif(asked.value IS NULL, NULL, ?)
      AND locks.key = json_extract(asked.value, '$[0]')
      AND locks.due_at IS NULL
      AND CASE WHEN json_valid(record) THEN
              json_extract(record, '$.holders[0].id', '$.holders[0].token') = json_extract(asked.value, '$[2]')
          AND json_extract(record, {", ".join(f"'{path}'" for path in ABSENT)}) = '[{",".join(["null"] * len(ABSENT))}]'
          AND json_type(record, '$.version') = 'integer'
          AND coalesce(json_extract(record, '$.kind'), 'mutex') IN ({", ".join(f"'{kind}'" for kind in get_args(Kind))})
          AND {{time}}
      END
"""
RENEW = """
    UPDATE locks SET record = json_set(record,
        '$.version', json_extract(record, '$.version') + 1,
        '$.holders[0].ttl', json_extract(asked.value, '$[1]'),
        '$.holders[0].expires_at', ? + json_extract(asked.value, '$[1]'))
""" + ASKED.format(
    join="",
    time="""json_extract(record, '$.holders[0].expires_at')
              BETWEEN ? + 1 AND ? + json_extract(record, '$.holders[0].ttl')
          AND json_extract(record, '$.holders[0].expires_at') IS NOT ? + json_extract(asked.value, '$[1]')""",
)
# Which grants now expire at the requested moment; read only when the count shows that not all do.
RENEWED = "SELECT json_group_array(locks.key)" + ASKED.format(
    join="CROSS JOIN locks",
    time="""json_extract(record, '$.holders[0].ttl') IS json_extract(asked.value, '$[1]')
          AND json_extract(record, '$.holders[0].expires_at') IS ? + json_extract(asked.value, '$[1]')""",
)

Row = tuple[str, str, str, int | None]
"""The namespace, the key, the record and its due_at."""

_ALIKE: dict[type[Command], Callable[..., tuple[list[Outcome], bool]]] = {
    SlotCommand: run_slots,
    RecordCommand: run_records,
    RunCommand: run_runs,
}
"""Commands that are carried out together with directly following commands of the same kind."""

_KEY = itemgetter(0)
_encoder = msgspec.json.Encoder()
_TEXTS = msgspec.json.Decoder(list[str])
_TEXT_BY_KEY = msgspec.json.Decoder(dict[str, str])


class SqliteBatch:
    """The commands of one transaction, and the time at which all of them happen."""

    __slots__ = ("_db", "_namespace", "_now", "_own", "changed", "hints")

    def __init__(self, db: sqlite3.Connection, namespace: str, now: int, *, own: bool = False) -> None:
        """`own`: the transaction contains only this batch, and is rolled back if nothing has `changed`."""
        self._db, self._namespace, self._now, self._own = db, namespace, now, own
        self.changed = False
        self.hints: list[str] = []  # attempts to notify besides those that were granted something

    def run(self, commands: Sequence[Command]) -> list[Outcome]:
        """Answer the commands, in order. A command about many keys sees the changes of all commands before it."""
        if len(commands) == 1 and isinstance(only := commands[0], LockCommand) and type(only.key) is str:
            return [self._run_one(only)]
        if commands and all(isinstance(command, RunCommand) for command in commands):  # what engines send
            runs: Sequence[Any] = commands
            savepoint = not self._own or len(commands) > 1
            outcomes, self.changed = run_runs(self._db, self._namespace, self._now, runs, savepoint=savepoint)
            return outcomes
        try:
            _encoder.encode(commands)
        except Exception:  # text or numbers that no store can hold
            return self._run_apart(commands)
        outcomes = []
        start = 0
        for place, command in enumerate(commands):
            if not isinstance(command, LockCommand) or type(command.key) is not str:
                if place < start:  # carried out together with an earlier one
                    continue
                if start < place:
                    outcomes += self._run_locks(commands[start:place])  # type: ignore[arg-type]
                kind = next((kind for kind in _ALIKE if isinstance(command, kind)), RunCommand)
                alike: list[Any] = list(takewhile(partial(_is, kind), islice(commands, place, None)))
                if alike:
                    answers, changed = _ALIKE[kind](self._db, self._namespace, self._now, alike)
                    self.changed = self.changed or changed
                    outcomes += answers
                    if kind is RecordCommand:
                        self._notify_runs(answers)
                    start = place + len(alike)
                else:
                    outcomes.append(self._sweep(command))
                    start = place + 1
        if start < len(commands):
            outcomes += self._run_locks(commands[start:] if start else commands)  # type: ignore[arg-type]
        return outcomes

    def _run_apart(self, commands: Sequence[Command]) -> list[Outcome]:
        """Answer one by one, so that a command that cannot be encoded fails alone."""
        outcomes: list[Outcome] = []
        for command in commands:
            try:
                _encoder.encode(command)
                outcomes += self.run([command])
            except sqlite3.Error:
                raise
            except Exception as error:  # a bad command fails alone
                outcomes.append(failed(command, error))
        return outcomes

    # ---------------------------------------------------------------- commands about one key

    def _run_locks(self, commands: Sequence[LockCommand]) -> list[Outcome]:
        answers: dict[int, Outcome] = {}
        groups = by_key(commands)
        if len(groups) >= MANY_RENEWALS:
            self._renew_natively(groups, answers)
        texts = self._load(groups.keys())
        rows = []
        for key, some in groups.items():
            row, outcomes = self._decide(key, texts.get(key), [command for _, command in some])
            if row is not None:
                rows.append(row)
            answers.update(zip([place for place, _ in some], outcomes, strict=True))
        ordered = [answers[place] for place in range(len(commands))]
        if rows:
            self._save(rows)
            self._notify_runs(ordered)
        return ordered

    def _decide(self, key: str, text: str | None, commands: Sequence[LockCommand]) -> tuple[Row | None, list[Outcome]]:
        try:
            before = EMPTY if text is None else decode(key, text)
        except RecordUnreadable as error:
            return None, [failed(command, error) for command in commands]
        if before.overflow is None:
            return decided(before, commands, self._now, partial(self._row, key))
        repo = SqliteRunRepository(self._db, self._namespace)
        decisions = decided(before, commands, self._now, partial(self._row, key), OverflowReader(repo, key))
        repo.flush()
        return decisions

    def _run_one(self, command: LockCommand) -> Outcome:
        """The same for a batch of one, which is what a single caller sends."""
        try:
            found = self._db.execute(LOAD, (self._namespace, command.key)).fetchone()
            before = EMPTY if found is None else decode(command.key, found[0])
            if before.overflow is not None:
                return self._run_locks([command])[0]
            after, outcome = command.apply(before, self._now)
            row = None if after is before else self._row(command.key, after)
        except sqlite3.Error:
            raise
        except Exception as error:  # a bad command fails alone
            return failed(command, error)
        if row is not None:
            self.changed = True
            self._db.execute(SAVE, row)
            self._notify_runs((outcome,))
        return outcome

    def _notify_runs(self, outcomes: Sequence[Outcome]) -> None:
        """Notify runs that got an offer, in the same step."""
        woken = [one for outcome in outcomes for one in outcome.notified if one.startswith(RUN_PREFIX)]
        if woken:
            self.hints += notify_runs(self._db, self._namespace, self._now, woken)

    def _save(self, rows: Sequence[Row]) -> None:
        self.changed = True
        if len(rows) > FEW_KEYS:
            self._db.execute(SAVE_MANY, (_encoder.encode(rows).decode(),))
        else:
            self._db.executemany(SAVE, rows)

    def _row(self, key: str, record: LockRecord) -> Row:
        due_at = record.due_at
        if due_at is not None and due_at > MAX_INTEGER:
            raise OverflowError("a time is too large to be stored")
        return self._namespace, key, encode(record).decode(), due_at

    def _load(self, keys: Collection[str]) -> dict[str, str]:
        if len(keys) > FEW_KEYS:
            wanted = _encoder.encode(sorted(keys)).decode()  # sorted, to read the B-tree in its own order
            # Where one of the records is not text, each is read by itself.
            with suppress(sqlite3.OperationalError, msgspec.MsgspecError):
                return _TEXT_BY_KEY.decode(self._db.execute(LOAD_MANY, (wanted, self._namespace)).fetchone()[0])
        texts = {}
        for key in keys:
            found = self._db.execute(LOAD, (self._namespace, key)).fetchone()
            if found is not None:
                texts[key] = found[0]
        return texts

    def _renew_natively(self, groups: dict[str, list[tuple[int, LockCommand]]], answers: dict[int, Outcome]) -> None:
        """Answer the simple renewals and remove them from the groups; the rule decides the others.

        Only keys with one command in this batch are taken, so that the order of the commands on one key is kept, and
        only values that SQLite and the rule understand alike.
        """
        asked = {
            key: (some[0][0], command)
            for key, some in groups.items()
            if len(some) == 1
            and type(command := some[0][1]) is Renew
            and type(command.token) is int
            and (command.ttl is None or (type(command.ttl) is int and 0 < command.ttl < MAX_TTL))
        }
        if len(asked) < MANY_RENEWALS:
            return
        wanted = [(key, command.ttl, (command.id, command.token)) for key, (_, command) in asked.items()]
        wanted.sort(key=_KEY)  # to read the B-tree in its own order
        now = self._now
        values = (_encoder.encode(wanted).decode(), self._namespace, now)
        done = self._db.execute(RENEW, (now, *values, now, now)).rowcount
        self.changed = self.changed or done > 0
        renewed = asked if done == len(asked) else _TEXTS.decode(self._db.execute(RENEWED, values).fetchone()[0])
        for key in renewed:
            place, command = asked[key]
            ttl = command.ttl
            del groups[key]
            answers[place] = Renewed(floor=command.token or 0, expires_at=None if ttl is None else now + ttl)

    # ---------------------------------------------------------------- commands about many keys

    def _sweep(self, command: Command) -> Outcome:
        try:
            if isinstance(command, ListLocks):
                return self._list(command)
            if isinstance(command, SettleDue):
                return self._settle_due(command)
            if isinstance(command, Cleanup):
                return self._clean_up(command)
            if isinstance(command, ListRecords):
                return list_records(self._db, self._namespace, self._now, command)
            if isinstance(command, ListDueRecords):
                return list_due_records(self._db, self._namespace, self._now, command)
            raise TypeError(f"{type(command).__name__} is not a command that this store supports")  # noqa: TRY301
        except sqlite3.Error:
            raise
        except Exception as error:  # a bad command fails alone
            return failed(command, error)

    def _page(self, after: str, limit: int, prefix: str = "") -> tuple[list[tuple[str, str]], str | None]:
        """A page of rows, and the key after which the next page begins."""
        end = end_of_prefix(prefix)
        statement, start = (AFTER, after) if after >= prefix else (FROM, prefix)
        limit = at_least_one(limit)
        values = (self._namespace, start, BEYOND_ALL_TEXT if end is None else end, min(limit + 1, MAX_INTEGER))
        rows = self._db.execute(statement, values).fetchall()
        return rows[:limit], rows[limit - 1][0] if len(rows) > limit else None

    def _list(self, command: ListLocks) -> LockPage:
        rows, following = self._page(command.after, command.limit, command.prefix)
        items = tuple(listed(key, _readable(key, text), self._now) for key, text in rows)
        return LockPage(items=items, next=following, now=self._now)

    def _settle_due(self, command: SettleDue) -> Swept:
        limit = at_least_one(command.limit)
        outcomes = []
        written = []
        cursor = self._db.execute(DUE, (self._namespace, self._now))
        # An unreadable record stays due for ever; it is skipped, so that it does not hide the records after it.
        due = ((key, text) for key, text in cursor if isinstance(_readable(key, text), LockRecord))
        found = list(islice(due, limit + 1))
        cursor.close()
        for key, text in found[:limit]:
            row, answers = self._decide(key, text, [Settle(key=key)])
            if row is not None:
                written.append(row)
            outcomes += answers
        if written:
            self._save(written)
        following = found[limit - 1][0] if len(found) > limit else None
        self._notify_runs(outcomes)
        return swept(outcomes, len(written), following)

    def _clean_up(self, command: Cleanup) -> Swept:
        rows, following = self._page(command.after, command.limit)
        gone = [
            (self._namespace, key)
            for key, text in rows
            if isinstance(record := _readable(key, text), LockRecord)
            and lock.removable(record, self._now, retention=command.retention)
        ]
        if gone:
            self.changed = True
            self._db.executemany(REMOVE, gone)
        return Swept(seen=len(rows), changed=len(gone), next=following)


def _is(kind: type[Command], command: Command) -> bool:
    return isinstance(command, kind)


def _readable(key: str, text: str) -> LockRecord | RecordUnreadable:
    try:
        return decode(key, text)
    except RecordUnreadable as error:
        return error
