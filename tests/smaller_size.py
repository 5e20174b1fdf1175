"""Running a proof at its smaller size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import real_servers

PROOFS = Path(__file__).parent / "proofs"
LIMIT = 270.0
"""Seconds after which a proof of this size has certainly gone wrong."""


def check_proof(name: str, needed: tuple[str, ...] = ()) -> None:
    """Run a proof, which must hold; skip it where none of the servers that it needs is to be had."""
    if name in ("clock", "skew") and not sys.platform.startswith("linux"):
        pytest.skip("the clock is moved by a library that is preloaded on Linux only")
    if needed and not set(needed) - real_servers.left_out():
        pytest.skip(real_servers.reason(", ".join(needed)))
    proof = subprocess.run(
        [sys.executable, PROOFS / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    sys.stdout.write(proof.stdout)  # with -rP or -s
    assert proof.returncode == 0, f"{proof.stdout}\n{proof.stderr}"
