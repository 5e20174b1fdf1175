"""Proofs that run on a SQLite file and on servers as well, at a smaller size: see test_small_size.py."""

from __future__ import annotations

import pytest
from smaller_size import check_proof

PROOFS = ("waiters", "turnover", "load", "crashes", "engines", "recovery", "takeover", "limits", "run_locks")


@pytest.mark.parametrize("name", PROOFS)
def test_it_holds_at_the_smaller_size(name):
    check_proof(name)
