"""`holdfast approvals`, and what `runs show` prints of requests and details."""

from __future__ import annotations

import asyncio

import pytest
from commandline import answer, failure, holdfast
from waiting import until_status

from holdfast import Context, Engine, workflow


@workflow
async def refund(ctx: Context, amount: int) -> str:
    await ctx.set_details({"amount": amount})
    return (await ctx.approve("refund", {"amount": amount}, timeout="2 days")).by


@pytest.fixture
def url(tmp_path):
    found = f"sqlite:///{tmp_path}/hf.db"

    async def fill():
        async with Engine(found, workflows=[refund], park_after=0.02, grace=1) as engine:
            for run in ("r-1", "r-2"):
                await engine.start(refund, 30, id=run)
                await until_status(engine, run, "suspended")

    asyncio.run(fill())
    return found


def test_open_requests_are_listed_and_answered(url):
    listed = answer(holdfast("approvals", "list", "--json", "--prefix", "r-1", "--url", url))
    ((one,), following) = listed["approvals"], listed["next"]
    assert (one["run_id"], one["id"], one["data"], following) == ("r-1", "refund", {"amount": 30}, None)
    shown = holdfast("runs", "show", "r-1", "--url", url).stdout
    assert 'details: {"amount": 30}' in shown
    assert "waits for the approval refund" in shown
    done = holdfast("approvals", "answer", "r-1", "refund", "--reject", "--by", "ann", "--url", url)
    assert done.stdout == "refund of r-1: rejected by ann.\n"
    table = holdfast("approvals", "list", "--url", url).stdout
    assert "r-2" in table
    assert "r-1" not in table
    assert "was rejected by 'ann' already" in failure(
        holdfast("approvals", "answer", "r-1", "refund", "--approve", "--url", url), 1
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--approve or --reject"),
        (("--approve", "--reject"), "not both"),
        (("--reject", "--approve"), "not both"),
        (("--approve", "--by", ""), "by is empty. Nothing was answered"),
    ],
)
def test_an_answer_that_is_not_clear_is_refused_and_the_request_stays_open(url, options, message):
    assert message in failure(holdfast("approvals", "answer", "r-2", "refund", *options, "--url", url), 2)
    assert "r-2" in holdfast("approvals", "list", "--url", url).stdout


def test_without_open_requests_the_list_says_so(tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"
    holdfast("state", "set", "k", "1", "--url", url)
    assert "no open requests" in holdfast("approvals", "list", "--url", url).stdout
