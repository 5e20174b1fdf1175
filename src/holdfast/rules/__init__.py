"""Pure decisions: no I/O, no clock, no randomness. Whoever calls brings the record and the time."""
