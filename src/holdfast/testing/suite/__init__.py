"""The parts of the conformance suite, one subject a file. `conformance.py` puts them together."""
