"""Real servers for tests, one of each kind a session. One that is missing fails the tests that need it.

Whoever cannot have a server leaves it out by name: `HOLDFAST_TEST_WITHOUT="postgres,redis"`. Then its tests are
skipped, and the end of the run says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from holdfast.testing import servers

VARIABLE = "HOLDFAST_TEST_WITHOUT"
KINDS = {"postgres": servers.postgres, "valkey": servers.valkey, "redis": servers.redis}


def left_out() -> set[str]:
    """The kinds that this run does without."""
    names = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    if unknown := names - set(KINDS):
        pytest.exit(f"${VARIABLE} names {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}", returncode=4)
    return names


def reason(kind: str) -> str:
    """Why a test is skipped; counted at the end of the run."""
    return f"left out by ${VARIABLE}: {kind}"


@contextmanager
def server(kind: str, **options) -> Iterator[servers.Server]:
    """A server for one test or one session; fails, or skips, where there is none."""
    if kind in left_out():
        pytest.skip(reason(kind))
    try:
        opening = KINDS[kind](**options)
        made = opening.__enter__()
    except servers.ServerMissing as error:
        pytest.fail(f"{error}\nTo do without it: {VARIABLE}={kind}", pytrace=False)
    try:
        yield made
    finally:
        opening.__exit__(None, None, None)


SETTINGS = {"postgres": {"fsync": "off"}}
"""For the servers that all tests share. Whoever cares for what is on the disk starts one of their own."""

_shared: dict[str, tuple[ExitStack, servers.Server]] = {}


def shared(kind: str) -> servers.Server:
    """The one server of this kind for all tests, started when first needed; each test uses names of its own."""
    if kind not in _shared:
        stack = ExitStack()
        _shared[kind] = stack, stack.enter_context(server(kind, settings=SETTINGS.get(kind)))
    return _shared[kind][1]


def pytest_unconfigure() -> None:
    """End the servers with the run."""
    while _shared:
        _shared.popitem()[1][0].close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, in one line."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    counts = {kind: sum(reason(kind) in text for text in skipped) for kind in sorted(left_out())}
    if counts:
        told = ", ".join(f"{kind} ({count} tests)" for kind, count in counts.items())
        terminalreporter.write_line(f"NOT TESTED, {reason(told)}", yellow=True)
