"""`make bench`: every figure with pass or miss, each beside its floor in the same run. Exits 1 on a miss."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import logging
import os
import platform
import sqlite3
import sys

import handover
import leases
import other_stores
import pairs
import postgres
import postgres_runs
import postgres_waiting
import redis_pairs
import redis_waiting
import runs
import signals_and_claims
import sleepers
import states
import streams
import wakeups

PACKAGES = (
    "holdfast",
    "msgspec",
    "psycopg",
    "asyncpg",
    "redis",
    "pymysql",
    "pymongo",
    "boto3",
    "python-dynamodb-lock",
    "python-redis-lock",
    "pottery",
    "dbos",
)
PARTS = {
    "pairs": pairs,
    "handover": handover,
    "leases": leases,
    "states": states,
    "wakeups": wakeups,
    "postgres": postgres,
    "postgres_runs": postgres_runs,
    "postgres_waiting": postgres_waiting,
    "redis_pairs": redis_pairs,
    "redis_waiting": redis_waiting,
    "runs": runs,
    "signals_and_claims": signals_and_claims,
    "sleepers": sleepers,
    "streams": streams,
    "other_stores": other_stores,
}


def main(wanted: list[str]) -> int:
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, {platform.system()} {platform.release()} "
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {versions}\n",
        flush=True,
    )
    missed = 0
    for name in wanted or list(PARTS):
        for figure in PARTS[name].figures():
            print(figure.line(), flush=True)
            missed += not figure.passed
    print("\nall figures pass" if not missed else f"\n{missed} figures missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
