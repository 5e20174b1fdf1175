"""An example record type for the suite: a count to which members add, and which ends at some time.

The suite uses it to test what every store promises for any record type. It is also an example: the struct, its
`RecordType`, and a rule for each command are all that a new type needs.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from .. import commands as c
from ..commands import runs as r
from ..rules.lock_outcomes import Outcome
from ..rules.record_type import RecordStruct, RecordType
from ..rules.runs.repository import RunRepository

REMEMBERED = 4
"""How many requests of a member are stored, so that a re-send is recognised."""


class Member(RecordStruct, frozen=True):
    """A member, and how much it has added. `requests` are the last requests of this member."""

    id: str
    count: int
    requests: tuple[str, ...] = ()


class Tally(RecordStruct, frozen=True):
    """The count. It ends at `ends_at`, if that is set."""

    members: tuple[Member, ...] = ()
    note: str = ""
    ends_at: int | None = None

    @property
    def total(self) -> int:
        """The sum over all members."""
        return sum(member.count for member in self.members)


class Sticker(RecordStruct, frozen=True):
    """A record of another type; its key may equal that of a count."""

    text: str


TALLY = RecordType("tally", Tally, due="ends_at")
STICKER = RecordType("sticker", Sticker)


class Counted(Outcome, frozen=True, kw_only=True):
    """The count after an addition."""

    total: int


class TallyEnded(Outcome, frozen=True, kw_only=True):
    """Whether the count has ended and was removed."""

    ended: bool


class TallySeen(Outcome, frozen=True, kw_only=True):
    """The count as it is, or None."""

    tally: Tally | None
    now: int


class AddToTally(c.RecordCommand, frozen=True, kw_only=True):
    """Add to a count, which is created if there is none. The other members are woken. Again: counted once."""

    record_type: ClassVar[RecordType[Any]] = TALLY
    id: str
    request: str
    by: int = 1
    note: str | None = None
    ttl: int | None = None

    def apply(self, record: Tally | None, now: int) -> tuple[Tally | None, Outcome]:
        """Decide."""
        tally = record or Tally()
        others = tuple(member for member in tally.members if member.id != self.id)
        mine = next((member for member in tally.members if member.id == self.id), Member(id=self.id, count=0))
        if self.request in mine.requests:
            return record, Counted(total=tally.total)
        requests = (*mine.requests, self.request)[-REMEMBERED:]
        mine = replace(mine, count=mine.count + self.by, requests=requests)
        tally = replace(
            tally,
            members=(*others, mine),
            note=tally.note if self.note is None else self.note,
            ends_at=None if self.ttl is None else now + self.ttl,
        )
        return tally, Counted(total=tally.total, woken=tuple(member.id for member in others))


class LeaveTally(c.RecordCommand, frozen=True, kw_only=True):
    """Remove a member with what it added; a count without members is removed. Again: the same."""

    record_type: ClassVar[RecordType[Any]] = TALLY
    id: str

    def apply(self, record: Tally | None, now: int) -> tuple[Tally | None, Outcome]:  # noqa: ARG002
        """Decide."""
        if record is None or self.id not in {member.id for member in record.members}:
            return record, Counted(total=0 if record is None else record.total)
        left = replace(record, members=tuple(member for member in record.members if member.id != self.id))
        return left if left.members else None, Counted(total=left.total)


class EndTally(c.RecordCommand, frozen=True, kw_only=True):
    """Remove a count that is due. Its members are hinted. Again: there is none."""

    record_type: ClassVar[RecordType[Any]] = TALLY

    def apply(self, record: Tally | None, now: int) -> tuple[Tally | None, Outcome]:
        """Decide."""
        if record is None or record.ends_at is None or record.ends_at > now:
            return record, TallyEnded(ended=False)
        return None, TallyEnded(ended=True, hinted=tuple(member.id for member in record.members))


class PokeTally(c.RecordCommand, frozen=True, kw_only=True):
    """Wake all members, and change nothing."""

    record_type: ClassVar[RecordType[Any]] = TALLY

    def apply(self, record: Tally | None, now: int) -> tuple[Tally | None, Outcome]:  # noqa: ARG002
        """Decide."""
        return record, TallyEnded(ended=False, hinted=tuple(member.id for member in record.members) if record else ())


class SeeTally(c.RecordQuery, frozen=True, kw_only=True):
    """Read a count."""

    record_type: ClassVar[RecordType[Any]] = TALLY

    def look(self, record: Tally | None, now: int) -> Outcome:
        """Read."""
        return TallySeen(tally=record, now=now)


class SetSticker(c.RecordCommand, frozen=True, kw_only=True):
    """Write a sticker. Answers the text before, as the note of a count."""

    record_type: ClassVar[RecordType[Any]] = STICKER
    text: str

    def apply(self, record: Sticker | None, now: int) -> tuple[Sticker | None, Outcome]:
        """Decide."""
        before = None if record is None else Tally(note=record.text)
        return Sticker(text=self.text), TallySeen(tally=before, now=now)


class CountRun(r.RunCommand, frozen=True, kw_only=True):
    """Add one to a count for a run, and give the run the total as an attribute, in one step.

    If there is no such run, nothing is counted, and the count is removed.
    """

    run: str
    key: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide."""
        run, tally = repo.run(self.run), repo.record(TALLY, self.key) or Tally()
        tally = replace(tally, members=(*tally.members, Member(id=self.run, count=1)))
        repo.put_record(TALLY, self.key, tally)
        if run is None:
            repo.put_record(TALLY, self.key, None)
            return TallyEnded(ended=True)
        repo.save(replace(run, attributes={**run.attributes, "total": tally.total}))
        return Counted(total=tally.total)


class ReplaceTally(r.RunCommand, frozen=True, kw_only=True):
    """Write a count without reading it first."""

    key: str
    note: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide."""
        repo.put_record(TALLY, self.key, Tally(note=self.note))
        return Counted(total=0)


def add(id: str = "a.1", request: str = "q", key: str = "k", **more: Any) -> AddToTally:
    """Build a command that adds one to a count, unless `by` is given."""
    return AddToTally(key=key, id=id, request=request, **more)
