"""`holdfast runs fork` and `holdfast runs import`."""

from __future__ import annotations

import asyncio

import pytest
from commandline import answer, failure, holdfast
from providers import PROVIDERS
from waiting import until_status

from holdfast import Client, Context, Engine, workflow


@workflow
async def order(ctx: Context, item: str) -> str:
    await ctx.step("reserve", str, item)
    await ctx.step("charge", str, item)
    return await ctx.wait_for_signal("paid")


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request, tmp_path):
    found = PROVIDERS[request.param].url(tmp_path)

    async def fill():
        async with Engine(found, workflows=[order], park_after=0.02, grace=1) as engine:
            for run in ("ended", "waits"):
                await engine.start(order, "é", id=run)
                await until_status(engine, run, "suspended")
            await engine.signal("ended", "paid", "1 €")
            await engine.handle("ended").result(20)

    asyncio.run(fill())
    return found


def test_a_fork_is_started_and_shown_with_its_origin(url):
    done = holdfast("runs", "fork", "ended", "--from-step", "charge", "--id", "again", "--url", url)
    assert done.stdout == (
        "again is forked from ended: 1 entry of its history is kept. No living worker has the workflow order "
        "registered: start one.\n"
    )
    shown = holdfast("runs", "show", "again", "--url", url).stdout
    assert "forked from ended at the step charge" in shown
    done = holdfast("runs", "fork", "waits", "--from-step", "reserve", "--input", '"b"', "--json", "--url", url)
    assert (answer(done)["status"], answer(done)["entries"]) == ("pending", 2)


def test_a_fork_that_is_not_possible_is_refused(url):
    assert "no recorded step 'ship'" in failure(
        holdfast("runs", "fork", "ended", "--from-step", "ship", "--url", url), 1
    )
    assert "from_step= must name" in failure(holdfast("runs", "fork", "ended", "--url", url), 1)
    taken = failure(holdfast("runs", "fork", "ended", "--from-step", "charge", "--id", "waits", "--url", url), 1)
    assert "there is a run with the id 'waits' already" in taken
    assert taken.rstrip().endswith("Nothing was started. Choose another id, or none.")
    failure(holdfast("runs", "fork", "nobody", "--from-step", "charge", "--url", url), 1)
    bad = holdfast("runs", "fork", "ended", "--from-step", "charge", "--input", "{", "--url", url)
    assert "this is not JSON" in failure(bad, 2)
    with Client(url) as hf:
        assert len(hf.runs.list().runs) == 2


def test_an_exported_run_is_imported_and_nothing_of_it_is_executed(url, tmp_path):
    file, other = tmp_path / "run.json", f"sqlite:///{tmp_path}/debug.db"
    with Client(other) as hf:
        hf.runs.list()
    assert holdfast("runs", "export", "waits", "-o", str(file), "--url", url).exit_code == 0
    done = holdfast("runs", "import", str(file), "--url", other)
    assert done.stdout == (
        "waits of order is imported. It is cancelled (it was suspended), and nothing of it is executed.\n"
    )
    failure(holdfast("runs", "import", str(file), "--url", other), 1)
    done = holdfast("runs", "import", str(file), "--id", "runs", "--run", "--json", "--url", other)
    assert (answer(done)["id"], answer(done)["status"]) == ("runs", "pending")
    file.write_text("{}")
    assert "not the history of a run" in failure(holdfast("runs", "import", str(file), "--url", other), 1)
    assert "cannot be read" in failure(holdfast("runs", "import", str(tmp_path / "no"), "--url", other), 1)
