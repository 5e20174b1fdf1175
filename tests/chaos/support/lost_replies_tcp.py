"""The reply of each kind of command is lost once between a real server and its client: it still has a single effect.

One client connects through the proxy, which forwards one request and drops its reply. Another client connects directly
and checks the store: one holder with the caller's token, one position in the queue, one change of a value. This is part
of the campaign network.py.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Client, LeaseLost, LockTimeout, StoreUnavailable
from holdfast.commands import Settle
from holdfast.errors import StoreContended
from holdfast.testing.proxy import Proxy
from support.common import Report, until
from support.servers import Place

TTL = 20.0
SHORT = 1.5
"""The ttl of a lease that must be renewed during a case."""
PATIENCE = 15.0
"""No caller waits longer than this, unless a grant was left over that only its ttl would end."""
SOON = 2.0
"""Seconds within which a waiter is woken; without a hint it checks every 3 s."""


class Taker:
    """A caller that acquires a lock in its own thread."""

    def __init__(self, lock: Any) -> None:
        self.lease: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._take, args=(lock,))
        self._thread.start()

    def _take(self, lock: Any) -> None:
        try:
            self.lease = lock.acquire(wait=PATIENCE)
        except BaseException as error:
            self.error = error

    def got(self, within: float = PATIENCE) -> Any:
        self._thread.join(within)
        assert not self._thread.is_alive(), f"not granted within {within} s"
        if self.error is not None:
            raise self.error
        return self.lease


class Stage:
    """A client behind the proxy, a client with a direct connection, and the key of the case."""

    def __init__(self, place: Place, proxy: Proxy, hf: Client, other: Client, key: str) -> None:
        self.place, self.proxy, self.hf, self.other, self.key = place, proxy, hf, other, key
        self._before = proxy.replies_dropped

    def lose_reply_of(self, command: str) -> None:
        self.proxy.drop_next_reply(self.place.wire(command, self.key))

    def lost(self) -> bool:
        return self.proxy.replies_dropped == self._before + 1

    def lock(self, hf: Client, ttl: float = TTL) -> Any:
        return hf.lock(self.key, ttl=ttl)

    def seen(self) -> tuple[list[int], int, int]:
        """The tokens of the holders, the number of waiters, and the highest token so far."""
        info = self.other.locks.inspect(self.key)
        return [holder.token for holder in info.holders], len(info.waiters), info.fence

    def sole(self, lease: Any, *, waiting: int = 0) -> None:
        """Check that this lease holds the lock, and that no later token was granted."""
        assert self.seen() == ([lease.token], waiting, lease.token), (
            f"the store has {self.seen()}, but the caller has token {lease.token}"
        )

    def queued(self, count: int = 1) -> bool:
        return until(lambda: self.seen()[1] == count, within=PATIENCE)


def acquire_granted(stage: Stage) -> None:
    stage.lose_reply_of("Acquire")
    with stage.lock(stage.hf) as lease:
        stage.sole(lease)


def acquire_queued(stage: Stage) -> None:
    holder = stage.lock(stage.other).acquire()
    stage.lose_reply_of("Queue")
    taker = Taker(stage.lock(stage.hf))
    assert until(stage.lost, within=PATIENCE)
    until(lambda: False, within=0.5)  # the waiter has sent its command again by now
    stage.sole(holder, waiting=1)
    holder.release()
    stage.sole(taker.got())
    taker.lease.release()


def acquire_confirming(stage: Stage) -> None:
    holder = stage.lock(stage.other).acquire()
    taker = Taker(stage.lock(stage.hf))
    assert stage.queued()
    until(lambda: False, within=0.3)  # the watch is active, and the command was sent again
    stage.lose_reply_of("Confirm")
    holder.release()
    stage.sole(taker.got())
    taker.lease.release()


def renew_asked_for(stage: Stage) -> None:
    with stage.lock(stage.hf) as lease:
        before = lease.expires_at
        stage.lose_reply_of("Renew")
        lease.renew()
        assert lease.expires_at > before
        stage.sole(lease)


def renew_by_the_heartbeat(stage: Stage) -> None:
    with stage.lock(stage.hf, SHORT) as lease:
        stage.lose_reply_of("Renew")
        assert not lease.lost.wait(2 * SHORT), "one lost reply of a renewal cost the lease"
        stage.sole(lease)


def release(stage: Stage) -> None:
    lease = stage.lock(stage.hf).acquire()
    first, second = Taker(stage.lock(stage.other)), None
    assert stage.queued()
    stage.lose_reply_of("Release")
    lease.release()
    stage.sole(first.got())  # one offer, for one token, although it was sent twice
    second = Taker(stage.lock(stage.hf))
    assert stage.queued()
    first.lease.release()
    second.got().release()


def abandon(stage: Stage) -> None:
    with stage.lock(stage.other) as lease:
        stage.lose_reply_of("Abandon")
        with pytest.raises(LockTimeout):
            stage.lock(stage.hf).acquire(wait=0.3)
        stage.sole(lease)


def transfer(stage: Stage) -> None:
    lease = stage.lock(stage.hf).acquire()
    stage.lose_reply_of("Transfer")
    successor = lease.transfer("bob")
    stage.sole(successor)
    successor.release()


def force_release(stage: Stage) -> None:
    """The one command that is never sent again automatically: it would also remove a new holder."""
    lease = stage.lock(stage.hf).acquire()
    taker = Taker(stage.lock(stage.other))
    assert stage.queued()
    stage.lose_reply_of("ForceRelease")
    with pytest.raises(StoreUnavailable) as raised:
        stage.hf.locks.force_release(stage.key, reason="campaign")
    assert raised.value.ambiguous
    stage.sole(taker.got())  # only the first holder was removed, not its successor
    taker.lease.release()
    with pytest.raises(LeaseLost):
        lease.release()


def settle(stage: Stage) -> None:
    """No client sends this command on its own; sent again, it changes nothing."""
    with stage.lock(stage.other) as lease:
        stage.lose_reply_of("Settle")
        batcher = stage.hf.runtime.batchers["commands"]
        with pytest.raises(StoreUnavailable) as raised:
            batcher.run(Settle(key=stage.key))
        assert raised.value.ambiguous

        def settled() -> bool:
            try:
                batcher.run(Settle(key=stage.key))
            except StoreContended:  # the server has not ended the transaction of the lost connection yet
                return False
            return True

        assert until(settled, within=PATIENCE)
        stage.sole(lease)


def inspect(stage: Stage) -> None:
    with stage.lock(stage.other) as lease:
        stage.lose_reply_of("Inspect")
        assert [holder.token for holder in stage.hf.locks.inspect(stage.key).holders] == [lease.token]


def swap_slot(stage: Stage) -> None:
    stage.hf.state(stage.key, initial=0).increment()
    stage.lose_reply_of("SwapSlot")
    stage.hf.state(stage.key, initial=0).increment()
    assert stage.other.state(stage.key, initial=0).get() == 2


def read_slot(stage: Stage) -> None:
    stage.other.state(stage.key, initial=0).set(7)
    stage.lose_reply_of("ReadSlot")
    assert stage.hf.state(stage.key, initial=0).get() == 7


def start_of_a_watch(stage: Stage) -> None:
    """The first watch of a new client. The next hand-over must not wait for a sign of life."""
    with Client(stage.place.url(stage.proxy)) as fresh:
        holder = stage.lock(stage.other).acquire()
        stage.proxy.drop_next_reply(stage.place.watching)
        taker = Taker(stage.lock(fresh))
        assert stage.queued()
        assert until(stage.lost, within=PATIENCE)
        until(lambda: False, within=1.0)  # the watch is active again by now
        holder.release()
        stage.sole(taker.got(SOON))
        taker.lease.release()


def start_of_a_connection(stage: Stage) -> None:
    """The first request of a client, such as its login or a question for the server's version."""
    with Client(stage.place.url(stage.proxy)) as fresh:
        stage.proxy.drop_next_reply()
        with stage.lock(fresh) as lease:
            stage.sole(lease)


