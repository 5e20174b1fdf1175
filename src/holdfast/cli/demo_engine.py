"""One worker process of the demo's workflow: it starts the run or finds it, drives it, and prints an event per step.

A file beside the store gets one line when the body of a step begins, and one when it has ended: what the demo counts is
what was executed, not what the store recorded. With `stall` the step `STALLED` does not end, so that the process can be
killed in the middle of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from .. import Context, Engine, step, workflow
from .demo_worker import emit

IDEMPOTENCY_KEY = "order 42"
"""The second process that starts a run with this key gets the run of the first one."""
STEPS = ("reserve", "charge", "ship", "notify")
STALLED = "ship"

_name = ""
_log = Path()
_stall = False


@step
async def execute(part: str) -> str:
    """One step of the order: it only writes down that it was executed."""
    _note("begins", part)
    if part == STALLED and _stall:
        await asyncio.sleep(3_600)
    await asyncio.sleep(0.2)  # so that a person can follow
    _note("completes", part)
    return f"{part} done by {_name}"


@workflow
async def order(_ctx: Context, _input: None) -> list[str]:
    """An order with several steps, one after the other."""
    return [await execute(part) for part in STEPS]


def _note(event: str, part: str) -> None:
    with _log.open("a") as file:
        file.write(json.dumps({"event": event, "step": part, "worker": _name}) + "\n")
    emit(event, step=part)


async def drive(url: str, ttl: float) -> None:
    """Start the run, or find it, and drive it to its end."""
    async with Engine(url, workflows=[order], name=_name, worker_ttl=ttl) as engine:
        handle = await engine.start(order, idempotency_key=IDEMPOTENCY_KEY)
        emit("started", run=handle.id)
        await handle.result()
        emit("completed", run=handle.id)


if __name__ == "__main__":
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # the events are its output
    url, log, _name, ttl, stall = sys.argv[1:]
    _log, _stall = Path(log), stall == "stall"
    asyncio.run(drive(url, float(ttl)))
