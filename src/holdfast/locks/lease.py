"""The lease that a holder receives.

`Lease` and `AsyncLease` are thin: their common behaviour is in `BaseLease`, and the state of the grant is in
`LocalGrant`. The flows of releasing, renewing and transferring are written once, in this module. If a lease object is
garbage-collected without a release, the lease is no longer renewed, a ResourceWarning is emitted, and the lease ends
when it expires.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, Self

from ..commands import Abandon, Release, Renew, Transfer
from ..errors import HoldNotReleasable, LeaseLost, StoreUnavailable
from ..platform import elapsed
from ..rules import lock_outcomes as out
from ..runtime import flows
from ..runtime.base import BaseClient, Runtime
from ..runtime.flows import Flow
from ..runtime.grant import LocalGrant
from ..runtime.heartbeats import Renewal
from ..runtime.loop_probe import LoopProbe
from ..runtime.notifier import running_loop
from ..runtime.runners import run, run_async
from ..validation import checked_key
from .local_queue import Turn
from .options import LockOptions
from .process_queue import queues


class Lost:
    """Whether a lease is lost, for threads."""

    def __init__(self, held: LocalGrant, *, renewed: bool) -> None:
        self._held = held
        self._renewed = renewed

    def is_set(self) -> bool:
        """Whether it is lost now."""
        return self._held.state != "ended" and not self._held.valid

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the lease is lost, for at most `timeout` seconds. Returns whether it is.

        A lease that was released or transferred can no longer be lost: that ends the wait too.
        """
        self._held.over.wait(self._timeout(timeout))
        return self.is_set()

    def _timeout(self, timeout: float | None) -> float | None:
        """The timeout of the wait. A hold is not renewed, so its end is known by the clock."""
        if self._renewed:
            return timeout
        left = self._held.remaining() + 0.001
        return left if timeout is None else min(timeout, left)


class AsyncLost(Lost):
    """Whether a lease is lost, for event loops."""

    async def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override]  # noqa: ASYNC109
        """Wait until the lease is lost, for at most `timeout` seconds. Returns whether it is.

        A lease that was released or transferred can no longer be lost: that ends the wait too.
        """
        await self._held.over.wait_async(self._timeout(timeout))
        return self.is_set()


