"""Seeing to the locks of the store, on behalf of runs that wait: nobody else may speak.

Locks whose holders' time is over are settled, so that whoever is next hears of it; and runs that wait for each other
are looked for: whenever one begins to wait, and page by page among all locks, for circles that closed in another way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..commands import ListLocks, LockPage, SettleDue
from ..errors import HoldfastError
from ..platform import elapsed
from ..rules.runs.lock_requests import asker_of
from .deadlock import Asking, CycleFound, resolve

SETTLE_SECONDS = 1.0
"""How often locks whose time is over are looked for."""
PAGE_SECONDS = 3.0
"""How often a page of locks is looked at for runs that wait for each other; most often they find that out."""
AGAIN_SECONDS = 0.1
"""When one has given way, others may still wait for each other: how soon that is looked at."""
TRIES = 20
"""How often it is looked at whether one that was told has given way."""
PAGES = 100
"""How many pages somebody who comes seldom looks at, at most."""

_log = logging.getLogger("holdfast.workflow")


class LockSweeper:
    """The rounds of one worker. `found` is told of each run that had to give way."""

    def __init__(self, ask: Asking, found: Callable[[str], None]) -> None:
        self._ask, self._found = ask, found
        self._settle_at = 0.0
        self._page_at = elapsed() + PAGE_SECONDS
        self._after = ""  # the key after which the next page begins
        self._wanted: dict[str, None] = {}  # the runs from which circles are to be looked for
        self._tries: dict[str, int] = {}
        self._searching: asyncio.Task[None] | None = None
        self._stopped = False

    async def settle(self) -> None:
        """Settle the locks whose time is over, if it is time for that."""
        now = elapsed()
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_SECONDS
            await self._ask(SettleDue())

    async def look(self) -> None:
        """Look at the next page of locks, if it is time for that."""
        now = elapsed()
        if now >= self._page_at:
            self._page_at = now + PAGE_SECONDS
            self._after = await self._look_at_page(self._after)

    async def whole_round(self) -> None:
        """Do all of it at once, for one who comes seldom."""
        await self._ask(SettleDue())
        after = ""
        for _ in range(PAGES):
            after = await self._look_at_page(after)
            if self._searching is not None:
                await self._searching
            if not after:
                break

    def search(self, run: str) -> None:
        """See whether a run that waits for nothing but locks and children can ever go on. One after another."""
        if self._stopped:
            return
        self._wanted[run] = None
        if self._searching is None:
            self._searching = asyncio.get_running_loop().create_task(self._search())

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        if self._searching is not None:
            self._searching.cancel()

    async def _look_at_page(self, after: str) -> str:
        """Look at a page of locks. Those in a circle hold what others wait for. Returns where the next page begins."""
        page = await self._ask(ListLocks(after=after))
        assert isinstance(page, LockPage)  # noqa: S101
        waited_for = [item.record for item in page.items if item.record is not None and item.record.waiting]
        for asker in (asker_of(holder.id) for record in waited_for for holder in record.holders):
            if asker is not None:
                self.search(asker[0])
        return page.next or ""

    async def _search(self) -> None:
        try:
            while self._wanted:
                run = next(iter(self._wanted))
                del self._wanted[run]
                try:
                    self._search_again(run, await resolve(self._ask, run))
                except HoldfastError as error:
                    _log.info("a deadlock could not be looked for: %s", error)
        finally:
            self._searching = None

    def _search_again(self, run: str, found: CycleFound | None) -> None:
        """When one gives way, others of the circle may be in another one."""
        tries = 0 if found is None or found.fresh else self._tries.get(run, 0) + 1
        self._tries.pop(run, None)
        if found is None or tries > TRIES:
            return
        if found.fresh:
            self._found(found.told)
        for name in found.again:
            self._tries[name] = tries
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.search, name)
