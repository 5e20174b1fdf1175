"""Cancels of children in the step that ends their parent: `on_parent_end="cancel"`.

The command names the children that may be concerned; what is stored of a child decides. A run that the ended one has
not started is left alone, and so is a child with another `on_parent_end`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ...errors import RecordUnreadable
from . import record as rule
from .admission import cancel
from .cancel_reasons import cancel_payload, parent_reason
from .helpers import known
from .record import Run, RunEvent
from .repository import RunRepository


def cancel_children(
    repo: RunRepository, now: int, parent: Run, children: Sequence[str], status: str
) -> tuple[str, ...]:
    """Cancel those of these runs that end with their parent, which has this status now."""
    woken: tuple[str, ...] = ()
    payload = cancel_payload(parent_reason(parent.id, f"it is {status}"))
    for name in children:
        with suppress(RecordUnreadable):  # a damaged child must not keep its parent from ending
            child = known(repo, name)
            if child is None or child.on_parent_end != "cancel" or not rule.is_child_of(child, parent):
                continue
            if child.living and not child.cancelling:
                woken += cancel(
                    repo, now, child, RunEvent(kind="cancel", key=cancel_key(parent.id), payload=payload)
                ).woken
    return woken


def cancel_key(parent: str, attempt: int = 1) -> str:
    """The key of a cancel of a child by its parent, in this attempt of the parent."""
    return f"cancelled by {parent}" if attempt == 1 else f"cancelled by {parent}, attempt {attempt}"
