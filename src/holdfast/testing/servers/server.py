"""What all servers of the test kit have in common: a folder, a port, a supervisor, and the faults that tests give them.

A server is started by its class and ended by `close`, which the context managers of the package call. Everything it
stores is in a temporary folder of its own that goes with it. What is particular to a kind (how it is found, started
and known to be ready) is in the modules beside this one.
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
from .remote_process import LOOK_EVERY, PATIENCE, Account, RemoteProcess, ServerFailed
from .supervisor import remove_leftovers

PORTS_TO_TRY = 5
GRACE = 20.0
"""Seconds for an orderly end, before the server is killed."""
_TAIL = 12


class ServerMissing(HoldfastError):
    """There is no such server on this machine. The message says which command installs it."""


class Server:
    """A real server on 127.0.0.1, with processes and data of its own."""

    kind: ClassVar[str]
    """The name of what it is, for people."""
    ending: ClassVar[int] = signal.SIGTERM
    """The signal that asks it to end in order."""
    host = LOCALHOST

    def __init__(self, *, settings: Mapping[str, str] | None, env: Mapping[str, str] | None) -> None:
        if os.name != "posix":
            raise ServerMissing(f"the test kit can start {self.kind} on Linux and macOS only")
        self.settings: dict[str, str] = {**self._defaults(), **(settings or {})}
        """What is configured; a change is in force after the next `restart`."""
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        self._extra_env = dict(env or {})
        self._account = self._choose_account()
        self._boss = os.getpid()
        self._closing = ExitStack()
        try:
            self.folder = temporary_folder(self._account)
            self._closing.callback(self._remove_data)
            self.home = self.folder / "home"
            """Where the server's own files are."""
            self.home.mkdir(mode=0o700)
            if self._account is not None:
                os.chown(self.home, self._account.user, self._account.group)
            self._remote = RemoteProcess(self.folder)
            self._closing.callback(self._remote.close)
            self._port = HeldPort()
            self._closing.callback(self._free_port)
            self.program = self._install()
            self.version = _version(self.program, self._account, self.home)
            self._prepare()
            self._start_somewhere()
        except BaseException:
            self._closing.close()
            raise

    # -- what differs between kinds ---------------------------------------------------------------------------

    def _defaults(self) -> dict[str, str]:
        raise NotImplementedError

    def _install(self) -> Path:
        """The program, where the account can run it."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Make the data folder."""

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

    # -- what tests use ---------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port, the same for the whole life of the server."""
        return self._port.number

    @property
    def pid(self) -> int | None:
        """The number of the server's first process; None while it is not running."""
        return self._remote.look().pid

    @property
    def processes(self) -> list[int]:
        """The numbers of all its processes, the first one first."""
        return self._remote.look().processes

    @property
    def running(self) -> bool:
        """Whether there is any process of it, paused or not."""
        return bool(self.processes)

    def stop(self) -> None:
        """End it in order, as an operator would; it is gone when this returns. `restart` brings it back."""
        self._remote.resume()
        self._remote.signal(self.ending)
        if self._remote.wait_until(lambda state: not state.processes, within=GRACE) is None:
            self.kill()

    def kill(self) -> None:
        """Kill -9 for all its processes at once; they are gone when this returns. `restart` brings it back."""
        self._remote.kill()

    def restart(self) -> None:
        """Start it again, on the same port and with the same data. A running one is stopped before."""
        if self.running:
            self.stop()
        self._start()

    def pause(self) -> None:
        """SIGSTOP for all its processes: connections stay open, and nobody answers."""
        self._remote.pause()

    def resume(self) -> None:
        """SIGCONT for all its processes."""
        self._remote.resume()

    def log(self) -> str:
        """What the server has written about itself."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End it and remove its data. A forked child leaves that to the process that started it."""
        if os.getpid() == self._boss:
            self._closing.close()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.version} on {self.host}:{self.port}>"

    # -- starting ---------------------------------------------------------------------------------------------

    def _remove_data(self) -> None:
        """The supervisor has done this, unless somebody has killed it."""
        remove_leftovers(self._pid_file())
        shutil.rmtree(self.folder, ignore_errors=True)

    def _free_port(self) -> None:
        self._port.close()

    def _start_somewhere(self) -> None:
        """Start on a port; on another one where somebody was quicker."""
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
                raise ServerFailed(self._complaint(f"ended with {state.code} instead of starting"))
            if self._ready(state.pid):
                return
            if time.monotonic() >= give_up:
                self.kill()
                raise ServerFailed(self._complaint(f"was not ready within {PATIENCE:g} s"))
            time.sleep(LOOK_EVERY)

    def _run(self, command: list[str]) -> None:
        """Run a program of the server's to its end."""
        self._remote.start(
            command, env=self._env, log=self.folder / "server.log", folder=self.home, account=self._account
        )
        state = self._remote.wait_until(lambda state: not state.processes)
        if state is None or state.code != 0:
            self.kill()
            ended = "did not end" if state is None else f"ended with {state.code}"
            raise ServerFailed(self._complaint(f"could not be prepared: {shlex.join(command)} {ended}"))

    def _complaint(self, what: str) -> str:
        tail = "\n".join(self.log().splitlines()[-_TAIL:])
        return f"{self.kind} {what}. The end of its log:\n{tail or '(nothing)'}"


def missing(kind: str, packages: str, otherwise: str, *, reason: str = "") -> ServerMissing:
    """The error that tells how to get a server."""
    return ServerMissing(
        f"{reason or f'{kind} is not installed. '}Install one with\n"
        f"    {shlex.quote(sys.executable)} -m pip install {packages}\n"
        f"or {otherwise}"
    )


def reachable(path: Path) -> bool:
    """Whether everybody may pass through all the folders that lead there."""
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
        "set TMPDIR to a folder that everybody may pass through"
    )


def _version(program: Path, account: Account | None, folder: Path) -> str:
    done = subprocess.run(  # noqa: S603  (a server that was asked for)
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
