"""The check-up of a SQLite file: its schema, the settings that durability rests on, its states, and the disk below it.

Everything here looks through a read-only connection of its own and changes nothing. A file that cannot be
looked at is told of as a finding, because whoever asks for a check-up wants to hear it in the same list.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...errors import StoreError
from ...platform import elapsed, host_clock, network_file_system
from ...rules.slot import WriteHistory
from ..contract import Finding
from .clock import differing
from .file import OPENING_SECONDS, SCHEMA_VERSION, _look, _set_up, is_busy, passing, store_error, version_of
from .side_files import unsafe_modes
from .write_turns import pause

MIB = 1024 * 1024
LOW_SPACE = 512 * MIB
NO_SPACE = 32 * MIB
"""Below this the next checkpoint or the next growth of the log may fail."""

NAMED = 5
"""How many are named in one finding."""
STATES = "SELECT namespace, scope, owner, key, version, value, past FROM slots ORDER BY namespace, scope, owner, key"

_past = msgspec.json.Decoder(WriteHistory)

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


def unready(path: Path) -> str | None:
    """Why opening this file would write: it is not there, it is empty, or its schema is an older one."""
    if not path.exists():
        return (
            f"there is no file {path}. Nothing was made. Give the address that the application uses: its log tells it "
            "once at the start (store_opened)."
        )
    if not path.is_file():
        return None  # opening says what is wrong with it
    version = version_of(path) if path.stat().st_size else 0
    if not version:
        return f"{path} is empty: no client has used it yet. It was left as it is."
    if version < SCHEMA_VERSION:
        return (
            f"{path} has the schema {version} of an older version of Holdfast; this one uses {SCHEMA_VERSION} and "
            "would change the file, which the older version could then no longer open. It was left as it is. Use the "
            "version that the applications use, or upgrade them first: they bring the file up to date."
        )
    return None


def diagnose(path: Path) -> tuple[Finding, ...]:
    """Everything that can be said of the file, in a fixed order."""
    return (*_file(path), _permissions(path), _file_system(path), _disk_space(path))


def _file(path: Path) -> tuple[Finding, ...]:
    deadline = elapsed() + OPENING_SECONDS
    while True:
        try:
            with passing(path, "ro") as db:
                return tuple(_settings(db, path))
        except StoreError as error:
            return (_unreadable(error),)
        except sqlite3.Error as error:
            if not is_busy(error) or elapsed() >= deadline:
                return (_unreadable(store_error(error, path)),)
        pause(urgent=False)


def _unreadable(error: StoreError) -> Finding:
    return Finding(check="schema", level="problem", detail=str(error), advice="docs/runbook.md: The file is refused.")


def _settings(db: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    version = _look(db, path)
    if version == SCHEMA_VERSION:
        yield Finding(check="schema", level="ok", detail=f"schema {version}, which is the one of this version")
    else:
        yield Finding(
            check="schema",
            level="problem",
            detail=f"{path} has schema {version}; this version uses {SCHEMA_VERSION}. It was replaced while in use",
            advice="Close the clients that use it and open them anew.",
        )
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    yield _journal_mode(str(mode), path)
    _set_up(db)  # as every connection that writes
    (level,) = db.execute("PRAGMA synchronous").fetchone()
    yield _synchronous(int(level))
    if version == SCHEMA_VERSION:
        yield _clocks(db)
        yield _states(db)


def _journal_mode(mode: str, path: Path) -> Finding:
    if mode == "wal":
        return Finding(check="journal_mode", level="ok", detail="write-ahead log (WAL)")
    return Finding(
        check="journal_mode",
        level="problem",
        detail=f"journal_mode is {mode}, not wal: readers and writers stand in each other's way, and callers time out",
        advice=f'Stop all users of the file, then: sqlite3 {path} "PRAGMA journal_mode = WAL"',
    )


def _synchronous(level: int) -> Finding:
    name = _SYNCHRONOUS[level] if level < len(_SYNCHRONOUS) else str(level)
    if level >= _SYNCHRONOUS.index("FULL"):
        return Finding(check="synchronous", level="ok", detail=f"{name}: what was answered is on the disk")
    return Finding(
        check="synchronous",
        level="problem",
        detail=f"{name}: after a power cut the last grants may be forgotten",
        advice="This SQLite library does not take PRAGMA synchronous = FULL: use another build of it.",
    )


def _clocks(db: sqlite3.Connection) -> Finding:
    """Whose clock differs, as the processes say themselves."""
    found = differing(db, host_clock())
    if not found:
        return Finding(check="clocks", level="ok", detail="no process has said that its clock differs")
    return Finding(
        check="clocks",
        level="problem",
        detail="; ".join(map(str, found)),
        advice="It goes by the time stamps of the file system, so its leases and those of the others last as long as "
        "they should. Set its clock right, or stop it: what it logs, and what your own code reads there, is wrong.",
    )


def _states(db: sqlite3.Connection) -> Finding:
    """Which states cannot be read, in all namespaces of the file. Locks are looked at by whoever asks."""
    db.text_factory = bytes  # text that is no Unicode is a finding, not an error
    seen, broken = 0, []
    for namespace, scope, owner, key, *rest in db.execute(STATES):
        seen += 1
        if not _readable(*rest):
            of = f" of {_text(scope)} {_text(owner)!r}" if owner else ""
            broken.append(f"{_text(key)}{of} in {_text(namespace)}")
    if not broken:
        return Finding(check="states", level="ok", detail=f"all {seen} can be read")
    more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    return Finding(
        check="states",
        level="problem",
        detail=f"{len(broken)} of {seen} cannot be read ({'; '.join(broken[:NAMED])}{more})",
        advice="They are damaged: see docs/runbook.md, A state cannot be read.",
    )


def _readable(version: object, value: bytes | None, past: bytes) -> bool:
    try:
        _past.decode(past)
        if value is not None:
            msgspec.json.decode(value)
    except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError):
        return False
    return isinstance(version, int)


def _text(name: object) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)


def _permissions(path: Path) -> Finding:
    try:
        found = unsafe_modes(path)
    except OSError as error:
        found = [f"its mode cannot be read ({error})"]
    if not found:
        return Finding(check="permissions", level="ok", detail="only those who may write to the file can use it")
    return Finding(
        check="permissions",
        level="warning",
        detail=f"{path}: {'; '.join(found)}",
        advice=f"chmod 600 {path}* (or 660, for a group); keep it in a folder that only its users may write to.",
    )


def _file_system(path: Path) -> Finding:
    kind = network_file_system(path)
    if kind is not None:
        return Finding(
            check="file_system",
            level="problem",
            detail=f"{path} lies on a network file system ({kind}): two hosts may both hold a lock",
            advice="Move the file to a local disk, or use a database server for several hosts.",
        )
    known = sys.platform.startswith("linux")
    detail = "a local file system" if known else "which file system it is cannot be told on this operating system"
    return Finding(check="file_system", level="ok", detail=detail)


def _disk_space(path: Path) -> Finding:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        return Finding(
            check="disk_space",
            level="warning",
            detail=f"the free space below {path.parent} cannot be told ({error})",
            advice="Look at it by hand: df -h",
        )
    detail = f"{free // MIB} MiB free in {path.parent}"
    if free >= LOW_SPACE:
        return Finding(check="disk_space", level="ok", detail=detail)
    return Finding(
        check="disk_space",
        level="problem" if free < NO_SPACE else "warning",
        detail=detail,
        advice="Make room: on a full disk nobody can take, renew or release a lock.",
    )
