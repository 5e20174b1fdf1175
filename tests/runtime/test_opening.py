"""When a client opens its store."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from holdfast import AsyncClient, Client
from holdfast.errors import InvalidOption, StoreNotInstalled


def test_an_asynchronous_client_opens_nothing_before_it_is_entered(tmp_path):
    hf = AsyncClient(f"sqlite:///{tmp_path}/a.db")
    assert list(tmp_path.iterdir()) == []

    async def enter():
        async with hf:
            return [path.name for path in tmp_path.iterdir()]

    assert "a.db" in asyncio.run(enter())


def test_an_asynchronous_client_opens_its_store_when_it_is_first_used(tmp_path):
    async def use():
        hf = AsyncClient(f"sqlite:///{tmp_path}/a.db")
        assert list(tmp_path.iterdir()) == []
        async with hf.lock("k") as lease:
            assert lease.valid
        assert (tmp_path / "a.db").exists()
        await hf.close()

    asyncio.run(use())


def test_an_asynchronous_client_that_was_never_used_need_not_be_closed(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AsyncClient(f"sqlite:///{tmp_path}/a.db")
        gc.collect()


def test_a_relative_path_means_the_folder_in_which_the_client_was_made(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    hf = AsyncClient("sqlite:///a%20b.db")
    monkeypatch.chdir(tmp_path)

    async def use():
        async with hf, hf.lock("k"):
            pass

    asyncio.run(use())
    assert [path.name for path in tmp_path.rglob("*.db")] == ["a b.db"]
    assert (tmp_path / "here" / "a b.db").exists()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("url", "error"), [("nothing", InvalidOption), ("nowhere://", StoreNotInstalled)])
def test_an_address_without_a_store_is_refused_by_the_constructor(kind, url, error):
    with pytest.raises(error):
        kind(url)
