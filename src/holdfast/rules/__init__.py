"""Pure decisions: no I/O, no clock, no randomness. The caller gives the record and the time."""
