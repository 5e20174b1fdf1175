"""Why a run was cancelled: the payload of its cancel, and the sentence in it that people and the code read.

The reason of the first cancel counts, like the cancel itself. A cancel by a limit names the limit and the newer run
instead of a sentence.
"""

from __future__ import annotations

import msgspec

LONGEST_REASON = 2_000
"""How many characters a reason has at most; longer ones of runs above it are cut."""


class CancelPayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a cancel: a reason; or the limit that was full when the run `run` started."""

    reason: str = ""
    limit: str = ""
    run: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CancelPayload).decode


def cancel_payload(reason: str) -> str:
    """The payload of a cancel with this reason; without one, there is none.

    >>> cancel_payload("the order was withdrawn"), cancel_payload("")
    ('{"reason":"the order was withdrawn"}', 'null')
    """
    return _encode(CancelPayload(reason[:LONGEST_REASON])).decode() if reason else "null"


def limit_payload(limit: str, run: str) -> str:
    """The payload of a cancel because this limit was full when the run started; empty: when it started itself."""
    return _encode(CancelPayload(limit=limit, run=run)).decode()


def reason_in(payload: str) -> str:
    """The reason in the payload of a cancel; empty if there is none.

    >>> reason_in('{"reason":"the order was withdrawn"}'), reason_in("null")
    ('the order was withdrawn', '')
    """
    try:
        found = _decode(payload)
    except msgspec.MsgspecError:
        return ""
    # PostgreSQL cannot extract a field of JSON that contains a NUL.
    return (
        limit_reason(found.limit, found.run) if found.limit else found.reason.replace("\0", "\N{REPLACEMENT CHARACTER}")
    )


def limit_reason(limit: str, run: str) -> str:
    """The reason of a cancel by a limit; without a run, it cancelled the run that was started.

    >>> limit_reason("all", "order-7")
    "the limit 'all' was full when the run 'order-7' started"
    """
    return f"the limit {limit!r} was full when {f'the run {run!r}' if run else 'it'} started"


def parent_reason(parent: str, reason: str) -> str:
    """The reason of a cancel by the parent of a run.

    >>> parent_reason("order-7", "withdrawn"), parent_reason("order-7", "")
    ('cancelled by the parent run order-7: withdrawn', 'cancelled by the parent run order-7')
    """
    by = f"cancelled by the parent run {parent}"
    return f"{by}: {reason}" if reason else by
