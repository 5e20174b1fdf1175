"""Events as lines of Python's own logging, under the logger `holdfast`."""

from __future__ import annotations

import logging

from ..events import Event

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LoggingSink:
    """Writes each event at its level: its name, then its fields.

    >>> from holdfast.events import Event
    >>> LoggingSink().line(Event("records_removed", 0.0, {"removed": 3}))
    'records_removed removed=3'
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("holdfast")

    def __call__(self, event: Event) -> None:
        """Log the event, if its level is wanted."""
        level = _LEVELS[event.level]
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", self.line(event), extra={"holdfast": event.fields})

    def line(self, event: Event) -> str:
        """The event as one line of text."""
        return " ".join([event.name, *(f"{name}={value!r}" for name, value in event.fields.items())])
