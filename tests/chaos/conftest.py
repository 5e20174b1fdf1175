"""The proofs are programs; `tests/chaos/test_small_size.py` runs each at its smaller size."""

collect_ignore_glob = ["[!t]*.py", "t[!e]*.py", "support/*"]
