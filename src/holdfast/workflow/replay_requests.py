"""The updates and approvals of one run in memory: which requests the code has to answer, and which ones it has made.

A reply, and a request for an approval, are carried by the next record, together with the entry that notes them. In a
replay the journal says what was stored already. A request for an approval that the code does not wait for any more is
closed by the next record; the store refuses that record if the request was answered meanwhile. At the end of an attempt
all its open requests are closed, so that no answer is accepted which nobody receives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import InvalidOption
from ..rules.runs.record import RunEvent
from ..rules.runs.requests import NO_REQUESTS, NewApproval, Reply, RunRequests
from . import journal as j

if TYPE_CHECKING:
    from .replay import Replay


class ReplayRequests:
    """The requests of one attempt of a workflow."""

    def __init__(self, code: Replay, entries: Iterable[j.AnyEntry]) -> None:
        """`entries` are those of this attempt."""
        self._code = code
        notes = list(entries)
        self._stored = {entry.event for entry in notes if isinstance(entry, j.Replied)}
        self._noted = {entry.id for entry in notes if isinstance(entry, j.ApprovalAsked)}
        self._open = set(code.run.approvals)  # in the store, or carried by a record that was sent
        self._answered: set[int] = set()
        self._replies: list[Reply] = []
        self._opens: dict[str, NewApproval] = {}
        self._closes: list[str] = []
        self.unanswered: dict[int, RunEvent] = {}
        """The updates that the code has received and not answered, by the number of the event."""

    @property
    def has_content(self) -> bool:
        """Whether the next record must carry something."""
        return bool(self._replies or self._opens or self._closes)

    def take(self) -> RunRequests:
        """What the next record carries."""
        if not self.has_content:
            return NO_REQUESTS
        taken = RunRequests(replies=tuple(self._replies), opens=tuple(self._opens.values()), closes=tuple(self._closes))
        self._open |= self._opens.keys()
        self.discard()
        return taken

    def discard(self) -> None:
        """Carry nothing of what was requested until now."""
        self._replies, self._opens, self._closes = [], {}, []

    def received(self, event: RunEvent) -> None:
        """The code has received an update, or the answer to a request for an approval."""
        if event.kind == "update":
            self.unanswered[event.number] = event
        elif event.kind == "approval":
            self._open.discard(event.name)

    def answer(self, event: RunEvent, answer: str, *, refused: bool) -> None:
        """The code answers an update. An answer that is in the journal is not sent again."""
        self._code.check()
        if event.number in self._answered:
            raise InvalidOption(f"the update {event.name!r} was answered already: a request is answered once")
        self._answered.add(event.number)
        self.unanswered.pop(event.number, None)
        if event.number not in self._stored:
            self._replies.append(Reply(key=event.key, answer=answer, refused=refused))
            self._code.note(j.Replied(at=self._code.loop.now, event=event.number, answer=answer, refused=refused))

    def ask(self, new: NewApproval) -> None:
        """The code asks for an approval, unless the request is open, or its answer is there."""
        if new.id in self._open or new.id in self._answers:
            return
        self._opens[new.id] = new
        if new.id not in self._noted:
            self._noted.add(new.id)
            self._code.note(j.ApprovalAsked(at=self._code.loop.now, id=new.id, data=new.data))

    def close(self, id: str) -> None:
        """The code does not wait for an approval any more."""
        if self._code.over:
            return
        if self._opens.pop(id, None) is None and id in self._open:
            self._open.discard(id)
            self._closes.append(id)

    def attempt_ended(self) -> None:
        """The attempt has failed: close what it has asked. An answer that is there is received by the next attempt."""
        self._opens = {}
        for wanted in sorted(self._open - self._answers):
            self.close(wanted)

    @property
    def _answers(self) -> set[str]:
        """The requests whose answers have arrived and were not received yet."""
        return {event.name for event in self._code.inbox.values() if event.kind == "approval"}
