"""Prove that a newcomer succeeds: clone HEAD into an empty folder, and run `make demo` and `make test` there.

The environment is bare: a PATH with Python, make and the few tools that the Makefile calls, and from this
environment only what says how packages are reached. Fails when either fails, or when too few tests ran.
"""

# ruff: noqa: INP001, S603, T201  (a script, which starts programs and prints)

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEWEST_TESTS = 200
TOOLS = ("make", "sh", "mktemp", "rm", "touch")
KEPT = re.compile(r"HOME|PIP_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|(https?|no|all)_proxy", re.IGNORECASE)


def main() -> int:
    """Do it and tell what was seen."""
    git = shutil.which("git")
    if git is None:
        print("test-fresh needs git, to clone the project")
        return 1
    here = Path(__file__).resolve().parent.parent
    head = subprocess.check_output([git, "-C", str(here), "rev-parse", "--short", "HEAD"], text=True).strip()
    with tempfile.TemporaryDirectory(prefix="holdfast-fresh-") as folder:
        clone = Path(folder, "holdfast")
        subprocess.check_call([git, "clone", "--quiet", "--no-hardlinks", str(here), str(clone)])
        environment = bare_environment(Path(folder, "tools"))
        demo, demo_seconds = run("demo", clone, environment)
        tests, test_seconds = run("test", clone, environment) if demo is not None else (None, 0.0)
    if demo is None or tests is None:
        return 1
    passed = max(map(int, re.findall(r"(\d+) passed", tests)), default=0)
    print(
        f"fresh clone of {head}: make demo succeeded in {demo_seconds:.0f} s, "
        f"make test in {test_seconds:.0f} s with {passed} tests passed"
    )
    if passed < FEWEST_TESTS:
        print(f"too quiet: fewer than {FEWEST_TESTS} tests")
        return 1
    return 0


def bare_environment(tools: Path) -> dict[str, str]:
    """Make a folder of links to the few tools that may be there, and a PATH of that and Python's own folder."""
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    python = Path(sys._base_executable).resolve().parent  # type: ignore[attr-defined]  # noqa: SLF001
    return {**kept, "PATH": f"{tools}{os.pathsep}{python}", "LANG": "C.UTF-8"}


def run(target: str, clone: Path, environment: dict[str, str]) -> tuple[str | None, float]:
    """Run one target of make, show what it prints, and return that; None if it failed."""
    print(f"$ make {target}", flush=True)
    began = time.monotonic()
    make = Path(environment["PATH"].split(os.pathsep)[0], "make")
    with subprocess.Popen(
        [str(make), target], cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    took = time.monotonic() - began
    if process.returncode != 0:
        print(f"make {target} failed in a fresh clone (exit code {process.returncode})")
        return None, took
    return "".join(lines), took


if __name__ == "__main__":
    sys.exit(main())
