"""The proofs are programs; `tests/test_proofs.py` runs each at its smaller size."""

collect_ignore_glob = ["*.py"]
