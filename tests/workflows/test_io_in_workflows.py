"""I/O in workflow code is refused with what to do instead, however a library wraps the refusal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

import anyio
import httpx
import pytest

from holdfast import Context, WorkflowFailed, workflow


async def with_httpx():
    async with httpx.AsyncClient() as client:
        await client.get("http://127.0.0.1:9/")


async def with_streams():
    await asyncio.open_connection("127.0.0.1", 9)


async def with_a_thread():
    await asyncio.to_thread(print)


async def with_a_thread_of_anyio():
    await anyio.to_thread.run_sync(threading.get_ident)


async def with_a_group_of_anyio():
    async with anyio.create_task_group() as group:
        group.start_soon(with_streams)


async def with_nested_groups():
    async with asyncio.TaskGroup() as group:
        group.create_task(with_a_group_of_anyio())


async def with_a_process():
    await asyncio.create_subprocess_exec("true")


async def with_another_error():
    try:
        await with_streams()
    except Exception as error:
        raise ConnectionError("no connection") from error


async def with_another_error_without_a_cause():
    try:
        await with_streams()
    except Exception:
        raise ConnectionError("no connection")  # noqa: B904  (this is what it is about)


async def with_another_error_in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(with_another_error_without_a_cause())


WAYS = [
    with_httpx,
    with_streams,
    with_a_thread,
    with_a_thread_of_anyio,
    with_a_group_of_anyio,
    with_nested_groups,
    with_a_process,
    with_another_error,
    with_another_error_without_a_cause,
    with_another_error_in_a_group,
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("use", WAYS, ids=lambda way: way.__name__)
def test_io_in_workflow_code_fails_the_run_with_what_to_do(played, engine_on, use):
    @workflow
    async def talking(ctx: Context) -> None:
        await use()

    async def scenario():
        async with engine_on("memory://", [talking]) as engine:
            with pytest.raises(WorkflowFailed, match=r"Do this in a step: ctx\.step") as failed:
                await (await engine.start(talking)).result(timeout=20)
            assert failed.value.kind == "holdfast.errors.NotInWorkflow"

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    played(scenario)


async def after_the_refusal():
    with contextlib.suppress(Exception):
        await with_streams()
    raise LookupError("something else")


async def from_none():
    try:
        await with_streams()
    except Exception:
        raise LookupError("something else") from None


@pytest.mark.parametrize("use", [after_the_refusal, from_none], ids=lambda way: way.__name__)
def test_an_error_unrelated_to_the_refusal_is_reported_unchanged(played, engine_on, use):
    @workflow
    async def talking(ctx: Context) -> None:
        await use()

    async def scenario():
        async with engine_on("memory://", [talking]) as engine:
            with pytest.raises(WorkflowFailed, match="something else") as failed:
                await (await engine.start(talking)).result(timeout=20)
            assert failed.value.kind == "LookupError"

    played(scenario)


def test_waits_and_cancellations_of_anyio_are_durable(played, engine_on):
    @workflow
    async def pausing(ctx: Context) -> str:
        await anyio.sleep(0.01)
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0.01)
        return "went on"

    async def scenario():
        async with engine_on("memory://", [pausing]) as engine:
            assert await (await engine.start(pausing)).result(timeout=20) == "went on"

    played(scenario)
