"""A server's processes, seen from the test: each order goes to the supervisor, which answers when it is carried out.

The supervisor is a process of its own (`supervisor.py`): the server and its folder are gone when this process is,
however it went. There is no thread here. Orders may come from any thread of the process that began it, not from its
forked children, which would speak on the same pipe.
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
"""Seconds after which a server that has not done what it was asked to will not do it."""
LOOK_EVERY = 0.005


class ServerFailed(HoldfastError):
    """The server did not start, or did not do what it was asked to. Its data is of the test only; see its log."""


@dataclass(frozen=True)
class Account:
    """Whom a server runs as."""

    name: str
    user: int
    group: int


class ServerState(msgspec.Struct, frozen=True):
    """What there is of a server."""

    pid: int | None
    """Its first process, while that lives."""
    code: int | None
    """How the first process has ended."""
    processes: list[int]
    """All that live."""


class RemoteProcess:
    """The processes that use one folder. Closing ends all of them, and removes the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boss = os.getpid()
        self._speaking = threading.Lock()
        script = Path(__file__).with_name("supervisor.py")
        with (folder / "supervisor.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, and a file of ours)
                [sys.executable, "-I", "-S", "-B", str(script), str(self._boss), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # a Ctrl-C is for the test, not for its servers
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
        """What there is now."""
        return self._ask("look")

    def signal(self, number: int) -> ServerState:
        """Send a signal to the first process only."""
        return self._ask("signal", number=number)

    def pause(self) -> ServerState:
        """Stop all processes where they are."""
        return self._ask("pause")

    def resume(self) -> ServerState:
        """Let all of them go on."""
        return self._ask("resume")

    def kill(self) -> ServerState:
        """Kill -9 for all of them; they are gone when this returns."""
        return self._ask("kill")

    def wait_until(self, condition: Callable[[ServerState], bool], *, within: float = PATIENCE) -> ServerState | None:
        """The first state that is as wished; None if there is none in time."""
        give_up = time.monotonic() + within
        while True:
            state = self.look()
            if condition(state):
                return state
            if time.monotonic() >= give_up:
                return None
            time.sleep(LOOK_EVERY)

    def close(self) -> None:
        """End everything. A forked child leaves it to the process that began it."""
        if os.getpid() != self._boss:
            return
        with self._speaking:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
            self._process.wait(PATIENCE)

    def _ask(self, do: str, **words: Any) -> ServerState:
        if os.getpid() != self._boss:
            raise ServerFailed("a server takes orders only from the process that started it, not from a fork of it")
        into, out = self._process.stdin, self._process.stdout
        with self._speaking:
            if into is None or out is None or into.closed:
                raise ServerFailed("the server has ended, with the block that it was made for")
            answer, chunk = b"", b"?"
            with suppress(BrokenPipeError):
                into.write(json.dumps({"do": do, **words}).encode() + b"\n")
                into.flush()
                while chunk and not answer.endswith(b"\n"):
                    ready, _, _ = select.select([out], [], [], PATIENCE)
                    chunk = os.read(out.fileno(), 65536) if ready else b""
                    answer += chunk
        if not answer.endswith(b"\n"):
            raise ServerFailed(f"the server's supervisor did not answer to {do!r}; it may have been killed")
        found = json.loads(answer)
        if "error" in found:
            raise ServerFailed(f"the server could not {do}: {found['error']}")
        return msgspec.convert(found, ServerState)
