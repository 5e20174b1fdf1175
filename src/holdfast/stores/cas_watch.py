"""Hints on a compare-and-swap store: within the process directly, from other processes if the service can notify."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..platform import after_fork_in_child
from ..rules.lock_outcomes import Outcome
from .cas_adapter import CasService, CasSubscription
from .common import woken_by_channel
from .contract import Hint
from .local_hints import HintReceiver, LocalHints


class CasWatch(HintReceiver):
    """A subscription to the hints of one channel."""

    def __init__(self, service: CasService, channel: str, on_hint: Hint) -> None:
        super().__init__(on_hint)
        self._place, self._channel = service.identity, channel
        _local_hints.add(self._place, channel, self)
        try:
            self._subscription: CasSubscription | None = service.watch(self._notified)
        except BaseException:
            _local_hints.remove(self._place, channel, self)
            raise

    @property
    def polls(self) -> bool:  # type: ignore[override]  # it may change at any time
        """Whether no hints of other processes arrive at this moment."""
        return self._subscription is None or not self._subscription.live

    def expect(self, id: str, *, eager: bool) -> None:
        """Nothing to prepare: without notifications, waiters poll at their own pace."""

    def forget(self, id: str) -> None:
        """Nothing to undo."""

    def close(self) -> None:
        """End the subscription."""
        self._closed.set()
        _local_hints.remove(self._place, self._channel, self)
        if self._subscription is not None:
            self._subscription.close()

    def _notified(self, attempts: Collection[str] | None) -> None:
        if attempts is None:
            self.hint(None)
            return
        mine = [attempt for attempt in attempts if attempt.startswith(f"{self._channel}.")]
        if mine:
            self.hint(mine)


_local_hints: LocalHints[CasWatch] = LocalHints()


def hint_locally(place: str, outcomes: Sequence[Outcome]) -> None:
    """Pass the hints of these outcomes to the watches of this process."""
    for channel, attempts in woken_by_channel(outcomes).items():
        _local_hints.send(place, channel, attempts)


after_fork_in_child(lambda: (_local_hints.forget(), None)[1])
