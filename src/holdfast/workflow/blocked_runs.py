"""The blocked runs that an engine may try: all of them when it opens, later those that other engines could not drive.

They are found by a list of the blocked runs, read page by page behind all other work, and by hints. The list is read
again from time to time, because a hint may be lost, and some stores send none to other processes. Whether a run may be
tried is decided by the store when it is claimed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from ..commands import Command
from ..commands.runs import ListRuns
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import RunPage
from ..rules.runs.record import Run, pause_after
from ..rules.runs.repository import RunFilter

AT_ONCE = 25
"""How many blocked runs are tried at once: each of them replays its whole history, most often in vain."""
WITHOUT_HINTS = 2.0
"""Seconds until the list is read again where this process gets no hints of others."""
WITH_HINTS = 20.0
"""The same where hints come, and one may have been lost."""
REST = 20.0
"""The list is read again after so many times as long as reading it took, at least: it may be long."""


class BlockedRuns:
    """The blocked runs that one engine may still try."""

    def __init__(self, engine: str, types: Collection[str], code: str = "") -> None:
        self._engine, self._types, self._code = engine, types, code
        self.opened = 0
        """When the engine was opened, by the store's clock."""
        self._found: dict[str, None] = {}
        self._reading = False
        self._after: tuple[int, str] | None = None
        self._again_at: int | None = None  # a run that crashed its workers may be tried then
        self._read_for = 0.0  # how long it took to read the list, until now
        self._next_read = 0.0

    def add(self, runs: Iterable[str]) -> None:
        """Another engine could not drive these runs."""
        self._found |= dict.fromkeys(runs)

    async def next(
        self, execute: Callable[[Command], Awaitable[Outcome]], now: int, limit: int, *, hints: bool
    ) -> tuple[str, ...]:
        """The next runs to try. `hints`: this process is notified of runs that others have blocked."""
        again = self._again_at is not None and now >= self._again_at
        if again or (not self._reading and elapsed() >= self._next_read):
            self._reading, self._after, self._again_at, self._read_for = True, None, None, 0.0
        while self._reading and not self._found:
            began = elapsed()
            page = await execute(ListRuns(wanted=RunFilter(statuses=("blocked",)), after=self._after))
            assert isinstance(page, RunPage)  # noqa: S101
            self.add(run.id for run in page.runs if self._may_try(run, page.now))
            self._reading, self._after = page.next is not None, page.next
            self._read_for += elapsed() - began
            self._next_read = elapsed() + max(WITH_HINTS if hints else WITHOUT_HINTS, REST * self._read_for)
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
        return block.may_try(now, engine=self._engine, opened=self.opened, code=self._code)
