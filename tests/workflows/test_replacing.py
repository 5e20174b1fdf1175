"""Starts under an id that a run has: use it, replace it if it has ended, send it a signal; who gets which result."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, closing

import pytest

from holdfast import AsyncClient, Client, Concurrency, Context, WorkflowFailed, current_step, step, workflow
from holdfast.errors import InvalidKey, InvalidOption, RunEnded, RunExists
from holdfast.runtime.flows import Submit

SENDERS, RUNS = 8, 5


@workflow
async def echo(ctx: Context, text: str) -> str:
    word = await ctx.wait_for_signal("say")
    return f"{ctx.generation}: {text} {word}"


@workflow(name="other")
async def other(ctx: Context, text: str) -> str:
    return text


class SlowWaiter:
    """A caller that waits for a run, and reads the store only when the test says so."""

    def __init__(self, hf: Client, run: str) -> None:
        self._connection = hf.runtime.store.connect("commands")
        self._flow = hf.runs._queries.result(run, str, 60.0)
        self._next = next(self._flow)
        self.result: str | None = None

    def read(self) -> str | None:
        """Read until the flow waits again, or has its result."""
        while isinstance(self._next, Submit):
            (outcome,) = self._connection.execute([self._next.command])
            try:
                self._next = self._flow.send(outcome)
            except StopIteration as done:
                return done.value
        self._next = self._flow.send(None)
        return None

    def close(self) -> None:
        self._flow.close()
        self._connection.close()


@pytest.mark.parametrize("by_name", [False, True])
def test_a_start_uses_the_run_that_has_the_id(url, played, engine_on, by_name):
    async def scenario():
        async with engine_on(url, [echo, other]) as engine:
            kind = "echo" if by_name else echo
            first = await engine.start(kind, "a", id="x")
            used = await engine.start(kind, "b", id="x", on_existing="use")
            await used.signal("say", "hi")
            assert await used.result(10) == await first.result(10) == "1: a hi"
            again = await engine.start(kind, "c", id="x", on_existing="use")
            assert await again.result(10) == "1: a hi"
            with pytest.raises(RunExists, match="of another workflow, so it was not used"):
                await engine.start(other, "c", id="x", on_existing="use")
            with pytest.raises(RunExists, match='"use" or "replace_ended"'):
                await engine.start(kind, "c", id="x")

    played(scenario)


def test_each_handle_gets_the_result_of_the_run_that_it_was_given_for(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [echo]) as engine:
            first = await engine.start(echo, "a", id="x")
            with pytest.raises(RunExists, match="has not ended, so it was not replaced"):
                await engine.start(echo, "b", id="x", on_existing="replace_ended")
            await first.signal("say", "one")
            assert await first.result(10) == "1: a one"
            second = await engine.start(echo, "b", id="x", on_existing="replace_ended")
            await second.signal("say", "two")
            assert await second.result(10) == "2: b two"
            third = await engine.start(echo, "c", id="x", on_existing="replace_ended")
            assert [await first.result(10), await second.result(10)] == ["1: a one", "2: b two"]
            await third.signal("say", "three")
            assert await third.result(10) == await engine.handle("x").result(10) == "3: c three"
            assert [await engine.handle(f"x~{n}").result(10) for n in (1, 2)] == ["1: a one", "2: b two"]

    played(scenario)


def test_a_handle_of_a_replaced_run_does_not_wait_for_the_one_that_is_driven_here(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [echo]) as engine:
            first = await engine.start(echo, "a", id="x")
            await first.signal("say", "hi")
            while (await first.info()).living:
                await asyncio.sleep(0.01)
            await engine.start(echo, "b", id="x", on_existing="replace_ended")
            assert await first.result(10) == "1: a hi"

    played(scenario)


def test_a_waiter_gets_the_result_of_the_run_that_it_has_seen_first(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [echo]) as engine:
            with Client(url) as hf:
                handle = await engine.start(echo, "a", id="x")
                with closing(SlowWaiter(hf, "x")) as waiter:
                    assert waiter.read() is None
                    for text in "bcd":
                        await handle.signal("say", "hi")
                        await handle.result(10)
                        handle = await engine.start(echo, text, id="x", on_existing="replace_ended")
                    assert waiter.read() == "1: a hi"

    played(scenario)


def test_a_kept_run_says_what_has_replaced_it_and_stays_as_it_is(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [other]) as engine:
            for text in "ab":
                await (await engine.start(other, text, id="x", on_existing="replace_ended")).result(10)
            kept, now = await engine.get("x~1"), await engine.get("x")
            assert (kept.replaced_by, kept.replaces, kept.generation, kept.result) == ("x", None, 1, "a")
            assert (now.replaced_by, now.replaces, now.generation, now.result) == (None, "x~1", 2, "b")
            assert [run.id for run in (await engine.list()).runs] == ["x", "x~1"]
            for change in (engine.retry, engine.restart):
                with pytest.raises(InvalidOption, match="'x', under which it ran, belongs to another run"):
                    await change("x~1")
            with pytest.raises(RunEnded, match="The run 'x' has replaced it"):
                await engine.signal("x~1", "say", "late")
            assert (await engine.export("x~1")).run.id == "x~1"

    played(scenario)


def test_steps_and_children_of_a_replacing_run_have_keys_of_their_own(url, played, engine_on):
    keys: list[str] = []

    @step
    async def pay() -> None:
        keys.append(current_step().idempotency_key)

    @workflow
    async def shop(ctx: Context, _: None) -> str:
        await pay()
        child = await ctx.start_child(other, "c")
        return f"{await child.result()}, {child.id}"

    async def scenario():
        async with engine_on(url, [shop, other]) as engine:
            ends = []
            for _ in range(3):
                handle = await engine.start(shop, None, id="x", on_existing="replace_ended")
                ends.append(await handle.result(10))
            assert ends == ["c, x/other", "c, x~2/other", "c, x~3/other"]

    played(scenario)
    assert keys == ["x:pay", "x~2:pay", "x~3:pay"]


def test_the_idempotency_key_of_a_start_comes_before_what_happens_to_the_id(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [other]) as engine:
            await (await engine.start(other, "a", id="x", idempotency_key="k")).result(10)
            again = await engine.start(other, "b", id="x", idempotency_key="k", on_existing="replace_ended")
            assert (again.id, await again.result(10)) == ("x", "a")
            await (await engine.start(other, "b", id="x", on_existing="replace_ended")).result(10)
            again = await engine.start(other, "c", id="x", idempotency_key="k", on_existing="replace_ended")
            assert (again.id, await again.result(10)) == ("x~1", "a")

    played(scenario)


def test_options_of_a_start_are_checked(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [echo]) as engine:
            with pytest.raises(InvalidOption, match="is none of 'error', 'use', 'replace_ended'"):
                await engine.start(echo, "a", id="x", on_existing="replace")
            with pytest.raises(InvalidOption, match="give id= too"):
                await engine.start(echo, "a", on_existing="use")

    played(scenario)


def test_an_id_that_is_too_long_to_be_kept_with_a_number_is_not_replaced(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [other]) as engine:
            fits, long = "x" * 490, "y" * 491
            for run in (fits, long, "z" * 512):
                assert await (await engine.start(other, "a", id=run)).result(10) == "a"
            assert await (await engine.start(other, "b", id=fits, on_existing="replace_ended")).result(10) == "b"
            assert (await engine.get(f"{fits}~1")).result == "a"
            with pytest.raises(InvalidKey, match=r"has 491 bytes.* at most 490 bytes"):
                await engine.start(other, "b", id=long, on_existing="replace_ended")
            with pytest.raises(InvalidKey, match=r"has 491 bytes.* at most 490 bytes"):
                await engine.start_or_signal(other, "b", id=long, name="n")
            with Client(url) as hf, pytest.raises(InvalidKey, match="at most 490 bytes"):
                hf.runs.start_or_signal("other", "b", id=long, name="n")
            assert (await engine.get(long)).result == "a"

    played(scenario)


# -- start or signal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_name", [False, True])
def test_a_signal_starts_reaches_and_starts_again(url, played, engine_on, by_name):
    kind = "echo" if by_name else echo

    async def scenario():
        async with engine_on(url, [echo]) as engine, AsyncClient(url) as hf:
            first = await engine.start_or_signal(kind, "a", id="x", name="say", payload=1, idempotency_key="k1")
            assert await first.result(10) == "1: a 1"
            known = await engine.start_or_signal(kind, "b", id="x", name="say", payload=1, idempotency_key="k1")
            assert await known.result(10) == "1: a 1"
            assert await hf.runs.start_or_signal(kind, "c", id="x", name="say", payload=3) == "x"
            assert await hf.runs.result("x", 10) == "2: c 3"

            def sync() -> str:
                with Client(url) as client:
                    sent = {"id": "x", "name": "say", "payload": 4, "idempotency_key": "k4"}
                    for _ in range(3):
                        assert client.runs.start_or_signal(kind, "d", **sent) == "x"
                        assert client.runs.result("x", 10) == "3: d 4"
                    client.runs.start_or_signal(kind, "e", id="x", name="hello")
                    client.runs.start_or_signal(kind, "f", id="x", name="say", payload=5)
                    return client.runs.result("x", 10)

            assert await asyncio.to_thread(sync) == "4: e 5"
            assert await first.result(10) == "1: a 1"

    played(scenario)


def test_a_signal_to_a_run_of_another_workflow_is_refused(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [echo, other]) as engine:
            await (await engine.start(other, "a", id="x")).result(10)
            with pytest.raises(RunExists, match="of another workflow"):
                await engine.start_or_signal(echo, "a", id="x", name="say", payload=1)

    played(scenario)


def test_a_child_of_a_living_run_is_not_replaced_and_its_parent_gets_its_end(url, played, engine_on):
    @workflow
    async def parent(ctx: Context, _: None) -> str:
        child = await ctx.start_child(other, "c", id="c")
        await ctx.wait_for_signal("go")
        return await child.result()

    async def scenario():
        async with engine_on(url, [parent, other]) as engine:
            handle = await engine.start(parent, None, id="p")
            while (await engine.list(prefix="c")).runs == ():
                await asyncio.sleep(0.01)
            await engine.handle("c").result(10)
            for begin in (
                engine.start(other, "d", id="c", on_existing="replace_ended"),
                engine.start_or_signal(other, "d", id="c", name="n"),
            ):
                with pytest.raises(RunExists, match="a child of the run 'p', which has not ended"):
                    await begin
            await handle.signal("go")
            assert await handle.result(10) == "c"
            assert await (await engine.start(other, "d", id="c", on_existing="replace_ended")).result(10) == "d"

    played(scenario)


def test_a_parent_whose_failed_child_was_replaced_is_not_retried(url, played, engine_on):
    @workflow
    async def fails(ctx: Context, _: None) -> None:
        raise ValueError

    @workflow
    async def parent(ctx: Context, _: None) -> None:
        child = await ctx.start_child(fails, None, id="c")
        await child.result()

    async def scenario():
        async with engine_on(url, [parent, fails, other]) as engine:
            handle = await engine.start(parent, None, id="p")
            with pytest.raises(WorkflowFailed):
                await handle.result(10)
            await (await engine.start(other, "d", id="c", on_existing="replace_ended")).result(10)
            with pytest.raises(InvalidOption, match=r"child 'c' was replaced .* as 'c~1'.* give the child another id"):
                await engine.retry("p")
            assert (await engine.get("p")).status == "failed"
            await engine.restart("p")
            with pytest.raises(WorkflowFailed, match="there is another run with the id 'c'"):
                await handle.result(10)
            assert (await engine.get("c")).result == "d"

    played(scenario)


def test_signals_of_many_senders_are_received_once_each_while_their_runs_end(url, played, engine_on):
    """Each signal is sent twice with its key; runs end after three of them, whatever arrives at that moment."""

    @workflow
    async def chat(ctx: Context, _: None) -> list[str]:
        return [await ctx.wait_for_signal("say") for _ in range(3)]

    def send(hf: Client, key: str) -> None:
        for _ in range(2):
            hf.runs.start_or_signal("chat", id="x", name="say", payload=key, idempotency_key=key)

    async def scenario():
        runs: list[str] = []
        keys: list[str] = []
        async with engine_on(url, [chat]) as engine, AsyncExitStack() as stack:
            clients = [stack.enter_context(Client(url)) for _ in range(SENDERS)]
            while len(runs) < RUNS:
                keys += (together := [f"{len(keys)}.{n}" for n in range(SENDERS)])
                pairs = zip(clients, together, strict=True)
                await asyncio.gather(*(asyncio.to_thread(send, hf, key) for hf, key in pairs))
                runs = [run.id for run in (await engine.list(limit=1_000)).runs]
            received = Counter[str]()
            for name in runs:
                received.update(event.key for event in (await engine.export(name)).events if event.kind == "signal")
            assert received == {f"signal/{key}": 1 for key in keys}
            results = [await engine.handle(name).result(10) for name in runs if name != "x"]
            assert all(len(set(result)) == 3 for result in results)

    played(scenario)


# -- cancelled by a limit -------------------------------------------------------------------------------------------


def test_a_run_that_a_limit_cancels_says_which_and_for_whom(url, played, engine_on):
    @workflow(name="one", concurrency=Concurrency(max=1, on_excess="cancel_oldest"))
    async def one(ctx: Context, _: None) -> None:
        await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [one]) as engine:
            old = await engine.start(one, None, id="old")
            new = await engine.start(one, None, id="new")
            with pytest.raises(WorkflowFailed, match="the limit 'concurrency' was full when the run 'new' started"):
                await old.result(10)
            cause = (await engine.get("old")).cancelled_by
            assert cause is not None
            assert (cause.limit, cause.run) == ("concurrency", "new")
            await new.signal("go")
            await new.result(10)

    played(scenario)


def test_a_run_that_a_limit_did_not_let_begin_names_the_limit(url, played, engine_on):
    @workflow(name="one", concurrency=Concurrency(max=1, on_excess="cancel_newest"))
    async def one(ctx: Context, _: None) -> None:
        await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [one]) as engine:
            await engine.start(one, None, id="old")
            await engine.start(one, None, id="new")
            cause = (await engine.get("new")).cancelled_by
            assert cause is not None
            assert (cause.limit, cause.run) == ("concurrency", None)

    played(scenario)
