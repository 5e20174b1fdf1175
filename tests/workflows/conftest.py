"""Engines on every store with workflows."""

from __future__ import annotations

import asyncio

import pytest
from providers import PROVIDERS, WITH_WORKFLOWS

from holdfast import Engine


@pytest.fixture(params=[*WITH_WORKFLOWS, "postgres_by_sql"])
def url(request, tmp_path):
    return PROVIDERS[request.param].url(tmp_path)


@pytest.fixture
def played():
    """Run a coroutine function, for at most half a minute."""

    def run(scenario, *args):
        async def bounded():
            async with asyncio.timeout(30):
                return await scenario(*args)

        return asyncio.run(bounded())

    return run


@pytest.fixture
def engine_on():
    """Create an engine with short timeouts, for tests."""

    def make(url, workflows, **options):
        return Engine(url, workflows=workflows, **({"worker_ttl": 5, "grace": 1} | options))

    return make
