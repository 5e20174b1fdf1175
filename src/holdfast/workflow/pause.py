"""The pause between two attempts of a workflow: what the journal says of it, and when it is over.

Nothing but a cancel ends a pause early. The next attempt begins when the time has come and the children of the failed
attempt, which were cancelled with it, have ended: no two attempts' children run at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from . import journal as j


class Pause(msgspec.Struct, frozen=True):
    """A pause after an `attempt`. Events up to `earlier` belong to attempts before that one."""

    entry: j.BegunAgain
    attempt: int
    earlier: int

    def living(self, ends: Mapping[str, int], gone: Collection[str]) -> bool:
        """Whether a child of the failed attempt may still live; `ends` are the last known ends of children."""
        return any(child not in gone and ends.get(child, 0) <= self.earlier for child in self.entry.children)


def pause_of(texts: Sequence[str]) -> Pause | None:
    """The pause in which a run is, by its journal; the first entry is its input."""
    if len(texts) < 2 or not isinstance(last := j.decode_entry(texts[-1]), j.BegunAgain):  # noqa: PLR2004
        return None
    entries = [j.decode_entry(text) for text in texts[1:]]
    failed = sum(isinstance(entry, j.BegunAgain) for entry in entries)
    begun = (entry.seen for entry in entries if isinstance(entry, j.AttemptBegun))
    return Pause(last, attempt=failed, earlier=max(begun, default=0))
