"""Updates: requests that a run answers. Each is an event in the inbox, and a record for the answer.

The record is found by the key of the request, so a request that is sent again is not posted again, and gets the answer
that there is. The answer is written in the step that journals it. A page lists the keys of answered requests in their
order, so that old answers are found and removed: `KEPT` are remembered for a run, none for longer than `KEPT_FOR`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ..lock_outcomes import Outcome
from .helpers import known
from .helpers import post as post_to
from .outcomes import RunRefused, UpdateSeen
from .own_records import own_key, own_prefix, with_records
from .record import WATCHERS, Run, RunEvent
from .replacing import RESENT_AMONG, RESENT_WITHIN
from .repository import RunRepository
from .requests import ANSWERED_PAGE, ANSWERED_PAGES, UPDATE, AnsweredPage, AnsweredPages, Reply, Update
from .tree import digest

KIND = "updates"
"""The name under which a run notes that it has such records."""
KEPT = 10_000
"""How many answers are remembered for a run, besides those on the last page."""
KEPT_FOR = 24 * 60 * 60 * 1_000_000
"""Microseconds for which an answer is remembered."""
PAGE_SIZE = 100
"""How many keys of answered requests a page lists."""


def page_key(run: Run, number: int) -> str:
    """The key of a page."""
    return f"{own_prefix(run)}{number}"


def ask(repo: RunRepository, now: int, *, run: str, event: RunEvent, watcher: str) -> Outcome:
    """Post a request to a run, once, and note who waits for the answer.

    A request that is sent again is looked for in replaced runs too, as starts are, so that it is not posted twice. The
    key of a request with another name is refused: its answer is not the one to this request.
    """
    found = known(repo, run)
    if found is None:
        return RunRefused(run=None)
    asked = found
    for _ in range(RESENT_AMONG):
        update = repo.record(UPDATE, own_key(asked, event.key))
        if update is not None and update.name != event.name:
            return UpdateSeen(run=asked, update=update, other=True)
        if update is not None:
            return _seen(repo, asked, event.key, update, watcher)
        before = known(repo, asked.replaces) if asked.replaces and asked.created_at >= now - RESENT_WITHIN else None
        if before is None:
            break
        asked = before
    if not found.living:
        return RunRefused(run=found)
    posted = post_to(repo, now, with_records(_watched(found, watcher), KIND), event)
    update = Update(name=event.name, asked_at=now, watchers=(watcher,) if watcher else ())
    repo.put_record(UPDATE, own_key(found, event.key), update)
    return UpdateSeen(run=posted.run, update=update, woken=posted.woken)


def watch(repo: RunRepository, *, run: str, first: int, key: str, watcher: str) -> Outcome:
    """Read a request of the run that began with the generation `first`, and notify this attempt of the answer."""
    found = known(repo, run)
    while found is not None and found.first > first and found.replaces:
        found = known(repo, found.replaces)
    if found is None or found.first != first:
        return RunRefused(run=None)
    update = repo.record(UPDATE, own_key(found, key))
    return UpdateSeen(run=found, update=None) if update is None else _seen(repo, found, key, update, watcher)


def answer(repo: RunRepository, now: int, run: Run, replies: Iterable[Reply]) -> tuple[str, ...]:
    """Write the answers of a run, and return the attempts that wait for them. The first answer to a request counts.

    A request that is not known, because the run is a fork or was imported, gets no answer.
    """
    woken: tuple[str, ...] = ()
    keys: list[str] = []
    for reply in replies:
        update = repo.record(UPDATE, own_key(run, reply.key))
        if update is not None and update.answered_at is None:
            answered = replace(update, answered_at=now, answer=reply.answer, refused=reply.refused, watchers=())
            repo.put_record(UPDATE, own_key(run, reply.key), answered)
            keys.append(digest(reply.key))
            woken += update.watchers
    if keys:
        _remember(repo, now, run, keys)
    return woken


def _seen(repo: RunRepository, run: Run, key: str, update: Update, watcher: str) -> UpdateSeen:
    waits = watcher and update.answered_at is None and run.living
    if waits and watcher not in update.watchers and len(update.watchers) < WATCHERS:
        update = replace(update, watchers=(*update.watchers, watcher))
        repo.put_record(UPDATE, own_key(run, key), update)
        if (watched := _watched(run, watcher)) is not run:
            repo.save(watched)
    return UpdateSeen(run=run, update=update)


def _watched(run: Run, watcher: str) -> Run:
    """The run, whose end notifies this attempt too: a run that has ended answers nothing."""
    if not watcher or watcher in run.watchers or len(run.watchers) >= WATCHERS:
        return run
    return replace(run, watchers=(*run.watchers, watcher))


def _remember(repo: RunRepository, now: int, run: Run, keys: list[str]) -> None:
    """Note which requests were answered, and forget the answers of the oldest page if it is old enough."""
    pages = repo.record(ANSWERED_PAGES, own_prefix(run)) or AnsweredPages()
    page = repo.record(ANSWERED_PAGE, page_key(run, pages.last)) or AnsweredPage(at=now, keys=())
    if len(page.keys) >= PAGE_SIZE:
        pages, page = replace(pages, last=pages.last + 1), AnsweredPage(at=now, keys=())
    repo.put_record(ANSWERED_PAGE, page_key(run, pages.last), AnsweredPage(at=now, keys=(*page.keys, *keys)))
    oldest = repo.record(ANSWERED_PAGE, page_key(run, pages.first)) if pages.first < pages.last else None
    kept = (pages.last - pages.first) * PAGE_SIZE
    if oldest is not None and (kept > KEPT or oldest.at < now - KEPT_FOR):
        for key in oldest.keys:
            repo.put_record(UPDATE, own_prefix(run) + key, None)
        repo.put_record(ANSWERED_PAGE, page_key(run, pages.first), None)
        pages = replace(pages, first=pages.first + 1)
    repo.put_record(ANSWERED_PAGES, own_prefix(run), pages)
