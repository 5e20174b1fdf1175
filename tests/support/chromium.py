"""A real browser, headless: Chromium of the system, or the one that scripts/fetch_chromium.py has unpacked."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
import real_servers

VARIABLE = "HOLDFAST_TEST_CHROMIUM"
FETCHED = Path(sys.prefix) / "servers" / "chromium" / "bin" / "chromium"
PLACES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """The browser's program, if there is one."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return shutil.which(named)
    return str(FETCHED) if FETCHED.exists() else next(filter(None, map(shutil.which, PLACES)), None)


def missing(what: str) -> NoReturn:
    """Skip the test, except where everything must be tested."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@contextmanager
def new_page() -> Iterator[Any]:
    """A page of a new browser, as playwright's synchronous API has it."""
    try:
        sync_api = import_module("playwright.sync_api")
    except ImportError:
        missing(f"not installed: playwright. {sys.executable} -m pip install playwright")
    found = program()
    if found is None:
        missing(
            f"{real_servers.missing('chromium')} {sys.executable} scripts/fetch_chromium.py, which needs apt-get and "
            f"dpkg, or install it, or name its program by ${VARIABLE}"
        )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True)
        try:
            yield browser.new_page()
        finally:
            browser.close()
