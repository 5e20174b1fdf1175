"""Shared code of the campaigns. Importing it makes the helpers of all tests (`tests/support`) importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
