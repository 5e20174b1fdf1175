"""Ids of children that contain the attempt: a later attempt of a workflow starts its children under other ids.

This is about children without an `id=`, and about what they start: `top/mid` is `top/mid.attempt-2` in the second
attempt of `top`, and its child is `top/mid.attempt-2/leaf`.
"""

from __future__ import annotations

import re
from itertools import takewhile

_MARK = re.compile(r"\.attempt-[0-9]+(?=/|$)")


def marked(child: str, attempt: int) -> str:
    """The id, in this attempt of the parent, of a child that was started without `id=`.

    >>> marked("top/mid", 1), marked("top/mid", 2)
    ('top/mid', 'top/mid.attempt-2')
    """
    return f"{child}.attempt-{attempt}" if attempt > 1 else child


def is_marked(run: str) -> bool:
    """Whether a run was started by the second or a later attempt of one of its ancestors."""
    return _MARK.search(run) is not None


def same_but_for_attempts(one: str, other: str) -> bool:
    """Whether two runs are the same child of the code, started in different attempts of an ancestor.

    >>> same_but_for_attempts("top/mid.attempt-3/low", "top/mid/low"), same_but_for_attempts("top/mid", "top/low")
    (True, False)
    """
    return one != other and _MARK.sub("", one) == _MARK.sub("", other)


def first_that_differs(one: str, other: str) -> str:
    """Of two runs that are the same but for attempts, the topmost run above them, or they themselves, that differs.

    >>> first_that_differs("top/mid.attempt-3/low", "top/mid/low")
    'top/mid'
    """
    parts = one.split("/")
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(parts, other.split("/"), strict=True))))
    return _MARK.sub("", "/".join(parts[: same + 1]))
