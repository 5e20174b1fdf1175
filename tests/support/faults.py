"""Fault injection on real stores: lost replies, stalled connections. No mocks."""

from holdfast.testing.faults import FaultyConnection, FaultyStore, Plan, planned

__all__ = ["FaultyConnection", "FaultyStore", "Plan", "planned"]
