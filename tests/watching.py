"""Looking at runs and locks from outside."""

from __future__ import annotations

from waiting import eventually_async


async def waits(hf, key, runs=1):
    """So many wait for a key."""

    async def seen():
        info = await hf.locks.inspect(key)
        return info is not None and len(info.waiters) >= runs

    await eventually_async(seen)


async def held(hf, key):
    """Somebody has a key."""
    return bool((await hf.locks.inspect(key)).holders)


async def suspended(handle):
    """A run is parked."""
    return await handle.status() == "suspended"
