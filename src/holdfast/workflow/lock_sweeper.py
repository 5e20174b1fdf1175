"""Checks the locks of the store for waiting runs, because perhaps no other caller uses these locks.

If the lease of a holder has expired, its lock is settled, so that the next waiter is notified. Deadlocks are searched
for whenever a run begins to wait. They are also searched for page by page among all locks, because a cycle may also
close in another way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..commands import ListLocks, LockPage, SettleDue
from ..errors import HoldfastError
from ..platform import elapsed
from ..rules.runs.lock_requests import run_of_attempt
from .deadlock import CycleFound, Execute, resolve

SETTLE_SECONDS = 1.0
"""How often expired locks are settled."""
PAGE_SECONDS = 3.0
"""How often a page of locks is checked for deadlocks; most deadlocks are found when a run begins to wait."""
AGAIN_SECONDS = 0.1
"""After a deadlock, the other runs of the cycle are checked again so soon: they may be in another cycle."""
TRIES = 20
"""How often it is checked whether a notified run has stopped waiting."""
PAGES = 100
"""How many pages `sweep_all` checks at most."""

_log = logging.getLogger("holdfast.workflow")


class LockSweeper:
    """The checks of one worker. `found` is called with each run whose wait was refused."""

    def __init__(self, execute: Execute, found: Callable[[str], None]) -> None:
        self._execute, self._found = execute, found
        self._settle_at = 0.0
        self._page_at = elapsed() + PAGE_SECONDS
        self._after = ""  # the key after which the next page begins
        self._wanted: dict[str, None] = {}  # the runs from which the searches for cycles begin
        self._tries: dict[str, int] = {}
        self._searching: asyncio.Task[None] | None = None
        self._stopped = False

    async def settle(self) -> None:
        """Settle the expired locks, every `SETTLE_SECONDS`."""
        now = elapsed()
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_SECONDS
            await self._execute(SettleDue())

    async def check_page(self) -> None:
        """Check the next page of locks, every `PAGE_SECONDS`."""
        now = elapsed()
        if now >= self._page_at:
            self._page_at = now + PAGE_SECONDS
            self._after = await self._check_page_after(self._after)

    async def sweep_all(self) -> None:
        """Settle expired locks and check all pages at once."""
        await self._execute(SettleDue())
        after = ""
        for _ in range(PAGES):
            after = await self._check_page_after(after)
            if self._searching is not None:
                await self._searching
            if not after:
                break

    def search(self, run: str) -> None:
        """Check whether a run that waits for nothing but locks and children is in a deadlock. One run at a time."""
        if self._stopped:
            return
        self._wanted[run] = None
        if self._searching is None:
            self._searching = asyncio.get_running_loop().create_task(self._search())

    def stop(self) -> None:
        """Stop all checks."""
        self._stopped = True
        if self._searching is not None:
            self._searching.cancel()

    async def _check_page_after(self, after: str) -> str:
        """Search from the holders of locks that others wait for. Returns the key after which the next page begins."""
        page = await self._execute(ListLocks(after=after))
        assert isinstance(page, LockPage)  # noqa: S101
        waited_for = [item.record for item in page.items if item.record is not None and item.record.waiting]
        for asker in (run_of_attempt(holder.id) for record in waited_for for holder in record.holders):
            if asker is not None:
                self.search(asker[0])
        return page.next or ""

    async def _search(self) -> None:
        try:
            while self._wanted:
                run = next(iter(self._wanted))
                del self._wanted[run]
                try:
                    self._search_again(run, await resolve(self._execute, run))
                except HoldfastError as error:
                    _log.info("the search for deadlocks failed, and is repeated later: %s", error)
        finally:
            self._searching = None

    def _search_again(self, run: str, found: CycleFound | None) -> None:
        """After a wait was refused, search again: the other runs may be in another cycle."""
        tries = 0 if found is None or found.fresh else self._tries.get(run, 0) + 1
        self._tries.pop(run, None)
        if found is None or tries > TRIES:
            return
        if found.fresh:
            self._found(found.victim)
        for name in found.again:
            self._tries[name] = tries
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.search, name)
