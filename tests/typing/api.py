"""The API as a type checker sees it. Never run: mypy reads it, and `assert_type` must hold."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import psycopg
import redis
import redis.asyncio
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

from holdfast import AsyncClient, AsyncLease, AsyncLock, Client, Lease, Lock, guard, guard_async
from holdfast.events import Event
from holdfast.fencing import AsyncFencedScript, FencedScript, fenced_read, fenced_replace, fenced_set, fenced_set_async
from holdfast.locks import (
    AsyncLeader,
    AsyncLeaseProvider,
    AsyncNoopLeaseProvider,
    AsyncReadWriteLock,
    AsyncTerm,
    Leader,
    LeaseProvider,
    LeaseResult,
    LockInfo,
    NoopLeaseProvider,
    ReadWriteLock,
    RunLock,
    Term,
    is_lease_provider,
)
from holdfast.state import (
    AcquireAttempt,
    AsyncAtomicState,
    AtomicState,
    DurableMutex,
    DurableSemaphore,
    LockRecord,
    initial_lock_record,
)


def sync_code(hf: Client, connection: sqlite3.Connection) -> None:
    with Client("memory://", namespace="n", name="me") as entered:
        assert_type(entered, Client)
    with hf.lock("a", ttl=timedelta(seconds=5), wait="5 minutes", owner="me") as lease:
        assert_type(lease, Lease)
        assert_type(lease.token, int)
        assert_type(lease.floor, int)
        assert_type(lease.expires_at, datetime)
        assert_type(lease.remaining(), float)
        assert_type(lease.valid, bool)
        assert_type(lease.lost.is_set(), bool)
        assert_type(lease.lost.wait(1.0), bool)
        assert_type(lease.transfer("you"), Lease)
        guard(connection, "a", lease)
        guard(connection, "a", 7)
        assert_type(fenced_read("file", lease), bytes)
        fenced_replace("file", b"data", lease)
    lock = hf.lock("a", renew_every=3, max_renew_failures=2, max_stall=9, reentrant=True, on_lost=print)
    assert_type(lock, Lock)
    assert_type(lock.acquire(wait=None), Lease)
    assert_type(lock.try_acquire(), Lease | None)
    assert_type(hf.semaphore("s", permits=3, weight=2), Lock)
    assert_type(hf.hold("h", ttl=60), Lease | None)
    assert_type(hf.locks.list("prefix"), list[LockInfo])
    assert_type(hf.locks.inspect("a"), LockInfo)
    assert_type(hf.locks.inspect("a").holders[0].time_left, float | None)
    assert_type(hf.locks.inspect("a").waiters[0].time_left, float | None)
    hf.locks.force_release("a", reason="stuck")

    def sink(event: Event) -> None:
        assert_type(event.fields, dict[str, Any])

    assert_type(hf.events.subscribe(sink), Callable[[], None])


async def async_code(hf: AsyncClient) -> None:
    async with AsyncClient("memory://") as entered:
        assert_type(entered, AsyncClient)
    async with hf.lock("a") as lease:
        assert_type(lease, AsyncLease)
        assert_type(await lease.lost.wait(), bool)
        assert_type(await lease.transfer("you"), AsyncLease)
        lease.check()
    assert_type(hf.lock("a"), AsyncLock)
    assert_type(await hf.lock("a").acquire(wait=1), AsyncLease)
    assert_type(await hf.lock("a").try_acquire(), AsyncLease | None)
    assert_type(await hf.hold("h", ttl=60), AsyncLease | None)
    assert_type(await hf.locks.list(), list[LockInfo])


def sync_fences(
    *,
    lease: Lease,
    db: psycopg.Connection,
    named: psycopg.Connection[dict[str, Any]],
    engine: sqlalchemy.Engine,
    session: sqlalchemy.orm.Session,
    scoped: sqlalchemy.orm.scoped_session[sqlalchemy.orm.Session],
    client: redis.Redis,
    cluster: redis.RedisCluster,
) -> None:
    guard(db, "a", lease)
    guard(named, "a", 7)
    with engine.begin() as connection:
        guard(connection, "a", lease)
    guard(session, "a", lease)
    guard(scoped, "a", lease)
    guard(engine, "a", lease)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no connection
    fenced_set(client, "a", b"value", lease, ex=timedelta(hours=1))
    fenced_set(cluster, "a", 7, lease, keepttl=True)
    fenced_set(client, "a", object(), lease)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # nothing that Redis takes
    script = FencedScript(client, "return 1")
    assert_type(script("a", lease, keys=["a", b"b"], args=[1, 0.5, "x"]), Any)


async def async_fences(
    *,
    lease: AsyncLease,
    db: psycopg.AsyncConnection,
    engine: sqlalchemy.ext.asyncio.AsyncEngine,
    session: sqlalchemy.ext.asyncio.AsyncSession,
    client: redis.asyncio.Redis,
    cluster: redis.asyncio.RedisCluster,
    sync: psycopg.Connection,
) -> None:
    await guard_async(db, "a", lease)
    async with engine.begin() as connection:
        await guard_async(connection, "a", lease)
    await guard_async(session, "a", 7)
    await guard_async(sync, "a", lease)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the wrong mode
    guard(db, "a", lease)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the wrong mode
    await fenced_set_async(client, "a", "value", lease, ex="5 minutes")
    fenced_set(client, "a", "value", lease)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the wrong mode
    script = AsyncFencedScript(cluster, "return 1")
    assert_type(await script("a", lease, keys=["a"]), Any)


def decorated(hf: Client, ahf: AsyncClient) -> None:
    @hf.lock("invoice:{invoice_id}", wait=0, on_busy="skip")
    def charge(invoice_id: int, *, dry: bool = False) -> str:
        return f"{invoice_id}{dry}"

    assert_type(charge(1, dry=True), str)
    charge("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the signature is kept

    @ahf.semaphore(lambda order: f"order:{order}", permits=2)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    async def ship(order: int) -> float:
        return float(order)

    assert_type(asyncio.run(ship(1)), float)
    asyncio.run(ship(order="one"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the signature is kept


class Seat:
    """Any class, as the type of a state."""


def sync_holding(hf: Client) -> None:
    assert_type(hf.rwlock("doc"), ReadWriteLock)
    with hf.rwlock("doc").read() as reader:
        assert_type(reader, Lease)
    leader = hf.leader("scheduler", on_change=print)
    assert_type(leader, Leader)
    assert_type(leader.is_leader, bool)
    assert_type(leader.token, int | None)
    for term in leader:
        with term:
            assert_type(term, Term)
    with leader as term:
        assert_type(term.token, int)
    provider: LeaseProvider = hf.leases
    assert_type(provider.acquire_lease("k", "me", 5), LeaseResult)
    spare: LeaseProvider = NoopLeaseProvider()
    assert_type(is_lease_provider(spare), bool)
    assert_type(hf.run_locks.try_acquire("w", "r"), bool)
    assert_type(hf.run_locks.get("w", "r"), RunLock | None)
    assert_type(hf.run_locks.token("w", "r"), int | None)
    with hf.run_locks.guard("w", "r") as lease:
        assert_type(lease, Lease)
    count = hf.state("n", initial=0)
    assert_type(count, AtomicState[int])
    assert_type(count.get(), int | None)
    assert_type(count.update(lambda value: (value or 0) + 1), int)
    assert_type(hf.state("seat", type=Seat), AtomicState[Seat])
    assert_type(hf.state("any"), AtomicState[Any])
    count.set("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # its type is a number
    mutex = DurableMutex(lease=30)
    slot = hf.state.workflow("w", "k", initial=initial_lock_record())
    assert_type(mutex.try_acquire(slot, holder_id="a", now=0), AcquireAttempt)
    assert_type(mutex.renew(slot, holder_id="a", now=datetime.now(UTC)), bool)
    assert_type(mutex.inspect(slot), LockRecord | None)
    mutex.release(slot, holder_id="a", now=0)


async def async_holding(hf: AsyncClient) -> None:
    assert_type(hf.rwlock("doc"), AsyncReadWriteLock)
    async with hf.rwlock("doc").write() as writer:
        assert_type(writer, AsyncLease)
    leader = hf.leader("scheduler")
    assert_type(leader, AsyncLeader)
    async for term in leader:
        async with term:
            assert_type(term, AsyncTerm)
    provider: AsyncLeaseProvider = hf.leases
    assert_type(await provider.acquire_lease("k", "me", 5), LeaseResult)
    spare: AsyncLeaseProvider = AsyncNoopLeaseProvider()
    assert_type(await spare.get_lease_owner("k"), str | None)
    assert_type(await hf.run_locks.renew("w", "r"), bool)
    assert_type(await hf.run_locks.token("w", "r"), int | None)
    async with hf.run_locks.guard("w", "r") as lease:
        assert_type(lease, AsyncLease)
    count = hf.state("n", initial=0)
    assert_type(count, AsyncAtomicState[int])
    assert_type(await count.get(), int | None)
    semaphore = DurableSemaphore(permits=3)
    slot = hf.state.execution("r", "k", initial=initial_lock_record())
    assert_type(await semaphore.try_acquire(slot, holder_id="a", now=0), AcquireAttempt)
    assert_type(await semaphore.inspect(slot), LockRecord | None)