CASES: tuple[Callable[[Stage], None], ...] = (
    acquire_granted,
    acquire_queued,
    acquire_confirming,
    renew_asked_for,
    renew_by_the_heartbeat,
    release,
    abandon,
    transfer,
    force_release,
    settle,
    inspect,
    swap_slot,
    read_slot,
    start_of_a_watch,
    start_of_a_connection,
)


def lose_each_once(place: Place, report: Report, rounds: int) -> None:
    """Run all cases, each on its own key."""
    played = 0
    with Proxy(place.server.host, place.server.port) as proxy:
        with Client(place.url(proxy)) as hf, Client(place.url()) as other:
            for number in range(rounds):
                for scene in CASES:
                    key = f"{scene.__name__}-{number}"
                    stage = Stage(place, proxy, hf, other, key)
                    try:
                        scene(stage)
                    except Exception:  # (reported; the next case is run anyway)
                        report.broken(f"{place.kind}: {scene.__name__}: {traceback.format_exc(limit=-3)}")
                    proxy.go_on()
                    report.demand(f"{place.kind}: the reply of {scene.__name__} was not lost", kept=stage.lost())
                    left = [info for info in other.locks.list(key) if info.held or info.waiters]
                    report.demand(f"{place.kind}: {scene.__name__} left {left}", kept=not left)
                    played += stage.lost()
    report.at_least(f"{place.kind}: replies lost, each kind of command", played, rounds * len(CASES))
