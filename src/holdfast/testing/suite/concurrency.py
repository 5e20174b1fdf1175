"""Concurrent use: no update is lost, a mutex has one holder at a time, and waiters are served in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from ... import commands as c
from ...platform import host_clock
from ...rules import lock_outcomes as out
from ...rules.slot import SlotSeen
from ..builders import SECOND, acquire, read, release, wait
from ..processes import running
from ..stress import check_ledger, count, take_turns
from .base import SuiteBase

HAMMER = """
from pathlib import Path
from holdfast.testing.stress import count, take_turns
_, url, me, times, ledger = sys.argv
store = open_store(url, namespace="default")
report("ready")
sys.stdin.readline()
count(store, me, int(times))
take_turns(store, me, int(times), Path(ledger))
report("done")
"""


class ConcurrencyTests(SuiteBase):
    """Threads with their own connections, and real processes if the store is shared."""

    def test_threads_that_increment_a_slot_lose_no_update(self) -> None:
        self.together(lambda me: count(self.store, me, self.rounds, self.endurance))
        assert self.ask(read(), SlotSeen).value == str(self.workers * self.rounds)

    def test_threads_never_hold_a_mutex_at_the_same_time(self) -> None:
        ledger = self.folder / "ledger"
        ledger.touch()
        self.together(lambda me: take_turns(self.store, me, self.rounds, ledger, self.endurance))
        check_ledger(ledger, self.workers * self.rounds)
        assert self.seen("turns").idle

    def test_processes_lose_no_update_and_never_hold_a_mutex_at_the_same_time(self) -> None:
        self.need_processes()
        self.connect()
        ledger = self.folder / "ledger"
        ledger.touch()
        with ExitStack() as stack:
            processes = [
                stack.enter_context(running(HAMMER, self.address, f"w{n}", str(self.rounds), str(ledger)))
                for n in range(self.workers)
            ]
            assert [process.read_line() for process in processes] == ["ready"] * self.workers
            for process in processes:
                process.send_line()
            assert [process.read_line() for process in processes] == ["done"] * self.workers
        assert self.ask(read(), SlotSeen).value == str(self.workers * self.rounds)
        check_ledger(ledger, self.workers * self.rounds)
        assert self.seen("turns").idle

    def test_grants_are_in_order_of_arrival_across_connections(self) -> None:
        held = self.ask(acquire(), out.Granted)
        processes = [(f"w{n}.1", self.connect(store=self.opened())) for n in range(6)]
        for place, (attempt, connection) in enumerate(processes):
            assert self.ask(wait(id=attempt, waiter_ttl=60 * SECOND), out.Queued, connection).position == place
        tokens, holder = [held.token], "a.1"
        for place, (attempt, connection) in enumerate(processes):
            assert self.ask(release(id=holder, token=tokens[-1]), out.Released).woken == (attempt,)
            for other, theirs in processes[place + 1 :]:
                self.ask(wait(id=other, waiter_ttl=60 * SECOND), out.Queued, theirs)
            tokens.append(self.ask(wait(id=attempt), out.Granted, connection).token)
            holder = attempt
        assert tokens == sorted(set(tokens))

    def test_of_many_attempts_on_a_free_key_at_once_exactly_one_is_granted(self) -> None:
        answers: list[out.Outcome] = []

        def try_once(me: str) -> None:
            connection = self.store.connect("commands")
            try:
                commands = [acquire(f"key:{n}", f"{me}.{n}") for n in range(self.rounds)]
                while commands:  # a command whose record is in use may fail with a retryable error
                    outcomes = connection.execute(commands)
                    again = [isinstance(got, c.Failed) and got.error.retryable for got in outcomes]
                    answers.extend(got for got, once_more in zip(outcomes, again, strict=True) if not once_more)
                    commands = [one for one, once_more in zip(commands, again, strict=True) if once_more]
            finally:
                connection.close()

        self.together(try_once)
        granted = [answer for answer in answers if isinstance(answer, out.Granted)]
        assert len(granted) == self.rounds
        assert sum(isinstance(answer, out.Busy) for answer in answers) == (self.workers - 1) * self.rounds

    def test_a_killed_holder_is_replaced_when_its_lease_has_expired(self) -> None:
        """Not before: the successor's grant begins when the lease of the killed holder has expired."""
        self.need_processes()
        script = """
store = open_store(sys.argv[1], namespace="real time")
granted, = store.connect("commands").execute([acquire(ttl=1)])
report(granted.token, granted.expires_at)
sys.stdin.readline()
"""
        store = self.open(self.address, namespace="real time", clock=host_clock)
        self._things.callback(store.close)
        connection = self.connect(store=store)
        with running(script, self.address) as holder:
            token, expires_at = map(int, holder.read_line().split())
            holder.kill()
            found: list[out.Granted] = []

            def taken() -> bool:
                (outcome,) = connection.execute([wait(waiter_ttl=60 * SECOND)])
                found.extend([outcome] if isinstance(outcome, out.Granted) else [])
                return bool(found)

            self.eventually(taken)
        assert found[0].since >= expires_at
        assert found[0].token > token
        assert isinstance(connection.execute([c.Inspect(key="k")])[0], out.LockSeen)

    @property
    def endurance(self) -> float:
        """Seconds that a whole test may take."""
        return 3 * self.patience

    def together(self, work: Callable[[str], object]) -> None:
        """Run a function in several threads at once; an exception of a thread is raised here."""
        errors: list[BaseException] = []
        begin = threading.Barrier(self.workers)
        self.connect()  # so that the schema is created before the threads start

        def run(me: str) -> None:
            try:
                begin.wait()
                work(me)
            except BaseException as error:  # (it is raised below)
                errors.append(error)

        threads = [threading.Thread(target=run, args=(f"w{n}",), name=f"processes-{n}") for n in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
