"""A grant is told to whoever waits for it. A hint may be late, doubled or too general; it must come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...rules import lock_outcomes as out
from ...stores.contract import Watch
from ..builders import acquire, release, wait
from ..processes import running
from .base import SuiteBase

RELEASER = """
store = open_store(sys.argv[1], namespace="default")
connection = store.connect("commands")
granted, = connection.execute([acquire()])
say(granted.token)
sys.stdin.readline()
connection.execute([release(token=granted.token)])
say("released")
sys.stdin.readline()
"""


class HintTests(SuiteBase):
    """What `Store.watch` promises, where the store says that it notifies."""

    def watching(self, channel: str = "b") -> tuple[Watch, list[list[str] | None]]:
        """Watch a channel; returns the watch and what it has heard so far."""
        if not self.store.capabilities.notifies:
            pytest.skip("this store does not notify: those who wait ask again from time to time")
        heard: list[list[str] | None] = []
        watch = self.store.watch(channel, lambda ids: heard.append(None if ids is None else list(ids)))
        self._things.callback(watch.close)
        return watch, heard

    def hand_over(self, id: str = "b.1") -> None:
        """Let an attempt wait for a key, and offer it the key."""
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(id=id), out.Queued)
        self.ask(release(token=held.token), out.Released)
        granted = self.ask(wait(id=id), out.Granted)
        self.ask(release(id=id, token=granted.token), out.Released)

    def test_a_release_is_heard_by_the_one_who_is_next(self) -> None:
        watch, heard = self.watching()
        watch.expect("b.1", eager=True)
        self.hand_over("b.1")
        self.eventually(_told(heard, "b.1"))

    def test_whatever_makes_a_grant_is_heard(self) -> None:
        watch, heard = self.watching()
        watch.expect("b.1", eager=True)
        self.send(acquire(ttl=1), wait(id="b.1"))
        self.advance(1)
        self.send(acquire(id="c.1"))  # a stranger finds that the holder's time is over
        self.eventually(_told(heard, "b.1"))

    def test_each_channel_hears_of_its_own_attempts_only(self) -> None:
        _, near = self.watching("b")
        _, far = self.watching("bb")
        self.hand_over("b.1")
        self.hand_over("bb.1")
        self.hand_over("x.1")
        self.eventually(_told(near, "b.1"))
        self.eventually(_told(far, "bb.1"))
        assert {attempt for ids in near for attempt in ids or ()} <= {"b.1"}
        assert {attempt for ids in far for attempt in ids or ()} <= {"bb.1"}

    def test_the_watches_of_one_channel_all_hear(self) -> None:
        _, first = self.watching()
        _, second = self.watching()
        self.hand_over()
        self.eventually(_told(first, "b.1"))
        self.eventually(_told(second, "b.1"))

    def test_a_closed_watch_hears_nothing(self) -> None:
        watch, heard = self.watching()
        watch.close()
        watch.close()
        _, other = self.watching()
        before = len(heard)
        self.hand_over()
        self.eventually(_told(other, "b.1"))
        assert len(heard) == before

    def test_expecting_and_forgetting_is_always_allowed(self) -> None:
        watch, _ = self.watching()
        watch.expect("b.1", eager=True)
        watch.expect("b.1", eager=False)
        watch.forget("b.1")
        watch.forget("never expected")

    def test_another_process_is_heard(self) -> None:
        self.need_processes()
        watch, heard = self.watching()
        with running(RELEASER, self.address) as other:
            assert other.hear()
            self.ask(wait(waiter_ttl=None), out.Queued)
            watch.expect("b.1", eager=True)
            other.tell()
            self.eventually(_told(heard, "b.1"))
            assert other.hear() == "released"


def _told(heard: list[list[str] | None], id: str) -> Callable[[], bool]:
    return lambda: any(ids is None or id in ids for ids in heard)
