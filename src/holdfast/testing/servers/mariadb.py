"""MariaDB for tests: from the system, from the virtual environment, or the program in `$HOLDFAST_TEST_MARIADB`.

`scripts/fetch_mariadb.py` unpacks Debian's server into the virtual environment. The server runs as the user of the
test, on 127.0.0.1 only, with one user and a random password. Every commit is on disk before it is acknowledged, as is
MariaDB's default, unless the settings change that.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import sys
from pathlib import Path

from .server import Server, ServerMissing

VARIABLE = "HOLDFAST_TEST_MARIADB"
PLACES = ("mariadbd", "/usr/sbin/mariadbd", "/usr/local/sbin/mariadbd")
SCRIPTS = ("share/mysql", "share/mariadb")
_ANSWER_WITHIN = 0.3
_FETCHED = "servers/mariadb/bin/mariadbd"


class MariaDb(Server):
    """A MariaDB server for one test, with one user and an empty database."""

    kind = "MariaDB"
    user = "holdfast"
    database = "holdfast"

    @property
    def url(self) -> str:
        """The address, with user and password."""
        return f"mariadb://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    def _defaults(self) -> dict[str, str]:
        return {"innodb-flush-log-at-trx-commit": "1", "innodb-buffer-pool-size": "64M", "skip-log-bin": ""}

    def _install(self) -> Path:
        configured = os.environ.get(VARIABLE)
        fetched = Path(sys.prefix) / _FETCHED
        for place in (configured,) if configured else (*PLACES, str(fetched)):
            program = shutil.which(place)
            if program is not None:
                return Path(program).absolute()
        reason = f"${VARIABLE} is {configured!r}, which is not an executable file. " if configured else ""
        raise ServerMissing(
            f"{reason or 'MariaDB is not installed. '}In a source tree of Holdfast, with apt-get and dpkg on the PATH, "
            f"fetch it with\n    {shlex.quote(sys.executable)} scripts/fetch_mariadb.py\n"
            f"or install mariadbd (Debian: mariadb-server-core), or set ${VARIABLE} to the path of one."
        )

    def _prepare(self) -> None:
        """Create the system tables, a database and a user."""
        self.password = secrets.token_hex(8)
        data = self.home / "data"
        data.mkdir()
        scripts = self._scripts()
        boot = self.home / "boot.sql"
        boot.touch(mode=0o600)
        boot.write_text(
            "CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
            "SET @current_hostname='localhost';\n"
            + "".join(
                (scripts / name).read_text(encoding="utf-8")
                for name in ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
                if (scripts / name).exists()
            )
            + f"CREATE DATABASE {self.database};\nFLUSH PRIVILEGES;\n"
            f"CREATE USER {self.user}@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {self.user}@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self._run(["sh", "-c", f"exec {shlex.join([*self._base(), '--bootstrap'])} < {shlex.quote(str(boot))}"])
        boot.unlink()

    def _scripts(self) -> Path:
        for folder in (self.program.parent.parent / "usr", self.program.parent.parent):
            for inside in SCRIPTS:
                if (folder / inside / "mysql_system_tables.sql").exists():
                    return folder / inside
        raise ServerMissing(f"{self.program} has no mysql_system_tables.sql beside it: install the whole server.")

    def _base(self) -> list[str]:
        scripts = self._scripts()
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        place = [f"--datadir={self.home / 'data'}", f"--lc-messages-dir={scripts}", f"--tmpdir={self.home}"]
        charsets = f"--character-sets-dir={scripts / 'charsets'}"
        return [str(self.program), "--no-defaults", *as_root, *place, charsets, "--skip-name-resolve"]

    def _command(self) -> list[str]:
        given = [f"--{name}={value}" if value else f"--{name}" for name, value in self.settings.items()]
        fixed = [f"--bind-address={self.host}", f"--port={self.port}", f"--socket={self.home / 's'}"]
        return [*self._base(), *given, *fixed, f"--pid-file={self.home / 'pid'}"]

    def _ready(self, pid: int) -> bool:
        del pid  # the port is reserved, so no other server answers there
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_WITHIN) as connection:
                connection.settimeout(_ANSWER_WITHIN)
                return len(connection.recv(100)) > 4  # noqa: PLR2004  (the server sends the first packet)
        except OSError:
            return False
