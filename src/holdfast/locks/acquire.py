"""Acquiring a lock, without I/O: the local queue, then the store, then a lease that the heartbeat thread renews."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from ..commands import Abandon, Acquire
from ..errors import InvalidOption, LockTimeout, WouldDeadlock
from ..platform import elapsed
from ..runtime import flows
from ..runtime.base import BaseClient
from ..runtime.callbacks import run_orphaned_callbacks
from ..runtime.flows import LONG_WAIT, Flow, Wait
from ..runtime.grant import LocalGrant
from ..runtime.notifier import running_loop
from .lease import AsyncLease, BaseLease
from .local_queue import Turn
from .options import WAITER_TTL, LockOptions
from .process_queue import Caller, current_caller, queues

RECHECK_SECONDS = 1.5
"""Seconds after which a caller in the local queue checks the queue, also if it was not notified. An event loop that
has not answered between two checks is blocked."""

LeaseT = TypeVar("LeaseT", bound=BaseLease)


def take(
    client: BaseClient, options: LockOptions, wait: float | None, kind: type[LeaseT], *, attempt: str | None = None
) -> Flow[LeaseT]:
    """Acquire the lock, or raise `LockTimeout`, `WouldDeadlock` or the error for the store's refusal.

    `attempt` is the id of this attempt, for a lock whose key contains it.
    """
    if not isinstance(options.key, str):
        raise InvalidOption("a key that is a function of the arguments is only for decorators: pass a text as the key")
    if not options.queues_locally:
        return (yield from _take_from_store(client, options, wait, kind, None, reported=False, attempt=attempt))
    run_orphaned_callbacks()
    runtime = client.runtime  # callers must be able to leave the local queue after their client was closed
    turn = _turn(client, options, kind)
    try:
        held_turn = queues.enter(turn, once=wait == 0)
        if held_turn is not None:
            return _reenter(options, held_turn, kind)
        reported = False
        if not turn.open.is_set():
            runtime.heartbeats.start()  # so that a finaliser never has to start it
            wait, reported = yield from _wait_in_local_queue(client, options, turn, wait)
            queues.send(turn)
        return (yield from _take_from_store(client, options, wait, kind, turn, reported=reported))
    except GeneratorExit:  # may be raised within a finaliser, which must not take locks
        runtime.heartbeats.call_soon(partial(queues.leave, turn))
        raise
    except BaseException:
        queues.leave(turn)
        raise


def _turn(client: BaseClient, options: LockOptions, kind: type[LeaseT]) -> Turn:
    """A turn in the local queue. Only an exclusive lock remembers its caller: of others a task may hold several."""
    context = current_caller() if options.exclusive else None
    turn = Turn(
        (client.runtime.store.identity, str(options.key), options.kind),
        client.label(options.owner),
        context=context,
        loop=running_loop() if issubclass(kind, AsyncLease) else None,
        weight=options.weight,
        permits=options.permits,
    )
    if isinstance(context, Caller):
        context.holds.add(turn)
    return turn


def _reenter(options: LockOptions, held_turn: Turn, kind: type[LeaseT]) -> LeaseT:
    """The result for a task or thread that already holds the lock."""
    lease = held_turn.lease()
    if options.reentrant and isinstance(lease, kind) and lease.valid:
        held_turn.acquire_again()
        return lease
    raise WouldDeadlock(
        f"this task or thread already holds {options.key!r} and would wait for itself: pass the lease on, or use "
        "reentrant=True"
    )


def _wait_in_local_queue(
    client: BaseClient, options: LockOptions, turn: Turn, wait: float | None
) -> Flow[tuple[float | None, bool]]:
    """Wait for other callers of this process. Returns the remaining time, and whether `wait_long` was emitted."""
    reported = False
    while not turn.open.is_set():
        waited = elapsed() - turn.since
        if wait is not None and waited >= wait:
            raise _timed_out(options, turn, tried_once=wait == 0)
        if not reported and waited >= LONG_WAIT:
            reported = True
            holder = next((str(other.label) for other in queues.blockers(turn.address)), "")
            position = turn.before - 1
            client.events.emit(
                "wait_long", key=options.key, owner=turn.label.name, waited=waited, holder=holder, position=position
            )
        pause = RECHECK_SECONDS if reported else min(RECHECK_SECONDS, max(0.001, LONG_WAIT - waited))
        if (yield Wait(turn.open, pause if wait is None else min(pause, wait - waited))):
            break
        run_orphaned_callbacks()
        client.runtime  # noqa: B018  (closed meanwhile, this raises)
        if queues.check(turn):  # a caller that left was interrupted before it was removed, or is blocked
            break
    return (None if wait is None else max(0.0, wait - (elapsed() - turn.since))), reported


def _timed_out(options: LockOptions, turn: Turn, *, tried_once: bool) -> LockTimeout:
    """The error for a caller that timed out in the local queue, behind another caller of this process."""
    blockers = queues.blockers(turn.address)
    first = blockers[0] if blockers else None
    holder = None if first is None else str(first.label)
    age = None if first is None or first.held is None else elapsed() - first.since
    return LockTimeout(
        f"{options.key!r} was not free in time: {'waited for' if age is None else 'held'} in this process by "
        + (holder or "another caller")
        + ("" if age is None else f" for {age:.1f} s")
        + ("" if len(blockers) < 2 else f", and {len(blockers) - 1} more callers hold it or wait for it")  # noqa: PLR2004
        + ("" if tried_once else f"; this caller was at position {turn.before} in the queue of its process"),
        key=str(options.key),
        holder=holder,
        age=age,
        position=turn.before - 1,
    )


def _take_from_store(
    client: BaseClient,
    options: LockOptions,
    wait: float | None,
    kind: type[LeaseT],
    turn: Turn | None,
    *,
    reported: bool,
    attempt: str | None = None,
) -> Flow[LeaseT]:
    runtime = client.runtime
    label = client.label(options.owner)
    started = elapsed()
    command = Acquire(
        key=str(options.key),
        id=attempt or runtime.new_attempt(),
        label=label,
        kind=options.kind,
        permits=options.permits,
        weight=options.weight,
        ttl=options.ttl,
        queue=wait != 0,
        waiter_ttl=WAITER_TTL,
        delay=options.lock_delay,
        listens=runtime.listens,
    )
    try:
        if options.kind != "hold":
            runtime.begin_acquire(command)
        severed_count = runtime.severed_count
        grant = yield from flows.acquire(runtime, command, wait, reported=reported)
        try:
            lease = _granted(client, options, command, grant, kind, turn=turn, started=started)
            if runtime.severed_count != severed_count and options.kind != "hold":
                lease._held.lose("the database session that it was tied to was lost")  # noqa: SLF001
            return lease  # noqa: TRY300
        except BaseException:  # interrupted before there was a lease object whose finaliser could release it
            runtime.give_back(Abandon(key=command.key, id=command.id, ttl=options.ttl))
            raise
    finally:
        runtime.end_acquire(command)


def _granted(
    client: BaseClient,
    options: LockOptions,
    command: Acquire,
    grant: flows.Grant,
    kind: type[LeaseT],
    *,
    turn: Turn | None,
    started: float,
) -> LeaseT:
    outcome = grant.outcome
    lease = kind(
        client,
        options,
        LocalGrant(
            key=command.key,
            id=command.id,
            owner=command.label.name,
            token=outcome.token,
            floor=outcome.floor,
            ttl=options.ttl,
            sent=grant.sent,
            expires_at=outcome.expires_at or 0,
        ),
        turn,
    )
    if turn is not None:
        turn.since = elapsed()
    lease._start(grant.sent, client.runtime.probe() if issubclass(kind, AsyncLease) else None)  # noqa: SLF001
    client.events.emit(
        "lease_acquired", key=command.key, owner=command.label.name, token=outcome.token, waited=elapsed() - started
    )
    return lease
