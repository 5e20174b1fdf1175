"""Stores are found by the scheme of a URL, and no secret of a URL is ever shown."""

from __future__ import annotations

import subprocess
import sys
import traceback
from importlib.metadata import EntryPoint

import pytest

from holdfast import stores
from holdfast.errors import InvalidOption, StoreNotInstalled, StoreUnusable
from holdfast.stores import open_store, redacted

SECRET = "hunter2"


def test_an_unknown_scheme_says_what_is_known_and_how_to_write_it():
    with pytest.raises(StoreNotInstalled, match=r"'carrier' is not known.*memory://, .*sqlite://.*sqlite:///relative"):
        open_store("carrier://pigeon", namespace="default")


@pytest.mark.parametrize("scheme", ["cassandra", "cassandra+tls", "etcd", "mssql", "Cassandra"])
def test_a_scheme_that_no_store_has_is_refused_with_those_that_are_known(scheme):
    with pytest.raises(StoreNotInstalled, match=r"is not known\. Known schemes are .*sqlite") as caught:
        open_store(f"{scheme}://user:{SECRET}@host/db", namespace="default")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [f"postgres:{SECRET}@host", f"host=db password={SECRET}", SECRET, "", "://x", "1a://x", None, f"9{SECRET}://"],
)
def test_what_is_no_url_is_refused_without_being_repeated(url):
    with pytest.raises(InvalidOption, match="begins with a scheme") as caught:
        open_store(url, namespace="default")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:hunter2@host/0", "redis://:***@host/0"),
        ("redis://user:hunter2@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://user:hun@ter2@host/0", "redis://user:***@host/0"),
        ("redis://user:hun/ter2@host/0", "redis://user:***@host/0"),
        ("redis://user:hun?ter2#@host/0", "redis://user:***@host/0"),
        ("redis://host/0?password=hunter2&x=1", "redis://host/0?password=***&x=1"),
        ("redis://host/0?a=1&auth_token=hunter2", "redis://host/0?a=1&auth_token=***"),
        ("mssql://host/db?Pwd=hunter2;x=1", "mssql://host/db?Pwd=***;x=1"),
        ("dynamodb://region/t?aws_secret_access_key=hunter2", "dynamodb://region/t?aws_secret_access_key=***"),
        ("sqlite:////home/me@here:now/locks.db", "sqlite:////home/me@here:now/locks.db"),
        ("postgresql:///db?host=/run&password=hunter2", "postgresql:///db?host=/run&password=***"),
        ("hunter2", "***"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert redacted(url) == shown
    assert SECRET not in redacted(url)


@pytest.mark.parametrize("namespace", ["", "a\nb", "x" * 513, "\ud800", 7])
def test_a_bad_namespace_is_refused(namespace):
    with pytest.raises(InvalidOption, match="namespace"):
        open_store("memory://", namespace=namespace)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite://", "use memory://"),
        ("sqlite:///", "use memory://"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite://:memory:", "use memory://"),
        ("sqlite://relative.db", "three slashes"),
        ("sqlite:///a%00b", "NUL"),
        ("sqlite:///x.db?colour=red", "patience"),
        ("sqlite:///x.db?wakeup=never", "wakeup"),
        ("sqlite:///x.db?patience=soon", "patience"),
        ("memory://a\nb", "name"),
    ],
)
def test_a_url_that_makes_no_sense_says_why(url, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption, match=reason):
        open_store(url, namespace="default")
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_another_package_is_found_by_its_entry_point(monkeypatch):
    point = EntryPoint("carrier", "holdfast.stores.memory.store:open_memory", stores.GROUP)
    monkeypatch.setattr(stores, "entry_points", lambda group, name="carrier": [point] if name == "carrier" else [])
    store = open_store("carrier://", namespace="default")
    assert store.capabilities.notifies
    store.close()


def test_a_store_of_another_package_whose_driver_is_missing_says_what_to_install(monkeypatch):
    point = EntryPoint("cassandra", "no_such_driver:open_cassandra", stores.GROUP)
    monkeypatch.setattr(stores, "entry_points", lambda group, name="cassandra": [point] if name == "cassandra" else [])
    with pytest.raises(
        StoreNotInstalled, match=r"no_such_driver.*Install the packages that 'no_such_driver:open_cassandra' needs"
    ):
        open_store("cassandra://host", namespace="default")


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql", "psycopg", "postgres"),
        ("postgres", "psycopg", "postgres"),
        ("postgresql+psycopg", "psycopg", "postgres"),
        ("PostgreSQL", "psycopg", "postgres"),
        ("redis", "redis", "redis"),
        ("rediss", "redis", "redis"),
        ("valkey", "redis", "redis"),
        ("mongodb", "pymongo", "mongodb"),
        ("mongodb+srv", "pymongo", "mongodb"),
        ("valkeys", "redis", "redis"),
    ],
)
def test_a_store_of_ours_whose_driver_is_missing_says_what_to_install(url, driver, extra):
    """In a process of its own, in which the driver cannot be imported."""
    script = (
        f"import sys; sys.modules[{driver!r}] = None\n"
        "from holdfast.stores import open_store\n"
        f"open_store('{url}://user:{SECRET}@host/db', namespace='default')"
    )
    tried = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "StoreNotInstalled" in tried.stderr
    assert f"pip install 'holdfast[{extra}]'" in tried.stderr
    assert SECRET not in tried.stderr.splitlines()[-1]


def test_what_no_store_can_be_made_from_is_refused():
    for thing in (object(), b"redis://host", 7):
        with pytest.raises(InvalidOption, match=rf"opened from a URL, or from one of .*{type(thing).__name__}"):
            open_store(thing, namespace="default")


def test_a_relative_path_is_fixed_when_the_store_is_opened(tmp_path, monkeypatch, opened):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = opened("sqlite:///my%20locks%3F.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.connect("commands").execute([])
    assert (tmp_path / "my locks?.db").exists()
    again = opened(store.url)
    assert again.identity == store.identity


def test_two_ways_to_one_file_are_one_store(tmp_path, opened):
    (tmp_path / "link").symlink_to(tmp_path)
    first, second = opened(f"sqlite:///{tmp_path}/a.db"), opened(f"sqlite:///{tmp_path}/link/a.db")
    assert first.identity == second.identity
    assert first.identity != opened(f"sqlite:///{tmp_path}/a.db", namespace="other").identity


def test_a_closed_store_opens_no_connection(url, opened):
    store = opened(url)
    store.close()
    store.close()
    with pytest.raises(StoreUnusable, match="closed"):
        store.connect("commands")
    with pytest.raises(StoreUnusable, match="closed"):
        store.watch("a", print)
