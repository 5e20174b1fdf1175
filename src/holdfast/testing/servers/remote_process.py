"""A server's processes, controlled from the test: each request goes to the supervisor, which replies when it is done.

The supervisor is a separate process (`supervisor.py`): it ends the server and removes its folder when this process
ends, in whatever way. This module has no thread. Every thread of the process that created it may send requests, but not
forked children, which would use the same pipe.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...errors import HoldfastError

PATIENCE = 60.0
"""Seconds to wait for a server to start, to stop or to finish a request."""
CHECK_EVERY = 0.005


class ServerFailed(HoldfastError):
    """The server did not start, or a request to it failed. Only test data is affected; see the log of the server."""


@dataclass(frozen=True)
class Account:
    """The user account of a server."""

    name: str
    user: int
    group: int


class ServerState(msgspec.Struct, frozen=True):
    """The state of a server's processes."""

    pid: int | None
    """The first process; None if it is not running."""
    code: int | None
    """The exit code of the first process; None if it has not ended."""
    processes: list[int]
    """All processes that are running."""


class RemoteProcess:
    """The processes of one server, in one folder. `close` ends all of them, and removes the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parent = os.getpid()
        self._speaking = threading.Lock()
        script = Path(__file__).with_name("supervisor.py")
        with (folder / "supervisor.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, and a file of this package)
                [sys.executable, "-I", "-S", "-B", str(script), str(self._parent), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # so that Ctrl-C reaches the test, not its servers
            )

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        folder: Path,
        account: Account | None = None,
        pid_file: Path | None = None,
    ) -> ServerState:
        """Start the first process."""
        return self._ask(
            "start",
            command=list(command),
            env=dict(env),
            log=str(log),
            folder=str(folder),
            user=None if account is None else account.user,
            group=None if account is None else account.group,
            pid_file=None if pid_file is None else str(pid_file),
        )

    def look(self) -> ServerState:
        """The state now."""
        return self._ask("look")

    def signal(self, number: int) -> ServerState:
        """Send a signal to the first process only."""
        return self._ask("signal", number=number)

    def pause(self) -> ServerState:
        """Send SIGSTOP to all processes, and wait until they have stopped."""
        return self._ask("pause")

    def resume(self) -> ServerState:
        """Send SIGCONT to all processes."""
        return self._ask("resume")

    def kill(self) -> ServerState:
        """Send SIGKILL to all processes, and wait until they have ended."""
        return self._ask("kill")

    def wait_until(self, condition: Callable[[ServerState], bool], *, within: float = PATIENCE) -> ServerState | None:
        """The first state that satisfies the condition; None if there is none in time."""
        give_up = time.monotonic() + within
        while True:
            state = self.look()
            if condition(state):
                return state
            if time.monotonic() >= give_up:
                return None
            time.sleep(CHECK_EVERY)

    def close(self) -> None:
        """End all processes. In a forked child this does nothing: the process that started the server does it."""
        if os.getpid() != self._parent:
            return
        with self._speaking:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
            self._process.wait(PATIENCE)

    def _ask(self, do: str, **words: Any) -> ServerState:
        if os.getpid() != self._parent:
            raise ServerFailed("a server can be controlled only by the process that started it, not by a forked child")
        into, out = self._process.stdin, self._process.stdout
        with self._speaking:
            if into is None or out is None or into.closed:
                raise ServerFailed("the server is closed: its `with` block has ended, or close() was called")
            answer, chunk = b"", b"?"
            with suppress(BrokenPipeError):
                into.write(json.dumps({"do": do, **words}).encode() + b"\n")
                into.flush()
                while chunk and not answer.endswith(b"\n"):
                    ready, _, _ = select.select([out], [], [], PATIENCE)
                    chunk = os.read(out.fileno(), 65536) if ready else b""
                    answer += chunk
        if not answer.endswith(b"\n"):
            raise ServerFailed(f"the server's supervisor did not reply to {do!r}; it may have been killed")
        found = json.loads(answer)
        if "error" in found:
            raise ServerFailed(f"{do!r} failed on the server: {found['error']}")
        return msgspec.convert(found, ServerState)
