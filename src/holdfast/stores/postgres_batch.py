"""Batches for PostgreSQL: commands become the parts of one `holdfast.execute`, its answers become outcomes.

The rules run in the server (postgresql.sql). What is only looked at is settled for the eye here, by the rules in
Python. A row that somebody else keeps locked is asked for again for some hundredths of a second, and then that one
command fails: whoever sent it asks again, and everybody else goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from typing import Any, Protocol

import msgspec

from .._platform import elapsed
from ..commands import (
    Acquire,
    Cleanup,
    Command,
    Failed,
    Inspect,
    ListLocks,
    LockCommand,
    Page,
    SettleDue,
    SlotCommand,
    Swept,
)
from ..errors import RecordUnreadable, StoreContended, StoreUnavailable
from ..rules import outcomes as out
from ..rules.outcomes import Outcome
from ..rules.record import EMPTY, decode
from ..rules.slot import Conflict, SlotSeen, Swapped
from ..run_commands import RunCommand
from . import postgres_runs
from .postgres_runs import Row
from .postgres_session import BadData, Contended
from .shared import at_least_one, end_of_prefix, failed, listed

PATIENCE = b"40"
"""Milliseconds for which one command waits for a row that somebody else has locked."""
LOOKS_FOR = 0.06
"""Seconds for which rows that were taken are looked for again: others may be behind them already."""
AT_MOST = 0.5
"""Seconds after which a batch that gets into others' way again and again is not cut into smaller ones any more."""
PAUSES = (0.002, 0.005, 0.010, 0.020)
"""Seconds between looks at the rows that were taken, of all the commands of a batch together."""

UNTIED = ("hold", "lease")
"""A hold is kept for its whole window, and a lease by its owner's name: neither ends with a session."""

Answer = tuple[str, msgspec.Raw]


class Asking(Protocol):
    """What can be asked a statement: a session of our own, or somebody's transaction."""

    def ask(self, statement: bytes, values: Sequence[bytes | None] = ()) -> bytes | None:
        """Send one statement and wait for its first value."""

    def ask_often(self, statement: bytes, values: Sequence[bytes | None]) -> bytes | None:
        """The same for the statement that is sent all the time."""


class _Reply(msgspec.Struct, array_like=True, frozen=True):
    now: int
    parts: list[list[Answer]]
    hints: tuple[str, ...] = ()


_encoder = msgspec.json.Encoder()
_reply = msgspec.json.Decoder(_Reply)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.__name__: msgspec.json.Decoder(kind)
    for kind in (
        out.Granted, out.Queued, out.Busy, out.Renewed, out.Released, out.Abandoned, out.Transferred, out.NotHeld,
        out.TargetHolds, out.Mismatch, out.TooHeavy, out.Gone, out.ForceReleased, out.Settled, Swept, SlotSeen, Swapped,
        Conflict,
    )
} | postgres_runs.DECODERS  # fmt: skip
_taken = msgspec.json.Decoder(postgres_runs.Taken)


class _Held(msgspec.Struct):
    holders: msgspec.Raw


class _Stored(msgspec.Struct):
    record: msgspec.Raw
    key: str = ""  # where a run has asked for it


class _Rows(msgspec.Struct):
    rows: list[tuple[str, msgspec.Raw]]


