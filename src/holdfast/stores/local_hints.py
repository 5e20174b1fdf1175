"""Hints within one process: a grant made by this process is passed directly to its watches.

Hints from other processes arrive by a datagram, a notification or a message, and each store receives them in its own
way. Common to all is that an error in the callback of a hint ends neither a thread nor a command.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from .contract import Hint

log = logging.getLogger("holdfast.stores")


class HintReceiver:
    """Passes hints to a callback until it is closed. `polls`: only heads of queues get hints, see `Watch.polls`."""

    polls = False

    def __init__(self, on_hint: Hint) -> None:
        self._on_hint = on_hint
        self._closed = threading.Event()

    def hint(self, ids: Collection[str] | None) -> None:
        """Pass a hint on. An error in the callback must end neither the thread nor the sender's command."""
        if self._closed.is_set():
            return
        try:
            self._on_hint(ids)
        except Exception:
            log.exception("a callback for hints failed")


W = TypeVar("W", bound=HintReceiver)


class LocalHints(Generic[W]):
    """The watches of this process, by their store and channel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[tuple[Hashable, str], list[W]] = {}

    def add(self, place: Hashable, channel: str, watch: W) -> None:
        """Register a watch."""
        with self._lock:
            self._watches.setdefault((place, channel), []).append(watch)

    def remove(self, place: Hashable, channel: str, watch: W) -> None:
        """Unregister a watch. Safe to call twice."""
        with self._lock:
            near = self._watches.get((place, channel), [])
            if watch in near:
                near.remove(watch)
            if not near:
                self._watches.pop((place, channel), None)

    def channels(self, place: Hashable) -> list[str]:
        """The channels of a store that are watched in this process."""
        with self._lock:
            watched = list(self._watches)
        return [channel for where, channel in watched if where == place]

    def send(self, place: Hashable, channel: str, ids: Collection[str] | None) -> bool:
        """Pass a hint to all watches of this channel. False if there is none."""
        with self._lock:
            near = list(self._watches.get((place, channel), ()))
        for watch in near:
            watch.hint(ids)
        return bool(near)

    def forget(self) -> list[W]:
        """Reset in the child of a fork, where no thread may release the old lock. Returns the inherited watches."""
        inherited = [watch for near in self._watches.values() for watch in near]
        self._lock, self._watches = threading.Lock(), {}
        return inherited
