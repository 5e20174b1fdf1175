"""The API as a type checker sees it. Never run: mypy reads it, and `assert_type` must hold."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, assert_type

from holdfast import (
    AsyncClient,
    AsyncLease,
    AsyncLock,
    Client,
    Event,
    Lease,
    Lock,
    LockInfo,
    fenced_read,
    fenced_replace,
    guard,
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


def decorated(hf: Client, ahf: AsyncClient) -> None:
    @hf.lock("invoice:{invoice_id}", wait=0, on_busy="skip")
    def charge(invoice_id: int, *, dry: bool = False) -> str:
        return f"{invoice_id}{dry}"

    assert_type(charge(1, dry=True), str)
    charge("one")  # type: ignore[arg-type]  # the signature is kept

    @ahf.semaphore(lambda order: f"order:{order}", permits=2)
    async def ship(order: int) -> float:
        return float(order)

    assert_type(asyncio.run(ship(1)), float)
    asyncio.run(ship(order="one"))  # type: ignore[arg-type]  # the signature is kept
