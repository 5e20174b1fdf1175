"""Many callers of one process, for tests of the local queue."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from waiting import eventually

from holdfast.locks.process_queue import queues


def queued_here(client, key, kind="semaphore"):
    """How many callers wait in the local queue, not in the store."""
    return queues.waiting((client.runtime.store.identity, key, kind))


@contextmanager
def callers(count, function):
    """Threads that each call the function with their number, started one after the other; joined at the end."""
    threads = [threading.Thread(target=function, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    yield threads
    eventually(lambda: not any(thread.is_alive() for thread in threads))


async def waiters(client, key, count):
    """Whether there are so many waiters in the store."""
    return len((await client.locks.inspect(key)).waiters) == count


async def pass_through(hf, **options):
    async with hf.semaphore("s", permits=1, **options):
        pass
