"""Gets a Chromium browser for the tests: Debian's packages, unpacked into the virtual environment, without root.

Does nothing where `chromium` is installed, or was fetched before. Where no apt-get is at hand it says so and succeeds:
the tests then say what was not tested. apt-get, which only simulates an installation, names the packages that the
system lacks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fetch_mariadb import fetched, output, state_options, unpack

PACKAGE = "chromium"
TARGET = Path(sys.prefix) / "servers" / "chromium"
PLACES = ("chromium", "chromium-browser", "google-chrome")
NEEDED = re.compile(r"^Inst (\S+)", re.MULTILINE)
WRAPPER = """#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
libraries=$(find "$here"/root/usr/lib/*-linux-gnu -name 'lib*.so*' -printf '%h\\n' | sort -u | tr '\\n' ':')
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/root/usr/lib/chromium/chromium" "$@"
"""


def main() -> int:
    if any(map(shutil.which, PLACES)) or (TARGET / "bin" / "chromium").exists():
        return 0
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        print("Chromium was not fetched: there is no apt-get here. Install chromium to run its tests.")
        return 0
    TARGET.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as folder:
        try:
            made = unpacked(Path(folder))
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"Chromium could not be fetched ({error}). Install chromium to run its tests.")
            return 0
        made.rename(TARGET)
    return 0


def unpacked(folder: Path) -> Path:
    """A folder with the browser and the libraries that this system lacks."""
    made = folder / "made"
    (made / "root").mkdir(parents=True)
    options = state_options(folder)
    simulated = ["apt-get", "install", "-s", "--no-install-recommends", "-o", "Debug::NoLocking=true"]
    for name in NEEDED.findall(output([*simulated, *options, PACKAGE])):
        unpack(fetched([name], folder, options), made / "root")
    wrapper = made / "bin" / "chromium"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)
    output([str(wrapper), "--version"])
    return made


if __name__ == "__main__":
    sys.exit(main())
