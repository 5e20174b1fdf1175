"""The options of an engine: what it would ignore is refused."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncClient, Client, Engine
from holdfast.errors import InvalidOption


@pytest.mark.parametrize("option", [{"namespace": "other"}, {"name": "mine"}, {"store_options": {"schema": "x"}}])
def test_an_engine_on_an_open_client_refuses_the_options_that_the_client_has(option):
    with Client("memory://") as hf, pytest.raises(InvalidOption, match=f"{next(iter(option))} cannot be given"):
        Engine(hf, **option)


def test_an_engine_on_an_open_client_uses_its_namespace_and_name():
    async def look():
        async with AsyncClient("memory://", namespace="orders", name="me") as hf, Engine(hf) as engine:
            return engine._client.namespace, engine._client.label(None).name

    assert asyncio.run(look()) == ("orders", "me")


def test_an_engine_takes_the_options_of_its_store(tmp_path):
    async def look():
        async with Engine(f"sqlite:///{tmp_path}/a.db", store_options={"wakeup": "poll"}, namespace="n") as engine:
            return engine._client.namespace

    assert asyncio.run(look()) == "n"

    async def wrong():
        async with Engine(f"sqlite:///{tmp_path}/a.db", store_options={"wakeup": "never"}):
            pass

    with pytest.raises(InvalidOption, match="wakeup"):
        asyncio.run(wrong())
