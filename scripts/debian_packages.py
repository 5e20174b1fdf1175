"""Debian's packages, unpacked into the virtual environment without root, for programs that the tests use.

Nothing is fetched where the program is installed, or was fetched before. Where no apt-get is at hand, this is printed
and is no error: the tests then say what was not tested. Package lists are read into a folder of their own if the
system has none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SERVERS = Path(sys.prefix) / "servers"


def fetch(title: str, program: str, places: tuple[str, ...], unpacked: Callable[[Path], Path]) -> int:
    """Put what `unpacked` makes in a folder under `SERVERS`, unless the program is at one of these places."""
    target = SERVERS / title.lower()
    if any(map(shutil.which, places)) or (target / "bin" / program).exists():
        return 0
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        print(f"{title} was not fetched: there is no apt-get here. Install {program} to run its tests.")
        return 0
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        try:
            made = unpacked(Path(folder))
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"{title} could not be fetched ({error}). Install {program} to run its tests.")
            return 0
        made.rename(target)
    return 0


def write_program(path: Path, text: str) -> None:
    """Write a script that starts a program, and start it once."""
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o755)
    output([str(path), "--version"])


def state_options(folder: Path, package: str) -> list[str]:
    """Options of apt-get for this user: the system's package lists, or new ones."""
    quiet = ["-qq", "-o", "APT::Sandbox::User="]
    if subprocess.run(
        ["apt-get", "download", *quiet, "--print-uris", package], capture_output=True, check=False
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
