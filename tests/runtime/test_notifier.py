"""The flag: whoever waits is woken, also by one who was interrupted on the way."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import eventually

from holdfast.runtime.notifier import Notifier


def test_setting_that_was_interrupted_is_finished_by_setting_again():
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


def test_threads_and_loops_that_wait_are_all_woken_and_nobody_stays_on_the_list():
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
