"""The notifier: every waiter is woken, also if an earlier `set` was interrupted."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import eventually

from holdfast.runtime.notifier import Notifier


def test_a_set_that_was_interrupted_is_completed_by_the_next_set():
    flag, woken = Notifier(), []

    def interrupted():
        if not woken:
            woken.append("first")
            raise KeyboardInterrupt

    flag._watch(interrupted)
    flag._watch(lambda: woken.append("second"))
    with pytest.raises(KeyboardInterrupt):
        flag.set()
    assert woken == ["first"]
    flag.set()
    assert woken == ["first", "second"]
    flag.set()
    assert woken == ["first", "second"], "each is woken once"


def test_all_waiting_threads_and_loops_are_woken_and_none_stays_registered():
    flag, woken = Notifier(), []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(20))) for _ in range(3)]
    threads += [threading.Thread(target=lambda: woken.append(asyncio.run(flag.wait_async(20)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(flag._watchers) == 6)
    flag.set()
    flag.set()
    for thread in threads:
        thread.join(20)
    assert woken == [True] * 6
    assert not flag._watchers
