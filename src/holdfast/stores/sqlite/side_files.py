"""The files next to a SQLite database: who may use them, and how they are opened safely among untrusted users.

A side file is opened without following links, and is checked and changed only through its descriptor: between a check
and a change, a path could be replaced. Only users who may write to the database may use its side files; permission to
read the turn file would be enough to lock it. A side file is refused unless its owner is root, this user, the owner of
the database or, where the group or everybody may write to the database, one of these users. Owner and mode are changed
only on empty files, so that root gives away no file that another user moved there.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ...errors import StoreUnusable

PRIVATE = 0o600
"""The mode of a new database: its rows contain the inputs and results of users."""
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
"""The files that SQLite itself opens next to the database."""
KEEP = (
    "Check who created it. If it was the user who used the database last, it may contain the last commits: do not "
    "delete it. Users who share a database need a common group and a folder that passes the group on to new files "
    "(chgrp, chmod g+s)."
)

_CLOSED_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _CLOSED_ON_EXEC
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_HANDLE_ONLY = getattr(os, "O_PATH", 0) | _NO_LINK


def make_database(path: Path) -> None:
    """Create an empty database that only its user can read, if there is no file yet. Only in the turn to write.

    ⚠ The file must not be open elsewhere in this process: closing this descriptor would drop the locks of SQLite.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, PRIVATE))


def open_turn(database: Path) -> int:
    """Open the file `<database>-turn`, creating it if there is none, and return its descriptor."""
    path = Path(f"{database}-turn")
    while True:
        like = _status(database)
        made = False
        try:
            file = os.open(path, os.O_RDWR | _NO_LINK)
        except FileNotFoundError:
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, PRIVATE)
                made = True
            except FileExistsError:  # another process was first, or it is a dangling link
                if path.is_symlink():
                    _refuse(path, "it is a symbolic link")
                continue
        except OSError as error:
            if path.is_symlink():
                _refuse(path, "it is a symbolic link")
            _refuse(path, f"it cannot be opened ({error.strerror})", _advice_for(like))
        try:
            status = os.fstat(file)
            if status.st_nlink == 0:  # it was deleted in between
                os.close(file)
                continue
            _check_file(path, status, like)
            if status.st_size:
                _refuse(path, "it is not empty, although a turn file is always empty")
            if like is not None and (made or _may_adjust(status)):
                _share(file, status, like, _writers(like))
        except BaseException:
            os.close(file)
            raise
        return file


def open_wake_folder(database: Path, *, make: bool) -> int:
    """Open the folder `<database>-wake` and return its descriptor; `OSError` where it cannot or must not be used."""
    path = Path(f"{database}-wake")
    if make:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    folder = os.open(path, _FOLDER)
    try:
        like, status = database.stat(), os.fstat(folder)
        _check_owner(path, status, like)
        if make and _may_adjust(status):
            mode = _writers(like) | _writers(like) >> 1 & 0o111 | status.st_mode & stat.S_ISGID
            settled = (status.st_uid, stat.S_IMODE(status.st_mode)) == (like.st_uid, mode)
            # A folder that is not empty is not given away, nor opened to other users.
            if not settled and not os.listdir(folder):  # noqa: PTH208  (a descriptor)
                _share(folder, status, like, mode)
    except BaseException:
        os.close(folder)
        raise
    return folder


def check_may_listen(database: Path) -> None:
    """Raise `PermissionError` for root beside the database of another user: that user could not send to root's socket.

    To give the socket away, root would have to change a file in a folder where that user may replace it.
    """
    if os.geteuid() == 0 and database.stat().st_uid != 0:
        raise PermissionError("root opens no socket in the folder of another user")


