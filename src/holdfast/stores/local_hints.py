"""Watches, and how those of one process find one another: a grant by this process is told to them directly.

What comes from elsewhere comes by a datagram, a notification or a message, and is each store's own. What is the same
for all is here: a hint is passed on so that a mistake in the callback ends neither a thread nor a command.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from .contract import Hint

log = logging.getLogger("holdfast.stores")


class HintReceiver:
    """What passes hints on until it is closed. `polls`: hints come only for the heads of queues, see `Watch.polls`."""

    polls = False

    def __init__(self, on_hint: Hint) -> None:
        self._on_hint = on_hint
        self._closed = threading.Event()

    def hint(self, ids: Collection[str] | None) -> None:
        """Pass a hint on. A mistake in the callback must not end the thread, nor the sender's command."""
        if self._closed.is_set():
            return
        try:
            self._on_hint(ids)
        except Exception:
            log.exception("a callback for wake-up hints failed")


W = TypeVar("W", bound=HintReceiver)


class LocalHints(Generic[W]):
    """The watches of this process, by the place that they watch and their channel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[tuple[Hashable, str], list[W]] = {}

    def add(self, place: Hashable, channel: str, watch: W) -> None:
        """It hears from now on."""
        with self._lock:
            self._watches.setdefault((place, channel), []).append(watch)

    def remove(self, place: Hashable, channel: str, watch: W) -> None:
        """It hears no longer. Twice is harmless."""
        with self._lock:
            near = self._watches.get((place, channel), [])
            if watch in near:
                near.remove(watch)
            if not near:
                self._watches.pop((place, channel), None)

    def channels(self, place: Hashable) -> list[str]:
        """The channels of a place that are watched here."""
        with self._lock:
            watched = list(self._watches)
        return [channel for where, channel in watched if where == place]

    def tell(self, place: Hashable, channel: str, ids: Collection[str] | None) -> bool:
        """Give a hint to all who watch this channel here. False if nobody does."""
        with self._lock:
            near = list(self._watches.get((place, channel), ()))
        for watch in near:
            watch.hint(ids)
        return bool(near)

    def forget(self) -> list[W]:
        """Begin anew, as the child of a fork: its lock may be held by a thread that is not there. Returns who was."""
        inherited = [watch for near in self._watches.values() for watch in near]
        self._lock, self._watches = threading.Lock(), {}
        return inherited
