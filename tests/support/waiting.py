"""Waiting for conditions: tests never wait for a number of milliseconds."""

from holdfast.testing.waiting import PATIENCE, eventually, eventually_async

__all__ = ["PATIENCE", "eventually", "eventually_async", "until_blocked", "until_status"]


async def until_status(runs, run, status):
    """Wait until a run has this status, and return it; `runs` is an engine or `client.runs`."""
    found = await runs.get(run)

    async def has_it():
        nonlocal found
        found = await runs.get(run)
        return found.status == status

    await eventually_async(has_it)
    return found


async def until_blocked(runs, run):
    """Wait until a run is blocked, and return why."""
    return (await until_status(runs, run, "blocked")).blocked
