"""The base class of all test servers: a folder, a port, a supervisor, and methods that kill, pause and restart it.

Creating an instance starts the server; `close`, which the context managers of the package call, ends it. All its data
is in a temporary folder that `close` removes. How each kind of server is found, started and checked for readiness is in
the other modules of this package.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from ...errors import HoldfastError
from ..ports import LOCALHOST, HeldPort
from .remote_process import CHECK_EVERY, PATIENCE, Account, RemoteProcess, ServerFailed
from .supervisor import remove_leftovers

PORTS_TO_TRY = 5
GRACE = 20.0
"""Seconds for a regular shutdown, before the server is killed."""
_TAIL = 12


class ServerMissing(HoldfastError):
    """The server is not installed on this machine. The message contains the command that installs it."""


class Server:
    """A real server on 127.0.0.1, with its own processes and data."""

    kind: ClassVar[str]
    """The name of the product, for messages."""
    ending: ClassVar[int] = signal.SIGTERM
    """The signal for a regular shutdown."""
    host = LOCALHOST

    def __init__(self, *, settings: Mapping[str, str] | None, env: Mapping[str, str] | None) -> None:
        if os.name != "posix":
            raise ServerMissing(f"holdfast.testing can start {self.kind} on Linux and macOS only")
        self.settings: dict[str, str] = {**self._defaults(), **(settings or {})}
        """The configuration; a change takes effect with the next `restart`."""
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        self._extra_env = dict(env or {})
        self._account = self._choose_account()
        self._parent = os.getpid()
        self._closing = ExitStack()
        try:
            self.folder = temporary_folder(self._account)
            self._closing.callback(self._remove_data)
            self.home = self.folder / "home"
            """The folder of the server's own files."""
            self.home.mkdir(mode=0o700)
            if self._account is not None:
                os.chown(self.home, self._account.user, self._account.group)
            self._remote = RemoteProcess(self.folder)
            self._closing.callback(self._remote.close)
            self._port = HeldPort()
            self._closing.callback(self._free_port)
            self.program = self._install()
            self.version = self._read_version()
            self._prepare()
            self._start_somewhere()
        except BaseException:
            self._closing.close()
            raise

    # -- for subclasses ---------------------------------------------------------------------------------------

    def _defaults(self) -> dict[str, str]:
        raise NotImplementedError

    def _install(self) -> Path:
        """The path of the program, at a place where the account can run it."""
        raise NotImplementedError

    def _read_version(self) -> str:
        """The version that the program prints."""
        return _version(self.program, self._account, self.home)

    def _prepare(self) -> None:
        """Create the data folder."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _ready(self, pid: int) -> bool:
        raise NotImplementedError

    def _choose_account(self) -> Account | None:
        return None

    def _pid_file(self) -> Path | None:
        return None

    @property
    def url(self) -> str:
        """The address for clients."""
        raise NotImplementedError

    # -- for tests --------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port; it stays the same until the server is closed."""
        return self._port.number

    @property
    def pid(self) -> int | None:
        """The process id of the server's first process; None while it is not running."""
        return self._remote.look().pid

    @property
    def processes(self) -> list[int]:
        """The ids of all its processes, the first process first."""
        return self._remote.look().processes

    @property
    def running(self) -> bool:
        """Whether any of its processes exists, paused or not."""
        return bool(self.processes)

    def stop(self) -> None:
        """Shut the server down regularly, and wait until it has ended. `restart` starts it again."""
        self._remote.resume()
        self._remote.signal(self.ending)
        if self._remote.wait_until(lambda state: not state.processes, within=GRACE) is None:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to all its processes, and wait until they have ended. `restart` starts it again."""
        self._remote.kill()

    def restart(self) -> None:
        """Start the server again, on the same port and with the same data. If it is running, it is stopped first."""
        if self.running:
            self.stop()
        self._start()

    def pause(self) -> None:
        """Send SIGSTOP to all its processes: connections stay open, but the server does not respond."""
        self._remote.pause()

    def resume(self) -> None:
        """Send SIGCONT to all its processes."""
        self._remote.resume()

    def log(self) -> str:
        """The output of the server so far."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End the server and remove its data. In a forked child this does nothing."""
        if os.getpid() == self._parent:
            self._closing.close()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.version} on {self.host}:{self.port}>"

    # -- starting ---------------------------------------------------------------------------------------------

    def _remove_data(self) -> None:
        """Remove the data, in case the supervisor was killed before it could."""
        remove_leftovers(self._pid_file())
        shutil.rmtree(self.folder, ignore_errors=True)

    def _free_port(self) -> None:
        self._port.close()

    def _start_somewhere(self) -> None:
        """Start the server; if its port is in use by another process, on another port."""
        for left in reversed(range(PORTS_TO_TRY)):
            try:
                self._start()
            except ServerFailed:
                if not left or "in use" not in self.log():
                    raise
            else:
                return
            self._free_port()
            self._port = HeldPort()

    def _start(self) -> None:
        self._remote.start(
            self._command(),
            env={**self._env, **self._extra_env},
            log=self.folder / "server.log",
            folder=self.home,
            account=self._account,
            pid_file=self._pid_file(),
        )
        give_up = time.monotonic() + PATIENCE
        while True:
            state = self._remote.look()
            if state.pid is None:
                self.kill()
                raise ServerFailed(self._message(f"ended with exit code {state.code} instead of starting"))
            if self._ready(state.pid):
                return
            if time.monotonic() >= give_up:
                self.kill()
                raise ServerFailed(self._message(f"was not ready within {PATIENCE:g} s"))
            time.sleep(CHECK_EVERY)

    def _run(self, command: list[str]) -> None:
        """Run a program of the server, such as initdb, and wait for its end."""
        self._remote.start(
            command, env=self._env, log=self.folder / "server.log", folder=self.home, account=self._account
        )
        state = self._remote.wait_until(lambda state: not state.processes)
        if state is None or state.code != 0:
            self.kill()
            ended = "did not end" if state is None else f"ended with exit code {state.code}"
            raise ServerFailed(self._message(f"could not be prepared: {shlex.join(command)} {ended}"))

    def _message(self, what: str) -> str:
        tail = "\n".join(self.log().splitlines()[-_TAIL:])
        return f"{self.kind} {what}. The end of its log:\n{tail or '(nothing)'}"


