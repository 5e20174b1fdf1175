"""Hints: a waiter is notified of its grant. A hint may be late, duplicated or too general, but it must arrive."""

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
report(granted.token)
sys.stdin.readline()
connection.execute([release(token=granted.token)])
report("released")
sys.stdin.readline()
"""


class HintTests(SuiteBase):
    """What `Store.watch` promises, if the store has the capability `notifies`."""

    def watching(self, channel: str = "b") -> tuple[Watch, list[list[str] | None]]:
        """Watch a channel. Returns the watch, and a list to which received hints are appended."""
        if not self.store.capabilities.notifies:
            pytest.skip("this store sends no notifications: its waiters poll")
        received: list[list[str] | None] = []
        watch = self.store.watch(channel, lambda ids: received.append(None if ids is None else list(ids)))
        self._things.callback(watch.close)
        return watch, received

    def hand_over(self, id: str = "b.1") -> None:
        """Let an attempt wait for a key, hand the key over to it, and release it."""
        held = self.ask(acquire(), out.Granted)
        self.ask(wait(id=id), out.Queued)
        self.ask(release(token=held.token), out.Released)
        granted = self.ask(wait(id=id), out.Granted)
        self.ask(release(id=id, token=granted.token), out.Released)

    def test_a_release_hints_the_next_waiter(self) -> None:
        watch, received = self.watching()
        watch.expect("b.1", eager=True)
        self.hand_over("b.1")
        self.eventually(_was_hinted(received, "b.1"))

    def test_every_command_that_grants_a_lock_sends_a_hint(self) -> None:
        watch, received = self.watching()
        watch.expect("b.1", eager=True)
        self.send(acquire(ttl=1), wait(id="b.1"))
        self.advance(1)
        self.send(acquire(id="c.1"))  # the command of another client finds that the lease has expired
        self.eventually(_was_hinted(received, "b.1"))

    def test_each_channel_receives_hints_for_its_own_attempts_only(self) -> None:
        _, near = self.watching("b")
        _, far = self.watching("bb")
        self.hand_over("b.1")
        self.hand_over("bb.1")
        self.hand_over("x.1")
        self.eventually(_was_hinted(near, "b.1"))
        self.eventually(_was_hinted(far, "bb.1"))
        assert {attempt for ids in near for attempt in ids or ()} <= {"b.1"}
        assert {attempt for ids in far for attempt in ids or ()} <= {"bb.1"}

    def test_all_watches_of_one_channel_receive_a_hint(self) -> None:
        _, first = self.watching()
        _, second = self.watching()
        self.hand_over()
        self.eventually(_was_hinted(first, "b.1"))
        self.eventually(_was_hinted(second, "b.1"))

    def test_a_closed_watch_receives_nothing(self) -> None:
        watch, received = self.watching()
        watch.close()
        watch.close()
        _, other = self.watching()
        before = len(received)
        self.hand_over()
        self.eventually(_was_hinted(other, "b.1"))
        assert len(received) == before

    def test_expect_and_forget_may_be_called_at_any_time(self) -> None:
        watch, _ = self.watching()
        watch.expect("b.1", eager=True)
        watch.expect("b.1", eager=False)
        watch.forget("b.1")
        watch.forget("never expected")

    def test_a_hint_from_another_process_is_received(self) -> None:
        self.need_processes()
        watch, received = self.watching()
        with running(RELEASER, self.address) as other:
            assert other.read_line()
            self.ask(wait(waiter_ttl=None), out.Queued)
            watch.expect("b.1", eager=True)
            other.send_line()
            self.eventually(_was_hinted(received, "b.1"))
            assert other.read_line() == "released"


def _was_hinted(received: list[list[str] | None], id: str) -> Callable[[], bool]:
    return lambda: any(ids is None or id in ids for ids in received)
