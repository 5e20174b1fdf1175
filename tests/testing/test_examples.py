"""The examples of docs/testing.md run as tests, with the plugin that it describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real_servers import left_out

import holdfast.stores.memory.store
import holdfast.stores.sqlite.store  # noqa: F401  (a pytest within this one forgets what it imported first)

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("options", [[], ["--holdfast-url", "sqlite:///shared.db"]], ids=["private", "shared"])
def test_the_examples_of_the_documentation_pass(pytester, options):
    examples = [text for text in EXAMPLES if "StoreConformance" not in text]
    if "valkey" in left_out():
        examples = [text for text in examples if "servers." not in text]
    pytester.makepyfile("\n\n".join(examples))
    result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=sum(text.count("\ndef test_") + text.startswith("def test_") for text in examples))


def test_the_example_of_a_store_is_collected(pytester):
    (example,) = [text for text in EXAMPLES if "StoreConformance" in text]
    pytester.makepyfile(example)
    few = "paging or prefix or swap"
    result = pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", "-k", few)
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 15
    assert "failed" not in outcomes
