"""The table of events, and the hook that delivers them.

All events are emitted by `Events.emit`. A sink is any callable that takes an `Event`. The sinks that Holdfast
provides are in `holdfast.observe`. If a sink raises an exception, the exception is logged and has no other effect. To
add an event, add a row to the table.
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
    """One row of the table: the level, when it is emitted, and its fields."""

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
        """The level of the event."""
        return EVENTS[self.name].level


EVENTS: dict[str, Kind] = {
    "store_opened": Kind("info", "a client has determined which store it uses", ("url", "namespace")),
    "lease_acquired": Kind("debug", "a lock was acquired", ("key", "owner", "token", "waited")),
    "lease_released": Kind("debug", "a lock was released by its holder", ("key", "owner", "token")),
    "lease_transferred": Kind("info", "a lock was transferred to another owner", ("key", "owner", "token", "to")),
    "lease_lost": Kind("error", "a lease ended before its holder released it", ("key", "owner", "token", "reason")),
    "lease_neglected": Kind(
        "warning",
        "a lease is no longer renewed, because its holder has ended, dropped it or is blocked",
        ("key", "owner", "token", "reason"),
    ),
    "leases_renewed": Kind("debug", "the heartbeat thread has renewed leases", ("leases", "seconds")),
    "renewal_unknown": Kind(
        "warning", "it is not known whether a renewal was executed", ("key", "owner", "token", "failures", "error")
    ),
    "wait_long": Kind("warning", "a caller has waited for 30 s", ("key", "owner", "waited", "holder", "position")),
    "permits_changed": Kind("warning", "a caller changed the number of permits", ("key", "before", "after")),
    "force_released": Kind(
        "warning", "an operator removed the holders of a lock by force", ("key", "by", "reason", "holders")
    ),
    "clock_differs": Kind(
        "error",
        "a process's clock differs by over 1 s from the timestamps of the SQLite store's files, which it uses instead",
        ("client", "host", "pid", "ahead"),
    ),
    "give_back_failed": Kind(
        "warning", "an abandoned attempt could not be given back yet; it is sent again", ("key", "attempt", "error")
    ),
    "campaign_failed": Kind(
        "warning", "a candidate for leadership cannot reach the store; it tries again", ("key", "owner", "error")
    ),
    "worker_lost": Kind(
        "error", "a worker lost its lease: others may drive its runs; it continues under a new id", ("worker", "runs")
    ),
    "types_unknown": Kind(
        "warning", "the store has active runs of workflows that this engine has not registered", ("worker", "types")
    ),
    "no_worker_knows": Kind(
        "warning",
        "a run was started, and no active worker has its workflow registered: it is not driven",
        ("run", "workflow"),
    ),
    "definition_unknown": Kind(
        "warning",
        "a run was started by name before any engine had published its workflow: no limit of it counts the run",
        ("run", "workflow"),
    ),
    "limits_outdated": Kind(
        "warning",
        "another engine has published newer limits of a workflow than this engine has",
        ("workflow", "version"),
    ),
    "deadlock_detected": Kind(
        "warning", "a cycle of waiting runs: the youngest run that waits for a lock gets the error", ("run", "worker")
    ),
    "claim_failed": Kind("warning", "a worker cannot reach the store; it tries again", ("worker", "error")),
    "record_failed": Kind(
        "warning", "a record could not be written because the store was unavailable; it is sent again", ("run", "error")
    ),
    "run_refused": Kind(
        "error",
        "the journal refused a record of this process, which does not drive the run any more",
        ("run", "workflow", "reason", "holder"),
    ),
    "run_blocked": Kind(
        "error",
        "the code of this engine cannot continue a run: it keeps its locks and waits for code that fits its history",
        ("run", "workflow", "reason", "tries", "code"),
    ),
    "heartbeat_missed": Kind(
        "warning",
        "a step sent no heartbeat in time although its worker has a lease: this engine has taken the run over",
        ("run", "workflow", "step", "worker"),
    ),
    "history_long": Kind(
        "warning",
        "the history of a run has 10,000 entries; each worker that claims the run replays it: use ctx.continue_as_new",
        ("run", "workflow", "entries"),
    ),
    "code_blocking": Kind(
        "warning",
        "workflow code has blocked its event loop for more than a second, at this line: move it into a step",
        ("run", "workflow", "seconds", "line"),
    ),
    "signals_unread": Kind(
        "warning", "a run has ended with unread signals, contrary to its on_unread=", ("run", "workflow", "signals")
    ),
    "records_removed": Kind(
        "debug", "records that were not used for longer than the retention were removed", ("removed",)
    ),
    "runs_purged": Kind(
        "info",
        "ended runs that were older than the limit were removed, with all that belongs to them",
        ("workflow", "count"),
    ),
    "callback_failed": Kind("error", "a callback of the user raised", ("key", "callback", "error")),
}
"""Every event there is. `docs/events.md` is made from this table."""

Sink = Callable[[Event], None]


class Events:
    """The hook: sinks subscribe, and components emit."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks: tuple[tuple[Sink, Callable[[str], bool] | None], ...] = ()
        for sink in sinks:
            self.subscribe(sink)

    def subscribe(self, sink: Sink) -> Callable[[], None]:
        """Send every event to the sink from now on. Returns a function that ends the subscription.

        If the sink has a method `wants(name)`, it is called first; an event that no sink wants is not created.

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
        """Pass an event to every sink. The name and its fields are those of the table."""
        assert EVENTS[name].fields == tuple(fields), f"event {name} has the fields {EVENTS[name].fields}"  # noqa: S101
        event = None
        for sink, wants in self._sinks:
            try:
                if wants is None or wants(name):
                    event = event or Event(name, time.time(), fields)
                    sink(event)
            except (Exception, SystemExit):  # a sink must not disturb the work
                _log.exception("the event sink %r failed on %s", sink, name)
