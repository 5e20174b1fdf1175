"""One provider a store: how tests reach it. A new store adds one of these and inherits every test."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from holdfast.rules.record import LockRecord, decode
from holdfast.stores import open_store


@dataclass(frozen=True)
class Provider:
    name: str
    url: Callable[[Path], str]
    """The address of an empty store, shared by all who open it."""
    dump: Callable[[str, str], dict[str, LockRecord]]
    """The records of a URL's namespace as they are stored."""
    plant: Callable[[str, str, str, str], None] | None = None
    """Put any text in the place of a record (None: the store keeps no text)."""
    processes: bool = False
    """Other processes reach the same records."""


def _dump_memory(url: str, namespace: str) -> dict[str, LockRecord]:
    store = open_store(url, namespace=namespace)
    records = dict(store._space.records)
    store.close()
    return records


def sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///").partition("?")[0]


def _dump_sqlite(url: str, namespace: str) -> dict[str, LockRecord]:
    with closing(sqlite3.connect(sqlite_path(url))) as db:
        rows = db.execute("SELECT key, record, due_at FROM locks WHERE namespace = ?", (namespace,)).fetchall()
    records = {key: decode(key, text) for key, text, _ in rows}
    for key, _, due_at in rows:
        assert records[key].due_at == due_at, "the indexed column says what the record says"
    return records


def _plant_sqlite(url: str, namespace: str, key: str, text: str) -> None:
    with closing(sqlite3.connect(sqlite_path(url))) as db, db:
        db.execute("INSERT OR REPLACE INTO locks VALUES (?, ?, ?, 1)", (namespace, key, text))


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider("memory", lambda folder: f"memory://{folder}", _dump_memory),
        Provider("sqlite", lambda folder: f"sqlite:///{folder}/locks.db", _dump_sqlite, _plant_sqlite, processes=True),
    )
}


def names() -> list[str]:
    return list(PROVIDERS)


def url(name: str, folder: Path) -> str:
    return PROVIDERS[name].url(folder)


def open_files() -> list[str]:
    """The files and sockets of stores that this process has open; empty where the system does not tell."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        return []
    found = []
    sockets = _wake_sockets()
    for descriptor in descriptors.iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        name = target.removesuffix(" (deleted)")
        database = name.removesuffix("-wal").removesuffix("-shm").removesuffix("-turn").removesuffix("-wake")
        if target in sockets or name.endswith(("-turn", "-wake")) or Path(f"{database}-turn").exists():
            found.append(target)
    return found


def _wake_sockets() -> set[str]:
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = [line.split() for line in lines]
    return {f"socket:[{f[6]}]" for f in fields if len(f) > 7 and ("-wake/" in f[7] or "/.new-" in f[7])}
