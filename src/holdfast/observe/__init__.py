"""Sinks for events. Each is a callable that takes an `Event`."""

from .logs import LoggingSink

__all__ = ["LoggingSink"]
