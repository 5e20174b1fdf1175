"""The public suite detects every broken store, and passes the same store without a fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from holdfast.testing import StoreConformance
from holdfast.testing.suite.runs import NEED_WORKFLOWS
from testing import broken

ROOT = Path(__file__).parents[2]
LIMIT = 240.0
FEW_HISTORIES = "20"
"""Enough for these faults; `make test-suite` plays more."""


@pytest.fixture(scope="module")
def verdicts():
    """The failed and passed tests of the suite, by fault: one run of pytest for all."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfEp", "--tb=no", "-p", "no:cacheprovider", "--noconftest",
         "-o", "addopts=--import-mode=importlib", "-o", "python_files=broken.py", "tests/testing/broken.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={"HOLDFAST_HISTORIES": FEW_HISTORIES, **os.environ},
    )  # fmt: skip
    found = defaultdict(lambda: {"FAILED": set(), "PASSED": set(), "ERROR": set()})
    for verdict, suite, test in re.findall(
        r"^(FAILED|PASSED|ERROR) \S+::Test_(\w+)::(\w+)", done.stdout, flags=re.MULTILINE
    ):
        found[suite.replace("_", " ")][verdict].add(test)
    assert found, done.stdout + done.stderr
    return found


def test_the_store_without_a_fault_passes(verdicts):
    sound = verdicts[broken.SOUND]
    assert sound["FAILED"] == sound["ERROR"] == set()
    assert len(sound["PASSED"]) > 80


@pytest.mark.parametrize("broken_by", broken.FAULTS)
def test_a_broken_store_is_detected(broken_by, verdicts):
    assert verdicts[broken_by]["FAILED"] >= set(broken.FAULTS[broken_by].caught_by)


@pytest.mark.parametrize("broken_by", broken.FAULTS)
def test_tests_unrelated_to_the_fault_still_pass(broken_by, verdicts):
    """Otherwise the store would be so broken that catching it proves nothing."""
    assert len(verdicts[broken_by]["PASSED"]) > 40


def test_the_classes_that_need_workflows_are_part_of_the_suite():
    """A store without workflows skips them by their names."""
    names = {kind.__name__ for kind in StoreConformance.__mro__ if any(name.startswith("test_") for name in vars(kind))}
    assert set(NEED_WORKFLOWS) <= names
