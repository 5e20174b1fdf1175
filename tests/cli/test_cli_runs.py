"""`holdfast runs`: its text and its JSON, and how a run is cancelled, retried and restarted."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from commandline import answer, failure, holdfast, shape, terminal
from providers import PROVIDERS
from waiting import PATIENCE, eventually, eventually_async

from holdfast import AsyncClient, Client, Concurrency, Context, Engine, Rate, Retry, WorkflowFailed, workflow

RUN = {
    "id": "str", "workflow": "str", "version": "NoneType", "status": "str", "holder": "NoneType", "created_at": "str",
    "started_at": "NoneType", "ended_at": "NoneType", "due_at": "NoneType", "parent": "NoneType",
    "idempotency_key": "NoneType", "attributes": {}, "locks": [], "entries": "int", "result": "NoneType",
    "error": "NoneType",
    "code": "NoneType",
    "blocked": "NoneType",
    "generation": "int",
    "continued_at": "NoneType",
    "replaces": "NoneType",
    "replaced_by": "NoneType",
    "timeout": "NoneType",
    "starts_at": "NoneType",
    "cancel_reason": "NoneType",
    "cancelled_by": "NoneType",
    "details": "NoneType",
    "heartbeats": [],
}  # fmt: skip
broken = [True]


@workflow
async def order(ctx: Context, item: int) -> str:
    await ctx.step("reserve", lambda: {"item": item})
    await ctx.wait_for_signal("paid")
    await ctx.step("ship", ship, retry=Retry(max_attempts=2, initial=0.001))
    return "shipped"


def ship():
    if broken[0]:
        raise ValueError("no \x1b[2J truck")
    return "on its way"


@workflow
async def naps(ctx: Context) -> None:
    await ctx.sleep(3_600)


@workflow
async def parent(ctx: Context, _: None) -> None:
    await ctx.child(naps)


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request, tmp_path):
    broken[0] = True
    address = PROVIDERS[request.param].url(tmp_path)
    Client(address).close()
    return address


@pytest.fixture
def hf(url):
    with Client(url) as client:
        client.runs.list()  # on a server this creates the schema that is read
        yield client


@contextmanager
def driving(url, **options):
    """An engine in its own thread."""
    begun, stopping, loops = threading.Event(), None, []

    async def work():
        nonlocal stopping
        stopping = asyncio.Event()
        loops.append(asyncio.get_running_loop())
        flows = options.pop("workflows", [order, naps, parent])
        async with Engine(url, workflows=flows, name="smith", **({"worker_ttl": 5, "grace": 1} | options)):
            begun.set()
            await stopping.wait()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        yield
    finally:
        loops[0].call_soon_threadsafe(stopping.set)
        thread.join(PATIENCE)


@pytest.fixture
def failed(url, hf):
    """The address of a store in which the run "o" has failed at its third step."""
    with driving(url):
        hf.runs.start("order", 7, id="o", attributes={"customer": "acme", "vip": True, "n": 5})
        eventually(lambda: hf.runs.get("o").entries == 2)
        hf.runs.signal("o", "note", {"text": "never read"})
        hf.runs.signal("o", "paid", "in full")
        with pytest.raises(WorkflowFailed):
            hf.runs.result("o", timeout=PATIENCE)
    return url


def state_of(url, run):
    done = holdfast("runs", "resume", run, "--json", "--url", url)
    return done.exit_code, answer(done)["state"]


# -- list ---------------------------------------------------------------------------------------------------


def test_a_list_shows_runs_the_newest_first(failed, hf):
    hf.runs.start("order", 8, id="p")
    done = holdfast("runs", "list", "--url", failed)
    assert (done.exit_code, done.stderr) == (0, "")
    head, newest, oldest = done.stdout.splitlines()
    assert head.split() == ["RUN", "WORKFLOW", "STATUS", "CREATED", "FOR", "NOTE"]
    assert newest.split()[:3] == ["p", "order", "pending"]
    assert oldest.split()[:3] == ["o", "order", "failed"]
    assert r"ValueError: no \x1b[2J truck" in oldest


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--status", "failed"], ["o"]),
        (["--status", "failed", "--status", "pending"], ["p", "o"]),
        (["--workflow", "naps"], ["p"]),
        (["--prefix", "o"], ["o"]),
        (["--attribute", "customer=acme", "--attribute", "vip=true", "--attribute", "n=5"], ["o"]),
        (["--attribute", 'n="5"'], []),
        (["--attribute", "vip=1"], []),
        (["--since", "1 hour"], ["p", "o"]),
        (["--until", "1 hour"], []),
        (["--since", "2026-01-01", "--until", "2099-01-01T00:00:00+02:00"], ["p", "o"]),
        (["--since", "2099-01-01T10:00"], []),
    ],
)
def test_a_list_takes_filters(failed, hf, options, found):
    hf.runs.start("naps", id="p")
    document = answer(holdfast("runs", "list", *options, "--json", "--url", failed))
    assert [run["id"] for run in document["runs"]] == found
    assert document["next"] is None


def test_a_list_goes_page_by_page(url, hf):
    for n in range(3):
        hf.runs.start("order", n, id=f"r{n}")
    first = holdfast("runs", "list", "--limit", "2", "--json", "--url", url)
    assert [run["id"] for run in answer(first)["runs"]] == ["r2", "r1"]
    after = answer(first)["next"]
    rest = answer(holdfast("runs", "list", "--limit", "2", "--after", after, "--json", "--url", url))
    assert ([run["id"] for run in rest["runs"]], rest["next"]) == (["r0"], None)
    assert holdfast("runs", "list", "--limit", "2", "--url", url).stderr == f"There are more runs: --after {after}\n"


def test_the_documents_have_these_shapes(failed, hf):
    hf.runs.start("naps", id="p")
    document = answer(holdfast("runs", "list", "--json", "--url", failed))
    assert shape(document["runs"][0]) == RUN
    assert shape(document["runs"][1]["error"]) == {"type": "str", "message": "str", "traceback": "str", "bases": []}
    shown = shape(answer(holdfast("runs", "show", "p", "--json", "--url", failed)))
    assert shown == {**RUN, "input": "NoneType", "history": [], "signals": [], "workers": []}


def test_an_empty_list_is_explained(url, hf):
    assert holdfast("runs", "list", "--url", url).stdout.startswith("There are no runs in ")
    assert "matches these options" in holdfast("runs", "list", "--status", "failed", "--url", url).stdout


def test_a_note_in_a_list_is_cut_on_a_terminal_only(url, hf):
    @workflow
    async def fails(ctx: Context) -> None:
        raise ValueError("x" * 500)

    with driving(url, workflows=[fails]):
        with pytest.raises(WorkflowFailed):
            hf.runs.result(hf.runs.start("fails"), timeout=PATIENCE)
    (_, row) = holdfast("runs", "list", "--url", url).stdout.splitlines()
    assert row.endswith(f"ValueError: {'x' * 500}")
    with terminal("runs", "list", "--url", url) as screen:
        assert screen.end() == 0
        assert "…" in screen.seen
        assert screen.seen.count("x") < 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "--status", "sleeping"], "there is no status 'sleeping'"),
        (["list", "--since", "2026-13-01"], "is not a time"),
        (["list", "--since", "yesterday"], "'yesterday' is not a time. Give a date or time in UTC (2026-11-16, "),
        (["list", "--until", "soon"], 'or how long ago (seconds, or "30 minutes", "2 hours", "1 day").'),
        (["list", "--attribute", "customer"], "is not NAME=VALUE"),
        (["list", "--limit", "0"], "limit"),
        (["list", "--after", "x"], "page of runs"),
        (["show", "a\x00"], "run id"),
        (["restart", "a"], "--yes"),
        (["purge"], "--older-than"),
        (["purge", "--older-than", "1 day"], "--yes"),
        (["purge", "--older-than", "-1", "--yes"], "older_than"),
        (["purge", "--older-than", "soon", "--yes"], "older_than"),
        (["purge", "--older-than", "1 day", "--status", "running", "--yes"], "running"),
    ],
)
def test_a_usage_error_ends_with_2(url, hf, arguments, words):
    assert words in failure(holdfast("runs", *arguments, "--url", url), 2)


# -- show ---------------------------------------------------------------------------------------------------


def test_a_run_is_shown_with_its_history_its_unread_signals_and_its_error(failed):
    done = holdfast("runs", "show", "o", "--url", failed)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "o of order is failed"
    assert "  attribute vip = true" in lines
    assert "  input: 7" in lines
    begin = lines.index("  history:")
    history = [line.split("UTC  ")[1] for line in lines[begin + 1 : begin + 5]]
    assert history[0] == 'step      reserve  {"item": 7}'
    assert history[1] == 'signal    paid  "in full"'
    assert history[2].startswith('attempt   ship  {"type": "ValueError"')
    assert history[3].startswith('failed    ship  {"type": "ValueError"')
    assert lines[begin + 5].startswith('  unread signal: note  {"text": "never read"}  since ')
    assert lines[begin + 6] == r"  ValueError: no \x1b[2J truck"
    assert any("in ship" in line for line in lines[begin + 7 :])
    assert "\x1b" not in done.stdout


def test_json_shows_all_details_of_a_run(failed):
    document = answer(holdfast("runs", "show", "o", "--json", "--url", failed))
    assert [(one["kind"], one["name"]) for one in document["history"]] == [
        ("step", "reserve"), ("signal", "paid"), ("attempt", "ship"), ("failed", "ship"),
    ]  # fmt: skip
    assert document["history"][1]["value"] == "in full"
    assert document["signals"][0]["payload"] == {"text": "never read"}
    assert document["input"] == 7
    assert "in ship" in document["error"]["traceback"]


def test_the_worker_of_a_run_and_the_end_of_its_sleep_are_shown(url, hf):
    with driving(url, park_after=0.05):
        hf.runs.start("order", 1, id="o")
        hf.runs.start("parent", id="p")
        eventually(lambda: hf.runs.get("p").status == "suspended" and hf.runs.get("p/naps").due_at)
        shown = holdfast("runs", "show", "p/naps", "--url", url).stdout
        assert "  child of p\n" in shown
        assert "  sleeps until " in shown
    with driving(url):
        hf.runs.signal("p", "x")
        eventually(lambda: hf.runs.get("p").holder)
        assert "  driven by smith, token …" in holdfast("runs", "show", "p", "--url", url).stdout


def test_a_cancelled_child_and_a_timer_are_in_the_history(url, hf):
    @workflow
    async def tries(ctx: Context) -> str:
        await ctx.sleep(0.01)
        try:
            await ctx.child(naps)
        except WorkflowFailed as error:
            return error.status

    with driving(url, workflows=[tries, naps]):
        hf.runs.start("tries", id="t")
        eventually(lambda: hf.runs.list(prefix="t/").runs and hf.runs.get("t/naps").status == "running")
        hf.runs.cancel("t/naps")
        assert hf.runs.result("t", timeout=PATIENCE) == "cancelled"
    shown = answer(holdfast("runs", "show", "t", "--json", "--url", url))
    assert [(one["kind"], one["name"]) for one in shown["history"]] == [("timer", "1"), ("child", "t/naps")]
    child = answer(holdfast("runs", "show", "t/naps", "--json", "--url", url))
    assert [(one["kind"], one["name"]) for one in child["history"]] == [("cancel", "requested")]


@workflow(retry=Retry(max_attempts=3, initial=600))
async def flaky(ctx: Context) -> None:
    raise ValueError("not now")


def test_the_pause_between_two_attempts_is_shown_with_the_next_attempt(url, hf):
    with driving(url, workflows=[flaky]):
        hf.runs.start("flaky", id="f")
        eventually(lambda: hf.runs.get("f").status == "suspended")
    shown = holdfast("runs", "show", "f", "--url", url).stdout
    assert "  pauses until " in shown
    assert (
        " UTC, then attempt 2 of the workflow begins; only a cancel or the workflow's timeout ends the pause earlier\n"
        in shown
    )
    assert "sleeps" not in shown
    assert state_of(url, "f") == (0, "sleeping")
    resumed = holdfast("runs", "resume", "f", "--url", url).stdout
    assert "f pauses until " in resumed
    assert "a worker begins attempt 2 of the workflow; only a cancel" in resumed
    assert holdfast("runs", "cancel", "f", "--url", url).exit_code == 0
    assert "pauses" not in holdfast("runs", "show", "f", "--url", url).stdout


@workflow
async def cleans_up(ctx: Context) -> None:
    try:
        await ctx.sleep(3_600)
    finally:
        await ctx.wait_for_signal("cleaned")


@workflow(retry=Retry(max_attempts=2, initial=0.01))
async def leaves_a_child(ctx: Context) -> None:
    await ctx.start_child(cleans_up, id="child")
    await ctx.wait_for_signal("fail")
    raise ValueError("not now")


def test_a_pause_that_waits_for_the_children_of_the_failed_attempt_names_them(url, hf):
    with driving(url, workflows=[leaves_a_child, cleans_up], park_after=0.05):
        hf.runs.start("leaves_a_child", id="p")
        eventually(lambda: hf.runs.list(prefix="child").runs and hf.runs.get("child").status == "suspended")
        hf.runs.signal("p", "fail")
        eventually(lambda: state_of(url, "p") == (0, "waiting"))
        resumed = holdfast("runs", "resume", "p", "--url", url).stdout
        shown = holdfast("runs", "show", "p", "--url", url).stdout
        hf.runs.cancel("p")
        hf.runs.signal("child", "cleaned")
    assert resumed == (
        "p waits for the end of the cancelled children child: attempt 2 of the workflow begins after that.\n"
    )
    assert "  the pause before attempt 2 ended at " in shown
    assert "  attempt 2 does not begin before the cancelled children of the failed attempt have ended: child\n" in shown


@pytest.mark.parametrize("command", ["show", "cancel", "resume", "retry", "restart"])
def test_a_run_that_does_not_exist_ends_with_1(url, hf, command):
    more = ["--yes"] if command == "restart" else []
    done = holdfast("runs", command, "nobody", *more, "--json", "--url", url)
    assert "there is no run with the id 'nobody'" in failure(done, 1)
    assert answer(done)["error"]["type"] == "UnknownRun"


# -- cancel, retry, restart ---------------------------------------------------------------------------------


def test_cancelling_stops_a_run_in_every_state(url, hf):
    hf.runs.start("order", 1, id="early")
    done = holdfast("runs", "cancel", "early", "--url", url)
    assert (done.exit_code, done.stdout) == (0, "early is cancelled.\n")
    with driving(url):
        hf.runs.start("order", 1, id="driven")
        eventually(lambda: hf.runs.get("driven").entries == 2)
        done = holdfast("runs", "cancel", "driven", "--url", url)
        assert done.exit_code == 0
        assert "smith drives it" in done.stdout or done.stdout == "driven is cancelled.\n"
        eventually(lambda: hf.runs.get("driven").status == "cancelled")
        hf.runs.start("naps", id="parked")
        eventually(lambda: hf.runs.get("parked").holder)
    assert (
        "No living worker has the workflow naps registered: start one."
        in holdfast("runs", "cancel", "parked", "--url", url).stdout
    )
    assert answer(holdfast("runs", "cancel", "early", "--json", "--url", url))["status"] == "cancelled", "again"


def test_a_run_that_was_cancelled_during_its_delay_is_not_shown_with_a_begin(url, hf):
    hf.runs.start("naps", id="n", delay="1 hour")
    hf.runs.cancel("n")
    for command in (("show", "n"), ("list",)):
        shown = holdfast("runs", *command, "--url", url).stdout
        assert "cancelled" in shown
        assert "starts at" not in shown


def test_a_delayed_run_is_shown_with_the_time_of_its_begin(url, hf):
    hf.runs.start("naps", id="n", delay="1 hour", timeout="5 minutes")
    document = answer(holdfast("runs", "show", "n", "--json", "--url", url))
    assert (document["timeout"], document["starts_at"]) == (300.0, document["due_at"])
    shown = holdfast("runs", "show", "n", "--url", url).stdout
    assert "  starts at " in shown
    assert "  times out 5 min after its begin" in shown
    assert "can be claimed by a worker" not in shown
    assert "starts at " in holdfast("runs", "list", "--url", url).stdout
    found = answer(holdfast("runs", "resume", "n", "--json", "--url", url))
    assert found["state"] == "sleeping"
    assert "its start was delayed" in found["detail"]


def test_the_reason_of_a_cancel_is_shown(url, hf):
    hf.runs.start("naps", id="n")
    hf.runs.start("naps", id="begun")
    with driving(url, workflows=[naps]):
        eventually(lambda: hf.runs.get("begun").holder and hf.runs.get("n").holder)
    for run in ("n", "begun"):
        done = holdfast("runs", "cancel", run, "--reason", "no \x1b[2J money", "--json", "--url", url)
        assert answer(done)["cancel_reason"] == "no \x1b[2J money"
    assert "its cancellation was requested: no \\x1b[2J money" in holdfast("runs", "show", "n", "--url", url).stdout
    with driving(url, workflows=[naps]):
        eventually(lambda: hf.runs.get("n").status == "cancelled")
    (entry,) = answer(holdfast("runs", "show", "n", "--json", "--url", url))["history"]
    assert (entry["kind"], entry["value"]) == ("cancel", "no \x1b[2J money")
    assert "no \\x1b[2J money" in holdfast("runs", "show", "n", "--url", url).stdout


def test_cancelling_a_run_that_has_ended_otherwise_ends_with_1(failed):
    done = holdfast("runs", "cancel", "o", "--json", "--url", failed)
    assert "has ended (failed)" in failure(done, 1)
    assert answer(done)["error"]["type"] == "RunEnded"


def test_a_failed_run_is_retried_from_where_it_failed(failed, hf):
    done = holdfast("runs", "retry", "o", "--url", failed)
    assert done.exit_code == 0
    assert done.stdout == (
        "o continues: 3 entries of its history are kept. "
        "No living worker has the workflow order registered: start one.\n"
    )
    broken[0] = False
    with driving(failed):
        assert hf.runs.result("o", timeout=PATIENCE) == "shipped"
    done = holdfast("runs", "retry", "o", "--json", "--url", failed)
    assert "is completed" in failure(done, 1)
    assert answer(done)["error"]["type"] == "NotRetried"


def test_a_restarted_run_has_no_history(failed, hf):
    done = holdfast("runs", "restart", "o", "--yes", "--url", failed)
    assert (done.exit_code, done.stdout[:14]) == (0, "o is restarted")
    assert answer(holdfast("runs", "show", "o", "--json", "--url", failed))["history"] == []


def test_on_a_terminal_a_restart_asks(failed, hf):
    for typed, code, entries in (("n\n", 1, 5), ("y\n", 0, 1)):
        with terminal("runs", "restart", "o", "--url", failed) as screen:
            assert "with 4 entries" in screen.until("[y/N]")
            screen.type(typed)
            assert screen.end() == code
        assert hf.runs.get("o").entries == entries


def test_a_run_that_a_worker_drives_is_not_restarted(url, hf):
    with driving(url):
        hf.runs.start("naps", id="n")
        eventually(lambda: hf.runs.get("n").holder)
        done = holdfast("runs", "restart", "n", "--yes", "--json", "--url", url)
        assert "is driven by smith" in failure(done, 1)
        assert answer(done)["error"]["type"] == "RunLocked"
        assert "is running" in failure(holdfast("runs", "retry", "n", "--url", url), 1)


# -- purge ----------------------------------------------------------------------------------------------------


def test_a_purge_removes_ended_runs_and_prints_what_it_removed(failed, hf):
    hf.runs.start("naps", id="n")
    done = holdfast("runs", "purge", "--older-than", "1 day", "--yes", "--url", failed)
    assert (done.exit_code, done.stdout) == (0, "Removed: 0 runs.\n")
    done = holdfast("runs", "purge", "--older-than", "0", "--status", "completed", "--yes", "--url", failed)
    assert done.stdout == "Removed: 0 runs.\n"
    done = holdfast("runs", "purge", "--older-than", "0", "--workflow", "order", "--yes", "--json", "--url", failed)
    assert answer(done) == {"trees": 1, "runs": 1, "kept_living": 0, "kept_young": 0, "kept_unreadable": 0}
    assert [run.id for run in hf.runs.list().runs] == ["n"]


def test_a_purge_of_one_tree_of_several_runs_is_said_in_the_singular(url, hf):
    @workflow
    async def below(ctx: Context) -> None: ...

    @workflow
    async def above(ctx: Context) -> None:
        await ctx.child(below)

    async def drive():
        async with Engine(url, workflows=[above, below]) as engine:
            await (await engine.start(above)).result(20)

    asyncio.run(drive())
    done = holdfast("runs", "purge", "--older-than", "0", "--workflow", "above", "--yes", "--url", url)
    assert done.stdout == "Removed: 2 runs in 1 tree.\n"


def test_on_a_terminal_a_purge_counts_and_asks(failed, hf):
    for typed, code, left in (("n\n", 1, 1), ("y\n", 0, 0)):
        with terminal("runs", "purge", "--older-than", "0", "--url", failed) as screen:
            assert "1 run can be removed." in screen.until("[y/N]")
            screen.type(typed)
            assert screen.end() == code
        assert len(hf.runs.list().runs) == left
    with terminal("runs", "purge", "--older-than", "0", "--url", failed) as screen:
        assert screen.end() == 0


# -- resume -------------------------------------------------------------------------------------------------


def test_resume_says_what_a_run_waits_for(url, hf):
    hf.runs.start("order", 1, id="o")
    assert state_of(url, "o") == (1, "no_worker")
    words = holdfast("runs", "resume", "o", "--url", url)
    assert (words.exit_code, words.stderr) == (1, "")
    assert "no living worker has the workflow order in any version." in words.stdout
    waits = "  no living worker has the workflow order in any version registered: the run waits until one is started\n"
    assert waits in holdfast("runs", "show", "o", "--url", url).stdout
    with driving(url, recover=False, workflows=[order]):
        assert state_of(url, "o") == (0, "in_line")
        assert "smith can claim it" in holdfast("runs", "resume", "o", "--url", url).stdout
        assert "no living worker" not in holdfast("runs", "show", "o", "--url", url).stdout
        hf.runs.start("mail", 1, id="m")
        assert state_of(url, "m") == (1, "no_worker"), "smith does not have it"
    with driving(url, park_after=0.05):
        eventually(lambda: state_of(url, "o") == (0, "waiting"))
        hf.runs.start("naps", id="n")
        eventually(lambda: state_of(url, "n") == (0, "sleeping"))
    with driving(url):
        hf.runs.start("naps", id="d")
        eventually(lambda: state_of(url, "d") == (0, "driven"))
        hf.runs.cancel("d")
        eventually(lambda: hf.runs.get("d").status == "cancelled")
    done = holdfast("runs", "resume", "d", "--json", "--url", url)
    assert "has ended (cancelled)" in failure(done, 1)
    assert answer(done)["error"]["type"] == "RunEnded"


def test_a_run_that_is_locked_from_outside_is_reported_as_locked(url, hf):
    hf.runs.start("order", 1, id="o")
    assert hf.run_locks.try_acquire("order", "o", ttl=timedelta(seconds=60))
    assert state_of(url, "o") == (1, "locked")
    assert "run/order/o" in holdfast("runs", "resume", "o", "--url", url).stdout


@workflow(concurrency=Concurrency(max=1, on_excess="queue"), rate=Rate(2, per="1 hour", on_excess="queue"))
async def limited(ctx: Context) -> None:
    await ctx.sleep(3_600)


def test_a_run_that_is_queued_for_its_limits_is_listed_and_explained(url, hf):
    for run in ("first", "second", "third"):
        hf.runs.start(limited, id=run)
    assert state_of(url, "second") == (0, "queued")
    assert "is queued for its limits (concurrency, rate)" in holdfast("runs", "resume", "second", "--url", url).stdout
    listed = answer(holdfast("runs", "list", "--status", "queued", "--json", "--url", url))
    assert [run["id"] for run in listed["runs"]] == ["third", "second"]
    hf.runs.cancel("first")
    assert state_of(url, "second") == (1, "no_worker")
    hf.runs.cancel("second")
    assert state_of(url, "third") == (0, "sleeping"), "it may begin within the hour"


def test_show_lists_current_and_former_locks_of_a_run(url):
    @workflow(name="locking")
    async def locking(ctx, _none: None) -> None:
        async with ctx.mutex("first"):
            pass
        async with ctx.mutex("second"):
            await ctx.wait_for_signal("go")

    async def begun():
        async with Engine(url, workflows=[locking]) as engine:
            await engine.start(locking, id="r")
            while len((await engine.get("r")).locks) != 1 or (await engine.get("r")).entries < 4:
                await asyncio.sleep(0.01)

    asyncio.run(begun())
    shown = holdfast("runs", "show", "r", "--url", url).stdout
    assert "has the lock workflow/locking/second" in shown
    assert "lock released  workflow/locking/first" in shown
    assert "lock           workflow/locking/first  token …" in shown
    assert answer(holdfast("runs", "show", "r", "--json", "--url", url))["locks"] == ["workflow/locking/second"]


def test_show_names_what_a_run_waits_for(url):
    @workflow(name="inner")
    async def inner(ctx, _none: None) -> None:
        async with ctx.mutex("a", scope="global"):
            pass

    @workflow(name="outer")
    async def outer(ctx, _none: None) -> None:
        async with ctx.mutex("b", scope="global"):
            await ctx.child(inner, id="child")

    async def begun():
        async with Engine(url, workflows=[outer, inner], park_after=0.01) as engine, AsyncClient(url) as hf:
            async with hf.lock("a"):
                handle = await engine.start(outer, id="r")
                await eventually_async(lambda: both_are(engine, "suspended"))
                return [
                    (await asyncio.to_thread(holdfast, "runs", verb, run, "--url", url)).stdout
                    for verb, run in [("show", "r"), ("resume", "r"), ("show", "child"), ("resume", "child")]
                ], await handle.cancel()

    async def both_are(engine, status):
        return [run.status for run in (await engine.list()).runs] == [status] * 2

    (parent, parent_again, child, child_again), _ = asyncio.run(begun())
    assert "has the lock b" in parent
    assert "waits for the child child" in parent
    assert "r waits for the end of the child child:" in parent_again
    assert "waits for the lock a" in child
    assert "child waits for the lock a:" in child_again


@workflow(name="order")
async def changed_order(ctx: Context, name: str) -> None:
    await ctx.step("another", len, name)


@workflow(name="order")
async def order_that_raises(ctx: Context, name: str) -> None:
    raise TypeError("release bug")


def test_a_blocked_run_whose_code_raises_too_early_is_shown_with_the_error(url, hf):
    @workflow(name="order")
    async def order(ctx: Context, name: str) -> None:
        await ctx.step("first", len, name)
        await ctx.wait_for_signal("go")

    async def drive(flow, status):
        async with Engine(url, workflows=[flow], park_after=0.05) as engine:
            if status == "suspended":
                await engine.start(flow, "ann", id="r")
            else:
                await engine.signal("r", "go")
            while (await engine.get("r")).status != status:
                await asyncio.sleep(0.01)

    asyncio.run(drive(order, "suspended"))
    asyncio.run(drive(order_that_raises, "blocked"))
    shown = holdfast("runs", "show", "r", "--url", url).stdout
    assert "the code has ended with TypeError: release bug." in shown
    assert 'raise TypeError("release bug")' in shown


def test_a_blocked_run_is_shown_with_its_reason_and_given_up(url, hf):
    """Its code was changed: the first engine parked it, the second one cannot continue it."""

    @workflow(name="order")
    async def order(ctx: Context, name: str) -> None:
        await ctx.step("first", len, name)
        await ctx.wait_for_signal("go")

    async def drive(flow, status):
        async with Engine(url, workflows=[flow], park_after=0.05, version="2.0") as engine:
            if status == "suspended":
                await engine.start(flow, "ann", id="r")
            else:
                await engine.signal("r", "go")
            while (await engine.get("r")).status != status:
                await asyncio.sleep(0.01)

    asyncio.run(drive(order, "suspended"))
    asyncio.run(drive(changed_order, "blocked"))
    listed = holdfast("runs", "list", "--status", "blocked", "--url", url).stdout
    assert "NonDeterminismError" in listed
    shown = holdfast("runs", "show", "r", "--url", url).stdout
    assert "tried once, last by code 2.0: holdfast.errors.NonDeterminismError" in shown
    assert "is tried again at" in shown
    resumed = holdfast("runs", "resume", "r", "--url", url)
    assert (resumed.exit_code, "is blocked since" in resumed.stdout) == (1, True)
    assert "1 run is blocked (r)" in holdfast("doctor", "--url", url).stdout
    assert holdfast("runs", "fail", "r", "--url", url).exit_code == 2, "a reason is required"
    assert "reason='' is no text" in failure(holdfast("runs", "fail", "r", "--reason", "", "--url", url), 2)
    done = holdfast("runs", "fail", "r", "--reason", "refunded by hand", "--url", url)
    assert (done.exit_code, hf.runs.get("r").error.message) == (0, "refunded by hand")


def test_a_replaced_run_and_its_successor_name_each_other(url, hf):
    for n in (1, 2):
        hf.runs.start("order", n, id="r", on_existing="replace_ended")
        hf.runs.cancel("r")
    assert "replaces an ended run, which is kept as r~1" in holdfast("runs", "show", "r", "--url", url).stdout
    assert "the run r began in its place" in holdfast("runs", "show", "r~1", "--url", url).stdout
    now, kept = (answer(holdfast("runs", "show", name, "--json", "--url", url)) for name in ("r", "r~1"))
    assert (now["generation"], now["replaces"], kept["replaced_by"]) == (2, "r~1", "r")
    for command in (("retry", "r~1"), ("restart", "r~1", "--yes")):
        refused = holdfast("runs", *command, "--url", url)
        assert (refused.exit_code, "'r', under which it ran, belongs to another run" in refused.stderr) == (1, True)


def test_a_run_that_a_limit_has_cancelled_shows_the_limit_and_the_newer_run(url, hf):
    @workflow(name="one", concurrency=Concurrency(max=1, on_excess="cancel_oldest"))
    async def one(ctx: Context, _: None) -> None:
        await ctx.sleep(1)

    for name in ("old", "new"):
        hf.runs.start(one, None, id=name)
    shown = holdfast("runs", "show", "old", "--url", url).stdout
    assert "was cancelled by a limit: the limit 'concurrency' was full when the run 'new' started" in shown
    document = answer(holdfast("runs", "show", "old", "--json", "--url", url))
    assert document["cancelled_by"] == {"limit": "concurrency", "run": "new"}


def test_a_run_that_has_continued_shows_its_generation_and_the_lock_that_it_has_carried(url, hf):
    @workflow(name="rounds")
    async def rounds(ctx: Context, n: int) -> None:
        if n == 1:
            async with ctx.mutex("till", scope="global"):
                raise ctx.continue_as_new(2)
        await ctx.wait_for_signal("go")

    async def drive() -> None:
        async with Engine(url, workflows=[rounds], park_after=0.05) as engine:
            await engine.start(rounds, 1, id="r")
            while (await engine.get("r")).status != "suspended" or (await engine.get("r")).generation != 2:
                await asyncio.sleep(0.01)

    asyncio.run(drive())
    shown = holdfast("runs", "show", "r", "--url", url).stdout
    assert "generation 2, which began" in shown
    assert "keeps from an earlier generation the lock till" in shown
    assert "the workflow asked for it" in shown
    document = answer(holdfast("runs", "show", "r", "--json", "--url", url))
    assert (document["generation"], document["continued_at"] is None) == (2, False)
