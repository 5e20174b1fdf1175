"""Health checks of a SQLite file: its schema, the settings for durability, its states, its permissions and its disk.

The checks use a read-only connection of their own and change nothing. A file that cannot be read is reported as a
finding, not raised as an error, so that the caller gets all results in one list.
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
"""With less free space than this, the next checkpoint or the next growth of the log may fail."""

NAMED = 5
"""How many states one finding names."""
STATES = "SELECT namespace, scope, owner, key, version, value, past FROM slots ORDER BY namespace, scope, owner, key"

_past = msgspec.json.Decoder(WriteHistory)

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


def unready(path: Path) -> str | None:
    """Why opening this file would write to the disk: it does not exist, is empty, or has an older schema."""
    if not path.exists():
        return (
            f"there is no file {path}. Nothing was created. Use the URL that the application uses: it logs the URL "
            "once at its start (store_opened)."
        )
    if not path.is_file():
        return None  # opening it raises the reason
    version = version_of(path) if path.stat().st_size else 0
    if not version:
        return f"{path} is empty: no client has used it yet. The file was not changed."
    if version < SCHEMA_VERSION:
        return (
            f"{path} has schema {version} of an older Holdfast; this version uses {SCHEMA_VERSION}. It would upgrade "
            "the file, and the older version could no longer open it. The file was not changed. Use the version that "
            "the applications use, or upgrade the applications first: they upgrade the file when they open it."
        )
    return None


def diagnose(path: Path) -> tuple[Finding, ...]:
    """All findings about the file, in a fixed order."""
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
        yield Finding(check="schema", level="ok", detail=f"schema {version}, which this version uses")
    else:
        yield Finding(
            check="schema",
            level="problem",
            detail=f"{path} has schema {version}; this version uses {SCHEMA_VERSION}. The file was replaced while in "
            "use",
            advice="Close the clients that use the file, and open new ones.",
        )
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    yield _journal_mode(str(mode), path)
    _set_up(db)  # the settings of every connection that writes
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
        detail=f"journal_mode is {mode}, not wal: readers and writers block each other, and callers time out",
        advice=f'Stop all users of the file, then: sqlite3 {path} "PRAGMA journal_mode = WAL"',
    )


def _synchronous(level: int) -> Finding:
    name = _SYNCHRONOUS[level] if level < len(_SYNCHRONOUS) else str(level)
    if level >= _SYNCHRONOUS.index("FULL"):
        return Finding(
            check="synchronous", level="ok", detail=f"{name}: every command is on disk before it is answered"
        )
    return Finding(
        check="synchronous",
        level="problem",
        detail=f"{name}: the last answered commands may be lost in a power failure",
        advice="This SQLite library does not accept PRAGMA synchronous = FULL: use another build of it.",
    )


def _clocks(db: sqlite3.Connection) -> Finding:
    """The processes that reported that their clock differs."""
    found = differing(db, host_clock())
    if not found:
        return Finding(check="clocks", level="ok", detail="no process has reported that its clock differs")
    return Finding(
        check="clocks",
        level="problem",
        detail="; ".join(map(str, found)),
        advice="The process uses the time stamps of the file system instead, so all leases last as long as they "
        "should. Correct the clock of its host, or stop the process: times in its log and in your own code there are "
        "wrong.",
    )


def _states(db: sqlite3.Connection) -> Finding:
    """The states that cannot be read, in all namespaces of the file. Locks are checked by `holdfast doctor` itself."""
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
        advice="These states are damaged: see docs/runbook.md, A state cannot be read.",
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
        return Finding(check="permissions", level="ok", detail="only users who may write to the file can use it")
    return Finding(
        check="permissions",
        level="warning",
        detail=f"{path}: {'; '.join(found)}",
        advice=f"chmod 600 {path}* (or 660, for a group); keep it in a folder that no other user may write to.",
    )


def _file_system(path: Path) -> Finding:
    kind = network_file_system(path)
    if kind is not None:
        return Finding(
            check="file_system",
            level="problem",
            detail=f"{path} is on a network file system ({kind}): two hosts may both hold a lock",
            advice="Move the file to a local disk, or use a database server for several hosts.",
        )
    known = sys.platform.startswith("linux")
    detail = "a local file system" if known else "the kind of file system cannot be determined on this operating system"
    return Finding(check="file_system", level="ok", detail=detail)


def _disk_space(path: Path) -> Finding:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        return Finding(
            check="disk_space",
            level="warning",
            detail=f"the free space in {path.parent} cannot be determined ({error})",
            advice="Check it by hand: df -h",
        )
    detail = f"{free // MIB} MiB free in {path.parent}"
    if free >= LOW_SPACE:
        return Finding(check="disk_space", level="ok", detail=detail)
    return Finding(
        check="disk_space",
        level="problem" if free < NO_SPACE else "warning",
        detail=detail,
        advice="Free some space: on a full disk no lock can be acquired, renewed or released.",
    )