def share_socket(folder: int, name: str, database: Path) -> None:
    """Allow users who may write to the database to send to this socket; `OSError` where that is not possible.

    A socket is bound with a mode for its user only, reduced by the umask: the missing bits are set on the file through
    a descriptor. Where there are no such descriptors, a shared database works without sockets.
    """
    like = database.stat()
    wanted = _writers(like)
    if wanted == PRIVATE:
        return
    file = os.open(name, _HANDLE_ONLY, dir_fd=folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            raise PermissionError(f"the socket {name} was replaced")
        itself = f"/proc/self/fd/{file}"  # the file of the descriptor, even if its path was replaced
        if status.st_gid != like.st_gid:
            os.chown(itself, -1, like.st_gid)
        if stat.S_IMODE(status.st_mode) != wanted:
            os.chmod(itself, wanted)  # noqa: PTH101  (not a path in the file system)
    finally:
        os.close(file)


def check_sqlite_files(path: Path) -> None:
    """Refuse a database whose log or shared memory is a link, or belongs to an untrusted user."""
    like = _status(path)
    if like is None:
        return
    for suffix in SQLITE_SUFFIXES:
        beside = Path(f"{path}{suffix}")
        status = _status(beside)
        if status is not None:
            _check_file(beside, status, like, KEEP)


def unsafe_modes(path: Path) -> list[str]:
    """Texts about what other users of this host may do to the database, by the modes of its file and folder."""
    found = []
    like, folder = path.stat(), path.parent.stat()
    if like.st_mode & 0o002:
        found.append("every local user may write to it")
    elif like.st_mode & 0o004:
        found.append("every local user may read it, and so lock it against writers")
    if folder.st_mode & 0o002 and not folder.st_mode & stat.S_ISVTX:
        found.append(f"every local user may replace it, because every local user may write to {path.parent}")
    return found


def _status(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return path.lstat()
    return None


def _check_file(path: Path, status: os.stat_result, like: os.stat_result | None, advice: str = "") -> None:
    if stat.S_ISLNK(status.st_mode):
        _refuse(path, "it is a symbolic link", advice)
    if not stat.S_ISREG(status.st_mode):
        _refuse(path, "it is not a regular file", advice)
    if status.st_nlink > 1:
        _refuse(path, "it has a second name (a hard link)", advice)
    if not _trusted(status, like):
        _refuse(path, f"it belongs to another user ({status.st_uid})", advice)


def _check_owner(path: Path, status: os.stat_result, like: os.stat_result) -> None:
    if not _trusted(status, like):
        raise PermissionError(f"{path} belongs to another user ({status.st_uid})")


def _trusted(status: os.stat_result, like: os.stat_result | None) -> bool:
    """Whether a side file was created by a user who may write to the database as well."""
    if not hasattr(os, "geteuid") or status.st_uid in (0, os.geteuid()):
        return True
    if like is None:
        return False
    if status.st_uid == like.st_uid or like.st_mode & 0o002:
        return True
    return bool(like.st_mode & 0o020) and status.st_gid == like.st_gid


def _may_adjust(status: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and os.geteuid() in (0, status.st_uid)


def _writers(like: os.stat_result) -> int:
    """The mode for a file that exactly the users who may write to the database can read and write."""
    writers = like.st_mode & 0o022 | 0o200
    return writers | writers << 1


def _share(file: int, status: os.stat_result, like: os.stat_result, mode: int) -> None:
    """Give a file the owner and group of the database, as far as permitted; correct values are not written again."""
    if (status.st_uid, status.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.chown(file, like.st_uid, like.st_gid)
        except PermissionError:
            with suppress(PermissionError):
                os.chown(file, -1, like.st_gid)
    if stat.S_IMODE(status.st_mode) != mode:
        os.chmod(file, mode)


def _advice_for(like: os.stat_result | None) -> str:
    shared = like is not None and like.st_mode & 0o022
    if shared:
        return (
            "The owner of the database must open it once: this gives all users who may write to it access to the turn "
            "file."
        )
    return "Check its owner and mode."


def _refuse(path: Path, why: str, advice: str = "") -> NoReturn:
    raise StoreUnusable(
        f"{path} is refused: {why}. Nothing was changed. "
        + (advice or "Check who created it. If no client is running, remove it: the next client creates it again.")
    )
