"""Removes the ended runs of an engine's workflows when they are older than the limits (`retain`), in the background.

Every engine with a limit does this, at random times; it does no harm if two engines purge at the same time. If a
workflow has a limit of its own, this limit is used instead of the limit of the engine. The limit of a first run
applies to its whole tree: all its descendants are kept or removed together with it, whatever limit their own
workflows have.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ..errors import HoldfastError
from ..rules.runs.record import ENDS
from ..runtime.base import BaseClient
from ..runtime.runners import run_async
from ..validation import MICROSECONDS
from .definition import Workflow
from .purging import Purge, PurgeReport, PurgeRequest

LONGEST_PAUSE = 3_600.0
"""The average number of seconds between two purges by one engine."""
SHARE_OF_LIMIT = 0.1
"""The pause is not longer than this share of the shortest limit, or runs would be kept for much longer."""
SHORTEST_PAUSE = 1.0
SPREAD = 0.25
"""A pause is shorter or longer by up to this share, at random, so that engines do not purge at the same time."""

_log = logging.getLogger("holdfast.workflow")


def limits_of(workflows: Iterable[Workflow[Any, Any]], retain: float | None) -> dict[str, float]:
    """How many seconds the ended runs of each workflow are kept; runs of other workflows are kept forever.

    Of several versions of one workflow the longest limit counts.
    """
    found: dict[str, float | None] = {}
    for workflow in workflows:
        limit = retain if workflow.retain is None else workflow.retain_seconds
        longest = found.get(workflow.name, limit)
        found[workflow.name] = None if limit is None or longest is None else max(limit, longest)
    return {name: limit for name, limit in found.items() if limit is not None}


class Retention:
    """The purges of one engine."""

    def __init__(self, client: BaseClient, limits: dict[str, float]) -> None:
        self._client, self._limits = client, limits
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to purge, if there is a limit."""
        if self._limits:
            self._task = asyncio.get_running_loop().create_task(self._purge_forever(), name="holdfast-retention")

    async def stop(self) -> None:
        """Stop purging. If a purge is not complete, the next purge of any engine continues it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def sweep(self) -> PurgeReport:
        """Purge once, for every limit. If one workflow cannot be purged, this is logged; others are purged."""
        total = PurgeReport()
        for workflow, limit in self._limits.items():
            request = PurgeRequest(older_than=round(limit * MICROSECONDS), statuses=ENDS, workflow=workflow)
            purge = Purge(request, events=self._client.events)
            try:
                report = await run_async(purge.run(), self._client.runtime.batchers)
            except HoldfastError as error:
                _log.info("ended runs of %r could not be purged, and it is tried again later: %s", workflow, error)
                report = purge.report
            except Exception:
                _log.exception("ended runs of %r could not be purged, and it is tried again later", workflow)
                report = purge.report
            total = PurgeReport(trees=total.trees + report.trees, runs=total.runs + report.runs)
        return total

    async def _purge_forever(self) -> None:
        longest = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, SHARE_OF_LIMIT * min(self._limits.values())))
        pause = longest * random.random()
        while True:
            await asyncio.sleep(pause)
            await self.sweep()
            pause = longest * random.uniform(1 - SPREAD, 1 + SPREAD)
