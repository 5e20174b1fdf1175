"""The process between a test and its server: it starts the server, and ends it when the test ends in any way.

`remote_process.py` runs it as a program; it uses only the standard library. It reads one JSON object per line and
replies to each with one. When its parent ends, even by kill -9, or when the pipe is closed, it kills every process of
the server and removes the server's folder. It adopts orphaned processes of the server, so that none is left running. If
the supervisor itself is killed, the kernel kills the server.
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

CHECK_EVERY = 0.2
"""Seconds between two checks of the parent process, on systems without pidfd."""
STOP_TIMEOUT = 10.0
"""Seconds to wait for a process to stop; one that waits for the disk stops late."""
SOON = 0.002
_PARENT_DEATH, _ADOPT_ORPHANS, _REMOVE = 1, 36, 0
_OBJECTS = Path("/dev/shm")  # noqa: S108  (libfaketime keeps objects of each process there)
_DEAD, _STOPPED = set("ZX"), set("TtZX")
_LINUX = sys.platform.startswith("linux")


class Supervisor:
    """Controls one server at a time, with all its descendant processes."""

    def __init__(self, parent: int, folder: Path) -> None:
        self.parent, self.folder = parent, folder
        self.libc: Any = ctypes.CDLL(None, use_errno=True)
        self.server: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.pid_file: Path | None = None
        if _LINUX:
            self.libc.prctl(_ADOPT_ORPHANS, 1)

    # -- requests ---------------------------------------------------------------------------------------------

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

        def end_with_the_supervisor() -> None:
            self.libc.prctl(_PARENT_DEATH, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(1)

        with Path(log).open("ab") as output:
            self.server = subprocess.Popen(  # noqa: S603  (the command of the parent)
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
                preexec_fn=end_with_the_supervisor if _LINUX else None,  # noqa: PLW1509  (this process has only one thread)
            )
        return self.look()

    def look(self) -> dict[str, Any]:
        """The processes that are running, and the exit code of the server if it has ended."""
        processes = self._processes()
        self._reap()  # after listing: if no process was left, the exit code is known
        pid = None if self.server is None or self.code is not None else self.server.pid
        if pid is not None and pid not in processes:  # its first thread has ended, but other threads have not
            processes.insert(0, pid)
        return {"pid": pid, "code": self.code, "processes": processes}

    def signal(self, number: int) -> dict[str, Any]:
        """Send a signal to the server's first process."""
        self._reap()
        if self.server is not None and self.code is None:
            os.kill(self.server.pid, number)
        return self.look()

    def pause(self) -> dict[str, Any]:
        """Stop all processes and wait until they have stopped; the first process first, so that it starts no more."""
        stopped: set[int] = set()
        give_up = time.monotonic() + STOP_TIMEOUT
        while fresh := [pid for pid in self._processes() if pid not in stopped]:
            for pid in fresh:
                _send(pid, signal.SIGSTOP)
            while not all(map(_has_stopped, fresh)) and time.monotonic() < give_up:
                time.sleep(SOON)
            stopped.update(fresh)
        return self.look()

    def resume(self) -> dict[str, Any]:
        """Continue all processes; the first process last, so that the others are running by then."""
        for pid in reversed(self._processes()):
            _send(pid, signal.SIGCONT)
        return self.look()

    def kill(self) -> dict[str, Any]:
        """Kill all processes, and wait until they have ended."""
        self.pause()
        while found := self.look()["processes"]:
            for pid in found:
                _send(pid, signal.SIGKILL)
            time.sleep(SOON)
        remove_leftovers(self.pid_file)
        return self.look()

    # -- implementation ---------------------------------------------------------------------------------------

    def _processes(self) -> list[int]:
        """All running descendants, parents before their children."""
        found: list[int] = []
        queue, children_of = [os.getpid()], _families()
        while queue:
            children = children_of(queue.pop(0))
            found += children
            queue += children
        first = self.server.pid if self.server is not None and self.code is None else None
        return sorted(found, key=lambda pid: pid != first)

    def _reap(self) -> None:
        """Reap all processes that have ended, also adopted ones."""
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
        """Kill all processes and remove the folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def watch(self) -> None:
        """Execute the requests of the parent until it ends."""
        requests: dict[str, Callable[..., dict[str, Any]]] = {
            name: getattr(self, name) for name in ("start", "look", "signal", "pause", "resume", "kill")
        }
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_write, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        sources = [0, wakeup_read]
        patience: float | None = CHECK_EVERY
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # an old kernel
                sources.append(os.pidfd_open(self.parent))
                patience = None
        text = b""
        while os.getppid() == self.parent:
            ready, _, _ = select.select(sources, [], [], patience)
            if wakeup_read in ready:
                if signal.SIGTERM in os.read(wakeup_read, 4096):
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
                    answer = requests[request.pop("do")](**request)
                except (OSError, subprocess.SubprocessError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                os.write(1, json.dumps(answer).encode() + b"\n")


def remove_leftovers(pid_file: Path | None) -> None:
    """Remove what a killed PostgreSQL leaves: a segment of shared memory, and the file that names it."""
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
    """Return a function that lists the running children of a process."""
    if Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return _children
    children: dict[int, list[int]] = {}
    with subprocess.Popen(["/bin/ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
        rows = [line.split() for line in ps.communicate()[0].splitlines()]
    for pid, parent, state in rows:
        if int(pid) != ps.pid and not state.startswith("Z"):
            children.setdefault(int(parent), []).append(int(pid))
    return lambda pid: children.get(pid, [])


def _children(parent: int) -> list[int]:
    """The children of a process, from the lists that the kernel keeps for each of its threads."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            for pid in (task / "children").read_text().split():
                if _state(f"/proc/{pid}") not in _DEAD:
                    found.append(int(pid))  # noqa: PERF401  (keep what was found, even if the rest raises)
    return sorted(found)


def _has_stopped(pid: int) -> bool:
    """Whether all threads of a process have stopped; True where the system does not report it."""
    try:
        return all(_state(str(task)) in _STOPPED for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True


def _state(task: str) -> str:
    """The state of a process or thread, as one letter; X if there is none."""
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
