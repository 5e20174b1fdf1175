"""Real servers for campaigns: which servers, their addresses through a proxy, and the bytes of their commands.

`main` runs a campaign on each store in turn, at the small size on all of them at once. `--store` selects one store; the
default is PostgreSQL and Valkey at the small size, and all stores at full size. A missing server fails the campaign,
unless `$HOLDFAST_TEST_WITHOUT` names it, or it is one that is fetched and could not be; then the report states that it
was left out.
"""

from __future__ import annotations

import argparse
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import real_servers
import redis

from holdfast.stores.redis import fast_path as redis_fast
from holdfast.testing.proxy import Proxy
from holdfast.testing.servers import Server, ServerMissing
from support import common
from support.common import Report

SizeT = TypeVar("SizeT")
KINDS = ("postgres", "valkey", "redis")
"""Servers with workflows, whose protocols `Place.wire` knows. Some campaigns also run on others."""
SMALL_KINDS = ("postgres", "valkey")

FAST = {"Acquire": redis_fast.ACQUIRE, "Renew": redis_fast.RENEW, "Release": redis_fast.RELEASE}
"""Commands that have a native form, in one round trip; on Redis with these numbers."""
WAITING = ("Queue", "Confirm")
"""An `Acquire` that waits or confirms an offer: only Redis has a native form of it."""
WRITTEN = (*WAITING, "Abandon", "Transfer", "ForceRelease")
"""Commands that the client decides: the reply of the round trip that writes is lost. The other trips only read."""


@dataclass(frozen=True)
class Place:
    """One server of a campaign."""

    kind: str
    server: Server

    @property
    def is_postgres(self) -> bool:
        return self.kind == "postgres"

    def url(self, proxy: Proxy | None = None, *, patience: float | None = None) -> str:
        """The address, through a proxy or direct, with a timeout in seconds for replies."""
        url = self.server.url if proxy is None else proxy.url_for(self.server.url)
        if patience is None:
            return url
        if self.is_postgres:
            return f"{url}?timeout={patience:g}&connect_timeout={max(2, round(patience))}"
        return f"{url}?socket_timeout={patience:g}&socket_connect_timeout={patience:g}"

    def wire(self, command: str, key: str) -> bytes:
        """Bytes that occur in the request that executes this command on this key, and in no other request."""
        if self.is_postgres:
            return self._in_sql(command, key).encode()
        if command in FAST or command in WAITING:
            return bytes([FAST.get(command, redis_fast.ACQUIRE)]) + msgspec.msgpack.encode(key)
        name = (
            f"holdfast:{{default}}:slot:global::{key}"
            if command.endswith("Slot")
            else f"holdfast:{{default}}:lock:{key}"
        )
        sent = {"SwapSlot": "HSET", "ReadSlot": "HMGET"}.get(command, "MSET" if command in WRITTEN else "GET")
        return msgspec.msgpack.encode(sent) + msgspec.msgpack.encode(name)

    def _in_sql(self, command: str, key: str) -> str:
        if command in FAST:
            return f'"{command}","{key}"'
        if command == "SwapSlot":
            return f'"key":"{key}","version":'
        if command == "ReadSlot":
            return f'["global","","{key}"]'
        return f'"key":"{key}","record":' if command in WRITTEN else f'["{key}"]'

    @property
    def watching(self) -> bytes:
        """Bytes that occur in the request that starts a watch."""
        return b"LISTEN" if self.is_postgres else b"SUBSCRIBE"

    def forget_everything(self) -> None:
        """FLUSHALL."""
        with redis.Redis.from_url(self.server.url) as client:
            client.flushall()


def main(
    script: str,
    prove: Callable[[SizeT, int, Path, Report, Place], None],
    *,
    small: SizeT,
    full: SizeT,
    work: Callable[[dict[str, Any]], None] | None = None,
    kinds: tuple[str, ...] = KINDS,
    here: Callable[[SizeT, int, Path, Report], None] | None = None,
    parser: argparse.ArgumentParser | None = None,
    longest: float = common.LONGEST_FULL,
    settings: Mapping[str, dict[str, str]] = MappingProxyType({}),
    small_kinds: tuple[str, ...] = SMALL_KINDS,
) -> None:
    """Run the campaign on the selected stores, or one of its workers. `here` is for a SQLite file.

    `settings` are the settings of the servers, by kind; `small_kinds` those that the small size includes.
    """
    parser = parser or argparse.ArgumentParser()
    kinds = kinds if here is None else ("sqlite", *kinds)
    parser.add_argument("--store", choices=[*kinds, "all"], help="one kind of store, or all (the default at full size)")

    def prove_all(size: SizeT, seed: int, folder: Path, report: Report) -> None:
        options = parser.parse_args()
        wanted = ("sqlite", *small_kinds) if options.store is None and not options.full else kinds
        wanted = wanted if options.store in (None, "all") else (options.store,)
        campaigns = []
        for kind in [kind for kind in kinds if kind in wanted]:
            if kind in real_servers.left_out():
                report.figure(f"NOT TESTED, {real_servers.reason(kind)}", "-")
                continue
            home = folder / kind
            home.mkdir()
            if kind == "sqlite" and here is not None:
                here(size, seed, home, report)
                continue
            fast = {} if options.full else real_servers.SETTINGS.get(kind, {})
            goes = partial(prove, size, seed, home, report)
            campaigns.append(threading.Thread(target=_on, args=(kind, fast | settings.get(kind, {}), report, goes)))
            campaigns[-1].start()
            if options.full:
                campaigns[-1].join()
        for campaign in campaigns:
            campaign.join()
        if here is None:
            report.at_least("kinds of server", len(campaigns), 1)

    common.main(script, prove_all, small=small, full=full, work=work, parser=parser, longest=longest)


def _on(kind: str, settings: dict[str, str], report: Report, prove: Callable[[Place], None]) -> None:
    try:
        with real_servers.KINDS[kind](settings=settings) as server:
            report.figure(f"{kind}: version of the server", server.version)
            prove(Place(kind, server))
    except ServerMissing as error:
        if kind in real_servers.FETCHED and os.environ.get("CI", "").lower() != "true":
            report.figure(f"NOT TESTED, {real_servers.missing(kind)} {error}", "-")
        else:
            report.broken(f"{error} To leave it out: {real_servers.VARIABLE}={kind}")
    except Exception:  # (reported: an exception in a thread must not look like success)
        report.broken(f"{kind}: {traceback.format_exc()}")
