"""One worker of the demo, a process of its own: it takes the lock, does its job, and tells what it does.

The job is one line in a shared ledger, which must be there exactly once. Told to `stall`, it stops between
reading and writing, so that it can be killed or paused just there; afterwards it writes without asking
whether it still holds the lease. Only the fence can stop it then.
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


def tell(event: str, **what: object) -> None:
    """One line to whoever started this worker."""
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def work(url: str, ledger: Path, name: str, job: str, ttl: float, *, stall: bool) -> None:
    """Do one job under the lock."""
    with Client(url, name=name) as hf:
        tell("asks")
        try:
            with hf.lock(KEY, ttl=ttl, owner=name) as lease:
                tell("got", token=lease.token)
                entries = json.loads(fenced_read(ledger, lease))
                if stall:
                    tell("stalls")
                    sys.stdin.readline()
                if any(entry["job"] == job for entry in entries):
                    tell("found", job=job)
                    return
                time.sleep(0.15)  # so that a person can watch
                entries.append({"job": job, "worker": name, "token": lease.token})
                try:
                    fenced_replace(ledger, json.dumps(entries), lease)
                except StaleToken as error:
                    tell("refused", offered=error.offered, highest=error.highest)
                else:
                    tell("wrote", job=job)
        except LeaseLost as error:
            tell("lost", reason=error.reason)
        else:
            tell("released")


if __name__ == "__main__":
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # it tells everything itself
    url, ledger, name, job, ttl, stall = sys.argv[1:]
    work(url, Path(ledger), name, job, float(ttl), stall=stall == "stall")
