"""The layout of a namespace in Redis: all names of keys.

All names of a namespace share one hash tag, `{namespace}`, so that a batch is one script in a cluster too. Characters
that would end the tag early, or begin another, are percent-encoded; all others are written as they are, so that names
are readable. The layout is a stored format, described in docs/stores/redis.md and checked by a test.
"""

from __future__ import annotations

import re

import msgspec

from ...errors import InvalidOption
from ...rules.slot import Address

PREFIX = "holdfast"
_PREFIX = re.compile(r"[^{}\s\x00-\x1f\x7f]{1,100}")
_PARTS = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})
_SLOT_PARTS = str.maketrans({"%": "%25", ":": "%3A"})


class Layout(msgspec.Struct, frozen=True):
    """The names of one namespace. All of them begin with `base`.

    >>> Layout("holdfast", "orders").base
    'holdfast:{orders}:'
    >>> Layout("holdfast", "a}{b").base
    'holdfast:{a%7D%7Bb}:'
    """

    prefix: str
    namespace: str
    base: str = ""

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidOption(
                "the prefix of the keys in Redis must have 1-100 characters, without spaces and without { and }, such "
                f"as ?prefix={PREFIX}"
            )
        base = f"{self.prefix}:{{{self.namespace.translate(_PARTS)}}}:"
        msgspec.structs.force_setattr(self, "base", base)

    @property
    def index(self) -> str:
        """The sorted set of all keys; the one name that is passed to the scripts."""
        return self.base + "keys"

    @property
    def due(self) -> str:
        """The sorted set of the keys that have waiters."""
        return self.base + "due"

    def lock(self, key: str) -> str:
        """The record of the lock of a key."""
        return f"{self.base}lock:{key}"

    def slot(self, address: Address) -> str:
        """A state slot."""
        return f"{self.base}slot:{slot_name(address)}"

    def record(self, kind: str, key: str) -> str:
        """A record of a type. The name of a type has no colon."""
        return f"{self.base}record:{kind}:{key}"

    def record_keys(self, kind: str) -> str:
        """The sorted set of the keys of all records of a type, all with the score 0."""
        return f"{self.base}records:keys:{kind}"

    def due_records(self, kind: str) -> str:
        """The sorted set of the keys of records that have a `due_at`, by `due_at`."""
        return f"{self.base}records:due:{kind}"

    def run(self, id: str) -> str:
        """The hash of a run: see codec.py."""
        return f"{self.base}run:{id}"

    def journal(self, id: str) -> str:
        """The list of the entries of a run's journal; the first is the input."""
        return f"{self.base}journal:{id}"

    def inbox(self, id: str) -> str:
        """The list of the events of a run, as JSON; the first is number 1. An empty text: the event was removed."""
        return f"{self.base}inbox:{id}"

    def inbox_keys(self, id: str) -> str:
        """The hash of the keys of events, each with the number of its event."""
        return f"{self.base}inbox-keys:{id}"

    @property
    def by_age(self) -> str:
        """The sorted set of all runs, by the moment of their start."""
        return self.base + "runs:age"

    @property
    def by_id(self) -> str:
        """The sorted set of all runs, all with the score 0, in the byte order of their ids."""
        return self.base + "runs:ids"

    @property
    def types(self) -> str:
        """The set of all types of runs that ever existed."""
        return self.base + "runs:types"

    @property
    def by_key(self) -> str:
        """The hash of idempotency keys, each with the id of its run."""
        return self.base + "runs:keys"

    @property
    def workers(self) -> str:
        """The hash of the registered workers, as JSON."""
        return self.base + "workers"

    @property
    def terms(self) -> str:
        """The hash of the limits of workflows, as JSON."""
        return self.base + "limits:terms"

    def with_status(self, status: str, workflow: str) -> str:
        """The sorted set of the runs of a workflow that have this status, by their start."""
        return f"{self.base}runs:in:{status}:{workflow}"

    def ended(self, status: str, workflow: str) -> str:
        """The sorted set of the runs of a workflow without a parent that ended with this status, by their end."""
        return f"{self.base}runs:ended:{status}:{workflow}"

    def slots_of(self, owner: str) -> str:
        """The set of the keys of a run's `execution` state slots."""
        return f"{self.base}slots:of:{owner}"

    def with_attribute(self, name: str, value: object) -> str:
        """The sorted set of the runs with an attribute, by their start; name and value are JSON."""
        return f"{self.base}runs:with:{_json(name)}={_json(value)}"

    def due_runs(self, type: str) -> str:
        """The sorted set of the runs of a type that may be claimed, by `due_at`."""
        return f"{self.base}runs:due:{type}"

    def runs_of(self, worker: str) -> str:
        """The sorted set of the runs of a worker, all with the score 0."""
        return f"{self.base}runs:of:{worker}"

    def living(self, type: str) -> str:
        """The set of the runs of a type that have not ended."""
        return f"{self.base}runs:living:{type}"

    def admitted(self, group: str) -> str:
        """The sorted set of the runs that a limit has admitted and that have not ended, by their arrival."""
        return f"{self.base}limits:in:{group}"

    def queue(self, group: str) -> str:
        """The sorted set of the runs that are queued under a limit, all with the score 0: see `codec.queue_member`."""
        return f"{self.base}limits:queue:{group}"

    def starts(self, group: str) -> str:
        """The sorted set of the starts that a limit on starts counts, by their time. It expires."""
        return f"{self.base}limits:starts:{group}"

    def crowded(self, workflow: str) -> str:
        """The set of the limit keys of a workflow under which runs are queued, as JSON."""
        return f"{self.base}limits:crowded:{workflow}"

    def channel(self, channel: str) -> str:
        """The pub/sub channel for hints to the attempts of a client."""
        return f"{self.base}wake:{channel}"


BARE = Layout(PREFIX, "")
"""The names without their beginning, which the script adds."""
msgspec.structs.force_setattr(BARE, "base", "")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def slot_name(address: Address) -> str:
    """The last part of a slot's name. The key comes last and may contain anything; the parts before it have no colon.

    >>> slot_name(("workflow", "a:b", "c:d"))
    'workflow:a%3Ab:c:d'
    """
    scope, owner, key = address
    return ":".join((scope.translate(_SLOT_PARTS), owner.translate(_SLOT_PARTS), key))


def run_key_name(workflow: str, key: str) -> str:
    """The name of an idempotency key among those of all workflows. The key comes last and may contain anything.

    >>> run_key_name("a:b", "c:d")
    'a%3Ab:c:d'
    """
    return f"{workflow.translate(_SLOT_PARTS)}:{key}"
