"""Misuse of the newer stores: options that do not exist, drivers that are missing, engines, workflows."""

from __future__ import annotations

import sys

import pytest
import sqlalchemy
from providers import PROVIDERS

from holdfast import Client
from holdfast.errors import InvalidOption, StoreNotInstalled, StoreUnusable
from holdfast.stores import open_store


@pytest.mark.parametrize("option", ["colection=locks", "serverSelectionTimeoutMS=abc"])
def test_an_option_of_mongodb_that_the_driver_would_ignore_is_refused(option):
    """Two clients would otherwise use two collections, and both hold the lock."""
    with pytest.raises(InvalidOption, match="cannot be used"):
        open_store(f"mongodb://localhost/app?{option}", namespace="default")


def test_a_missing_driver_of_mysql_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    monkeypatch.delitem(sys.modules, "holdfast.stores.sql.mysql", raising=False)
    with pytest.raises(StoreNotInstalled, match=r"pip install 'holdfast\[mysql\]'"):
        open_store("mysql://localhost/app", namespace="default")


def test_an_engine_for_mysql_is_refused_with_what_to_pass_instead():
    engine = sqlalchemy.create_engine("mysql+pymysql://localhost/app")
    with pytest.raises(InvalidOption, match="from its URL"):
        open_store(engine, namespace="default")


@pytest.mark.parametrize("name", ["mongodb", "dynamodb"])
def test_runs_on_a_store_without_workflows_are_refused_with_the_stores_that_have_them(name, tmp_path):
    with Client(PROVIDERS[name].url(tmp_path)) as hf, pytest.raises(StoreUnusable, match="cannot run workflows"):
        hf.runs.get("r")
