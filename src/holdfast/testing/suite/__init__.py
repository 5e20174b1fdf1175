"""The parts of the conformance suite, one subject per file. `conformance.py` combines them."""