def missing(kind: str, packages: str, otherwise: str, *, reason: str = "") -> ServerMissing:
    """The error that states how to install a server."""
    return ServerMissing(
        f"{reason or f'{kind} is not installed. '}Install it with\n"
        f"    {shlex.quote(sys.executable)} -m pip install {packages}\n"
        f"or {otherwise}"
    )


def reachable(path: Path) -> bool:
    """Whether every user may pass through all parent folders of this path."""
    folders = {*path.absolute().parents, *path.resolve().parents}
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def temporary_folder(account: Account | None) -> Path:
    """A new folder that the account can reach."""
    if account is None:
        return Path(tempfile.mkdtemp(prefix="holdfast-server-"))
    bases = (tempfile.gettempdir(), "/tmp", "/var/tmp")  # noqa: S108  (one that another user can reach)
    for base in bases:
        inside = Path(base, "x")
        if inside.parent.is_dir() and reachable(inside):
            folder = Path(tempfile.mkdtemp(prefix="holdfast-server-", dir=base)).resolve()
            folder.chmod(0o711)
            return folder
    raise ServerFailed(
        f"started by root, the server runs as {account.name!r}, and that user can reach none of {', '.join(bases)}: "
        "set TMPDIR to a folder that every user may pass through"
    )


def _version(program: Path, account: Account | None, folder: Path) -> str:
    done = subprocess.run(  # noqa: S603  (the server that the test requested)
        [str(program), "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        timeout=PATIENCE,
        check=False,
        user=None if account is None else account.user,
        group=None if account is None else account.group,
        extra_groups=None if account is None else [],
    )
    found = re.search(r"\d+(\.\d+)+", done.stdout)
    if done.returncode != 0 or found is None:
        raise ServerFailed(f"{program} does not run on this machine: {done.stdout.strip()}")
    return found[0]
