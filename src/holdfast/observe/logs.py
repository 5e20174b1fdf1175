"""Events as lines of Python's logging, under the logger `holdfast`."""

from __future__ import annotations

import logging

from ..events import EVENTS, Event

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LoggingSink:
    """Writes each event at its level: its name, then its fields.

    >>> from holdfast.events import Event
    >>> LoggingSink().line(Event("records_removed", 0.0, {"removed": 3}))
    'records_removed removed=3'
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("holdfast")

    def wants(self, name: str) -> bool:
        """Whether the logger is enabled for the level of this event."""
        return self._logger.isEnabledFor(_LEVELS[EVENTS[name].level])

    def __call__(self, event: Event) -> None:
        """Log the event."""
        self._logger.log(_LEVELS[event.level], "%s", self.line(event), extra={"holdfast": event.fields})

    def line(self, event: Event) -> str:
        """The event as one line of text."""
        return " ".join([event.name, *(f"{name}={value!r}" for name, value in event.fields.items())])
