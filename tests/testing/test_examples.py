"""What docs/testing.md shows is run as tests, by the plugin it tells of."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast.stores.memory
import holdfast.stores.sqlite  # noqa: F401  (a pytest within this one forgets what it imported first)

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_examples_pass(pytester):
    examples = [text for text in EXAMPLES if "StoreConformance" not in text]
    pytester.makepyfile("\n\n".join(examples))
    result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=sum(text.count("\ndef test_") + text.startswith("def test_") for text in examples))


def test_the_example_of_a_store_is_collected(pytester):
    (example,) = [text for text in EXAMPLES if "StoreConformance" in text]
    pytester.makepyfile(example)
    few = "paging or prefix or swap"
    result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", "-k", few)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 15
    assert "failed" not in outcomes
