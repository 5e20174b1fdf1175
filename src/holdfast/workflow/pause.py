"""The pause between two attempts of a workflow: how it is read from the journal, and what the run does in it.

Only a cancel or the workflow's timeout ends a pause early. The next attempt begins when the pause is over and the
children of the failed attempt, which were cancelled with it, have ended. So children of two attempts never run at the
same time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from ..rules.runs.record import Ending, Finish, Park
from . import journal as j
from .cancelling import cancelled_error
from .failures import failure_of


class Pause(msgspec.Struct, frozen=True):
    """A pause after an `attempt`. Events up to `earlier` belong to attempts before that one."""

    entry: j.BegunAgain
    attempt: int
    earlier: int

    @property
    def why(self) -> str:
        """Why the children of the attempt are cancelled."""
        return f"its attempt {self.attempt} has failed"

    def has_children(self, ends: Mapping[str, int], ended: Collection[str]) -> bool:
        """Whether a child of the failed attempt may not have ended.

        `ends` are the events of the last known ends of children, `ended` are children that are known to have ended.
        """
        return any(child not in ended and ends.get(child, 0) <= self.earlier for child in self.entry.children)

    def ending(
        self,
        *,
        now: int,
        deadline: int | None,
        cancelled: bool,
        children: bool,
        in_memory: bool,
        reason: str | None = None,
    ) -> Ending | None:
        """How the run is parked or ended in this pause; None: the next attempt begins now.

        `children` means that children of the failed attempt may not have ended, `in_memory` that the code of the failed
        attempt is still in memory: then the run is parked, and the worker that claims it next begins the attempt.
        """
        if cancelled:
            error = cancelled_error("the run was cancelled in the pause between two attempts", reason)
            return Finish("cancelled", j.write_failure(failure_of(error)))
        if deadline is not None and now >= deadline:
            return Finish("timed_out", j.write_failure(self.entry.error))
        if now < self.entry.again_at:
            return Park(self.entry.again_at)
        if children:
            return Park(deadline)
        return Park(now) if in_memory else None


def pause_of(texts: Sequence[str]) -> Pause | None:
    """The pause that a run is in, read from its journal; the first entry is its input."""
    if len(texts) < 2 or not isinstance(last := j.decode_entry(texts[-1]), j.BegunAgain):  # noqa: PLR2004
        return None
    entries = [j.decode_entry(text) for text in texts[1:]]
    failed = sum(isinstance(entry, j.BegunAgain) for entry in entries)
    begun = (entry.seen for entry in entries if isinstance(entry, j.AttemptBegun))
    return Pause(last, attempt=failed, earlier=max(begun, default=0))
