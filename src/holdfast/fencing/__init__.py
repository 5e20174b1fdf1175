"""The fence: the place that is written to refuses whoever has been overtaken.

A lock keeps others out for a time; a process that was paused past its lease does not know that its time is
over. Its token tells. `guard` (and `guard_async`) checks it within the database transaction that writes,
`fenced_replace` in the same step as a file is replaced, `fenced_set` and `FencedScript` in the same step on Redis:
what is at or above the highest floor that was ever seen there is let through, and everything older raises `StaleToken`
before anything is written. What is read in order to be changed is read behind the fence, too: after `guard` in the
same transaction, with `fenced_read`, or by a fenced script.
"""

from .files import fenced_read, fenced_replace
from .guards import guard, guard_async
from .redis import AsyncFencedScript, FencedScript, fenced_set, fenced_set_async
from .tokens import Fenced

__all__ = [
    "AsyncFencedScript",
    "Fenced",
    "FencedScript",
    "fenced_read",
    "fenced_replace",
    "fenced_set",
    "fenced_set_async",
    "guard",
    "guard_async",
]
