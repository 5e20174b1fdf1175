"""The fence: the place that is written to refuses whoever has been overtaken.

A lock keeps others out for a time; a process that was paused past its lease does not know that its time is
over. Its token tells. `guard` checks it within the database transaction that writes, `fenced_replace` in
the same step as a file is replaced: what is at or above the highest floor that was ever seen there is let
through, and everything older raises `StaleToken` before anything is written. What is read in order to be changed
is read behind the fence, too: after `guard` in the same transaction, or with `fenced_read`.
"""

from .files import fenced_read, fenced_replace
from .guards import guard
from .tokens import Fenced

__all__ = ["Fenced", "fenced_read", "fenced_replace", "guard"]
