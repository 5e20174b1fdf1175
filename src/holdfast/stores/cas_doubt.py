"""What may be done about a command whose write has an unknown result.

The reply to a write was lost, and the record that is read now has neither the stamp of that write nor the stamp that
the write expected. Another client has written since: over the effect of this command, or in its place. A command may
be decided again only if its rule recognises it by its attempt, token or request id, so that nothing is done twice.
`NotHolder` is not returned: it would also result if the first try had succeeded. Decision 27 has the reasoning for
each command.
"""

from __future__ import annotations

from ..commands import (
    Abandon,
    Acquire,
    Command,
    Failed,
    Inspect,
    PassOver,
    ReadSlot,
    RecordQuery,
    Release,
    Renew,
    Settle,
    SwapSlot,
    Transfer,
)
from ..errors import StoreUnavailable
from ..rules.lock_outcomes import NotHolder, Outcome

LOOKS = (Inspect, ReadSlot, RecordQuery)
"""Commands that write nothing of their own."""
RECOGNISED = (*LOOKS, Acquire, Renew, Settle, SwapSlot)
"""Commands that their rules recognise when they are sent again, or that have one effect however often they are sent."""
NAMED_BY_TOKEN = (Release, Transfer, PassOver)
"""Commands about one grant. With a token they cannot be about a later grant of the same owner."""


def may_be_decided_again(command: Command) -> bool:
    """Whether deciding again has no second effect if the first try was carried out."""
    if isinstance(command, NAMED_BY_TOKEN):
        return command.token is not None
    if isinstance(command, Abandon):
        return command.ttl > 0  # the tombstone keeps the attempt from coming back in between
    return isinstance(command, RECOGNISED)


def outcome_after_doubt(command: Command, outcome: Outcome) -> Outcome:
    """The outcome of a command that was decided again; `unknown` if that outcome proves nothing."""
    if isinstance(command, NAMED_BY_TOKEN) and isinstance(outcome, NotHolder):
        return unknown(command)
    return outcome


def unknown(command: Command) -> Failed:
    """The answer where nobody can know: the command may have been carried out, and is not repeated."""
    key = getattr(command, "key", None) or getattr(command, "address", None)
    return Failed(
        error=StoreUnavailable(
            f"the reply to {type(command).__name__} on {key!r} was lost, and another client has changed the record "
            "since. The command may or may not have been carried out; it was not repeated. Read the record to see its "
            "state.",
            ambiguous=True,
        )
    )
