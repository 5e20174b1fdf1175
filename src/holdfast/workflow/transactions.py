"""Executes a user's transaction together with a record of the journal: both are committed, or neither is."""

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
    """The record was refused, so the user's writes are rolled back."""


def transact(store: Store, work: Callable[[Any], RecordRun]) -> Outcome | None:
    """Execute one transaction. If the outcome of its commit is unknown, it is looked up in the journal.

    None: the store could not be reached, and nothing was written. Any exception of `work` itself is raised.
    """
    assert isinstance(store, SharesTransactions)  # noqa: S101  (checked when the code called it)
    answer: Outcome | None = None
    record: RecordRun | None = None
    own: BaseException | None = None  # the exception of the user's function
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
                raise answer.error  # a row is locked: the owner of the run is not known, and the caller retries
            if not isinstance(answer, Recorded):
                raise _RolledBack  # noqa: TRY301
            failpoints.reach_transaction("before")
        failpoints.reach_transaction("after")
    except _RolledBack:
        return answer
    except StoreUnavailable as error:
        if error is own:  # raised by the user's function: that is a failed attempt
            raise
        if not error.ambiguous or record is None:
            return None
        return _read_back(store, record)
    return answer


def _read_back(store: Store, record: RecordRun) -> Outcome | None:
    """Look up a record whose commit was not answered, for up to a minute.

    If the outcome is still unknown, the caller retries: a journal that contains the record already refuses it.
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
