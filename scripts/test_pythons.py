"""Run `make test` with every supported Python that is to be had here, each in a virtual environment of its own.

Interpreters are looked for on the PATH and in pyenv. What is not there is said at the end; with none at all it fails.
"""

# ruff: noqa: INP001, S603, T201  (a script, which starts programs and prints)

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")


def found(version: str) -> str | None:
    """The interpreter of this version, if there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *(str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{version}.*")))]
    for candidate in candidates:
        path = shutil.which(candidate)
        program = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        if path is not None:
            done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return path
    return None


def main() -> int:
    """Test with one after the other, and say how each went."""
    wanted = sys.argv[1:] or list(VERSIONS)
    verdicts: dict[str, str] = {}
    for version in wanted:
        python = found(version)
        if python is None:
            verdicts[version] = "not found here, not tested"
            continue
        print(f"== Python {version}: {python}", flush=True)
        command = ["make", "test", f"PYTHON={python}", f"VENV=.venv-{version}"]
        done = subprocess.run(command, cwd=ROOT, check=False)
        verdicts[version] = "passed" if done.returncode == 0 else f"failed ({done.returncode})"
    for version, verdict in verdicts.items():
        print(f"Python {version}: {verdict}")
    tested = [verdict for verdict in verdicts.values() if "not tested" not in verdict]
    return 0 if tested and all(verdict == "passed" for verdict in tested) else 1


if __name__ == "__main__":
    sys.exit(main())
