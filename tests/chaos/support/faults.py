"""Makes `tests/support/faults.py` importable for campaigns."""

from faults import FaultyConnection, FaultyStore, Plan, planned

__all__ = ["FaultyConnection", "FaultyStore", "Plan", "planned"]