class Batch:
    """What is the same for all batches of one connection."""

    def __init__(self, session: Asking, schema: bytes, namespace: str, *, patience: bytes | None = None) -> None:
        """With `patience`, also batches wait for rows that somebody else has locked."""
        self._session, self._namespace, self._patience = session, namespace.encode(), patience
        self._statement = b"SELECT %b.execute($1, $2, $3, $4, $5)" % schema
        self._for_one = b"SELECT %b.execute_one($1, $2, $3, $4, $5)" % schema
        self._for_record = b"SELECT %b.execute_record($1, $2, $3, $4, $5)" % schema
        self._who = b"SELECT %b.locked_by($1, $2)" % schema
        self._whose_run = b"SELECT %b.run_locked_by($1, $2)" % schema
        self._tie: int | None = None
        self._late = 0.0
        self._sent = False  # whether something of this batch has been carried out already
        self.hints: list[str] = []  # whom to tell besides those who were granted something
        self._rows: dict[int, Row] = {}  # which row a command waits for, by the identity of the command
        self._stuck_rows: set[Row] = set()  # those that were waited for in vain

    def run(
        self, commands: Sequence[Command], at: bytes | None, told: bytes, *, session: int | None = None
    ) -> list[Outcome]:
        """Answer each command at its own place; grants are tied to the session, if there is one.

        Raises `StoreError` for the batch as a whole.
        """
        self._sent = False
        self._tie = session
        self._late = elapsed() + AT_MOST
        self.hints = []
        self._rows.clear()
        self._stuck_rows.clear()
        try:
            until = elapsed() + LOOKS_FOR
            outcomes = self._run(commands, at, told)
            for pause in PAUSES:
                taken = [place for place, outcome in enumerate(outcomes) if outcome is None]
                if not taken or elapsed() >= until:
                    break
                again = self._look_again([commands[place] for place in taken], at, told, pause)
                for place, outcome in zip(taken, again, strict=True):
                    outcomes[place] = outcome
            stuck = [place for place, outcome in enumerate(outcomes) if outcome is None]
            for place in stuck:
                outcomes[place] = Failed(error=self._stuck(commands[place], look=place == stuck[0]))
        except StoreUnavailable as error:
            error.ambiguous = error.ambiguous or self._sent
            raise
        return outcomes  # type: ignore[return-value]  # every place is filled by now

    def _look_again(
        self, commands: Sequence[Command], at: bytes | None, told: bytes, pause: float
    ) -> list[Outcome | None]:
        """Ask again for what was taken: when a row that is in the way is free, or after a pause."""
        rows = (self._rows.get(id(command)) for command in commands)
        row = next((row for row in rows if row is not None and row not in self._stuck_rows), None)
        if row is None:
            time.sleep(pause)
        return self._run(commands, at, told, row, again=True)

    def _run(
        self,
        commands: Sequence[Command],
        at: bytes | None,
        told: bytes,
        row: Row | None = None,
        *,
        again: bool = False,
    ) -> list[Outcome | None]:
        """Answer what can be answered; None for a command whose row is taken. A row that is named is waited for."""
        if not commands:
            return []
        patience = self._patience
        if patience is None and len(commands) == 1 and row is None and not (again and _may_need_more(commands[0])):
            patience = PATIENCE
        try:
            parts, places = _parts(commands, self._tie)
            if patience is not None and self._patience is None and parts[0][0] in ("one", "records"):
                answers = self._ask_for_one(parts[0], at, patience, told)
            else:
                asked = parts if row is None else [["await", row], *parts]
                values = (self._namespace, _encoder.encode(asked), at, patience, told)
                answers = self._session.ask_often(self._statement, values)
        except (BadData, Contended, TypeError, ValueError, OverflowError) as error:
            if row is not None and isinstance(error, Contended):
                self._stuck_rows.add(row)
                return [None] * len(commands)
            if len(commands) == 1:
                return [None] if isinstance(error, Contended) else [failed(commands[0], error)]
            if isinstance(error, Contended) and elapsed() >= self._late:
                return [None] * len(commands)
            half = len(commands) // 2
            return self._run(commands[:half], at, told) + self._run(commands[half:], at, told)
        self._sent = True
        return self._outcomes(commands, places, answers)

    def _ask_for_one(self, part: list[Any], at: bytes | None, patience: bytes, told: bytes) -> bytes | None:
        """Send what is alone and has a way of its own."""
        statement, sent = (self._for_record, part) if part[0] == "records" else (self._for_one, part[1:])
        return self._session.ask_often(statement, (self._namespace, _encoder.encode(sent), at, patience, told))

    def _outcomes(
        self, commands: Sequence[Command], places: list[int] | None, reply: bytes | None
    ) -> list[Outcome | None]:
        said = _reply.decode(reply or b"")
        self.hints += said.hints
        outcomes: list[Outcome | None] = [None] * len(commands)
        for place, (kind, body) in zip(places or (0,), chain.from_iterable(said.parts), strict=True):
            if kind == "Born":
                outcomes[place] = postgres_runs.born(commands[place], body)  # type: ignore[arg-type]  # only a start is
            elif kind != "Taken":
                outcomes[place] = _outcome(commands[place], kind, body, said.now)
            elif (row := _taken.decode(body).row) is not None:
                self._rows[id(commands[place])] = row
        return outcomes

    def _stuck(self, command: Command, *, look: bool) -> StoreContended:
        row = self._rows.get(id(command)) or _row_of(command)
        key, by = row if isinstance(row, str) else row[2], ""
        if look and key and (isinstance(row, str) or row[0] == "lock"):
            who = self._whose_run if isinstance(row, str) else self._who
            found = self._session.ask(who, (self._namespace, key.encode()))
            by = f" by {found.decode()}" if found else ""
        return StoreContended(
            f"the row of {key!r} is kept locked{by}: nothing was done for this command, and all others go on. Look in "
            "pg_stat_activity for a transaction that was left open (state 'idle in transaction'), and end it."
        )


