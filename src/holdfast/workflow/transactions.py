"""A transaction of the user's with a record of the journal in it: both are made, or neither."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from ..commands import Failed
from ..commands.runs import ReadRun, RecordRun
from ..errors import StoreUnavailable
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import Recorded, RunRefused, RunSeen
from ..runtime import batcher, failpoints
from ..stores.contract import SharesTransactions, Store

READ_BACK_SECONDS = 0.2
READ_BACKS = 300


class _RolledBack(Exception):
    """The record was refused, so the user's writes are not made either."""


def transact(store: Store, work: Callable[[Any], RecordRun]) -> Outcome | None:
    """One transaction; where the outcome of its commit is unknown, the journal knows.

    None: the store was away, and nothing was done. What the work itself raises is raised, whatever it is.
    """
    assert isinstance(store, SharesTransactions)  # noqa: S101  (checked before the work was asked for)
    answer: Outcome | None = None
    record: RecordRun | None = None
    own: BaseException | None = None  # what the user's function raised
    try:
        alone = batcher.within(store.identity) if store.capabilities.one_writer else nullcontext()
        with alone, store.transaction() as connection:
            try:
                record = work(connection)
            except BaseException as error:
                own = error
                raise
            (answer,) = store.join(connection).execute([record])
            if isinstance(answer, Failed) and isinstance(answer.error, StoreUnavailable):
                raise answer.error  # a row is locked: nothing is known of the run's owner, and it is tried again
            if not isinstance(answer, Recorded):
                raise _RolledBack  # noqa: TRY301
            failpoints.reach_transaction("before")
        failpoints.reach_transaction("after")
    except _RolledBack:
        return answer
    except StoreUnavailable as error:
        if error is own:  # of whatever the user's function asked: that is a failed attempt
            raise
        if not error.ambiguous or record is None:
            return None
        return _read_back(store, record)
    return answer


def _read_back(store: Store, record: RecordRun) -> Outcome | None:
    """What became of a record whose commit was not answered; asked for a while.

    If that is never known it is tried again: where it was made, the journal is longer by then, and refuses it.
    """
    for _ in range(READ_BACKS):
        with suppress(StoreUnavailable):
            connection = store.connect("commands")
            try:
                (seen,) = connection.execute([ReadRun(run=record.run, history=True)])
            finally:
                connection.close()
            if not isinstance(seen, RunSeen) or seen.claim is None:
                return RunRefused(run=None)
            if seen.claim.run.last == record.request:
                return Recorded(done=True, events=(), now=seen.now)
            return None if seen.claim.run.fence == record.fence else RunRefused(run=seen.claim.run, holder=seen.holder)
        time.sleep(READ_BACK_SECONDS)
    return None
