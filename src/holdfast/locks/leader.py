"""Leadership: one candidate at a time is the leader, for one term.

A term is a lease. It is renewed by the heartbeat thread, and its token is higher than the token of every earlier
term. It is lost at its local deadline, before the store can make another candidate the leader. At the loss, work in
an `async with term` block is cancelled. Sync work must check `term.valid`, and let the fence refuse late writes.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from msgspec.structs import replace

from ..errors import ClientClosed, InvalidOption, LeaseLost, NotHeld, StoreError, StoreUnavailable
from ..runtime.base import BaseClient
from ..runtime.flows import Flow, Wait
from ..runtime.misuse import AsyncOnly
from ..runtime.notifier import Notifier, running_loop
from ..runtime.runners import run, run_async
from ..validation import MICROSECONDS, Duration, checked_key
from .acquire import take
from .cancel_scope import LeaseScope, Releasing
from .lease import AsyncLease, BaseLease, Lease
from .options import RENEWALS, LockOptions, checked_options, checked_wait
from .process_queue import Context, current_context

TTL = 15
OnChange = Callable[[Any], object]

T = TypeVar("T", bound=BaseLease)


def leader_key(name: str) -> str:
    """The key of the lock that the leaders of this name hold."""
    return checked_key(f"leader:{checked_key(name, what='name')}")


def leader_options(
    name: str, *, ttl: Duration, owner: str | None, renew_every: Duration | None, max_stall: Duration | None
) -> LockOptions:
    """The checked options of a leadership."""
    key = leader_key(name)
    return checked_options(
        key, kind="mutex", ttl=ttl, wait=None, owner=owner, renew_every=renew_every, max_stall=max_stall
    )


class Term(Lease):
    """One term of a leader. Leaving its block ends the term, without an error if it was lost."""

    leader: object = None  # so that the leader, which is notified of the end, exists as long as the term

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        with suppress(LeaseLost, StoreError):  # a lost term needs no release; a failed release is retried
            self.release()
        return _is_loss_of(self, error)


class AsyncTerm(AsyncLease):
    """One term of a leader. Its block is cancelled when the term is lost, and a next term may follow."""

    leader: object = None
    block: LeaseScope | None = None

    async def __aenter__(self) -> Self:
        self.block = LeaseScope(self)
        if not self.valid:  # lost or resigned in between: the block ends at its first await
            self.block.fire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        stopped = False
        if self.block is not None:
            try:
                self.block.leave(error)
            except LeaseLost:
                stopped = True
        with suppress(LeaseLost, StoreError):  # a lost term needs no release; a failed release is retried
            await self.release()
        return stopped or _is_loss_of(self, error)


def _is_loss_of(term: BaseLease, error: BaseException | None) -> bool:
    return isinstance(error, LeaseLost) and (error.key, error.token) == (term.key, term.token)


class BaseLeader(Generic[T]):
    """The common part of sync and async leaders: the current term, and `on_change`. One object is one candidate."""

    _term_type: type[T]

    def __init__(self, client: BaseClient, options: LockOptions, on_change: OnChange | None) -> None:
        if on_change is not None and not callable(on_change):
            raise InvalidOption(f"on_change cannot be {on_change!r}: it must be a function that takes the leader")
        self._client = client
        self._on_change = on_change
        me = weakref.ref(self)  # weak: referenced by the heartbeat thread, and a dropped leader must not lead
        self._options = replace(options, on_lost=lambda _term: _notify(me))
        self._term: T | None = None
        self._entered: dict[Context, list[T]] = {}
        self._notified = False  # whether on_change was last called as the leader
        self._notify_lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        """The name of the leadership."""
        return str(self._options.key).removeprefix("leader:")

    @property
    def is_leader(self) -> bool:
        """Whether this candidate is the leader now. This depends on clocks; only the fence is a guarantee."""
        return self._term is not None and self._term.valid

    @property
    def token(self) -> int | None:
        """The fencing token of the current term; None while this candidate is not the leader."""
        term = self._term
        return term.token if term is not None and term.valid else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} token={self.token}>"

    def _campaign(self, wait: Duration | None) -> Flow[T]:
        """Wait to become the leader."""
        self._notify()
        self._loop = running_loop()
        term = yield from take(self._client, self._options, checked_wait(wait), self._term_type)
        self._term = term
        term.leader = self  # type: ignore[attr-defined]
        term._received = True  # noqa: SLF001  (same package)
        me = weakref.ref(self)
        term._held.when_over(lambda held: _notify(me) if held.state == "ended" else None)  # noqa: SLF001
        self._notify()
        return term

    def _campaign_on(self) -> Flow[T]:
        """Wait to become the leader, also while the store cannot be reached."""
        pause = self._options.ttl / MICROSECONDS / RENEWALS
        while True:
            try:
                return (yield from self._campaign(None))
            except StoreUnavailable as error:
                owner = self._client.label(self._options.owner).name
                self._client.events.emit("campaign_failed", key=str(self._options.key), owner=owner, error=str(error))
                yield Wait(Notifier(), pause * random.uniform(0.5, 1.0))

    def _enter(self, term: T) -> T:
        """Remember the term of a block."""
        self._entered.setdefault(current_context(), []).append(term)
        return term

    def _leave(self) -> T:
        """The term of the innermost block that is left now."""
        context = current_context()
        if context not in self._entered and len(self._entered) == 1:
            context = next(iter(self._entered))
        mine = self._entered.get(context)
        if not mine:
            raise NotHeld(f"{self!r} was entered by several tasks or threads, and this is not one of them")
        term = mine.pop()
        if not mine:
            del self._entered[context]
        if self._term is term:
            self._term = None
        return term

    def _notify(self) -> None:
        """Call `on_change` if there is a change, one call at a time and in order, whichever thread detects it first."""
        with self._notify_lock:
            leads = self.is_leader
            if leads == self._notified:
                return
            self._notified = leads
            try:
                result = None if self._on_change is None else self._on_change(self)
            except Exception as error:  # (an error of the callback must affect neither the term nor its end)
                self._failed(error)
                return
            if asyncio.iscoroutine(result):
                self._await(result)

    def _await(self, result: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine of an async `on_change` on the event loop of the campaign."""
        try:
            if self._loop is None:
                raise RuntimeError("no event loop is running here")  # noqa: TRY301
            self._loop.call_soon_threadsafe(self._start, result)
        except RuntimeError as error:  # the loop is closed: the callback cannot be run
            result.close()
            self._failed(error)

    def _start(self, result: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(self._awaited(result))
        _callbacks.add(task)
        task.add_done_callback(_callbacks.discard)

    async def _awaited(self, result: Coroutine[Any, Any, object]) -> None:
        try:
            await result
        except Exception as error:  # (as above)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        key = str(self._options.key)
        self._client.events.emit("callback_failed", key=key, callback="on_change", error=repr(error))


def _notify(leader: weakref.ref[Any]) -> None:
    found = leader()
    if found is not None:
        found._notify()  # noqa: SLF001


_callbacks: set[asyncio.Future[None]] = set()


class Leader(BaseLeader[Term]):
    """Leadership in sync code.

    `for term in leader:` leads again and again; each term is a block of its own:

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     leader = hf.leader("scheduler")
    ...     for term in leader:
    ...         with term:
    ...             leader.is_leader, leader.token == term.token
    ...         break
    (True, True)
    """

    _term_type = Term

    def __init__(self, client: BaseClient, options: LockOptions, on_change: OnChange | None) -> None:
        if inspect.iscoroutinefunction(on_change):
            raise InvalidOption("on_change cannot be async in a sync client, which cannot await it. Use AsyncClient.")
        super().__init__(client, options, on_change)

    def campaign(self, wait: Duration | None = None) -> Term:
        """Wait to become the leader (None: no limit), or raise `LockTimeout`."""
        return run(self._campaign(wait), self._client.runtime.batchers)

    def resign(self) -> None:
        """End the current term, if there is one."""
        term, self._term = self._term, None
        if term is not None:
            with suppress(LeaseLost):
                term.release()

    def run(self) -> None:
        """Lead whenever possible, with calls of `on_change`, until the client is closed. For a thread of its own."""
        try:
            with suppress(ClientClosed):
                for term in self:
                    while not term.lost.wait(term.remaining()) and self._term is term and term.valid:
                        pass
        finally:
            with suppress(ClientClosed, StoreError):
                self.resign()
            self._notify()

    def __iter__(self) -> Iterator[Term]:
        return self

    def __next__(self) -> Term:
        with suppress(StoreError):  # the heartbeat thread goes on releasing it
            self.resign()
        return run(self._campaign_on(), self._client.runtime.batchers)

    def __enter__(self) -> Term:
        return self._enter(self.campaign())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        term = self._leave()
        with Releasing(error):
            term.release()


class AsyncLeader(BaseLeader[AsyncTerm], AsyncOnly):
    """Leadership in async code.

    `async for term in leader:` leads again and again. In `async with term:` the work is cancelled when the term is
    lost, and the loop goes on to wait for the next one. `async with leader as term:` leads once, and raises
    `LeaseLost` when the term is lost.
    """

    _term_type = AsyncTerm

    async def campaign(self, wait: Duration | None = None) -> AsyncTerm:
        """Wait to become the leader (None: no limit), or raise `LockTimeout`."""
        return await run_async(self._campaign(wait), self._client.runtime.batchers)

    async def resign(self) -> None:
        """End the current term, if there is one. A block of it in another task is cancelled before."""
        term, self._term = self._term, None
        if term is not None:
            if term.block is not None:
                term.block.stop()
            with suppress(LeaseLost):
                await term.release()

    async def run(self) -> None:
        """Lead whenever possible, with calls of `on_change`, until cancelled or until the client is closed."""
        try:
            with suppress(ClientClosed):
                async for term in self:
                    while not await term.lost.wait(term.remaining()) and self._term is term and term.valid:
                        pass
        finally:
            with suppress(ClientClosed, StoreError):
                await self.resign()
            self._notify()

    def __aiter__(self) -> AsyncIterator[AsyncTerm]:
        return self

    async def __anext__(self) -> AsyncTerm:
        with suppress(StoreError):  # the heartbeat thread goes on releasing it
            await self.resign()
        return await run_async(self._campaign_on(), self._client.runtime.batchers)

    async def __aenter__(self) -> AsyncTerm:
        term = self._enter(await self.campaign())
        term.block = LeaseScope(term)
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        term = self._leave()
        if term.block is not None:
            term.block.leave(error)
        with Releasing(error):
            await term.release()
