"""Gets a Chromium browser for the tests: Debian's packages, unpacked into the virtual environment, without root.

apt-get, which only simulates an installation, names the packages that the system lacks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from debian_packages import fetch, fetched, output, state_options, unpack, write_program

PACKAGE = "chromium"
PLACES = ("chromium", "chromium-browser", "google-chrome")
NEEDED = re.compile(r"^Inst (\S+)", re.MULTILINE)
WRAPPER = """#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
libraries=$(find "$here"/root/usr/lib/*-linux-gnu -name 'lib*.so*' -printf '%h\\n' | sort -u | tr '\\n' ':')
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/root/usr/lib/chromium/chromium" "$@"
"""


def unpacked(folder: Path) -> Path:
    """A folder with the browser and the libraries that this system lacks."""
    made = folder / "made"
    (made / "root").mkdir(parents=True)
    options = state_options(folder, PACKAGE)
    simulated = ["apt-get", "install", "-s", "--no-install-recommends", "-o", "Debug::NoLocking=true"]
    for name in NEEDED.findall(output([*simulated, *options, PACKAGE])):
        unpack(fetched([name], folder, options), made / "root")
    write_program(made / "bin" / "chromium", WRAPPER)
    return made


if __name__ == "__main__":
    sys.exit(fetch("Chromium", "chromium", PLACES, unpacked))
