"""Real servers for tests, one of each kind a session. One that is missing fails the tests that need it.

Whoever cannot have a server leaves it out by name: `HOLDFAST_TEST_WITHOUT="postgres,redis"`. Then its tests are
skipped, and the end of the run says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.Postgres]:
    """A PostgreSQL for all tests; each uses names of its own, and leaves it running."""
    with server("postgres") as made:
        yield made


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[servers.Valkey]:
    """A Valkey for all tests; each uses names of its own, and leaves it running."""
    with server("valkey") as made:
        yield made


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Redis]:
    """An old Redis for all tests; each uses names of its own, and leaves it running."""
    with server("redis") as made:
        yield made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, in one line."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    counts = {kind: sum(reason(kind) in text for text in skipped) for kind in sorted(left_out())}
    if counts:
        told = ", ".join(f"{kind} ({count} tests)" for kind, count in counts.items())
        terminalreporter.write_line(f"NOT TESTED, {reason(told)}", yellow=True)
