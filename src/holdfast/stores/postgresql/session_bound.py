"""Grants and queue positions that end with a session (`advisory=true`), by a field that the rules keep but do not use.

Reading a record omits grants and waiters whose sessions have ended (records.py); this module writes the field into a
record, and removes it when a grant changes its owner.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import asdict, replace

from ...commands import Acquire, Command, Transfer
from ...rules.lock import LockState
from ...rules.lock_outcomes import Granted, Outcome, Queued, Transferred
from ...rules.lock_record import Holder, Waiter
from .records import SESSION

Tied = TypeVar("Tied", Holder, Waiter)
UNTIED = ("hold", "lease")
"""A hold lasts for its whole window, and a lease belongs to its owner's name: neither ends with a session."""


class SessionBoundAcquire(Acquire, frozen=True, kw_only=True):
    """An acquire whose grant, or position in the queue, ends with a session."""

    session: int

    def decide(self, lock: LockState) -> Outcome:
        """Decide, and note the session in the grant or in the waiter."""
        outcome = super().decide(lock)
        if isinstance(outcome, Granted | Queued):
            _note(lock, self.id, self.session)
        return outcome


class UnbindingTransfer(Transfer, frozen=True, kw_only=True):
    """A transfer: the grant of the new holder does not end with the session of the old one."""

    def decide(self, lock: LockState) -> Outcome:
        """Decide, and remove the session."""
        outcome = super().decide(lock)
        if isinstance(outcome, Transferred):
            _note(lock, self.to_id, None)
        return outcome


def tied(command: Command, session: int | None) -> Command:
    """The command to carry out: with the session, if its grant must end with it."""
    if session is not None and type(command) is Acquire and command.kind not in UNTIED:
        return SessionBoundAcquire(**asdict(command), session=session)
    return UnbindingTransfer(**asdict(command)) if type(command) is Transfer else command


def _note(lock: LockState, id: str, session: int | None) -> None:
    """Note a session in the grant or waiter of this attempt; None: remove it."""
    if (holder := lock.holders.get(id)) is not None:
        lock.hold(_with_session(holder, session))
    elif (waiter := lock.waiters.get(id)) is not None:
        lock.queue(_with_session(waiter, session))


def _with_session(one: Tied, session: int | None) -> Tied:
    if (one.unknown or {}).get(SESSION) == session:
        return one
    unknown = {name: value for name, value in (one.unknown or {}).items() if name != SESSION}
    if session is not None:
        unknown[SESSION] = session
    return replace(one, unknown=unknown or None)
