"""Waiting for conditions: tests never wait for a number of milliseconds."""

from holdfast.testing.waiting import PATIENCE, eventually, eventually_async

__all__ = ["PATIENCE", "eventually", "eventually_async"]
