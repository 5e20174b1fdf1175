"""Random programs with crashes at random points: every replay equals the history, and the result is the same.

A program is made of steps with and without heartbeats, gather, wait for the first, timeouts, signals, children, patches
and failures. While it runs, its worker loses its lease again and again, as if it had been killed. In the end the
journal, replayed from the first entry to the last, leads to the very result that was stored; and a program whose result
does not depend on timing has the same result as without a crash.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress

import pytest
from random_programs import SEEN, Interpreter, depends_on_time, program, without_random_values
from stream_checks import check_items_of_steps, items_of_code

from holdfast import Context, workflow
from holdfast.commands import ForceRelease
from holdfast.commands.runs import ReadRun
from holdfast.errors import RunEnded
from holdfast.rules.runs.outcomes import RunSeen
from holdfast.rules.runs.record import worker_key
from holdfast.workflow.blocking_code import BlockingCodeWatch
from holdfast.workflow.history_check import check_history
from holdfast.workflow.queries import result_of
from holdfast.workflow.replay import Replay

PROGRAMS = int(os.environ.get("HOLDFAST_PROGRAMS", "500"))
CHUNKS = 4
CRASHES = 3
"""Fewer than make a run suspicious for good: a worker drives suspects one at a time, which takes its time."""


@workflow
async def interpreter(ctx: Context, op: list) -> object:
    return await Interpreter(ctx, interpreter).run(op)


class NoEffects:
    """Fails on every effect: a complete replay must not request any."""

    refused = None

    def __init__(self):
        self.watch = BlockingCodeWatch()  # not started

    def blocking(self, seconds, line):
        """Nothing else runs here."""

    def __getattr__(self, name):
        raise AssertionError(f"a finished history asks for {name}")

    def dropped(self, call):
        """A step that is no longer awaited is part of the history."""

    def cancel_child(self, id, reason):
        """So is a child that was cancelled."""


async def crash(engine) -> None:
    worker = engine._worker
    lease = worker._lease
    if lease is not None and worker.id:
        await worker.execute(ForceRelease(key=worker_key(worker.id), by="test", reason="crash"))
        worker._loop.call_soon(worker._lost, lease)


async def play(engine, op: list, name: str, chance: random.Random | None) -> object:
    handle = await engine.start(interpreter, op, id=name)
    waiting = asyncio.create_task(handle.result(20))
    for letter in "ab":
        with suppress(RunEnded):  # it needed none
            await handle.signal(letter, letter.upper())
    for _ in range(CRASHES if chance else 0):
        await asyncio.sleep(chance.uniform(0, 0.012))
        if waiting.done():
            break
        await crash(engine)
    return await waiting


async def replayed(engine, name: str) -> tuple[object, object]:
    """The stored result, and the result of the replay."""
    seen = await engine._worker.execute(ReadRun(run=name, history=True))
    assert isinstance(seen, RunSeen)
    claim = seen.claim
    assert (claim.run.heartbeats, claim.run.due_at) == ((), None)
    code = Replay(claim.run, interpreter, NoEffects(), max_bytes=2**20, transactional=False)
    done = asyncio.Event()

    def replay():
        code.replay(claim.entries, claim.events)
        done.set()

    asyncio.get_running_loop().call_soon(replay)
    await asyncio.wait_for(done.wait(), 10)
    assert code.done
    result = code.root.result()
    await check_streams(engine, name, code)
    await check_details(engine, name)
    code.leave()
    return result_of(claim.run, object), result


async def check_streams(engine, name: str, code: Replay) -> None:
    """Workflow code has written each item once; what the last attempt of each completed step wrote is there."""
    assert len(await items_of_code(engine, name)) == code.streams.count("code")
    await check_items_of_steps(engine, name)


async def check_details(engine, name: str) -> None:
    """The details of a run are what its code has set last: the code that was replayed, since it began last."""
    found = SEEN.details[name, 1]
    assert (await engine.get(name)).details == (found[-1] if found else None)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_random_program_with_crashes_has_one_history_and_the_right_result(chunk, engine_on):
    async def scenario():
        async with engine_on("memory://", [interpreter], worker_ttl=60) as engine:
            for seed in range(chunk, PROGRAMS, CHUNKS):
                chance = random.Random(seed)
                op = program(chance)
                crashed = await play(engine, op, f"c{seed}", chance)
                stored, again = await replayed(engine, f"c{seed}")
                assert stored == crashed == again, f"seed {seed}: {op}"
                assert check_history(interpreter, await engine.export(f"c{seed}")).ended == "completed"
                if not depends_on_time(op):
                    whole = await play(engine, op, f"w{seed}", None)
                    assert without_random_values(whole) == without_random_values(crashed), f"seed {seed}: {op}"

    asyncio.run(scenario())
