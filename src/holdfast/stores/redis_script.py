"""The script, put together from its files, and the numbers by which it and the client understand each other.

A command goes as a row whose first place is one of the `OPERATIONS`; an outcome comes as a row whose first place is
one of the constants below it. The files say what else is in a row.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

_INCLUDE = re.compile(r"^ *--@include (\S+)$", re.MULTILINE)

ACQUIRE, RENEW, RELEASE, ABANDON, TRANSFER, FORCE_RELEASE, SETTLE, INSPECT = range(1, 9)
LIST_LOCKS, SETTLE_DUE, CLEANUP, READ_SLOT, SWAP_SLOT, REPLACE, LOOK_AT_DUE, DECIDED = range(9, 17)
START_RUN, CLAIM_RUNS, RECORD_RUN, POST_EVENT, REVIVE_RUN, WATCH_RUN, SEE_RUN, LIST_RUNS = range(21, 29)
COUNT_RUNS, OWNED_RUNS, RUNS_OUTLOOK, LIST_WORKERS, ENLIST_WORKER, DISMISS_WORKER = range(29, 35)
PUBLISH_TERMS, SEE_TERMS = 35, 36
PARK, FINISH = 1, 2

GRANTED, RENEWED, RELEASED, NOT_HELD, QUEUED, BUSY, ABANDONED, TRANSFERRED = range(1, 9)
TARGET_HOLDS, MISMATCH, TOO_HEAVY, GONE, FORCE_RELEASED, SETTLED, PAGE, SWEPT = range(9, 17)
SLOT_SEEN, SWAPPED, CONFLICT = range(20, 23)
FOREIGN, BAD, UNREADABLE, SEEN, REPLACED, STALE = range(30, 36)
STARTED, RUN_TAKEN, CLAIMED, WORKER_GONE, RECORDED, REFUSED, POSTED, RUN_SEEN = range(40, 48)
RUN_PAGE, CENSUS, OWNED, OUTLOOK, ENLISTED, WORKERS_SEEN, LIMITED, TERMS_DIFFER, TERMS_PUBLISHED = range(48, 57)


def _read(name: str) -> str:
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _read(found[1]), text)


SCRIPT = _read("redis.lua").encode()
SHA = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()
