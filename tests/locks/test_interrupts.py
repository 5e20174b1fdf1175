"""Ctrl-C at any moment: KeyboardInterrupt is raised, nothing hangs, and nothing stays locked for longer than its
ttl."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast

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
                    key = chance.choice("abs")
                    with hf.semaphore(key, permits=2, ttl=1, wait=20) if key == "s" else hf.lock(key, ttl=1, wait=20):
                        pairs += 1
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        for key in "ab":
            hf.lock(key, wait=10).acquire().release()
        names = [thread.name for thread in __import__("threading").enumerate() if thread.is_alive()]
        assert names.count("holdfast-renewals") == 1, names
    print(interrupts, pairs)
"""

MANY_CALLERS = """
    import faulthandler, random, signal, sys, threading
    from holdfast import Client
    from holdfast.locks.process_queue import queues
    faulthandler.dump_traceback_later(50, exit=True)  # a hang shows where
    chance, stop = random.Random(int(sys.argv[2])), threading.Event()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupts = 0
    with Client(sys.argv[1]) as hf:
        def make():
            return (hf.semaphore("s", permits=2, ttl=1, wait=30), hf.rwlock("doc", ttl=1, wait=30).read(),
                    hf.rwlock("doc", ttl=1, wait=30).write())[chance.randrange(3)]
        def callers():
            while not stop.is_set():
                with make():
                    pass
        threads = [threading.Thread(target=callers) for _ in range(12)]
        for thread in threads:
            thread.start()
        while interrupts < int(sys.argv[3]):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.02), 0.5)
                while True:
                    with make():
                        pass
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        for thread in threads:
            thread.join()
        for lock in (hf.semaphore("s", permits=2, weight=2, wait=10), hf.rwlock("doc", wait=10).write()):
            lock.acquire().release()
    print(interrupts, len(queues))
"""

HANDLER = """
    import faulthandler, signal, sys
    from holdfast import Client
    from holdfast.errors import WouldDeadlock
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
def test_many_interrupts_block_no_call_and_leave_nothing_locked(url, seed):
    done = run(STORM, url, seed, 150)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == 150


def test_interrupts_of_one_of_many_callers_leave_no_caller_in_the_local_queue(url):
    done = run(MANY_CALLERS, url, 1, 60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["60", "0"]


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
            except subprocess.TimeoutExpired:  # raised within a finaliser, where Python drops every exception
                child.send_signal(signal.SIGINT)
            assert child.wait(20) == -signal.SIGINT
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


SOURCE = Path(holdfast.__file__).parent
MUTEXES = ("lock", "mutex")


def loops_under_a_mutex(tree):
    """The loops that run while a mutex is held: their lines."""
    for block in ast.walk(tree):
        if isinstance(block, ast.With) and any(
            ast.unparse(item.context_expr).endswith(MUTEXES) for item in block.items
        ):
            for node in (node for statement in block.body for node in ast.walk(statement)):
                if isinstance(node, ast.For | ast.While) or any(
                    part.ifs for part in getattr(node, "generators", ()) if not isinstance(node, ast.GeneratorExp)
                ):
                    yield node.lineno


def test_no_loop_is_in_the_same_function_as_the_mutex_that_it_runs_under():
    """CPython 3.13 leaves the jump at the end of some loops out of the exception table: a Ctrl-C that is raised there
    skips the `with` around the loop, and the mutex stays locked for ever. A loop in a function of its own is safe."""
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in loops_under_a_mutex(ast.parse(path.read_text()))
        if "testing" not in path.parts
    ]
    assert not found


def test_a_loop_under_a_mutex_is_found():
    bad = "with self._lock:\n    for one in all:\n        if one:\n            use(one)"
    assert list(loops_under_a_mutex(ast.parse(bad))) == [2]
