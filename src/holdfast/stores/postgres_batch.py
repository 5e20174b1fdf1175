"""Batches for PostgreSQL: commands become the parts of one `holdfast.execute`, its answers become outcomes.

The rules run in the server (postgresql.sql). What is only looked at is settled for the eye here, by the rules in
Python. A row that somebody else keeps locked is asked for again for some hundredths of a second, and then that one
command fails: whoever sent it asks again, and everybody else goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

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
from .postgres_session import BadData, Contended, Session
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

_encoder = msgspec.json.Encoder()
_reply = msgspec.json.Decoder(tuple[int, list[list[Answer]]])
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.__name__: msgspec.json.Decoder(kind)
    for kind in (
        out.Granted, out.Queued, out.Busy, out.Renewed, out.Released, out.Abandoned, out.Transferred, out.NotHeld,
        out.TargetHolds, out.Mismatch, out.TooHeavy, out.Gone, out.ForceReleased, out.Settled, Swept, SlotSeen, Swapped,
        Conflict,
    )
}  # fmt: skip


class _Held(msgspec.Struct):
    holders: msgspec.Raw


class _Stored(msgspec.Struct):
    record: msgspec.Raw


class _Rows(msgspec.Struct):
    rows: list[tuple[str, msgspec.Raw]]


class Batch:
    """What is the same for all batches of one connection."""

    def __init__(self, session: Session, schema: bytes, namespace: str) -> None:
        self._session, self._namespace = session, namespace.encode()
        self._statement = b"SELECT %b.execute($1, $2, $3, $4, $5)" % schema
        self._who = b"SELECT %b.locked_by($1, $2)" % schema
        self._tie: int | None = None
        self._late = 0.0
        self._sent = False  # whether something of this batch has been carried out already

    def run(
        self, commands: Sequence[Command], at: bytes | None, told: bytes, *, session: int | None = None
    ) -> list[Outcome]:
        """Answer each command at its own place; grants are tied to the session, if there is one.

        Raises `StoreError` for the batch as a whole.
        """
        self._sent = False
        self._tie = session
        self._late = elapsed() + AT_MOST
        try:
            until = elapsed() + LOOKS_FOR
            outcomes = self._run(commands, at, told)
            for pause in PAUSES:
                taken = [place for place, outcome in enumerate(outcomes) if outcome is None]
                if not taken or elapsed() >= until:
                    break
                time.sleep(pause)
                again = self._run([commands[place] for place in taken], at, told)
                for place, outcome in zip(taken, again, strict=True):
                    outcomes[place] = outcome
            stuck = [place for place, outcome in enumerate(outcomes) if outcome is None]
            for place in stuck:
                outcomes[place] = Failed(error=self._stuck(commands[place], look=place == stuck[0]))
        except StoreUnavailable as error:
            error.ambiguous = error.ambiguous or self._sent
            raise
        return outcomes  # type: ignore[return-value]  # every place is filled by now

    def _run(self, commands: Sequence[Command], at: bytes | None, told: bytes) -> list[Outcome | None]:
        """Answer what can be answered; None for a command whose row is taken."""
        if not commands:
            return []
        patience = PATIENCE if len(commands) == 1 else None
        try:
            parts, places = _parts(commands, self._tie)
            answers = self._session.ask_often(
                self._statement, (self._namespace, _encoder.encode(parts), at, patience, told)
            )
        except (BadData, Contended, TypeError, ValueError, OverflowError) as error:
            if len(commands) == 1:
                return [None] if isinstance(error, Contended) else [failed(commands[0], error)]
            if elapsed() >= self._late and isinstance(error, Contended):
                return [None] * len(commands)
            half = len(commands) // 2
            return self._run(commands[:half], at, told) + self._run(commands[half:], at, told)
        self._sent = True
        return _outcomes(commands, places, answers)

    def _stuck(self, command: Command, *, look: bool) -> StoreContended:
        key = getattr(command, "key", None) or getattr(command, "address", ("", "", ""))[2]
        by = ""
        if look and isinstance(command, LockCommand):
            found = self._session.ask(self._who, (self._namespace, command.key.encode()))
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
        if isinstance(command, LockCommand):
            _check_texts(command.key)
            return [["one", *_named(command, session)]], None
    parts: list[list[object]] = []
    places: list[int] = []
    rounds: list[dict[str, int]] = []
    slots: list[int] = []

    def finish() -> None:
        for one_round in rounds:
            order = [place for _, place in sorted(one_round.items())]
            places.extend(order)
            parts.append(["many", [_named(commands[place], session) for place in order]])
        if slots:
            places.extend(slots)
            parts.append(["slots", [_named(commands[place]) for place in slots]])
        rounds.clear()
        slots.clear()

    seen: dict[str, int] = {}
    for place, command in enumerate(commands):
        if isinstance(command, LockCommand):
            _check_texts(command.key)
            if slots:
                finish()
            if not rounds:
                seen = {}
            turn = seen.get(command.key, 0)
            seen[command.key] = turn + 1
            if turn == len(rounds):
                rounds.append({})
            rounds[turn][command.key] = place
        elif isinstance(command, SlotCommand):
            _check_texts(*command.address, getattr(command, "request", ""))
            if rounds:
                finish()
            slots.append(place)
        else:
            finish()
            places.append(place)
            parts.append([type(command).__name__, _sweep(command)])
    finish()
    return parts, places


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


def _outcomes(commands: Sequence[Command], places: list[int] | None, reply: bytes | None) -> list[Outcome | None]:
    now, parts = _reply.decode(reply or b"")
    outcomes: list[Outcome | None] = [None] * len(commands)
    for place, (kind, body) in zip(places or (0,), chain.from_iterable(parts), strict=True):
        outcomes[place] = _outcome(commands[place], kind, body, now)
    return outcomes


def _outcome(command: Command, kind: str, body: msgspec.Raw, now: int) -> Outcome | None:
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        try:
            outcome: Outcome = decoder.decode(body)
        except msgspec.ValidationError:  # a holder has fields that this version does not know
            return _with_holders(command, kind, body)
        return outcome
    try:
        if kind == "Record" and isinstance(command, Inspect):
            text = bytes(msgspec.json.decode(body, type=_Stored).record)
            return command.apply(EMPTY if text == b"{}" else decode(command.key, text), now)[1]
        if kind == "Rows" and isinstance(command, ListLocks):
            return _page(command, msgspec.json.decode(body, type=_Rows).rows, now)
        if kind == "Unreadable" and isinstance(command, LockCommand):
            decode(command.key, bytes(msgspec.json.decode(body, type=_Stored).record))
            raise RecordUnreadable(  # noqa: TRY301  (one place answers)
                f"the stored record of the lock {command.key!r} cannot be judged. It was left untouched and the lock "
                "is refused. It may come from a newer version, or be damaged: upgrade, or inspect it by hand.",
                key=command.key,
            )
    except Exception as error:
        return failed(command, error)
    return None


def _with_holders(command: Command, kind: str, body: msgspec.Raw) -> Outcome:
    fields = msgspec.json.decode(body)
    key = getattr(command, "key", "")
    holders = decode(key, b'{"holders":%b}' % bytes(msgspec.json.decode(body, type=_Held).holders)).holders
    made: Outcome = msgspec.convert({**fields, "holders": ()}, _DECODERS[kind].type)
    return msgspec.structs.replace(made, holders=holders)


def _page(command: ListLocks, rows: list[tuple[str, msgspec.Raw]], now: int) -> Page:
    limit = at_least_one(command.limit)
    items = []
    for key, text in rows[:limit]:
        try:
            items.append(listed(key, decode(key, bytes(text)), now))
        except RecordUnreadable as error:
            items.append(listed(key, error, now))
    return Page(items=tuple(items), next=rows[limit - 1][0] if len(rows) > limit else None, now=now)
