"""Runs a campaign at its small size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import real_servers

CAMPAIGNS = Path(__file__).parents[1] / "chaos"
LIMIT = 1_500.0
"""Seconds after which a campaign of this size has certainly failed: it ends by itself after 240 s, on a slow machine
after up to six times as long."""
INCONCLUSIVE = 3
"""The exit code if no promise was broken, but too few events happened or the machine was too slow."""
ATTEMPTS = 3
"""An inconclusive campaign is repeated. A campaign that found a broken promise is not."""


def check_campaign(name: str, needed: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> None:
    """Run a campaign, which must pass; skip it if all of its servers are left out."""
    if name in ("clock", "skew") and not sys.platform.startswith("linux"):
        pytest.skip("the clock is moved by libfaketime, which is preloaded on Linux only")
    if needed and not set(needed) - real_servers.left_out():
        pytest.skip(real_servers.reason(", ".join(needed)))
    for _ in range(ATTEMPTS):
        campaign = subprocess.run(
            [sys.executable, CAMPAIGNS / f"{name}.py", *options],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        sys.stdout.write(campaign.stdout)  # with -rP or -s
        if campaign.returncode != INCONCLUSIVE:
            break
    assert campaign.returncode == 0, f"{campaign.stdout}\n{campaign.stderr}"
