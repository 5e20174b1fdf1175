"""Pure decisions about runs: transitions, limits, and the locks that belong to a run."""
