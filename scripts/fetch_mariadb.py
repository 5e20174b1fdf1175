"""Gets a MariaDB server for the tests: Debian's packages, unpacked into the virtual environment, without root.

Does nothing where `mariadbd` is installed, or was fetched before. Where no apt-get is at hand it says so and succeeds:
the tests then say what was not tested. Package lists are read into a folder of their own if the system has none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "mariadb-server-core"
TARGET = Path(sys.prefix) / "servers" / "mariadb"
PLACES = ("mariadbd", "/usr/sbin/mariadbd", "/usr/local/sbin/mariadbd")
LIBRARY = re.compile(r"(lib[\w+-]+)\.so\.(\d+) => not found")
WRAPPER = """#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH="$here/libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/usr/sbin/mariadbd" "$@"
"""


def main() -> int:
    if any(map(shutil.which, PLACES)) or (TARGET / "bin" / "mariadbd").exists():
        return 0
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        print("MariaDB was not fetched: there is no apt-get here. Install mariadbd to run its tests.")
        return 0
    TARGET.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as folder:
        try:
            made = unpacked(Path(folder))
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"MariaDB could not be fetched ({error}). Install mariadbd to run its tests.")
            return 0
        made.rename(TARGET)
    return 0


def unpacked(folder: Path) -> Path:
    """A folder with the server and the libraries that this system lacks."""
    root, libraries = folder / "root", folder / "root" / "libraries"
    libraries.mkdir(parents=True)
    options = state_options(folder)
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
    wrapper = root / "bin" / "mariadbd"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)
    output([str(wrapper), "--version"])
    return root


def state_options(folder: Path) -> list[str]:
    """Options of apt-get for this user: the system's package lists, or new ones."""
    quiet = ["-qq", "-o", "APT::Sandbox::User="]
    if subprocess.run(
        ["apt-get", "download", *quiet, "--print-uris", PACKAGE], capture_output=True, check=False
    ).stdout:
        return quiet
    state = folder / "apt"
    (state / "lists" / "partial").mkdir(parents=True)
    (state / "cache" / "archives" / "partial").mkdir(parents=True)
    own = [*quiet, "-o", f"Dir::State={state}", "-o", f"Dir::State::lists={state / 'lists'}"]
    own += ["-o", f"Dir::Cache={state / 'cache'}", "-o", "Debug::NoLocking=true"]
    output(["apt-get", "update", *own])
    return own


def fetched(names: list[str], folder: Path, options: list[str]) -> Path:
    """The package file of the first of these names that exists."""
    for name in names:
        there = folder / "packages" / name
        there.mkdir(parents=True, exist_ok=True)
        command = ["apt-get", "download", *options, name]
        if subprocess.run(command, cwd=there, capture_output=True, check=False).returncode == 0:
            return next(there.glob("*.deb"))
    raise FileNotFoundError(f"no package {' or '.join(names)} can be downloaded")


def unpack(package: Path, where: Path) -> None:
    output(["dpkg", "-x", str(package), str(where)])


def output(command: list[str], **env: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **env})
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
