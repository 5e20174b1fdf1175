"""A long history is read and decoded once: counted in entries and in round trips, never in time."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import msgspec
import pytest

from holdfast import Client, Context, workflow
from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs.outcomes import Claimed, RunSeen
from holdfast.rules.runs.record import Park, worker_key
from holdfast.testing import TestEngine
from holdfast.testing.builders import ME
from holdfast.workflow import journal as j
from holdfast.workflow.replay import Replay

SIZES = (1_000, 10_000) if os.environ.get("HOLDFAST_GROWTH") != "full" else (10_000, 100_000)
PIECE = 5_000


@workflow
async def long(ctx: Context, steps: int) -> int:
    for _ in range(steps):
        await ctx.step("work", int)
    for _ in range(3):
        await ctx.wait_for_signal("word")
    return steps


def with_history(url, steps):
    """A parked run that has completed so many steps, recorded by few large records."""
    with Client(url) as client:
        execute = client.runtime.batchers["commands"].call
        run = client.runs.start(long, steps)
        key = worker_key("w.1")
        lease = c.Acquire(key=key, id="w.1", label=ME, kind="worker", ttl=60_000_000)
        granted, _, claimed = execute(
            [
                lease,
                r.RegisterWorker(worker="w.1", name="w", types=("long",)),
                r.ClaimRuns(worker="w.1", types=(("long", "long"),), runs=(run,)),
            ]
        )
        assert isinstance(claimed, Claimed)
        fence, length = claimed.claims[0].run.fence, 1
        for first in range(0, steps, PIECE):
            numbers = range(first + 1, min(first + PIECE, steps) + 1)
            ids = ("work" if number == 1 else f"work#{number}" for number in numbers)
            entries = tuple(j.encode_entry(j.StepDone(at=1, id=id, value=msgspec.Raw(b"0"))) for id in ids)
            then = Park(None) if numbers[-1] == steps else None
            execute(
                [r.RecordRun(run=run, fence=fence, at=length, entries=entries, request=f"q.{first}", seen=0, then=then)]
            )
            length += len(entries)
        execute([r.UnregisterWorker(worker="w.1"), c.Release(key=key, id="w.1", token=granted.token)])
        assert client.runs.get(run).entries == steps + 1
    return run


class Counted:
    """The commands that an engine sends, and how many journal entries the outcomes contain."""

    def __init__(self, engine, monkeypatch):
        self.kinds, self.carried, self.decoded = [], 0, 0
        batcher = engine._client.runtime.batchers["commands"]
        submit, ask, decode = batcher.submit, batcher.submit_callback, j.decode_entry

        def counted(outcome):
            claims = (
                outcome.claims
                if isinstance(outcome, Claimed)
                else [outcome.claim]
                if isinstance(outcome, RunSeen)
                else []
            )
            self.carried += sum(len(claim.entries) for claim in claims if claim is not None)

        def submitted(command):
            self.kinds.append(type(command))
            future = submit(command)
            future.add_done_callback(lambda done: counted(done.result()))
            return future

        def asked(command, answer):
            self.kinds.append(type(command))
            ask(command, lambda outcome: (counted(outcome), answer(outcome)))

        def decoding(text):
            self.decoded += 1
            return decode(text)

        monkeypatch.setattr(batcher, "submit", submitted)
        monkeypatch.setattr(batcher, "submit_callback", asked)
        monkeypatch.setattr(j, "decode_entry", decoding)


@pytest.mark.parametrize("url", ["sqlite", "postgres", "valkey"], indirect=True)
@pytest.mark.parametrize("steps", SIZES)
def test_a_history_is_read_and_decoded_once_and_no_signal_reads_it_again(url, played, engine_on, monkeypatch, steps):
    run = with_history(url, steps)

    async def scenario():
        async with engine_on(url, [long], recover=False, worker_ttl=60) as engine:
            counted = Counted(engine, monkeypatch)
            assert (await engine.resume(run)).status == "running"
            assert counted.decoded <= steps + 2, "each entry once, and the last one to see whether it is a pause"
            assert counted.carried == steps + 1, "the history once"
            for word in "abc":
                counted.carried = counted.decoded = 0
                counted.kinds.clear()
                handle = engine.handle(run)
                await handle.signal("word", word)
                await asyncio.wait_for(delivered(engine, run, word), 20)
                assert counted.decoded == 0
                assert counted.carried == 0
            assert await handle.result(timeout=20) == steps

    async def delivered(engine, run, word):
        driver = engine._worker.drivers.get(run)
        while driver is not None and driver.left is None and driver.length < steps + 1 + "abc".index(word) + 1:
            await asyncio.sleep(0.01)

    played(scenario)


@workflow
async def waits(ctx: Context) -> None:
    await ctx.sleep(3600)


@workflow
async def has_children(ctx: Context, count: int) -> None:
    for n in range(count):
        await ctx.start_child(waits, id=f"{ctx.run_id}.{n}", on_parent_end="abandon" if n % 2 else "cancel")
    if count:
        raise ctx.continue_as_new(0)
    await ctx.sleep(3600)


@workflow
async def waits_for_children(ctx: Context, count: int) -> None:
    handles = [await ctx.start_child(waits, id=f"{ctx.run_id}.{n}") for n in range(count)]
    await asyncio.gather(*(handle.result() for handle in handles))


@pytest.mark.parametrize("parent", [has_children, waits_for_children])
def test_the_children_of_a_run_are_listed_as_often_with_many_of_them_as_with_few(parent, played, monkeypatch):
    listed = []

    def counted(code, *args, list_them=Replay.with_policy):
        listed.extend([args] if code.run.id == "p" else [])
        return list_them(code, *args)

    monkeypatch.setattr(Replay, "with_policy", counted)
    monkeypatch.setattr(Replay, "living_children", property(partial(counted, list_them=Replay.living_children.fget)))

    async def cancelled(count):
        async with TestEngine([parent, waits]) as engine:
            handle = await engine.start(parent, count, id="p")
            await engine.settle()
            assert (await engine.get(f"p.{count - 1}")).living
            await handle.cancel("enough")
            await engine.settle()
            assert (await handle.info()).status == "cancelled"
        return len(listed)

    async def scenario():
        few = await cancelled(4)
        assert 0 < few == await cancelled(40) - few

    played(scenario)