def _parts(commands: Sequence[Command], session: int | None) -> tuple[list[list[object]], list[int] | None]:
    """The commands as parts, and the places of the commands in them (None: they are in their order).

    Neighbours go together. Of several commands on one key each goes into a part of its own, after the one before it.
    """
    if len(commands) == 1:
        command = commands[0]
        if isinstance(command, RunCommand):
            return [_of_runs(commands)], None
        if isinstance(command, LockCommand):
            _check_texts(command.key)
            return [["one", *_named(command, session)]], None
    parts: list[list[object]] = []
    places: list[int] = []
    for kind, neighbours in groupby(range(len(commands)), lambda place: _kind(commands[place])):
        here = list(neighbours)
        if kind == "locks":
            for turn in _turns(here, lambda place: commands[place].key):  # type: ignore[attr-defined]
                order = sorted(turn, key=lambda place: commands[place].key)  # type: ignore[attr-defined]
                places += order
                sent: list[tuple[object, ...]] = [_named(commands[place], session) for place in order]
                if order != here:  # what follows from them for runs follows in the order in which they came
                    sent = [(*named, place) for named, place in zip(sent, order, strict=True)]
                parts.append(["many", sent])
        elif kind in ("records", "starts"):
            for stretch in _stretches(here, lambda place: postgres_runs.names_of(commands[place])):  # type: ignore[arg-type]
                places += stretch
                parts.append(_of_runs([commands[place] for place in stretch]))
        else:
            places += here
            found = [commands[place] for place in here]
            if kind == "runs":
                parts.append(_of_runs(found))
            elif kind == "slots":
                parts.append(["slots", [_slot(command) for command in found]])
            else:
                parts += [[type(command).__name__, _sweep(command)] for command in found]
    return parts, places


def _kind(command: Command) -> str:
    if isinstance(command, LockCommand):
        return "locks"
    if isinstance(command, RunCommand):
        return postgres_runs.kind_of(command)
    return "slots" if isinstance(command, SlotCommand) else "others"


def _may_need_more(command: Command) -> bool:
    """Whether a command may need more rows than its own: then it is better to know which one is in the way."""
    return isinstance(command, RunCommand) and not postgres_runs.has_one_row(command)


def _row_of(command: Command) -> Row:
    """The row that a command is about."""
    if isinstance(command, RunCommand):
        return postgres_runs.name_of(command)
    address: Row | None = getattr(command, "address", None)
    return address or ("lock", "", getattr(command, "key", ""))


def _turns(places: Iterable[int], name: Callable[[int], str]) -> list[list[int]]:
    """The places of commands in turns: in each turn every name once, and those of one name one after another."""
    turns: list[list[int]] = []
    seen: dict[str, int] = {}
    for place in places:
        key = name(place)
        _check_texts(key)
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(place)
    return turns


def _stretches(places: Iterable[int], names: Callable[[int], tuple[object, ...]]) -> list[list[int]]:
    """The places of commands in their order, in as few stretches as may be: in each stretch every name once."""
    stretches: list[list[int]] = []
    seen: set[object] = set()
    for place in places:
        mine = names(place)
        if not stretches or not seen.isdisjoint(mine):
            stretches.append([])
            seen.clear()
        seen.update(mine)
        stretches[-1].append(place)
    return stretches


