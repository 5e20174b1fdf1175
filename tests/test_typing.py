"""The API as pyright sees it; mypy sees the same files in `make lint`.

Node comes as a wheel with pyright, so none need be installed: none is found on the path here.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_pyright_finds_the_expected_types_and_errors():
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
        cwd=ROOT,
        env={"PATH": "", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
