"""Workflows: async functions whose steps are recorded, so that a run survives the process that drives it."""
