"""Real servers for proofs: which ones, how they are reached through a proxy, what their commands look like on the wire.

`main` runs a proof on each store in turn, at the smaller size on all of them at once. `--store` chooses one; by
default it is PostgreSQL and Valkey at the smaller size, and everything at full size. A server that is missing fails
the proof, unless `$HOLDFAST_TEST_WITHOUT` leaves it out by name, which is said.
"""

from __future__ import annotations

import argparse
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import common
import msgspec
import redis
from common import Report

import real_servers
from holdfast.stores import redis_script
from holdfast.testing.proxy import Proxy
from holdfast.testing.servers import Server, ServerMissing

SizeT = TypeVar("SizeT")
KINDS = tuple(real_servers.KINDS)
SMALL_KINDS = ("postgres", "valkey")

_NUMBERS = {
    "Acquire": redis_script.ACQUIRE,
    "Renew": redis_script.RENEW,
    "Release": redis_script.RELEASE,
    "Abandon": redis_script.ABANDON,
    "Transfer": redis_script.TRANSFER,
    "ForceRelease": redis_script.FORCE_RELEASE,
    "Settle": redis_script.SETTLE,
    "Inspect": redis_script.INSPECT,
    "ReadSlot": redis_script.READ_SLOT,
    "SwapSlot": redis_script.SWAP_SLOT,
}


@dataclass(frozen=True)
class Place:
    """A server, as a proof sees it."""

    kind: str
    server: Server

    @property
    def is_postgres(self) -> bool:
        return self.kind == "postgres"

    def url(self, proxy: Proxy | None = None, *, patience: float | None = None) -> str:
        """The address, through a proxy or straight; with so many seconds of patience for an answer."""
        url = self.server.url if proxy is None else proxy.url_for(self.server.url)
        if patience is None:
            return url
        if self.is_postgres:
            return f"{url}?timeout={patience:g}&connect_timeout={max(2, round(patience))}"
        return f"{url}?socket_timeout={patience:g}&socket_connect_timeout={patience:g}"

    def wire(self, command: str, key: str) -> bytes:
        """What a request has in it when it carries this command about this key, and no other request has."""
        if self.is_postgres:
            body = '{"address":["shared","",' if command.endswith("Slot") else '{"key":'
            return f'"{command}",{body}"{key}"'.encode()
        name = f"shared::{key}" if command.endswith("Slot") else key
        return bytes([_NUMBERS[command]]) + msgspec.msgpack.encode(name)

    @property
    def watching(self) -> bytes:
        """What the request has in it that begins a watch."""
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
) -> None:
    """Run the proof on the stores that the command line names, or one of its workers. `here` is for a SQLite file."""
    parser = argparse.ArgumentParser()
    kinds = kinds if here is None else ("sqlite", *kinds)
    parser.add_argument("--store", choices=[*kinds, "all"], help="one kind of store, or all (default at full size)")

    def prove_all(size: SizeT, seed: int, folder: Path, report: Report) -> None:
        options = parser.parse_args()
        wanted = ("sqlite", *SMALL_KINDS) if options.store is None and not options.full else kinds
        wanted = wanted if options.store in (None, "all") else (options.store,)
        proofs = []
        for kind in [kind for kind in kinds if kind in wanted]:
            if kind in real_servers.left_out():
                report.tell(f"NOT TRIED, {real_servers.reason(kind)}", "-")
                continue
            home = folder / kind
            home.mkdir()
            if kind == "sqlite" and here is not None:
                here(size, seed, home, report)
                continue
            settings = None if options.full else real_servers.SETTINGS.get(kind)
            goes = partial(prove, size, seed, home, report)
            proofs.append(threading.Thread(target=_on, args=(kind, settings, report, goes)))
            proofs[-1].start()
            if options.full:
                proofs[-1].join()
        for proof in proofs:
            proof.join()
        if here is None:
            report.at_least("kinds of server", len(proofs), 1)

    common.main(script, prove_all, small=small, full=full, work=work, parser=parser)


def _on(kind: str, settings: dict[str, str] | None, report: Report, prove: Callable[[Place], None]) -> None:
    try:
        with real_servers.KINDS[kind](settings=settings) as server:
            report.tell(f"{kind}: version of the server", server.version)
            prove(Place(kind, server))
    except ServerMissing as error:
        report.broken(f"{error} To do without it: {real_servers.VARIABLE}={kind}")
    except Exception:  # (a thread that ends must not look like a proof)
        report.broken(f"{kind}: {traceback.format_exc()}")
