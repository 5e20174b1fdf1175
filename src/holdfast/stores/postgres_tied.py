"""Grants that end with a session (`advisory=true`): a field of the grant, which the rules carry and do not know.

Whoever reads a record leaves out the grants whose sessions have ended (postgres_records.py); here is how the field
comes into a record, and how it goes when a grant changes its owner.
"""

from __future__ import annotations

from msgspec.structs import asdict, replace

from ..commands import Acquire, Command, Transfer
from ..rules.lock import Step
from ..rules.outcomes import Granted, Transferred
from ..rules.record import LockRecord
from .postgres_records import SESSION

UNTIED = ("hold", "lease")
"""A hold is kept for its whole window, and a lease by its owner's name: neither ends with a session."""


class TiedAcquire(Acquire, frozen=True, kw_only=True):
    """An acquire whose grant ends with a session."""

    session: int

    def apply(self, record: LockRecord, now: int) -> Step:
        """Decide, and note the session with the grant."""
        after, outcome = super().apply(record, now)
        if isinstance(outcome, Granted):
            after = _noted(after, record, self.id, self.session)
        return after, outcome


class UntyingTransfer(Transfer, frozen=True, kw_only=True):
    """A transfer: the grant of the one who gets it does not end with the session of the one who had it."""

    def apply(self, record: LockRecord, now: int) -> Step:
        """Decide, and forget the session."""
        after, outcome = super().apply(record, now)
        if isinstance(outcome, Transferred):
            after = _noted(after, record, self.to_id, None)
        return after, outcome


def tied(command: Command, session: int | None) -> Command:
    """The command as it is carried out: with a session, where its grant is to end with it."""
    if session is not None and type(command) is Acquire and command.kind not in UNTIED:
        return TiedAcquire(**asdict(command), session=session)
    return UntyingTransfer(**asdict(command)) if type(command) is Transfer else command


def _noted(after: LockRecord, before: LockRecord, id: str, session: int | None) -> LockRecord:
    """The record with, or without, a session for this attempt's grant."""
    for holder in after.holders:
        known = (holder.unknown or {}).get(SESSION)
        if holder.id == id and known != session:
            unknown = {name: value for name, value in (holder.unknown or {}).items() if name != SESSION}
            if session is not None:
                unknown[SESSION] = session
            changed = replace(holder, unknown=unknown or None)
            holders = tuple(changed if one.id == id else one for one in after.holders)
            version = after.version + 1 if after is before else after.version
            return replace(after, holders=holders, version=version)
    return after
