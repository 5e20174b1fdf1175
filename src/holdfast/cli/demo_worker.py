"""One worker process of the demo: it takes the lock, does its job, and prints an event for each thing that it does.

The job is one entry in a shared ledger, which must be there exactly once. With `stall` the worker stops between reading
and writing, so that it can be killed or paused at that point; afterwards it writes without checking whether it still
holds the lease. Only the fence can refuse that write.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from .. import Client, LeaseLost, StaleToken
from ..fencing import fenced_read, fenced_replace

KEY = "ledger"


def emit(event: str, **fields: object) -> None:
    """Print one event for the process that started this worker."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def work(url: str, ledger: Path, name: str, job: str, ttl: float, *, stall: bool) -> None:
    """Do one job under the lock."""
    with Client(url, name=name) as hf:
        emit("requests")
        try:
            with hf.lock(KEY, ttl=ttl, owner=name) as lease:
                emit("acquired", token=lease.token)
                entries = json.loads(fenced_read(ledger, lease))
                if stall:
                    emit("stalls")
                    sys.stdin.readline()
                if any(entry["job"] == job for entry in entries):
                    emit("found", job=job)
                    return
                time.sleep(0.15)  # so that a person can follow
                entries.append({"job": job, "worker": name, "token": lease.token})
                try:
                    fenced_replace(ledger, json.dumps(entries), lease)
                except StaleToken as error:
                    emit("refused", offered=error.offered, highest=error.highest)
                else:
                    emit("wrote", job=job)
        except LeaseLost as error:
            emit("lost", reason=error.reason)
        else:
            emit("released")


if __name__ == "__main__":
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # the events are its output
    url, ledger, name, job, ttl, stall = sys.argv[1:]
    work(url, Path(ledger), name, job, float(ttl), stall=stall == "stall")