class BaseLease:
    """What both kinds of lease have in common."""

    def __init__(self, client: BaseClient, options: LockOptions, held: LocalGrant, turn: Turn | None) -> None:
        self._client = client
        self._runtime = client.runtime
        self._options = options
        self._held = held
        self._turn = turn
        self._renewal: Renewal | None = None
        self._received = False  # whether the caller has it: an interrupt may occur just before

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self._held.key

    @property
    def owner(self) -> str:
        """The label of the holder, shown in lists and messages."""
        return self._held.owner

    @property
    def token(self) -> int:
        """The fencing token: higher than the token of every earlier grant of this key."""
        return self._held.token

    @property
    def floor(self) -> int:
        """The lowest token among the current holders when this was last confirmed; the value that a guard stores."""
        return self._held.floor

    @property
    def expires_at(self) -> datetime:
        """When it expires in the store unless it is renewed, by the store's clock, in UTC."""
        return self._held.expiry()

    def remaining(self) -> float:
        """Seconds for which the lease may still be used without another renewal."""
        return self._held.remaining()

    @property
    def valid(self) -> bool:
        """Whether the lease may be used now. This depends on clocks; only the fence is a guarantee."""
        return self._held.valid

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease may be used now."""
        if not self._held.judge():
            raise self._loss()

    def __repr__(self) -> str:
        state = f"{self.remaining():.1f} s left" if self.valid else self._held.state
        return f"<{type(self).__name__} {self.key!r} owner={self.owner!r} token={self.token} {state}>"

    def __del__(self) -> None:
        renewal = getattr(self, "_renewal", None)
        if renewal is not None and renewal.held.state == "held" and not renewal.held.inherited:
            if not self._received:
                self._runtime.heartbeats.call_soon(partial(_abandon, self._runtime, renewal.held))
                return
            renewal.dropped = True
            warnings.warn(
                f"the lease on {renewal.held.key!r} was dropped without being released: it is no longer renewed and "
                "ends when its time runs out. Use `with`, or keep the lease and release it.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # -- the flows ------------------------------------------------------------------------------------

    def _start(self, sent: float, probe: LoopProbe | None) -> None:
        """Renew from now on, and report the loss."""
        options, held = self._options, self._held
        if options.kind == "hold":  # it ends with its window
            return
        held.when_over(_EndOfLease(self, self._client, self._runtime, self._turn, options))
        if self._turn is not None:
            self._turn.held, self._turn.lease = held, weakref.ref(self)
            queues.granted(self._turn)
        self._renewal = Renewal(
            held,
            interval=options.renew_every,
            max_failures=options.max_renew_failures,
            max_stall=options.max_stall,
            probe=probe,
            since=sent,
            handle=weakref.ref(self),
        )
        self._runtime.heartbeats.keep(self._renewal)

    def _release(self, acquisition: int | None = None) -> Flow[None]:
        """Release the lease. Raises `LeaseLost` if it was lost before.

        A lease that was acquired several times ends with its last release. `acquisition` defaults to the latest.
        """
        held, turn = self._held, self._turn
        if self._options.kind == "hold":
            raise HoldNotReleasable
        if held.state == "ended":
            return
        needed = turn is not None and not turn.release(acquisition)
        self.check()
        if needed:
            return
        try:
            self._runtime.heartbeats.drop(held)
            if (yield from flows.release(self._runtime, Release(key=held.key, id=held.id, token=held.token))):
                held.end()
            else:
                held.lose("it was no longer held when it was released")
        except GeneratorExit:  # may be raised within a finaliser, which must not take locks
            self._runtime.heartbeats.call_soon(partial(_abandon, self._runtime, held))
            raise
        except BaseException:  # interrupted anywhere: it is released in any case
            _abandon(self._runtime, held)
            raise
        if held.state == "lost":
            raise self._loss()
        self._client.events.emit("lease_released", key=held.key, owner=held.owner, token=held.token)

    def _extend(self) -> Flow[None]:
        held = self._held
        if self._options.kind == "hold":
            raise HoldNotReleasable
        self.check()
        sent = elapsed()
        outcome, _ = yield from flows.send(Renew(key=held.key, id=held.id, token=held.token, ttl=held.ttl))
        if not isinstance(outcome, out.Renewed) or outcome.expires_at is None:
            held.lose("the store granted it to another holder, or it was released by force")
            raise self._loss()
        held.renewed(sent, held.ttl, outcome.expires_at, outcome.floor)
        self.check()

    def _hand_over(self, to_owner: str) -> Flow[Self]:
        """This lease ends and its successor begins, under a higher token, with no other holder in between."""
        held, runtime, turn = self._held, self._runtime, self._turn
        if self._options.kind == "hold":
            raise HoldNotReleasable
        checked_key(to_owner)
        self.check()
        to_id, sent = runtime.new_attempt(), elapsed()
        command = Transfer(
            key=held.key,
            id=held.id,
            token=held.token,
            to_id=to_id,
            to_label=self._client.label(to_owner),
            ttl=held.ttl,
        )
        try:
            runtime.heartbeats.drop(held)
            outcome, _ = yield from flows.send(command)
            if not isinstance(outcome, out.Transferred) or outcome.expires_at is None:
                held.lose("it was no longer held when it was transferred")
                raise self._loss()  # noqa: TRY301  (one place handles every failure)
            successor = self._successor(command, outcome, outcome.expires_at, sent)
            if turn is not None:
                del turn.acquisitions[:-1]  # a lease that was acquired several times is transferred once
            held.end()
        except GeneratorExit:  # may be raised within a finaliser, which must not take locks
            runtime.heartbeats.call_soon(partial(_abandon_transfer, runtime, held, to_id))
            raise
        except LeaseLost:
            raise
        except BaseException as error:  # interrupted anywhere: both the old and the new attempt are abandoned
            if isinstance(error, StoreUnavailable) and not error.ambiguous and self._renewal is not None:
                runtime.heartbeats.keep(self._renewal)
            else:
                _abandon_transfer(runtime, held, to_id)
            raise
        self._client.events.emit("lease_transferred", key=held.key, owner=held.owner, token=outcome.token, to=to_owner)
        return successor

    def _successor(self, command: Transfer, outcome: out.Transferred, expires_at: int, sent: float) -> Self:
        successor = type(self)(
            self._client,
            self._options,
            LocalGrant(
                key=command.key,
                id=command.to_id,
                owner=command.to_label.name,
                token=outcome.token,
                floor=outcome.floor,
                ttl=self._held.ttl,
                sent=sent,
                expires_at=expires_at,
            ),
            self._turn,
        )
        successor._start(sent, None if self._renewal is None else self._renewal.probe)  # noqa: SLF001
        return successor

    def _loss(self) -> LeaseLost:
        held = self._held
        if held.inherited:
            reason = "it is held by the process that this process was forked from"
        else:
            reason = held.reason or ("it was released" if held.state == "ended" else "its time ran out")
        return LeaseLost(
            f"the lease on {held.key!r} (token {held.token}) is lost: {reason}. Another holder may be active: stop "
            "working, and let the fence refuse writes that are in progress.",
            key=held.key,
            token=held.token,
            reason=reason,
        )


class Lease(BaseLease):
    """A lease in sync code.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf, hf.lock("invoice:42", ttl=30) as lease:
    ...     lease.valid, lease.token > 0
    (True, True)
    """

    @property
    def lost(self) -> Lost:
        """`is_set()` returns whether the lease is lost, `wait()` blocks until it is."""
        return Lost(self._held, renewed=self._options.kind != "hold")

    def renew(self) -> None:
        """Renew the lease for its ttl now. Raises `LeaseLost` if that is not possible any more."""
        run(self._extend(), self._runtime.batchers)

    def release(self) -> None:
        """Release the lease. Calling it twice is harmless; raises `LeaseLost` if the lease was lost before.

        If the lease was acquired several times (`reentrant=True`), each call releases one acquisition, the latest
        first. If the acquisition of a block was released within the block, leaving the block releases nothing.
        """
        run(self._release(), self._runtime.batchers)

    def transfer(self, to_owner: str) -> Lease:
        """Transfer the lease to another owner in one step: this lease ends, the returned one has a higher token."""
        lease = run(self._hand_over(to_owner), self._runtime.batchers)
        lease._received = True  # noqa: SLF001
        return lease


class AsyncLease(BaseLease):
    """A lease in async code."""

    @property
    def lost(self) -> AsyncLost:
        """`is_set()` returns whether the lease is lost, `await wait()` returns when it is."""
        return AsyncLost(self._held, renewed=self._options.kind != "hold")

    async def renew(self) -> None:
        """Renew the lease for its ttl now. Raises `LeaseLost` if that is not possible any more."""
        await run_async(self._extend(), self._runtime.batchers)

    async def release(self) -> None:
        """Release the lease. Calling it twice is harmless; raises `LeaseLost` if the lease was lost before.

        If the lease was acquired several times (`reentrant=True`), each call releases one acquisition, the latest
        first. If the acquisition of a block was released within the block, leaving the block releases nothing.
        """
        await run_async(self._release(), self._runtime.batchers)

    async def transfer(self, to_owner: str) -> AsyncLease:
        """Transfer the lease to another owner in one step: this lease ends, the returned one has a higher token."""
        lease = await run_async(self._hand_over(to_owner), self._runtime.batchers)
        lease._received = True  # noqa: SLF001
        return lease


def _abandon(runtime: Runtime, held: LocalGrant) -> None:
    """Abandon a grant that no caller has received, or whose release was interrupted."""
    runtime.heartbeats.drop(held)
    held.end()
    runtime.give_back(Abandon(key=held.key, id=held.id, ttl=held.ttl))


def _abandon_transfer(runtime: Runtime, held: LocalGrant, to_id: str) -> None:
    """The outcome of a transfer is unknown: neither side may go on holding the lock."""
    held.lose("it is not known whether it was transferred")
    runtime.give_back(Abandon(key=held.key, id=held.id, ttl=held.ttl))
    runtime.give_back(Abandon(key=held.key, id=to_id, ttl=held.ttl))


class _EndOfLease:
    """The end of a lease: the next local caller is admitted; a loss is emitted as an event, and `on_lost` is called."""

    __slots__ = ("_callbacks", "_client", "_events", "_kind", "_lease", "_loop", "_options", "_turn")

    def __init__(
        self, lease: BaseLease, client: BaseClient, runtime: Runtime, turn: Turn | None, options: LockOptions
    ) -> None:
        self._lease = weakref.ref(lease)
        self._client = weakref.ref(client)  # weak: the heartbeat thread must not keep a dropped client alive
        self._events = client.events
        self._callbacks = runtime.callbacks
        self._turn = turn
        self._options = options
        self._kind = type(lease)
        self._loop = running_loop()

    def __call__(self, held: LocalGrant) -> None:
        turn = self._turn
        if turn is not None and turn.held is held:
            queues.leave(turn)
        if held.state != "lost":
            return
        self._events.emit("lease_lost", key=held.key, owner=held.owner, token=held.token, reason=held.reason)
        if self._options.on_lost is None:
            return
        handle = self._lease()  # a reference: the callback is called with the lease
        if self._loop is not None and issubclass(self._kind, AsyncLease):
            try:
                self._loop.call_soon_threadsafe(self._call_back, held, handle)
            except RuntimeError:  # the loop is closed: the callback cannot be run
                return
        else:
            self._callbacks.add(lambda: self._call_back(held, handle))

    def _call_back(self, held: LocalGrant, handle: BaseLease | None) -> None:
        options = self._options
        try:
            client = self._client()
            if handle is None and client is not None:
                handle = self._kind(client, options, held, self._turn)
            result: Any = options.on_lost(handle) if options.on_lost and handle is not None else None
            if asyncio.iscoroutine(result) and self._loop is not None:
                task = self._loop.create_task(_awaited(result, self._failed, held))
                _callbacks.add(task)
                task.add_done_callback(_callbacks.discard)
        except BaseException as error:  # also SystemExit, because the callback runs in Holdfast's own thread
            self._failed(held, error)

    def _failed(self, held: LocalGrant, error: BaseException) -> None:
        self._events.emit("callback_failed", key=held.key, callback="on_lost", error=repr(error))


async def _awaited(
    result: Coroutine[Any, Any, object], failed: Callable[[LocalGrant, BaseException], None], held: LocalGrant
) -> None:
    try:
        await result
    except Exception as error:  # (reported like the error of any other callback)
        failed(held, error)


_callbacks: set[asyncio.Task[Any]] = set()
