"""Ctrl-C at any moment: it comes through, nothing hangs, and nothing stays locked for longer than its ttl."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

STORM = """
    import faulthandler, random, signal, sys, time
    from holdfast import Client
    faulthandler.dump_traceback_later(50, exit=True)  # a hang shows where
    chance = random.Random(int(sys.argv[2]))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupts = pairs = 0
    with Client(sys.argv[1]) as hf:
        while interrupts < int(sys.argv[3]):
            try:
                # Once more after a while, because one that comes within a finaliser is swallowed by the interpreter.
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.002), 0.5)
                while True:
                    with hf.lock(chance.choice("ab"), ttl=1, wait=20):
                        pairs += 1
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        for key in "ab":
            hf.lock(key, wait=10).acquire().release()
        names = [thread.name for thread in __import__("threading").enumerate() if thread.is_alive()]
        assert names.count("holdfast-keeper") == 1, names
    print(interrupts, pairs)
"""

HANDLER = """
    import faulthandler, signal, sys
    from holdfast import Client, WouldDeadlock
    faulthandler.dump_traceback_later(50, exit=True)
    seen = []
    def handler(*_):
        try:
            hf.hold("from-the-handler", ttl=1)
            seen.append("went")
        except WouldDeadlock:
            seen.append("refused")
    with Client(sys.argv[1]) as hf:
        signal.signal(signal.SIGALRM, handler)
        for _ in range(60):
            before = len(seen)
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            while len(seen) == before:
                with hf.lock("k", ttl=5):
                    pass
    print(sorted(set(seen)))
"""


def run(source, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_interrupts_hangs_nothing_and_leaves_nothing_locked(url, seed):
    done = run(STORM, url, seed, 150)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == 150


def test_a_signal_handler_that_would_wait_for_its_own_thread_is_refused(url):
    done = run(HANDLER, url)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout


def test_a_real_ctrl_c_ends_the_process_and_frees_its_lock(tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"
    source = """
        import sys
        from holdfast import Client
        with Client(sys.argv[1]) as hf:
            with hf.lock("k", ttl=60):
                pass
            print("ready", flush=True)
            while True:
                with hf.lock("k", ttl=60, wait=20):
                    pass
    """
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert child.stdout is not None
        try:
            child.stdout.readline()
            child.send_signal(signal.SIGINT)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:  # it came within a finaliser, where Python drops whatever is raised
                child.send_signal(signal.SIGINT)
            assert child.wait(20) == -signal.SIGINT
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
