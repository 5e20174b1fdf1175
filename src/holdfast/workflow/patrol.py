"""Seeing to the locks of the store, on behalf of runs that wait: nobody else may speak.

Locks whose holders' time is over are settled, so that whoever is next hears of it; and runs that wait for each other
are looked for: whenever one begins to wait, and page by page among all locks, for circles that closed in another way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from .._platform import elapsed
from ..commands import ListLocks, Page, SettleDue
from ..errors import HoldfastError
from ..rules.asks import asker_of
from .deadlock import Asking, resolve

SETTLE_SECONDS = 1.0
"""How often locks whose time is over are looked for."""
PAGE_SECONDS = 10.0
"""How often a page of locks is looked at for runs that wait for each other; most often they find that out."""
PAGES = 100
"""How many pages somebody who comes seldom looks at, at most."""

_log = logging.getLogger("holdfast.workflow")


class Patrol:
    """The rounds of one worker. `found` is told of each run that had to give way."""

    def __init__(self, ask: Asking, found: Callable[[str], None]) -> None:
        self._ask, self._found = ask, found
        self._settle_at = 0.0
        self._page_at = elapsed() + PAGE_SECONDS
        self._after = ""  # the key after which the next page begins
        self._searches: dict[str, asyncio.Task[None]] = {}

    async def round(self) -> None:
        """Do what is to be done by now."""
        now = elapsed()
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_SECONDS
            await self._ask(SettleDue())
        if now >= self._page_at:
            self._page_at = now + PAGE_SECONDS
            self._after = await self._look_at_page(self._after)

    async def whole_round(self) -> None:
        """Do all of it at once, for one who comes seldom."""
        await self._ask(SettleDue())
        after = ""
        for _ in range(PAGES):
            after = await self._look_at_page(after)
            await asyncio.gather(*self._searches.values())
            if not after:
                break

    def search(self, run: str) -> None:
        """See whether a run that waits for nothing but locks can ever go on."""
        if run not in self._searches:
            self._searches[run] = asyncio.get_running_loop().create_task(self._resolve(run))

    def stop(self) -> None:
        """Look no more."""
        for search in self._searches.values():
            search.cancel()

    async def _look_at_page(self, after: str) -> str:
        """Look at a page of locks. Returns where the next one begins."""
        page = await self._ask(ListLocks(after=after))
        assert isinstance(page, Page)  # noqa: S101
        waiters = (waiter.id for item in page.items if item.record is not None for waiter in item.record.waiters)
        for run in dict.fromkeys(asker[0] for one in waiters if (asker := asker_of(one)) is not None):
            self.search(run)
        return page.next or ""

    async def _resolve(self, run: str) -> None:
        try:
            told = await resolve(self._ask, run)
            if told:
                self._found(told)
        except HoldfastError as error:
            _log.info("a deadlock could not be looked for: %s", error)
        finally:
            self._searches.pop(run, None)
