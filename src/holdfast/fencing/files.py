"""The fence around one file: the check, the stored floor and the rename happen under one file lock.

Beside `data.json` are `data.json.fence` (the highest floor), `data.json.fence.lock` (held for the moment of a
replacement) and, while one is in progress, `data.json.fence.tmp` and `data.json.fence.new`. The floor is durable before
the new content is visible: a writer that is killed in between leaves the complete old content and a fence that already
refuses older tokens. Files that a killed writer left are removed by the next one. Only writers that use
`fenced_replace` are fenced, and these files must not be deleted.
"""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ..errors import InvalidOption, StaleToken, StoreUnavailable, StoreUnusable
from ..platform import FileLock, after_fork_in_child, elapsed
from ..validation import Duration, seconds
from .tokens import MAX_TOKEN, Fenced, Offer, checked_offer

LOCK_WAIT_SECONDS = 10
_RETRY_SECONDS = (0.000_5, 0.001_5)
_NEW_FILE_MODE = 0o666  # less the umask

_held: set[FileLock] = set()


class _Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `<name>.fence`. As it is JSON, a truncated file cannot be mistaken for a lower floor."""

    holdfast_fence: int
    floor: int


def fenced_replace(
    path: str | os.PathLike[str],
    data: bytes | bytearray | memoryview | str,
    lease_or_token: Fenced | int,
    *,
    wait: Duration = LOCK_WAIT_SECONDS,
) -> None:
    """Replace the content of a file (text as UTF-8), unless a newer holder has replaced it.

    A token at or above the highest floor seen for the file is accepted, and its floor is stored; a lower one raises
    `StaleToken`, and nothing was written. When the call returns, the content is on disk. If it is interrupted, also by
    kill -9, the file holds the complete old or new content, and no older token is accepted afterwards. An existing file
    keeps its mode; a symbolic link is followed.

    Pass the lease; a bare token is correct for exclusive locks only. The call waits for other writers of the file, at
    most `wait` seconds; then `StoreUnavailable` (retryable, not ambiguous) reports that one of them hangs. An `OSError`
    of the file system is raised unchanged, and the old content is in place.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name, "report.txt")
    >>> fenced_replace(file, "42", 1_700_000_000_000_002)
    >>> fenced_replace(file, "41", 1_700_000_000_000_001)
    Traceback (most recent call last):
        ...
    holdfast.errors.StaleToken: ...
    >>> file.read_text()
    '42'
    >>> folder.cleanup()
    """
    offer = checked_offer(lease_or_token)
    content = _checked_text(data) if isinstance(data, str) else _checked_bytes(data)
    patience = seconds(wait, what="wait")
    target = _target(path)
    with _locked(_beside(target, ".fence.lock"), patience):
        _replace(target, content, offer)


def fenced_read(
    path: str | os.PathLike[str], lease_or_token: Fenced | int, *, wait: Duration = LOCK_WAIT_SECONDS
) -> bytes:
    """Read a file that is going to be changed: after this call holders with older tokens cannot replace it.

    Code that computes the new content from the old content must read the file in this way. Otherwise a holder whose
    lease has expired could still replace the file after the next holder has read it and before it writes. Then this
    update would be lost. Raises `StaleToken` if a newer holder has accessed the file, `FileNotFoundError` if there is
    no file (older tokens can no longer create one then); otherwise as `fenced_replace`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name, "count.txt")
    >>> fenced_replace(file, "41", 1_700_000_000_000_001)
    >>> int(fenced_read(file, 1_700_000_000_000_002))
    41
    >>> fenced_replace(file, "0", 1_700_000_000_000_001)
    Traceback (most recent call last):
        ...
    holdfast.errors.StaleToken: ...
    >>> folder.cleanup()
    """
    offer = checked_offer(lease_or_token)
    patience = seconds(wait, what="wait")
    target = _target(path)
    with _locked(_beside(target, ".fence.lock"), patience):
        highest = _checked_floor(target, offer)
        if offer.floor > highest:  # also where there is no file: it may be created next
            _remember(target, offer.floor)
            _sync_folder(target.parent)
        return target.read_bytes()


def _target(path: str | os.PathLike[str]) -> Path:
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InvalidOption(f"a fence needs a regular file, and {str(target)!r} is not one. Nothing was written.")
    return target


def _checked_text(data: str) -> bytes:
    try:
        return data.encode()
    except UnicodeEncodeError as error:
        raise InvalidOption(f"the new content of a file is not valid Unicode text: {error}") from None


def _checked_bytes(data: object) -> memoryview:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidOption(f"the new content of a file must be bytes or text, not {type(data).__name__}")
    return memoryview(data).cast("B")


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


def _replace(target: Path, content: bytes | memoryview, offer: Offer) -> None:
    """The replacement, under the lock. The promise depends on the order of these lines."""
    highest = _checked_floor(target, offer)
    draft = _beside(target, ".fence.tmp")
    try:
        _write_durably(draft, content, like=target)
        if offer.floor > highest:
            _remember(target, offer.floor)
        _sync_folder(target.parent)  # also for a floor that a killed writer left unsynced
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    try:
        _sync_folder(target.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"the new content of {str(target)!r} is in place, but the system could not confirm that it is on disk "
            f"({error}): after a power failure the old content may be back. Write it again.",
            ambiguous=True,
        ) from error


def _checked_floor(target: Path, offer: Offer) -> int:
    """The highest floor so far; raises `StaleToken` if the offered token is below it."""
    highest = _remembered(target)
    if offer.token < highest:
        raise StaleToken(resource=str(target), offered=offer.token, highest=highest)
    return highest


def _remembered(target: Path) -> int:
    """The highest floor so far, 0 if the file was never fenced."""
    fence = _beside(target, ".fence")
    try:
        text = fence.read_bytes()
    except FileNotFoundError:
        return 0
    try:
        memory = msgspec.json.decode(text, type=_Memory)
        if memory.holdfast_fence == 1 and 1 <= memory.floor <= MAX_TOKEN:
            return memory.floor
        reason = "it was written by another version, or was changed by hand"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error)
    raise StoreUnusable(
        f"the fence {str(fence)!r} cannot be read ({reason}). Nothing was written, because older tokens could not be "
        "detected any more. Stop all writers, make sure that no old one is left, delete that file, and start again."
    )


def _remember(target: Path, floor: int) -> None:
    fresh = _beside(target, ".fence.new")
    try:
        memory = msgspec.json.encode(_Memory(holdfast_fence=1, floor=floor)) + b"\n"
        _write_durably(fresh, memory, like=_beside(target, ".fence"))
        fresh.replace(_beside(target, ".fence"))
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _write_durably(path: Path, content: bytes | memoryview, *, like: Path) -> None:
    """Write a new file and sync it to disk, with the mode and (where allowed) the owner of `like`."""
    path.unlink(missing_ok=True)  # left by a writer that was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags, _NEW_FILE_MODE)
    try:
        _copy_mode(fd, like)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_mode(fd: int, like: Path) -> None:
    try:
        old, new = like.stat(), os.fstat(fd)
    except FileNotFoundError:
        return
    if hasattr(os, "fchown") and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        with suppress(PermissionError):
            os.fchown(fd, old.st_uid, old.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, stat.S_IMODE(old.st_mode))


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk. Windows has no such call; there a rename is journaled."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _locked(path: Path, patience: float) -> Iterator[None]:
    lock = FileLock(path)
    _held.add(lock)
    try:
        _acquire(lock, path, patience)
        try:
            yield
        finally:
            lock.unlock()
    finally:
        _held.discard(lock)
        lock.close()


def _acquire(lock: FileLock, path: Path, patience: float) -> None:
    give_up = elapsed() + patience
    while not lock.try_lock():
        if elapsed() >= give_up:
            raise StoreUnavailable(
                f"another process has held the file lock {str(path)!r} for {patience:g} s, although a replacement "
                "takes milliseconds: it may be stopped (SIGSTOP, a debugger), or its disk hangs. Nothing was written. "
                f"`fuser {path}` shows the process; then try again."
            )
        time.sleep(random.uniform(*_RETRY_SECONDS))


def _forget_after_fork() -> None:
    """A forked child must not keep the file lock of another thread after its parent has ended."""
    for lock in tuple(_held):
        lock.close()
    _held.clear()


after_fork_in_child(_forget_after_fork)
