"""Running a proof at its smaller size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import real_servers

PROOFS = Path(__file__).parents[1] / "chaos"
LIMIT = 270.0
"""Seconds after which a proof of this size has certainly gone wrong."""
INCONCLUSIVE = 3
"""The exit code of a proof that broke no promise, and in which too little happened or the machine was too slow."""
ATTEMPTS = 3
"""An inconclusive proof is repeated. A promise that was broken once is broken."""


def check_proof(name: str, needed: tuple[str, ...] = ()) -> None:
    """Run a proof, which must hold; skip it where none of the servers that it needs is to be had."""
    if name in ("clock", "skew") and not sys.platform.startswith("linux"):
        pytest.skip("the clock is moved by a library that is preloaded on Linux only")
    if needed and not set(needed) - real_servers.left_out():
        pytest.skip(real_servers.reason(", ".join(needed)))
    for _ in range(ATTEMPTS):
        proof = subprocess.run(
            [sys.executable, PROOFS / f"{name}.py"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        sys.stdout.write(proof.stdout)  # with -rP or -s
        if proof.returncode != INCONCLUSIVE:
            break
    assert proof.returncode == 0, f"{proof.stdout}\n{proof.stderr}"
