"""Conditions about runs and locks, read from the store."""

from __future__ import annotations

from waiting import eventually_async


async def waits(hf, key, runs=1):
    """Wait until a key has at least so many waiters."""

    async def seen():
        info = await hf.locks.inspect(key)
        return info is not None and len(info.waiters) >= runs

    await eventually_async(seen)


async def held(hf, key):
    """Whether a key has a holder."""
    return bool((await hf.locks.inspect(key)).holders)


async def suspended(handle):
    """Whether a run is suspended."""
    return await handle.status() == "suspended"


async def each_inside(engine, flow, **inputs):
    """Start runs by their ids, each when the one before holds its lock: the last one is the youngest."""

    async def inside(run):
        return (await engine.get(run)).locks

    handles = []
    for run, given in inputs.items():
        handles.append(await engine.start(flow, given, id=run))
        await eventually_async(lambda run=run: inside(run))
    return handles
