"""The process between a test and its server: it starts the server, and ends it when the test is gone, however it went.

It is run as a program, by `watched.py`, with nothing but the interpreter's own library. It takes one JSON object a line
and answers each with one. When its boss dies, also by kill -9, or when the pipe is closed, it kills every process of
the server and removes the folder that it was given. It adopts what the server leaves behind, so that none escapes; and
should the supervisor itself be killed, the kernel ends the server.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

LOOK_EVERY = 0.2
"""Seconds between two looks at who our parent is, for systems that do not tell of a death."""
STANDSTILL = 10.0
"""Seconds that a process which waits for the disk may take to stop."""
SOON = 0.002
_PARENT_DEATH, _ADOPT_ORPHANS, _REMOVE = 1, 36, 0
_OBJECTS = Path("/dev/shm")  # noqa: S108  (where libfaketime keeps one object a process)
_DEAD, _STANDING = set("ZX"), set("TtZX")
_LINUX = sys.platform.startswith("linux")


class Supervisor:
    """One server at a time, and all the processes that come of it."""

    def __init__(self, boss: int, folder: Path) -> None:
        self.boss, self.folder = boss, folder
        self.libc: Any = ctypes.CDLL(None, use_errno=True)
        self.server: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.pid_file: Path | None = None
        if _LINUX:
            self.libc.prctl(_ADOPT_ORPHANS, 1)

    # -- what it is asked -------------------------------------------------------------------------------------

    def start(
        self,
        *,
        command: list[str],
        env: dict[str, str],
        log: str,
        folder: str,
        user: int | None = None,
        group: int | None = None,
        pid_file: str | None = None,
    ) -> dict[str, Any]:
        """Start the server, as another user if one is named."""
        self.pid_file = None if pid_file is None else Path(pid_file)
        self.server, self.code, me = None, None, os.getpid()

        def go_with_the_watcher() -> None:
            self.libc.prctl(_PARENT_DEATH, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(1)

        with Path(log).open("ab") as output:
            self.server = subprocess.Popen(  # noqa: S603  (what our own boss asks for)
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                preexec_fn=go_with_the_watcher if _LINUX else None,  # noqa: PLW1509  (there is but one thread)
            )
        return self.look()

    def look(self) -> dict[str, Any]:
        """Which processes there are, and how the server has ended if it has."""
        processes = self._processes()
        self._reap()  # after the look: where none was alive, it is known how the server has ended
        pid = None if self.server is None or self.code is not None else self.server.pid
        if pid is not None and pid not in processes:  # its first thread has ended, others not yet
            processes.insert(0, pid)
        return {"pid": pid, "code": self.code, "processes": processes}

    def signal(self, number: int) -> dict[str, Any]:
        """Send a signal to the server's first process."""
        self._reap()
        if self.server is not None and self.code is None:
            os.kill(self.server.pid, number)
        return self.look()

    def pause(self) -> dict[str, Any]:
        """Stop all of them, the first one first, so that it makes no more, and wait until they stand."""
        stopped: set[int] = set()
        give_up = time.monotonic() + STANDSTILL
        while fresh := [pid for pid in self._processes() if pid not in stopped]:
            for pid in fresh:
                _send(pid, signal.SIGSTOP)
            while not all(map(_stands, fresh)) and time.monotonic() < give_up:
                time.sleep(SOON)
            stopped.update(fresh)
        return self.look()

    def resume(self) -> dict[str, Any]:
        """Let all of them go on, the first one last, so that it finds the others at work."""
        for pid in reversed(self._processes()):
            _send(pid, signal.SIGCONT)
        return self.look()

    def kill(self) -> dict[str, Any]:
        """Kill all of them, and wait until they are gone."""
        self.pause()
        while found := self.look()["processes"]:
            for pid in found:
                _send(pid, signal.SIGKILL)
            time.sleep(SOON)
        remove_leftovers(self.pid_file)
        return self.look()

    # -- what is behind it ------------------------------------------------------------------------------------

    def _processes(self) -> list[int]:
        """The living ones, parents before their children."""
        found: list[int] = []
        queue, children_of = [os.getpid()], _families()
        while queue:
            children = children_of(queue.pop(0))
            found += children
            queue += children
        first = self.server.pid if self.server is not None and self.code is None else None
        return sorted(found, key=lambda pid: pid != first)

    def _reap(self) -> None:
        """Take note of those that have ended, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.server is not None and pid == self.server.pid:
                self.code = self.server.returncode = os.waitstatus_to_exitcode(status)
            for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
                with suppress(OSError):
                    (_OBJECTS / name).unlink()

    def end(self) -> None:
        """Leave nothing behind."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def watch(self) -> None:
        """Do what the boss asks, until he is gone."""
        asked: dict[str, Callable[..., dict[str, Any]]] = {
            name: getattr(self, name) for name in ("start", "look", "signal", "pause", "resume", "kill")
        }
        bell, ring = os.pipe()
        os.set_blocking(ring, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        sources = [0, bell]
        patience: float | None = LOOK_EVERY
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # an old kernel
                sources.append(os.pidfd_open(self.boss))
                patience = None
        text = b""
        while os.getppid() == self.boss:
            ready, _, _ = select.select(sources, [], [], patience)
            if bell in ready:
                if signal.SIGTERM in os.read(bell, 4096):
                    return
                self._reap()
            if 0 not in ready:
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, text = (text + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                try:
                    answer = asked[request.pop("do")](**request)
                except (OSError, subprocess.SubprocessError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                os.write(1, json.dumps(answer).encode() + b"\n")


def remove_leftovers(pid_file: Path | None) -> None:
    """Remove what a killed PostgreSQL leaves behind: a segment of shared memory, and the file that names it."""
    if pid_file is None or not pid_file.exists():
        return
    for line in pid_file.read_text(errors="replace").splitlines()[6:7]:
        with suppress(ValueError, IndexError):
            ctypes.CDLL(None).shmctl(int(line.split()[-1]), _REMOVE, None)
    pid_file.unlink()


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _families() -> Callable[[int], list[int]]:
    """Tells the living children of a process."""
    if Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return _children
    offspring: dict[int, list[int]] = {}
    with subprocess.Popen(["/bin/ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
        rows = [line.split() for line in ps.communicate()[0].splitlines()]
    for pid, parent, state in rows:
        if int(pid) != ps.pid and not state.startswith("Z"):
            offspring.setdefault(int(parent), []).append(int(pid))
    return lambda pid: offspring.get(pid, [])


def _children(parent: int) -> list[int]:
    """From the kernel's own list, a part of which each thread has."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for pid in (task / "children").read_text().split():
                if _state(f"/proc/{pid}") not in _DEAD:
                    found.append(int(pid))  # noqa: PERF401  (what was found counts, also when the rest is gone)
    return sorted(found)


def _stands(pid: int) -> bool:
    """Whether all threads of a process have stopped; where the system does not tell, it is taken for granted."""
    try:
        return all(_state(str(task)) in _STANDING for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True


def _state(task: str) -> str:
    """One letter for what a process or thread does; X when there is none."""
    try:
        return Path(task, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


if __name__ == "__main__":
    supervisor = Supervisor(int(sys.argv[1]), Path(sys.argv[2]))
    try:
        supervisor.watch()
    finally:
        supervisor.end()
