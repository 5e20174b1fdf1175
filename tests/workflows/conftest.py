"""Engines on every store that runs workflows."""

from __future__ import annotations

import asyncio

import pytest
from providers import PROVIDERS

from holdfast import Engine

STORES = ("memory", "sqlite", "postgres", "valkey")
"""The old Redis differs in its scripts alone, which the conformance suite compares with the rules."""


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    return PROVIDERS[request.param].url(tmp_path)


@pytest.fixture
def played():
    """Run an async story, and let it take no longer than half a minute."""

    def run(story, *args):
        async def bounded():
            async with asyncio.timeout(30):
                return await story(*args)

        return asyncio.run(bounded())

    return run


@pytest.fixture
def engine_on():
    """An engine with short patience, for tests."""

    def make(url, workflows, **options):
        return Engine(url, workflows=workflows, **({"worker_ttl": 5, "grace": 1} | options))

    return make
