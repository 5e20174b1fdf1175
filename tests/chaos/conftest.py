"""Excludes the campaigns from collection: they are programs; `test_small_size.py` runs each at its small size."""

collect_ignore_glob = ["[!t]*.py", "t[!e]*.py", "support/*"]
