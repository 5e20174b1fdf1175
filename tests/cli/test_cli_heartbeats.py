"""What `runs show` prints of the heartbeats of a step."""

from __future__ import annotations

import asyncio
import re

from commandline import answer, holdfast

from holdfast import Context, Engine, current_step, workflow


async def read() -> None:
    current_step().heartbeat({"page": 7})
    await asyncio.sleep(60)


@workflow
async def reading(ctx: Context) -> None:
    await ctx.step("read", read, heartbeat_timeout=40)


def test_the_last_heartbeat_of_a_running_step_is_shown(tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"

    async def scenario():
        async with Engine(url, workflows=[reading], grace=0) as engine:
            await engine.start(reading, id="r")
            while not (await engine.get("r")).heartbeats:
                await asyncio.sleep(0.01)
            while (await engine.get("r")).heartbeats[0].details is None:
                await asyncio.sleep(0.01)
            (beat,) = (await engine.get("r")).heartbeats
            assert (beat.step, beat.attempt, beat.details) == ("read", 1, {"page": 7})
            assert (await engine.get("r")).due_at is None, "this is a time of runs without a worker"
            shown = (await asyncio.to_thread(holdfast, "runs", "show", "r", "--url", url)).stdout
            found = re.search(
                r'last heartbeat of the step read, attempt 1: (.*) ago, {"page": 7}; another worker', shown
            )
            assert found, shown
            listed = answer(await asyncio.to_thread(holdfast, "runs", "show", "r", "--json", "--url", url))
            (document,) = listed["run"]["heartbeats"] if "run" in listed else listed["heartbeats"]
            assert (document["step"], document["attempt"], document["details"]) == ("read", 1, {"page": 7})
            await engine.cancel("r")

    asyncio.run(scenario())
