"""Gets a MariaDB server for the tests: Debian's packages, unpacked into the virtual environment, without root."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from debian_packages import fetch, fetched, output, state_options, unpack, write_program

PACKAGE = "mariadb-server-core"
PLACES = ("mariadbd", "/usr/sbin/mariadbd", "/usr/local/sbin/mariadbd")
LIBRARY = re.compile(r"(lib[\w+-]+)\.so\.(\d+) => not found")
WRAPPER = """#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH="$here/libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/usr/sbin/mariadbd" "$@"
"""


def unpacked(folder: Path) -> Path:
    """A folder with the server and the libraries that this system lacks."""
    root, libraries = folder / "root", folder / "root" / "libraries"
    libraries.mkdir(parents=True)
    options = state_options(folder, PACKAGE)
    unpack(fetched([PACKAGE], folder, options), root)
    server = root / "usr" / "sbin" / "mariadbd"
    for _ in range(5):  # a library may need others
        missing = sorted(set(LIBRARY.findall(output(["ldd", str(server)], LD_LIBRARY_PATH=str(libraries)))))
        if not missing:
            break
        for name, number in missing:
            base = f"{name}-{number}" if name[-1].isdigit() else f"{name}{number}"
            unpack(fetched([base, f"{base}t64"], folder, options), folder / "more")
        for found in (folder / "more").rglob("lib*.so.*"):
            if found.is_file() and not (libraries / found.name).exists():
                shutil.copy(found, libraries / found.name)
    write_program(root / "bin" / "mariadbd", WRAPPER)
    return root


if __name__ == "__main__":
    sys.exit(fetch("MariaDB", "mariadbd", PLACES, unpacked))