def _of_runs(commands: Sequence[Any]) -> list[object]:
    kind = postgres_runs.kind_of(commands[0])
    if kind == "records":
        return postgres_runs.records(commands)
    return postgres_runs.starts(commands) if kind == "starts" else postgres_runs.part(commands)


def _slot(command: Command) -> tuple[str, object]:
    if isinstance(command, SlotCommand):
        _check_texts(*command.address, getattr(command, "request", ""))
    return _named(command)


def _named(command: Command, session: int | None = None) -> tuple[str, object]:
    """A command as the server takes it; a grant that it gets may be tied to a session."""
    if session is None or not isinstance(command, Acquire) or command.kind in UNTIED:
        return type(command).__name__, command
    return "Acquire", {**msgspec.structs.asdict(command), "session": session}


def _check_texts(*texts: object) -> None:
    """JSON would make text of a number, and one key of two."""
    for text in texts:
        if type(text) is not str:
            raise TypeError(f"{text!r} is not text")


def _sweep(command: Command) -> dict[str, object]:
    if isinstance(command, ListLocks):
        after = command.after >= command.prefix
        return {
            "start": command.after if after else command.prefix,
            "inclusive": not after,
            "stop": end_of_prefix(command.prefix),
            "limit": _most(command.limit) + 1,
        }
    if isinstance(command, SettleDue):
        return {"limit": _most(command.limit)}
    if isinstance(command, Cleanup):
        return {"after": command.after, "limit": _most(command.limit), "retention": command.retention}
    raise TypeError(f"{type(command).__name__} is not a command that this store can carry out")


def _most(limit: int) -> int:
    return min(at_least_one(limit), 2**31 - 1)


def _outcome(command: Command, kind: str, body: msgspec.Raw, now: int) -> Outcome | None:
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        try:
            outcome: Outcome = decoder.decode(body)
        except msgspec.ValidationError as error:  # a holder has fields that this version does not know
            return postgres_runs.unread(error) if kind in postgres_runs.DECODERS else _with_holders(command, kind, body)
        return outcome
    try:
        if kind == "Record" and isinstance(command, Inspect):
            text = bytes(msgspec.json.decode(body, type=_Stored).record)
            return command.apply(EMPTY if text == b"{}" else decode(command.key, text), now)[1]
        if kind == "Rows" and isinstance(command, ListLocks):
            return _page(command, msgspec.json.decode(body, type=_Rows).rows, now)
        if kind == "Unreadable" and isinstance(command, LockCommand | RunCommand):
            stored = msgspec.json.decode(body, type=_Stored)
            key: str = stored.key or getattr(command, "key", "")
            decode(key, bytes(stored.record))
            raise RecordUnreadable(  # noqa: TRY301  (one place answers)
                f"the stored record of the lock {key!r} cannot be judged. It was left untouched and the lock "
                "is refused. It may come from a newer version, or be damaged: upgrade, or inspect it by hand.",
                key=key,
            )
    except Exception as error:
        return failed(command, error)
    return None


def _with_holders(command: Command, kind: str, body: msgspec.Raw) -> Outcome:
    """The answer, with what this version does not know of its holders; one that is damaged is no answer."""
    try:
        fields = msgspec.json.decode(body)
        key = getattr(command, "key", "")
        holders = decode(key, b'{"holders":%b}' % bytes(msgspec.json.decode(body, type=_Held).holders)).holders
        made: Outcome = msgspec.convert({**fields, "holders": ()}, _DECODERS[kind].type)
        return msgspec.structs.replace(made, holders=holders)
    except Exception as damaged:
        return failed(command, damaged)


def _page(command: ListLocks, rows: list[tuple[str, msgspec.Raw]], now: int) -> Page:
    limit = at_least_one(command.limit)
    items = []
    for key, text in rows[:limit]:
        try:
            items.append(listed(key, decode(key, bytes(text)), now))
        except RecordUnreadable as error:
            items.append(listed(key, error, now))
    return Page(items=tuple(items), next=rows[limit - 1][0] if len(rows) > limit else None, now=now)
