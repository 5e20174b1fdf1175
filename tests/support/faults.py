"""Real stores with a fault in the way: replies that get lost, connections that stall. Never a mock."""

from holdfast.testing.faults import FaultyConnection, FaultyStore, Plan, planned

__all__ = ["FaultyConnection", "FaultyStore", "Plan", "planned"]
