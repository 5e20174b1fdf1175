"""The proofs, at a smaller size than `make prove` runs them: the same programs, with fewer operations and faults.

| proof   | here                                                        | at full size                           |
|---------|-------------------------------------------------------------|----------------------------------------|
| counter | 4 processes, 100 increments, 2 kills, 3 pauses              | 8, 2,000, more than 30, 44             |
| permits | 8 processes, 200 entries, 2 kills, 5 pauses                 | 10, 3,000, more than 24, 50            |
| clock   | 60 increments, 3 steps of an hour                           | 600, 14                                |
| waiters | each of 4 scenes once                                       | 10 times                               |
| replies | 16 callers; 12 takes each, on each store                    | 72; 90                                 |
| stalls  | 4 blocked loops; 400 attempts to take a lock                | 20; 6,000                              |
| state   | 50 tasks in 2 processes, 400 additions, 20 stale writers    | 100 in 4, 2,000, 500                   |
| leader  | 3 processes, 6 seconds, 3 kills and pauses                  | 5, 60, 27                              |
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROOFS = Path(__file__).parent / "proofs"
LIMIT = 150.0
"""Seconds after which a proof of this size has certainly gone wrong."""


@pytest.mark.parametrize("name", ["counter", "permits", "clock", "waiters", "replies", "stalls", "state", "leader"])
def test_it_holds_at_the_smaller_size(name):
    if name == "clock" and not sys.platform.startswith("linux"):
        pytest.skip("the clock is moved by a library that is preloaded on Linux only")
    proof = subprocess.run(
        [sys.executable, PROOFS / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    sys.stdout.write(proof.stdout)  # with -rP or -s
    assert proof.returncode == 0, f"{proof.stdout}\n{proof.stderr}"
