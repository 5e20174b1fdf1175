"""Settings of Hypothesis. A normal run is the same every time; `make test-rules` searches at random, and longer."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SEARCHING = os.environ.get("HOLDFAST_PROOF") == "search"

proven = settings(
    deadline=None,
    derandomize=not SEARCHING,
    database=None,
    max_examples=5_000 if SEARCHING else 200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
histories = settings(proven, max_examples=2_000 if SEARCHING else 150, stateful_step_count=100 if SEARCHING else 40)
