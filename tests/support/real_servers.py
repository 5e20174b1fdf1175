"""Real servers for tests, one of each kind per session. A missing server fails the tests that need it.

A server that cannot be installed is left out by name: `HOLDFAST_TEST_WITHOUT="postgres,redis"`. Then its tests are
skipped, and the summary of the run states it. So it is with a server that no wheel carries and that could not be
fetched, except where `CI=true` is set: there it fails the tests, too. `HOLDFAST_TEST_MONGODB_URL` is the address of a
real MongoDB, which the tests use in place of the stand-in, except those that kill or pause it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from holdfast.testing import servers

VARIABLE = "HOLDFAST_TEST_WITHOUT"
KINDS = {
    "postgres": servers.postgres,
    "valkey": servers.valkey,
    "redis": servers.redis,
    "mariadb": servers.mariadb,
    "mongodb": servers.mongodb,
    "dynamodb": servers.dynamodb,
}
FETCHED = {
    "mariadb": "scripts/fetch_mariadb.py, which needs apt-get and dpkg",
    "dynamodb": "scripts/fetch_dynoxide.py, which needs the npm client",
    "chromium": "scripts/fetch_chromium.py, which needs apt-get and dpkg",
}
"""Programs that no wheel carries, and how they are fetched: servers, and the browser of chromium.py."""


def left_out() -> set[str]:
    """The kinds of server that are left out in this run."""
    names = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    if unknown := names - set(KINDS):
        pytest.exit(
            f"unknown server in ${VARIABLE}: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}", returncode=4
        )
    return names


def reason(kind: str) -> str:
    """The reason of a skipped test; counted in the summary of the run."""
    return f"left out by ${VARIABLE}: {kind}"


def missing(kind: str) -> str:
    """The beginning of the reason of a test that was skipped because its server could not be fetched."""
    return f"not installed: {kind}."


@contextmanager
def server(kind: str, **options) -> Iterator[servers.Server]:
    """A server for one test or one session; fails if it is missing, skips if it is left out."""
    if kind in left_out():
        pytest.skip(reason(kind))
    try:
        opening = KINDS[kind](**options)
        made = opening.__enter__()
    except servers.ServerMissing as error:
        if kind in FETCHED and os.environ.get("CI", "").lower() != "true":
            pytest.skip(f"{missing(kind)} {error}")
        pytest.fail(f"{error}\nTo skip its tests: {VARIABLE}={kind}", pytrace=False)
    try:
        yield made
    finally:
        opening.__exit__(None, None, None)


SETTINGS = {"postgres": {"fsync": "off"}, "mariadb": {"innodb-flush-log-at-trx-commit": "0"}}
"""Settings of the shared servers. Tests about durability start their own server."""

LIVE = {"mongodb": "HOLDFAST_TEST_MONGODB_URL"}
"""Environment variables with the address of a server that the tests use in place of their own."""


class LiveServer:
    """A server that somebody else runs: tests use it, and leave their data there."""

    def __init__(self, url: str) -> None:
        self.url = url


_shared: dict[str, tuple[ExitStack, servers.Server | LiveServer]] = {}


def shared(kind: str) -> servers.Server | LiveServer:
    """The one server of this kind for all tests, started when first needed; each test uses its own names."""
    if kind not in _shared and (live := os.environ.get(LIVE.get(kind, ""))):
        _shared[kind] = ExitStack(), LiveServer(live)
    if kind not in _shared:
        stack = ExitStack()
        _shared[kind] = stack, stack.enter_context(server(kind, settings=SETTINGS.get(kind)))
    return _shared[kind][1]


def pytest_unconfigure() -> None:
    """Close the servers at the end of the run."""
    while _shared:
        _shared.popitem()[1][0].close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print in one line what was not tested."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    counts = {kind: sum(reason(kind) in text for text in skipped) for kind in sorted(left_out())}
    if counts:
        kinds = ", ".join(f"{kind} ({count} tests)" for kind, count in counts.items())
        terminalreporter.write_line(f"NOT TESTED, {reason(kinds)}", yellow=True)
    for kind, how in FETCHED.items():
        if count := sum(missing(kind) in text for text in skipped):
            terminalreporter.write_line(f"NOT TESTED, not installed: {kind} ({count} tests); see {how}", yellow=True)
