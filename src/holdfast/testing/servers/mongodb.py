"""A server that speaks MongoDB's protocol, for tests: SecantusDB, from the wheel `secantusdb`.

No wheel carries MongoDB itself. This server is a replica set of one member, with conditional updates, aggregation,
change streams and durable writes, which is what Holdfast uses. It is not MongoDB: run the tests against a real one with
`HOLDFAST_TEST_MONGODB_URL` before you rely on it. Every write is on disk before it is acknowledged.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .server import Server, ServerMissing, missing

PACKAGE = "secantusdb"
PROGRAM = "secantusd-py"
VARIABLE = "HOLDFAST_TEST_MONGODB"
_ANSWER_WITHIN = 0.3
_HELLO = b"\x10hello\0\1\0\0\0\x02$db\0\6\0\0\0admin\0\0"
"""The document `{hello: 1, $db: "admin"}`, without its length."""
_GREETING = struct.pack("<iiiiibi", 25 + len(_HELLO), 1, 0, 2013, 0, 0, 4 + len(_HELLO)) + _HELLO
"""The request with that document (OP_MSG), which every server answers."""


class MongoDB(Server):
    """A stand-in for MongoDB, for one test."""

    kind = "SecantusDB"

    @property
    def url(self) -> str:
        """The server, without a database."""
        return f"mongodb://{self.host}:{self.port}/?directConnection=true"

    def _defaults(self) -> dict[str, str]:
        return {"sync-on-commit": "", "log-level": "WARNING"}

    def _install(self) -> Path:
        configured = os.environ.get(VARIABLE)
        if configured:
            if os.access(configured, os.X_OK) and Path(configured).is_file():
                return Path(configured).absolute()
            raise self._missing(f"${VARIABLE} is {configured!r}, which is not an executable file. ")
        beside = Path(sys.executable).with_name(PROGRAM)
        found = str(beside) if os.access(beside, os.X_OK) else shutil.which(PROGRAM)
        if found is None:
            raise self._missing()
        return Path(found)

    def _missing(self, reason: str = "") -> ServerMissing:
        return missing(self.kind, PACKAGE, f"set ${VARIABLE} to the path of {PROGRAM}.", reason=reason)

    def _read_version(self) -> str:
        """The program has no option for it."""
        try:
            return version(PACKAGE)
        except PackageNotFoundError:
            return "unknown"

    def _command(self) -> list[str]:
        options = [word for name, value in self.settings.items() for word in (f"--{name}", value) if word]
        place = ["--host", self.host, "--port", str(self.port), "--storage-path", str(self.home / "data")]
        return [str(self.program), *place, *options]

    def _ready(self, pid: int) -> bool:
        del pid  # the port is reserved, so no other server answers there
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_WITHIN) as connection:
                connection.sendall(_GREETING)
                return bool(connection.recv(100))
        except OSError:
            return False
