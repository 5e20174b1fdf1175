"""Random programs with crashes at random points: every replay equals the history, and the result is the same.

A program is made of steps, gather, wait for the first, timeouts, signals, children, patches and failures. While it
runs, its worker loses its lease again and again, as if it had been killed. In the end the journal, replayed from the
first entry to the last, leads to the very result that was stored; and a program whose result does not depend on timing
has the same result as without a crash.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress

import pytest

from holdfast import Context, StepFailed, WorkflowFailed, workflow
from holdfast.commands import ForceRelease
from holdfast.commands.runs import ReadRun
from holdfast.errors import RunEnded
from holdfast.rules.runs.outcomes import RunSeen
from holdfast.rules.runs.record import worker_key
from holdfast.workflow.history_check import check_history
from holdfast.workflow.queries import result_of
from holdfast.workflow.replay import Replay

PROGRAMS = int(os.environ.get("HOLDFAST_PROGRAMS", "500"))
CHUNKS = 4
CRASHES = 3
"""Fewer than make a run suspicious for good: a worker drives suspects one at a time, which takes its time."""


def program(chance: random.Random, depth: int = 3) -> list:
    """A random program, as JSON."""
    if depth == 0 or chance.random() < 0.25:
        return chance.choice([
            ["step", chance.randrange(100), chance.choice([0, 0, 1, 4])],
            ["sleep", chance.choice([0, 1, 5])],
            ["signal", chance.choice("ab")],
            ["fail", chance.randrange(100)],
            ["chance"],
        ])  # fmt: skip
    kind = chance.choice(["seq", "seq", "gather", "gather", "first", "timeout", "child", "queue", "patched"])
    if kind == "timeout":
        return ["timeout", chance.choice([0, 1, 3, 20]), program(chance, depth - 1)]
    if kind == "patched":
        return ["patched", chance.choice("xy"), program(chance, depth - 1), program(chance, depth - 1)]
    if kind == "child":
        return ["child", program(chance, depth - 2 if depth > 1 else 0)]
    return [kind, *(program(chance, depth - 1) for _ in range(chance.choice([1, 2, 3])))]


def depends_on_time(op: list) -> bool:
    """Whether the result depends on which task is first, or on whether a crash was before a marker was stored."""
    return op[0] in ("first", "timeout", "signal", "patched") or any(
        isinstance(part, list) and depends_on_time(part) for part in op
    )


async def effect(value: int, pause: float) -> int:
    await asyncio.sleep(pause)
    return value


async def failing(value: int) -> int:
    raise ValueError(str(value))


async def interpret(ctx: Context, op: list) -> object:  # noqa: C901, PLR0911, PLR0912  (one case a kind)
    kind, *parts = op
    match kind:
        case "step":
            return await ctx.step("effect", effect, parts[0], parts[1] / 1_000)
        case "fail":
            try:
                return await ctx.step("failing", failing, parts[0])
            except StepFailed as error:
                return ["failed", error.detail]
        case "sleep":
            await ctx.sleep(parts[0] / 1_000)
            return None
        case "signal":
            try:
                return await ctx.wait_for_signal(parts[0], timeout=0.02)
            except TimeoutError:
                return "nobody"
        case "chance":
            return [ctx.random(), str(ctx.uuid4()), ctx.now() == ctx.now()]
        case "seq":
            return [await interpret(ctx, part) for part in parts]
        case "gather":
            return await asyncio.gather(*(interpret(ctx, part) for part in parts))
        case "queue":
            queue: asyncio.Queue = asyncio.Queue()

            async def put(place: int, part: list) -> None:
                await queue.put([place, await interpret(ctx, part)])

            async with asyncio.TaskGroup() as group:
                for place, part in enumerate(parts):
                    group.create_task(put(place, part))
            return sorted([queue.get_nowait() for _ in parts], key=lambda pair: pair[0])
        case "first":
            tasks = [asyncio.create_task(interpret(ctx, part)) for part in parts]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            return [[place, task.result()] for place, task in enumerate(tasks) if task in done]
        case "timeout":
            try:
                async with asyncio.timeout(parts[0] / 1_000):
                    return await interpret(ctx, parts[1])
            except TimeoutError:
                return "too late"
        case "patched":
            return await interpret(ctx, parts[1] if ctx.patched(parts[0]) else parts[2])
        case "child":
            try:
                return await ctx.child(interpreter, parts[0])
            except WorkflowFailed as error:
                return error.status
    raise AssertionError(kind)


@workflow
async def interpreter(ctx: Context, op: list) -> object:
    return await interpret(ctx, op)


class NoEffects:
    """Fails on every effect: a complete replay must not request any."""

    refused = None

    def __getattr__(self, name):
        raise AssertionError(f"a finished history asks for {name}")

    def dropped(self, call):
        """A step that is no longer awaited is part of the history."""

    def cancel_child(self, id):
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
    code = Replay(claim.run, interpreter, NoEffects(), max_bytes=2**20, transactional=False)
    done = asyncio.Event()

    def replay():
        code.replay(claim.entries, claim.events)
        done.set()

    asyncio.get_running_loop().call_soon(replay)
    await asyncio.wait_for(done.wait(), 10)
    assert code.done
    result = code.root.result()
    code.leave()
    return result_of(claim.run, object), result


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
                    assert _without_random_values(whole) == _without_random_values(crashed), f"seed {seed}: {op}"

    asyncio.run(scenario())


def _without_random_values(value: object) -> object:
    """Without random values: another run has other numbers."""
    if isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], float):
            return "chance"
        return [_without_random_values(one) for one in value]
    return value
