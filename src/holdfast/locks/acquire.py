"""Taking a lock, without I/O: the local gate, the store, and a lease in the keeper's care."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from ..commands import Abandon, Acquire
from ..errors import InvalidOption, LockTimeout, WouldDeadlock
from ..platform import elapsed
from ..runtime import flows
from ..runtime.base import BaseClient
from ..runtime.flows import LONG_WAIT, Flow, Wait
from ..runtime.grant import LocalGrant
from ..runtime.heartbeats import run_orphaned_callbacks
from ..runtime.notifier import running_loop
from .lease import AsyncLease, BaseLease
from .local_queue import Turn
from .options import WAITER_TTL, LockOptions
from .process_queue import Caller, current_caller, queues

LOOK_AGAIN = 1.5
"""Seconds after which a caller at the gate looks around without having been called. An event loop that has not answered
between two looks is stuck."""

LeaseT = TypeVar("LeaseT", bound=BaseLease)


def take(
    client: BaseClient, options: LockOptions, wait: float | None, kind: type[LeaseT], *, attempt: str | None = None
) -> Flow[LeaseT]:
    """Take the lock, or raise `LockTimeout`, `WouldDeadlock` or what the store refuses it with.

    `attempt` is the id of this attempt, for one whose key is made from it.
    """
    if not isinstance(options.key, str):
        raise InvalidOption("a key that is a function of the arguments is for decorators; here it must be text")
    if not options.queues_locally:
        return (yield from _take_from_store(client, options, wait, kind, None, told=False, attempt=attempt))
    run_orphaned_callbacks()
    runtime = client.runtime  # a client that is closed meanwhile must not keep its callers from leaving the gate
    turn = _turn(client, options, kind)
    try:
        inside = queues.enter(turn, once=wait == 0)
        if inside is not None:
            return _again(options, inside, kind)
        told = False
        if not turn.open.is_set():
            runtime.heartbeats.start()  # so that a finaliser never has to
            wait, told = yield from _wait_at_gate(client, options, turn, wait)
            queues.goes(turn)
        return (yield from _take_from_store(client, options, wait, kind, turn, told=told))
    except GeneratorExit:  # perhaps within a finaliser, where no lock may be taken
        runtime.heartbeats.soon(partial(queues.leave, turn))
        raise
    except BaseException:
        queues.leave(turn)
        raise


def _turn(client: BaseClient, options: LockOptions, kind: type[LeaseT]) -> Turn:
    """A turn in the local queue. Only an exclusive lock knows its caller again: of others a task may hold several."""
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


def _again(options: LockOptions, inside: Turn, kind: type[LeaseT]) -> LeaseT:
    """What a task or thread gets that holds the lock already."""
    lease = inside.lease()
    if options.reentrant and isinstance(lease, kind) and lease.valid:
        inside.grip()
        return lease
    raise WouldDeadlock(
        f"this task or thread holds {options.key!r} already and would wait for itself: "
        "pass the lease on, or say reentrant=True"
    )


def _wait_at_gate(
    client: BaseClient, options: LockOptions, turn: Turn, wait: float | None
) -> Flow[tuple[float | None, bool]]:
    """Wait for the other callers of this process. Returns the rest of the time, and whether a long wait was told."""
    told = False
    while not turn.open.is_set():
        waited = elapsed() - turn.since
        if wait is not None and waited >= wait:
            raise _not_in_time(options, turn, tried_once=wait == 0)
        if not told and waited >= LONG_WAIT:
            told = True
            holder = next((str(other.label) for other in queues.in_the_way(turn.address)), "")
            position = turn.before - 1
            client.events.emit(
                "wait_long", key=options.key, owner=turn.label.name, waited=waited, holder=holder, position=position
            )
        pause = LOOK_AGAIN if told else min(LOOK_AGAIN, max(0.001, LONG_WAIT - waited))
        if (yield Wait(turn.open, pause if wait is None else min(pause, wait - waited))):
            break
        run_orphaned_callbacks()
        client.runtime  # noqa: B018  (closed meanwhile, this raises)
        if queues.look(turn):  # whoever left was interrupted before it could say so, or is stuck
            break
    return (None if wait is None else max(0.0, wait - (elapsed() - turn.since))), told


def _not_in_time(options: LockOptions, turn: Turn, *, tried_once: bool) -> LockTimeout:
    """The error for a caller whose turn at the gate did not come: another caller of this process is in the way."""
    inside = queues.in_the_way(turn.address)
    first = inside[0] if inside else None
    holder = None if first is None else str(first.label)
    age = None if first is None or first.held is None else elapsed() - first.since
    return LockTimeout(
        f"{options.key!r} was not free in time: {'waited for' if age is None else 'held'} in this process by "
        + (holder or "another caller")
        + ("" if age is None else f" for {age:.1f} s")
        + ("" if len(inside) < 2 else f", and {len(inside) - 1} more callers of it hold it or ask for it")  # noqa: PLR2004
        + ("" if tried_once else f"; this caller was at place {turn.before} in the queue of its process"),
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
    told: bool,
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
            runtime.taking(command)
        severings = runtime.severings
        grant = yield from flows.acquire(runtime, command, wait, told=told)
        try:
            lease = _granted(client, options, command, grant, kind, turn=turn, started=started)
            if runtime.severings != severings and options.kind != "hold":
                lease._held.lose("the connection to which it was tied was lost")  # noqa: SLF001
            return lease  # noqa: TRY300
        except BaseException:  # interrupted before there was a lease that could be dropped
            runtime.give_back(Abandon(key=command.key, id=command.id, ttl=options.ttl))
            raise
    finally:
        runtime.taken(command)


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
