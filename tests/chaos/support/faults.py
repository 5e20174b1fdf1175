"""The faulty connections of `tests/support/faults.py`, for campaigns."""

from faults import FaultyConnection, FaultyStore, Plan, planned

__all__ = ["FaultyConnection", "FaultyStore", "Plan", "planned"]
