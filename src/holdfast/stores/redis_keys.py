"""The layout of a namespace in Redis: every name that is used there, in one place.

All names of a namespace share one hash tag, `{namespace}`, so that a batch is one script in a cluster too. What would
end the tag early, or begin another, is percent-encoded; everything else is written as it is, for people to read.
The layout is a stored format, described in docs/stores/redis.md and pinned by a test.
"""

from __future__ import annotations

import re

import msgspec

from ..errors import InvalidOption
from ..rules.slot import Address

PREFIX = "holdfast"
_PREFIX = re.compile(r"[^{}\s\x00-\x1f\x7f]{1,100}")
_PARTS = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})
_SLOT_PARTS = str.maketrans({"%": "%25", ":": "%3A"})


class Layout(msgspec.Struct, frozen=True):
    """The names of one namespace."""

    prefix: str
    namespace: str

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidOption(
                "the prefix of the names in Redis is 1-100 characters without spaces and without { and }, such as "
                f"?prefix={PREFIX}"
            )

    @property
    def base(self) -> str:
        """What all names begin with.

        >>> Layout("holdfast", "orders").base
        'holdfast:{orders}:'
        >>> Layout("holdfast", "a}{b").base
        'holdfast:{a%7D%7Bb}:'
        """
        return f"{self.prefix}:{{{self.namespace.translate(_PARTS)}}}:"

    @property
    def index(self) -> str:
        """The sorted set of all keys; the one name that the script is given."""
        return self.base + "keys"

    @property
    def due(self) -> str:
        """The sorted set of the keys that somebody waits for."""
        return self.base + "due"

    def lock(self, key: str) -> str:
        """Where the record of a key is."""
        return f"{self.base}lock:{key}"

    def slot(self, address: Address) -> str:
        """Where a state slot is."""
        return f"{self.base}slot:{slot_name(address)}"

    def run(self, id: str) -> str:
        """Where a run is. What else there is about runs is told in redis_runs.lua."""
        return f"{self.base}run:{id}"

    def journal(self, id: str) -> str:
        """Where the entries of a run's journal are."""
        return f"{self.base}journal:{id}"

    def inbox(self, id: str) -> str:
        """Where the events are that came to a run."""
        return f"{self.base}inbox:{id}"

    def channel(self, channel: str) -> str:
        """Where the attempts of a channel hear of their grants."""
        return f"{self.base}wake:{channel}"


def slot_name(address: Address) -> str:
    """The last part of a slot's name. The key comes last and is free; what is before it has no colon.

    >>> slot_name(("workflow", "a:b", "c:d"))
    'workflow:a%3Ab:c:d'
    """
    scope, owner, key = address
    return ":".join((scope.translate(_SLOT_PARTS), owner.translate(_SLOT_PARTS), key))


def run_key_name(workflow: str, key: str) -> str:
    """The name of an idempotency key among those of all workflows. The key comes last and is free.

    >>> run_key_name("a:b", "c:d")
    'a%3Ab:c:d'
    """
    return f"{workflow.translate(_SLOT_PARTS)}:{key}"
