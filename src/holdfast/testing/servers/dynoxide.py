"""DynamoDB for tests: dynoxide, from this environment, from the PATH, or the program in `$HOLDFAST_TEST_DYNOXIDE`.

dynoxide is one static program that keeps its tables in an SQLite file. `make test` fetches it with the npm client
(`scripts/fetch_dynoxide.py`). What it has acknowledged survives kill -9 of the server, but not a power failure: it does
not sync its file at each write. It checks no credentials; the URL contains made-up ones.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
from pathlib import Path

from .server import Server, ServerMissing

VARIABLE = "HOLDFAST_TEST_DYNOXIDE"
INSTALLED = Path(sys.prefix) / "servers" / "dynoxide" / "dynoxide"
_ANSWER_WITHIN = 0.3


class DynamoDB(Server):
    """A DynamoDB server for one test. Any table can be created in it."""

    kind = "dynoxide"

    @property
    def url(self) -> str:
        """A table `holdfast`, which is created when it is first used."""
        return f"dynamodb://test:test@us-east-1/holdfast?endpoint={self.endpoint}&create=true"

    @property
    def endpoint(self) -> str:
        """The address for boto3's `endpoint_url`."""
        return f"http://{self.host}:{self.port}"

    def _defaults(self) -> dict[str, str]:
        return {"db-path": "tables.db"}

    def _install(self) -> Path:
        configured = os.environ.get(VARIABLE)
        if configured:
            if os.access(configured, os.X_OK) and Path(configured).is_file():
                return Path(configured).absolute()
            raise _missing(f"${VARIABLE} is {configured!r}, which is not an executable file. ")
        if os.access(INSTALLED, os.X_OK):
            return INSTALLED
        on_path = shutil.which("dynoxide")
        if on_path is None:
            raise _missing()
        return Path(on_path)

    def _command(self) -> list[str]:
        fixed = {"host": self.host, "port": str(self.port)}
        options = [f"--{name}={value}" for name, value in {**self.settings, **fixed}.items()]
        return [str(self.program), "serve", *options]

    def _ready(self, pid: int) -> bool:
        del pid  # the port is reserved, so no other server answers there
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_WITHIN) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return connection.recv(100).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


def _missing(reason: str = "dynoxide is not installed. ") -> ServerMissing:
    return ServerMissing(
        f"{reason}In a source tree of Holdfast, with the npm client on the PATH, fetch it with\n"
        f"    {shlex.quote(sys.executable)} scripts/fetch_dynoxide.py\n"
        f"or take the program out of the npm package @dynoxide/linux-x64, and set ${VARIABLE} to its path."
    )
