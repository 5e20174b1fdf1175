"""`ctx.continue_as_new(input)`: what the next generation of a run begins with.

After the call the code can begin no further operation: each use of `ctx` raises the same exception. The driver waits
until steps that are running have ended, and then replaces the history in one record. Locks whose blocks are open stay
with the run; the next generation gets each of them when it requests the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from ..errors import SignalsUnread
from ..rules.runs.record import Continue, OnParentEnd, RunEvent
from . import journal as j
from .replay_locks import REQUESTS_PER_ATTEMPT

if TYPE_CHECKING:
    from .replay import Replay


class ContinueAsNew(BaseException):
    """Ends this generation of a run. Made by `ctx.continue_as_new(input)`, to be raised by the workflow.

    It is not a subclass of `Exception`, so that `except Exception` does not catch it.
    """

    def __init__(self, input: str) -> None:
        super().__init__("the run continues with a new history")
        self.input = input
        """The input of the next generation, as JSON text."""


def continues(error: BaseException | None) -> bool:
    """Whether code that ended with this error continues as new. Errors of cancelled tasks do not count."""
    if isinstance(error, BaseExceptionGroup):
        return all(continues(one) for one in error.exceptions)
    return error is None or isinstance(error, ContinueAsNew)


def next_generation(code: Replay, input: str, *, because: Literal["asked", "unread"], now: int) -> Continue:
    """The record by which a run begins its next generation, with everything that it keeps."""
    unread = unread_signals(code)
    keep = tuple(sorted((*unread, *(number for number, event in code.inbox.items() if event.kind == "cancel"))))
    signals = tuple(new for new, old in enumerate(keep, 1) if old in unread)
    locks = tuple(carried_locks(code))
    first = 0 if code.continued is None else code.continued.first_lock
    living = tuple(child for child in code.living_children if child not in code.ends)
    entry = j.Continued(
        at=now,
        because=because,
        signals=signals,
        children=living,
        abandoned=tuple(child for child in living if code.policy_of(child) == "abandon"),
        cancelled=tuple(child for child in living if code.policy_of(child) == "cancel"),
        locks=locks,
        first_lock=first + REQUESTS_PER_ATTEMPT * code.attempt,
    )
    return Continue(input, j.encode_entry(entry), keep, tuple(lock.number for lock in locks))


def inherited_children(entry: j.Continued | None) -> dict[str, OnParentEnd]:
    """The children with which a generation begins, each with its `on_parent_end`."""
    if entry is None:
        return {}
    policies: dict[str, OnParentEnd] = dict.fromkeys(entry.children, "")
    policies.update(dict.fromkeys(entry.abandoned, "abandon"))
    policies.update(dict.fromkeys(entry.cancelled, "cancel"))
    return policies


def carried_locks(code: Replay) -> Iterator[j.CarriedLock]:
    """The locks that stay with the run: locks of open blocks, and locks that this generation has not requested."""
    yield from code.replay_locks.carried.values()
    for number, lock in code.replay_locks.pending.items():
        if lock.lease is not None and not lock.lease.lost:
            request = lock.request
            yield j.CarriedLock(number, request.key, request.kind, request.weight, request.ttl)


def unread_signals(code: Replay) -> dict[int, RunEvent]:
    """The signals that the code has not read and the updates that it has not answered, by their numbers, in order."""
    found = {number: event for number, event in code.inbox.items() if event.kind in ("signal", "update")}
    found |= {event.number: event for event in code.untaken} | code.requests.unanswered
    return dict(sorted(found.items()))


def unread_error(code: Replay, unread: Mapping[int, RunEvent]) -> SignalsUnread:
    """The error of a run with `on_unread="fail"` that returned with these unread signals."""
    names = sorted({event.name for event in unread.values()})
    return SignalsUnread(
        f"the run {code.run.id!r} returned without reading the signals {', '.join(names)}. They are kept: a "
        "restart, or a retry with code that reads them, can read them.",
        run_id=code.run.id,
    )


def may_continue(code: Replay, unread: Mapping[int, RunEvent]) -> bool:
    """Whether a run that returned with these unread signals begins a new generation because of them.

    If a generation has read none of the signals with which it began, the next generation would do the same again.
    """
    began_with = () if code.continued is None else code.continued.signals
    return not began_with or not set(began_with).issubset(unread)
