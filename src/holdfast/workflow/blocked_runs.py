"""The blocked runs that an engine may try: all of them when it opens, later those that other engines could not drive.

They are found in a list of the blocked runs, which is read page by page after all other work, and by hints. The store
decides whether a run may be tried, when the run is claimed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from ..commands import Command
from ..commands.runs import ListRuns
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import RunPage
from ..rules.runs.record import Run, pause_after
from ..rules.runs.repository import RunFilter

AT_ONCE = 25
"""How many blocked runs are tried at once: each of them replays its whole history, most often in vain."""


class BlockedRuns:
    """The blocked runs that one engine may still try."""

    def __init__(self, engine: str, types: Collection[str]) -> None:
        self._engine, self._types = engine, types
        self.opened = 0
        """When the engine was opened, by the store's clock."""
        self._found: dict[str, None] = {}
        self._reading = True
        self._after: tuple[int, str] | None = None
        self._again_at: int | None = None  # a run that crashed its workers may be tried then

    def add(self, runs: Iterable[str]) -> None:
        """Another engine could not drive these runs."""
        self._found |= dict.fromkeys(runs)

    async def next(self, execute: Callable[[Command], Awaitable[Outcome]], now: int, limit: int) -> tuple[str, ...]:
        """The next runs to try; if there are none left, nothing is read."""
        if self._again_at is not None and now >= self._again_at:
            self._reading, self._after, self._again_at = True, None, None
        while self._reading and not self._found:
            page = await execute(ListRuns(wanted=RunFilter(statuses=("blocked",)), after=self._after))
            assert isinstance(page, RunPage)  # noqa: S101
            self.add(run.id for run in page.runs if self._may_try(run, page.now))
            self._reading, self._after = page.next is not None, page.next
        chosen = tuple(self._found)[: min(AT_ONCE, limit)]
        for run in chosen:
            del self._found[run]
        return chosen

    def _may_try(self, run: Run, now: int) -> bool:
        block = run.block
        if block is None or run.type not in self._types or self._engine in block.engines:
            return False
        if block.poisoned and self.opened > block.since:
            begins = block.since + pause_after(block)
            if begins > now:
                self._again_at = begins if self._again_at is None else min(begins, self._again_at)
        return block.may_try(now, engine=self._engine, opened=self.opened)
