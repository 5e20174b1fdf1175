"""`ctx.patched(name)`: which runs take a changed part of their workflow, recorded by a marker in the journal.

A run takes the new branch in two cases: its marker is in the journal; or it reaches the call for the first time. In
the second case the marker is written, and is stored before the next effect begins. A run that passed the call
earlier, and has no marker in its history, takes the old branch. So if a process crashes before the marker is stored,
the run takes the old branch in the next replay: no effect of the new branch had begun.

A later attempt of a workflow that is retried takes the branch that the attempts before it have marked, and the old one
if they have marked none: its steps have the same keys as theirs, so that an effect is not repeated in another branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..rules.runs.record import Run
from ..validation import checked_key
from . import journal as j

if TYPE_CHECKING:
    from .replay import Replay


def begins_here(run: Run, texts: Sequence[str]) -> bool:
    """Whether nobody has driven this attempt before: its code cannot have begun an effect.

    The entry that begins a later attempt, or the first one after a restart, is not counted by the run until it is
    stored. The first attempt of a generation has nothing but what it began with, and was claimed once. A fork may keep
    nothing more.
    """
    if len(texts) == 2 and isinstance(j.decode_entry(texts[1]), j.Continued | j.Forked):  # noqa: PLR2004
        return run.claims <= 1
    return len(texts) > run.length or (len(texts) == 1 and run.claims <= 1)


class Patches:
    """The decisions of one attempt. The first call with a name decides for all later ones."""

    def __init__(
        self, code: Replay, entries: Sequence[j.AnyEntry], *, fresh: bool, before: Sequence[j.AnyEntry] | None = None
    ) -> None:
        """`entries` are those of this attempt; `fresh` means that nobody has driven it before.

        `before` are the entries of earlier attempts of this generation; None: there was none.
        """
        self._code, self._fresh = code, fresh
        self._decided = dict.fromkeys(_marked(entries), True)
        self._allowed = None if before is None else _marked(before)

    def patched(self, name: str) -> bool:
        """Whether the run takes the new branch."""
        known = self._decided.get(checked_key(name, what="patch name"))
        if known is not None:
            return known
        first = self._fresh or not self._code.replaying
        new = self._decided[name] = first and (self._allowed is None or name in self._allowed)
        if new:
            self._code.note(j.Patched(at=self._code.loop.now, name=name))
        return new


def _marked(entries: Sequence[j.AnyEntry]) -> set[str]:
    return {entry.name for entry in entries if isinstance(entry, j.Patched)}
