"""The batcher: batches, failures of single commands, interruptions, and closing."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import threading
import weakref

import pytest
from exhausted import no_threads
from waiting import eventually

from holdfast import Client, HoldfastError, StoreUnavailable
from holdfast.commands import Acquire, Failed, Inspect
from holdfast.errors import ClientClosed
from holdfast.rules.lock_outcomes import LockSeen
from holdfast.rules.lock_record import Label
from holdfast.runtime.batcher import Batcher
from holdfast.runtime.requests import Request
from holdfast.stores import open_store


def look_at(number):
    """A real command that can be recognised: it inspects the key of that number."""
    return Inspect(key=str(number))


async def submitted(batcher, number):
    return await batcher.submit(look_at(number))


BAD = Acquire(key="bad", id="bad.1", label=Label(name="bad"), ttl="soon")  # no rule can add that to a time


class HeldConnection:
    """A real connection that a test can block: it shows what a batcher sends, and when."""

    def __init__(self, connection) -> None:
        self._connection = connection
        self.batches: list[list[str]] = []
        self.gate = threading.Semaphore(1_000_000)
        self.started = threading.Semaphore(0)
        self.closed = 0
        self.error: BaseException | None = None

    def execute(self, commands):
        self.batches.append([int(command.key) for command in commands if command is not BAD])
        self.started.release()
        self.gate.acquire()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self._connection.execute(commands)

    def close(self):
        self.closed += 1


@pytest.fixture
def heartbeats():
    store = open_store("memory://", namespace="batcher")
    connection = store.connect("commands")
    yield HeldConnection(connection)
    connection.close()
    store.close()


@pytest.fixture
def batcher(heartbeats):
    made = Batcher(lambda: heartbeats, "test")
    yield made
    heartbeats.gate.release(1_000)
    made.close()


def shut(heartbeats):
    heartbeats.gate = threading.Semaphore(0)


def test_one_caller_gets_a_plain_round_trip_and_no_thread_is_made(batcher, heartbeats):
    assert isinstance(batcher.run(look_at(1)), LockSeen)
    assert heartbeats.batches == [[1]]
    assert batcher._thread is None


def test_commands_submitted_during_a_batch_are_sent_together(batcher, heartbeats):
    shut(heartbeats)
    threads = [threading.Thread(target=batcher.run, args=(look_at(number),)) for number in range(6)]
    threads[0].start()
    heartbeats.started.acquire()
    for thread in threads[1:]:
        thread.start()
    eventually(lambda: len(batcher._queue) == 5)
    heartbeats.gate.release(10)
    for thread in threads:
        thread.join(10)
    assert heartbeats.batches[0] == [0]
    assert sorted(heartbeats.batches[1]) == [1, 2, 3, 4, 5]
    assert len(heartbeats.batches) == 2


def test_a_caller_sends_only_the_batch_that_contains_its_own_command(batcher, heartbeats):
    shut(heartbeats)
    runner = threading.Thread(target=batcher.run, args=(look_at(0),))
    runner.start()
    heartbeats.started.acquire()
    answered = threading.Event()
    batcher.enqueue([look_at(1)], lambda *_: answered.set())
    heartbeats.gate.release()
    runner.join(10)
    assert not runner.is_alive(), "it does not wait for the others' batch"
    heartbeats.started.acquire()
    heartbeats.gate.release()
    assert answered.wait(10)


def test_one_bad_command_fails_alone(batcher):
    results = []
    batcher.enqueue([look_at(1), BAD, look_at(2)], lambda outcomes, error: results.append(outcomes))
    eventually(lambda: results)
    assert [type(outcome) for outcome in results[0]] == [LockSeen, Failed, LockSeen]
    with pytest.raises(HoldfastError, match="bad"):
        batcher.run(BAD)
    assert isinstance(batcher.run(look_at(1)), LockSeen)


def test_an_interrupted_caller_closes_the_connection_and_the_other_commands_are_ambiguous(batcher, heartbeats):
    shut(heartbeats)
    heartbeats.error = KeyboardInterrupt()
    outcome = []
    # Put into the queue without a notification, so that it is sent in the caller's own batch.
    batcher._queue.append(Request([look_at(7)], lambda outcomes, error: outcome.append(error)))
    heartbeats.gate.release()
    with pytest.raises(KeyboardInterrupt):
        batcher.run(look_at(1))
    assert heartbeats.batches == [[7, 1]]
    assert isinstance(outcome[0], StoreUnavailable)
    assert outcome[0].ambiguous
    assert heartbeats.closed == 1
    heartbeats.gate.release(5)
    assert isinstance(batcher.run(look_at(2)), LockSeen), "the batcher continues, over a new connection"


def test_an_unexpected_error_of_the_driver_is_ambiguous_for_every_caller(batcher, heartbeats):
    heartbeats.error = ZeroDivisionError("a surprise")
    with pytest.raises(StoreUnavailable, match="a surprise") as caught:
        batcher.run(look_at(1))
    assert caught.value.ambiguous
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert isinstance(batcher.run(look_at(1)), LockSeen)


def test_a_loop_is_called_back_with_each_outcome_or_error(batcher, heartbeats, caplog):
    answers = []

    async def main():
        batcher.submit_callback(look_at(1), answers.append)
        batcher.submit_callback(look_at(2), lambda _answer: 1 / 0)
        batcher.submit_callback(BAD, answers.append)
        await batcher.submit(look_at(3))
        heartbeats.error = StoreUnavailable("away")
        batcher.submit_callback(look_at(4), answers.append)
        with pytest.raises(StoreUnavailable):
            await batcher.submit(look_at(5))

    asyncio.run(asyncio.wait_for(main(), 10))
    assert heartbeats.batches == [[1, 2, 3], [4, 5]]
    assert isinstance(answers[0], LockSeen)
    assert isinstance(answers[1], HoldfastError)
    assert isinstance(answers[2], StoreUnavailable)
    assert "a callback for the outcome of a command failed" in caplog.text


def test_commands_that_a_loop_submits_in_one_iteration_are_sent_together(batcher, heartbeats):
    async def main():
        await asyncio.gather(*(batcher.submit(look_at(number)) for number in range(20)))

    asyncio.run(main())
    assert heartbeats.batches == [list(range(20))]


@pytest.mark.parametrize(("tasks", "first"), [(20, 20), (100, 50), (3_000, 1_000)])
def test_on_a_fast_store_many_callers_are_sent_in_halves_and_every_caller_gets_its_outcome(heartbeats, tasks, first):
    batcher = Batcher(lambda: heartbeats, "swift", out_of_process=True)

    async def going_round(number):
        return [await batcher.submit(look_at(number)) for _ in range(5)]

    async def main():
        return await asyncio.gather(*(going_round(number) for number in range(tasks)))

    answers = list(itertools.chain(*asyncio.run(main())))
    batcher.close()
    assert [type(answer) for answer in answers] == [LockSeen] * 5 * tasks
    assert len(heartbeats.batches[0]) == first
    assert sorted(itertools.chain(*heartbeats.batches)) == sorted(5 * list(range(tasks)))


def test_a_cancelled_submission_that_was_not_sent_is_never_sent(batcher, heartbeats):
    async def main():
        task = asyncio.ensure_future(submitted(batcher, 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await batcher.submit(look_at(2))

    asyncio.run(main())
    assert heartbeats.batches == [[2]]


def test_a_loop_that_is_closed_before_it_submits_leaves_no_reference(batcher, heartbeats):
    loop = asyncio.new_event_loop()
    task = loop.create_task(submitted(batcher, 1))
    task._log_destroy_pending = False
    loop.call_soon(loop.stop)
    loop.run_forever()  # one iteration: submitted, not yet sent
    loop.close()
    gone = weakref.ref(task)
    del task, loop
    gc.collect()
    assert gone() is None
    assert heartbeats.batches == []


def test_a_closed_batcher_sends_its_queued_commands_and_then_refuses(batcher, heartbeats):
    shut(heartbeats)
    answered = []
    for number in range(3):
        batcher.enqueue([look_at(number)], lambda outcomes, error: answered.append(error))
    heartbeats.started.acquire()
    closer = threading.Thread(target=batcher.close)
    closer.start()
    eventually(lambda: batcher._closed)
    heartbeats.gate.release(10)
    closer.join(10)
    assert answered == [None, None, None]
    assert heartbeats.closed == 1
    with pytest.raises(ClientClosed):
        batcher.run(look_at(9))
    assert not batcher.enqueue([look_at(9)])

    async def submit():
        await batcher.submit(look_at(9))

    with pytest.raises(ClientClosed):
        asyncio.run(submit())


def test_closing_waits_for_a_caller_that_is_sending(batcher, heartbeats):
    shut(heartbeats)
    runner = threading.Thread(target=batcher.run, args=(look_at(0),))
    runner.start()
    heartbeats.started.acquire()
    closer = threading.Thread(target=batcher.close)
    closer.start()
    eventually(lambda: batcher._closed)
    assert heartbeats.closed == 0, "a connection in use is not pulled away"
    heartbeats.gate.release(5)
    closer.join(10)
    runner.join(10)
    assert heartbeats.closed == 1


def test_a_call_on_a_closed_batcher_starts_no_thread(batcher):
    answered = threading.Event()
    batcher.enqueue([look_at(1)], lambda *_: answered.set())
    assert answered.wait(10)
    batcher.close()
    thread = batcher._thread
    for _ in range(3):
        with pytest.raises(ClientClosed):
            batcher.run(look_at(9))
    assert batcher._thread is thread
    assert batcher._runner is None


def test_an_error_in_one_callback_does_not_affect_the_others(batcher, heartbeats, caplog):
    shut(heartbeats)
    answered = []
    batcher.enqueue([look_at(0)])
    heartbeats.started.acquire()
    batcher.enqueue([look_at(1)], lambda *_: 1 / 0)
    batcher.enqueue([look_at(2)], lambda outcomes, error: answered.append(error))
    heartbeats.gate.release(10)
    eventually(lambda: answered == [None])
    assert "ZeroDivisionError" in caplog.text
    assert isinstance(batcher.run(look_at(3)), LockSeen), "the thread goes on"


def test_without_a_thread_every_caller_gets_an_error_and_the_batcher_continues_later(batcher, heartbeats):
    async def submit():
        return await batcher.submit(look_at(1))

    answered = []
    with no_threads():
        with pytest.raises(StoreUnavailable, match="no thread") as caught:
            asyncio.run(asyncio.wait_for(submit(), 10))
        assert not caught.value.ambiguous
        assert batcher.enqueue([look_at(2)], lambda outcomes, error: answered.append(error))
        assert "no thread" in str(answered[0])
        shut(heartbeats)
        runner = threading.Thread(target=batcher.run, args=(look_at(3),))
        runner.start()
        heartbeats.started.acquire()
        batcher.enqueue([look_at(4)], lambda outcomes, error: answered.append(error))
        heartbeats.gate.release(10)
        runner.join(10)
        eventually(lambda: len(answered) == 2)
        assert isinstance(batcher.run(look_at(5)), LockSeen), "a caller needs no thread"
    assert isinstance(asyncio.run(submit()), LockSeen)
    assert heartbeats.batches == [[3], [5], [1]]


def test_a_batcher_can_be_closed_if_no_thread_can_be_started(batcher, heartbeats):
    batcher.run(look_at(1))
    answered = []
    with no_threads():
        batcher._queue.append(Request([look_at(7)], lambda outcomes, error: answered.append(error)))
        batcher.close()
    assert "no thread" in str(answered[0])
    assert heartbeats.closed == 1


def test_a_real_interrupt_while_acquiring_releases_the_lock(url, plan):
    """Ctrl-C at the moment at which the store has granted the lock."""
    with Client(url) as client:
        plan.after = lambda commands: (
            signal.raise_signal(signal.SIGINT) if any(isinstance(c, Acquire) for c in commands) else None
        )
        with pytest.raises(KeyboardInterrupt):
            client.lock("a").acquire()
        plan.after = lambda _commands: None
        eventually(lambda: not client.locks.inspect("a").held)
        with client.lock("a", wait=10):
            pass


def test_queries_do_not_wait_behind_commands(url, plan):
    with Client(url) as client:
        blocked, release = threading.Event(), threading.Event()

        def stall(commands):
            if any(isinstance(command, Acquire) for command in commands):
                blocked.set()
                release.wait(20)

        plan.before = stall
        thread = threading.Thread(target=lambda: client.hold("a", ttl=5))
        thread.start()
        assert blocked.wait(10)
        assert client.locks.inspect("b").holders == ()
        release.set()
        thread.join(10)
        assert plan.count(Inspect) == 1


def test_many_threads_and_loops_at_once_lose_nothing(batcher):
    answers = itertools.count()
    done = []

    def from_thread():
        for number in range(200):
            batcher.run(look_at(number))
            done.append(next(answers))

    async def many():
        for _ in range(10):
            await asyncio.gather(*(batcher.submit(look_at(number)) for number in range(20)))
            done.extend(next(answers) for _ in range(20))

    threads = [threading.Thread(target=from_thread) for _ in range(4)]
    threads += [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(done) == 4 * 200 + 3 * 200
