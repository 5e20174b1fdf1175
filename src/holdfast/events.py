"""What can be told to the outside: one table of events, and the hook that carries them.

Everything notable in the house goes through `Events.emit`. A sink is any callable that takes an `Event`;
the sinks that Holdfast brings are in `holdfast.observe`. A sink that raises is logged and
never disturbs the work. Add rows here, not plumbing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

_log = logging.getLogger("holdfast")

Level = Literal["debug", "info", "warning", "error"]


class Kind(msgspec.Struct, frozen=True):
    """One row of the table: how grave it is, when it happens, and what it tells."""

    level: Level
    when: str
    fields: tuple[str, ...]


class Event(msgspec.Struct, frozen=True):
    """Something that happened, at `at` seconds since the epoch by the host's clock."""

    name: str
    at: float
    fields: dict[str, Any]

    @property
    def level(self) -> Level:
        """How grave it is."""
        return EVENTS[self.name].level


EVENTS: dict[str, Kind] = {
    "store_opened": Kind("info", "a client has fixed which store it uses", ("url", "namespace")),
    "lease_acquired": Kind("debug", "a lock was taken", ("key", "owner", "token", "waited")),
    "lease_released": Kind("debug", "a lock was given back by its holder", ("key", "owner", "token")),
    "lease_transferred": Kind("info", "a lock was handed to another owner", ("key", "owner", "token", "to")),
    "lease_lost": Kind("error", "a lease ended before its holder was done", ("key", "owner", "token", "reason")),
    "lease_neglected": Kind(
        "warning",
        "a lease is no longer renewed, because whoever took it is gone or stuck",
        ("key", "owner", "token", "reason"),
    ),
    "leases_renewed": Kind("debug", "the keeper has renewed what was due", ("leases", "seconds")),
    "renewal_unknown": Kind(
        "warning", "it is not known whether a renewal happened", ("key", "owner", "token", "failures", "error")
    ),
    "wait_long": Kind("warning", "somebody has waited for 30 s", ("key", "owner", "waited", "holder", "position")),
    "permits_changed": Kind("warning", "a caller changed the number of permits", ("key", "before", "after")),
    "force_released": Kind("warning", "an operator put the holders out", ("key", "by", "reason", "holders")),
    "clock_differs": Kind(
        "error",
        "a process's clock is more than a second off the store's files (SQLite): it goes by their time stamps",
        ("client", "host", "pid", "ahead"),
    ),
    "give_back_failed": Kind(
        "warning", "a lock that nobody wants could not be given back yet", ("key", "attempt", "error")
    ),
    "campaign_failed": Kind(
        "warning", "a candidate for leadership cannot reach the store and will try again", ("key", "owner", "error")
    ),
    "worker_lost": Kind(
        "error", "a worker lost its lease: others may drive its runs; it comes back as another", ("worker", "runs")
    ),
    "types_unknown": Kind(
        "warning", "the store holds living runs of workflows that this engine does not know", ("worker", "types")
    ),
    "no_worker_knows": Kind(
        "warning", "a run was started, and no living worker knows its workflow: nobody drives it", ("run", "workflow")
    ),
    "definition_unknown": Kind(
        "warning",
        "a run was started by name before any engine had published the workflow: no limit of it counts the run",
        ("run", "workflow"),
    ),
    "limits_outdated": Kind(
        "warning", "newer limits of a workflow are published than those of this engine", ("workflow", "version")
    ),
    "deadlock_detected": Kind(
        "warning", "runs wait for each other in a circle: the youngest who waits for a lock was told", ("run", "worker")
    ),
    "claim_failed": Kind("warning", "a worker cannot reach the store and will try again", ("worker", "error")),
    "record_failed": Kind("warning", "a record is sent again: the store was away", ("run", "error")),
    "run_refused": Kind(
        "error",
        "the journal refused what this process wanted to record, and it drives the run no more",
        ("run", "workflow", "reason", "holder"),
    ),
    "records_removed": Kind("debug", "records that nobody used for long were removed", ("removed",)),
    "callback_failed": Kind("error", "a callback of the user's raised", ("key", "callback", "error")),
}
"""Every event there is. `docs/events.md` is made from this table."""

Sink = Callable[[Event], None]


class Events:
    """The hook: who wants to know subscribes, whoever sees something emits."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks: tuple[tuple[Sink, Callable[[str], bool] | None], ...] = ()
        for sink in sinks:
            self.subscribe(sink)

    def subscribe(self, sink: Sink) -> Callable[[], None]:
        """Send every event to the sink from now on. Returns the way to end that.

        A sink with a method `wants(name)` is asked first; what nobody wants is not even made.

        >>> seen = []
        >>> events = Events()
        >>> end = events.subscribe(lambda event: seen.append(event.name))
        >>> events.emit("records_removed", removed=3)
        >>> end()
        >>> events.emit("records_removed", removed=4)
        >>> seen
        ['records_removed']
        """
        entry = (sink, getattr(sink, "wants", None))
        self._sinks = (*self._sinks, entry)

        def end() -> None:
            self._sinks = tuple(other for other in self._sinks if other is not entry)

        return end

    def emit(self, name: str, **fields: Any) -> None:
        """Tell every sink. The name and its fields are those of the table."""
        assert EVENTS[name].fields == tuple(fields), f"event {name} tells {EVENTS[name].fields}"  # noqa: S101
        event = None
        for sink, wants in self._sinks:
            try:
                if wants is None or wants(name):
                    event = event or Event(name, time.time(), fields)
                    sink(event)
            except (Exception, SystemExit):  # a sink must not disturb the work
                _log.exception("the event sink %r failed on %s", sink, name)
