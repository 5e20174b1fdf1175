"""Campaigns that run on a SQLite file and on servers, at a smaller size: see test_small_size.py."""

from __future__ import annotations

import pytest
from smaller_size import check_campaign

CAMPAIGNS = (
    "waiters",
    "turnover",
    "load",
    "crashes",
    "engines",
    "recovery",
    "takeover",
    "heartbeats",
    "limits",
    "run_locks",
    "deploy",
    "generations",
    "answers",
    "streams",
)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_the_campaign_passes_at_its_small_size(name):
    check_campaign(name)
