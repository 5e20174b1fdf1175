"""Mistakes of use get an error that says what to write instead."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import trio

from holdfast import AsyncClient, Client, Context, Engine, workflow
from holdfast.errors import ClientClosed, InvalidOption

ROOT = Path(__file__).parents[2]


@workflow
async def quick(ctx: Context) -> str:
    return "done"


async def under_trio(use):
    with pytest.raises(InvalidOption, match=r"needs a running event loop of asyncio.*Under trio.*Client in a thread"):
        await use()


async def open_client():
    async with AsyncClient("memory://"):
        pass


async def take_lock():
    await AsyncClient("memory://").lock("a").acquire()


async def open_engine():
    async with Engine("memory://", workflows=[quick]):
        pass


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
@pytest.mark.parametrize("use", [open_client, take_lock, open_engine])
def test_trio_is_detected(use):
    trio.run(under_trio, use)


def test_with_on_an_async_object_says_async_with():
    async def main():
        async with AsyncClient("memory://") as hf, Engine("memory://", workflows=[locking]) as engine:
            locks = (hf.lock("a"), hf.semaphore("s", permits=2), hf.rwlock("rw").read(), hf.leader("l"))
            for thing in (hf, engine, *locks):
                with pytest.raises(TypeError, match=f"{type(thing).__name__} is async: write `async with`"):
                    with thing:
                        pass
            assert await (await engine.start(locking)).result() == "refused twice"

    @workflow
    async def locking(ctx: Context) -> str:
        refused = 0
        for thing in (ctx.mutex("a"), ctx.locks("a", "b")):
            try:
                with thing:
                    pass
            except TypeError as error:
                refused += "write `async with`" in str(error)
        return "refused twice" if refused == 2 else "not refused"

    asyncio.run(main())


def test_async_with_on_a_sync_object_says_with():
    async def main():
        with Client("memory://") as hf:
            for thing in (hf, hf.lock("a"), hf.rwlock("rw").write()):
                with pytest.raises(TypeError, match=r"is sync and would block.*use AsyncClient"):
                    async with thing:
                        pass

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_an_engine_used_in_a_forked_child_raises_an_error_that_says_so(tmp_path):
    async def main():
        async with Engine(f"sqlite:///{tmp_path}/a.db", workflows=[quick]) as engine:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writing, tried(engine).encode())
                os._exit(0)
            os.close(writing)
            assert await asyncio.to_thread(os.waitpid, child, 0) == (child, 0)
            with os.fdopen(reading) as answer:
                assert "child of that process (fork)" in answer.read()
            assert await (await engine.start(quick)).result() == "done"

    def tried(engine):
        messages = []
        for call in (engine.start(quick), engine.get("x"), engine.sweep()):
            try:
                call.send(None)
            except ClientClosed as error:
                messages.append(str(error))
            except BaseException as error:
                return repr(error)
        return messages[0] if len(messages) == 3 else "some were not refused"

    asyncio.run(main())


def test_without_pytest_the_testing_package_names_its_extra():
    program = "import sys; sys.modules['pytest'] = None; from holdfast.testing import TestEngine"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'holdfast[testing]'" in done.stderr


def test_the_extra_all_includes_every_other_extra_that_is_verified():
    """SQL Server's driver is left out: no test has ever run with it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = everything.removeprefix("holdfast[").removesuffix("]").split(",")
    code = {
        "postgres": "stores.postgresql",
        "redis": "stores.redis",
        "mysql": "stores.sql.mysql",
        "mongodb": "stores.mongodb",
        "dynamodb": "stores.dynamodb",
        "cli": "cli",
        "testing": "testing",
    }
    assert set(named) == extras.keys() - {"all", "mssql"}
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text().partition("| extra |")[2], re.MULTILINE)
    assert listed == list(extras), "README lists the extras, in the order of pyproject.toml"
    assert {name: find_spec(f"holdfast.{code[name]}") is not None for name in named} == dict.fromkeys(code, True)
