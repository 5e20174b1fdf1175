"""A workflow that uses every feature, with effects outside the store: a log of step bodies, a table of payments.

For each body of a step the log contains its start, its end and its idempotency key. It shows that no two bodies of a
step overlapped, and that the key was the same in every process.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import Concurrency, Context, Retry, current_step, step, workflow


class Log:
    """A file of JSON lines that several processes append to."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def note(self, **fields: Any) -> None:
        line = json.dumps({"at": time.clock_gettime(time.CLOCK_BOOTTIME), "pid": os.getpid()} | fields) + "\n"
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line)

    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


@contextmanager
def body(log: str, **fields: Any):
    info = current_step()
    Log(log).note(what="begin", key=info.idempotency_key, **fields)
    try:
        yield
    finally:
        Log(log).note(what="end", key=info.idempotency_key, **fields)


@step
async def note(log: str, value: int) -> int:
    stream = current_step().stream("notes")
    with body(log):
        stream.write([value, "begin"])
        await asyncio.sleep(0.005)
        stream.write([value, "end"])
    return value


@step(retry=Retry(max_attempts=3, initial=0.01), heartbeat_timeout=30)
def blocking(log: str, value: int) -> int:
    info = current_step()
    with body(log):
        if info.attempt == 1:
            info.heartbeat(value)
            raise ConnectionError("not yet")
        assert info.heartbeat_details == value, "the failed attempt is recorded, and its last heartbeat is not"
    return value


def pay(connection: Any, table: str, amount: int) -> int:
    place = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.execute(f"INSERT INTO {table} (amount) VALUES ({place})", (amount,))
    return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@workflow(concurrency=Concurrency(max=1, on_excess="queue"))
async def small(ctx: Context, log: str) -> int:
    return await note(log, 20) + await note(log, 1)


@workflow
async def full_workflow(ctx: Context, job: dict[str, Any]) -> dict[str, Any]:
    log = job["log"]
    stages = ctx.stream("stages")
    stages.write("begin")
    first = await note(log, 1)
    both = await asyncio.gather(
        note(log, 2), note(log, 3), ctx.step("both", note, log, 4), ctx.step("both", note, log, 5)
    )
    await ctx.sleep(0.25)
    paid = await ctx.wait_for_signal("paid")
    stages.write("paid")
    await ctx.set_attributes(stage="paid")
    await ctx.set_details({"stage": "paid"})
    approving = asyncio.create_task(ctx.approve("pay", {"sum": 5}, timeout="1 hour"))  # opened before the reply
    request = await anext(ctx.updates("ask"))
    request.reply([request.payload, "answered"])
    approval = await approving
    await ctx.set_details({"stage": "approved"})
    child = await ctx.child(small, log)
    async with ctx.mutex("till", scope="global"):
        tried = await blocking(log, 7)
    counted = await ctx.state.workflow("completed", initial=0).increment()
    payments = await ctx.transaction("pay", pay, job["table"], 5) if job["transaction"] else 1
    stages.write("end")
    return {
        "first": first,
        "both": both,
        "paid": paid,
        "approved": [approval.approved, approval.by],
        "child": child,
        "tried": tried,
        "counted": counted,
        "payments": payments,
    }


RESULT = {
    "first": 1,
    "both": [2, 3, 4, 5],
    "paid": {"sum": 5},
    "approved": [True, "ann"],
    "child": 21,
    "tried": 7,
    "counted": 1,
    "payments": 1,
}
DETAILS = {"stage": "approved"}
STAGES = ["begin", "paid", "end"]
NOTED = 5
"""How many steps of the workflow write to its stream of notes."""


@workflow
async def sleeper(ctx: Context, log: str) -> str:
    try:
        await ctx.sleep(3_600)
    finally:
        await note(log, 0)
    return "woke up"


@workflow(concurrency=Concurrency(max=1))
async def fails_once(ctx: Context, path: str) -> int:
    def go() -> int:
        if not Path(path).exists():
            Path(path).touch()
            raise ValueError("the first time")
        return 3

    async with ctx.mutex("till", scope="global"):
        return await ctx.step("go", go)


@workflow
async def rounds(ctx: Context, job: dict[str, Any]) -> list[int]:
    """Three generations. Each reads one signal, and ends inside the block of a lock that the next one enters again."""
    read = job.get("read", [])
    async with ctx.mutex("round", scope="global"):
        await note(job["log"], len(read))
        read = [*read, await ctx.wait_for_signal("turn")]
        if len(read) < len(TURNS):
            raise ctx.continue_as_new({**job, "read": read})
    await ctx.step("last", note, job["log"], len(read))
    return read


TURNS = [1, 2, 3]


@workflow
async def unreadable(ctx: Context, number: int) -> None:
    """Is started with an input that is no number, so that each try blocks it."""


WORKFLOWS = [full_workflow, small, sleeper, fails_once, rounds, unreadable]
