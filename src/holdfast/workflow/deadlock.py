"""Runs that wait for each other in a circle: found, and told to the youngest of those who wait for a lock.

A run is stuck when nothing but a lock or the end of a child can bring it on, and no event is on its way to it. Stuck
runs of which each waits for what others of them hold, or for others of them to end, will wait for ever. What is read is
not one moment of the store: so it is read twice, and counts only if nothing of it has changed in between. While they
are stuck, only somebody outside can change it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from ..commands import Command, Inspect
from ..commands.runs import PostEvent, ReadRun
from ..rules.lock_outcomes import LockSeen, Outcome
from ..rules.lock_record import EMPTY, LockRecord
from ..rules.runs.lock_requests import asker_of, attempt_of
from ..rules.runs.outcomes import Posted, RunSeen
from ..rules.runs.record import Run, RunEvent

MOST_RUNS = 1_000
"""A circle of more is not looked for."""
MOST_TOLD = 10
"""How many waits of a circle are told of."""

Asking = Callable[[Command], Awaitable[Outcome]]


class RunWait(NamedTuple):
    """What a stuck run waits for, and the runs that are in its way; None: somebody else is, or time.

    A lock, by its key and the number of the ask; or the end of a child, which has no number.
    """

    run: Run
    what: str
    number: int | None
    since: int
    behind: frozenset[str] | None


class Graph(NamedTuple):
    """What was read: a run, all that it waits for, at once or behind others, and nobody of them can go on."""

    runs: dict[str, Run]
    locks: dict[str, LockRecord]
    waits: dict[str, list[RunWait]]


class CycleFound(NamedTuple):
    """A circle: who was told of it, whether that is news, and from whom the next one is to be looked for."""

    told: str
    fresh: bool
    again: list[str]


async def resolve(ask: Asking, run: str) -> CycleFound | None:
    """Look for a circle that keeps this run from going on, and tell the youngest who waits for a lock there."""
    graph = await _read(ask, run)
    if graph is None or await _read(ask, run) != graph:
        return None
    circle = circle_of(graph)
    asking = [wait for wait in circle if wait.number]
    if not asking:  # children do not hold their parents: such a circle is none that anybody could be told of
        return None
    victim = max(asking, key=lambda wait: (wait.run.created_at, wait.run.id, wait.number))
    payload = msgspec.json.encode(_told(circle, victim)).decode()
    event = RunEvent(
        kind="deadlock", name=str(victim.number), payload=payload, key=f"deadlock/{victim.number}/{victim.since}"
    )
    posted = await ask(PostEvent(run=victim.run.id, event=event))
    again = [run] if run != victim.run.id else sorted({name for wait in graph.waits[run] for name in wait.behind or ()})
    return CycleFound(victim.run.id, isinstance(posted, Posted) and posted.fresh, again)


def circle_of(graph: Graph) -> list[RunWait]:
    """The waits of some who wait for each other, and for nobody else: who waits behind them can go on after them.

    Everybody waits for somebody here. Whoever begins the last of the walks against the waiting that go through all of
    them is in such a circle: nobody whom it waits for was met before, so all of them wait for it.
    """
    ahead = {name: {other for wait in found for other in wait.behind or ()} for name, found in graph.waits.items()}
    behind = defaultdict[str, set[str]](set)
    for name, others in ahead.items():
        for other in others:
            behind[other].add(name)
    met, last = set[str](), ""
    for name in ahead:
        if name not in met:
            last = name
            _reach(met, behind, name)
    circle = set[str]()
    _reach(circle, ahead, last)
    return [wait for name in ahead if name in circle for wait in graph.waits[name]]


def waits_of(run: Run, locks: Mapping[str, LockRecord]) -> list[RunWait]:
    """What a stuck run waits for, and who is in its way: the holders; those before it, where there would be room."""
    if not _is_stuck(run) or run.stuck is None:
        return []
    youngest_first = reversed(run.stuck.children)  # if one has been told, it is the youngest
    found = [RunWait(run, child, None, 0, frozenset([child])) for child in youngest_first]
    for number, key in run.locks:
        record, attempt = locks.get(key, EMPTY), attempt_of(run.id, number)
        ids = [waiter.id for waiter in record.waiters]
        if any(holder.id == attempt for holder in record.holders):
            continue
        unlisted = next((wait for wait in run.waits if (wait.key, wait.ask) == (key, number)), None)
        if unlisted is not None:  # whoever is listed comes before it; others of the overflow may, too
            place, weight, since = len(ids), unlisted.weight, unlisted.since
        elif attempt in ids:
            place = ids.index(attempt)
            weight, since = record.waiters[place].weight, record.waiters[place].since
        else:
            return [RunWait(run, key, number, 0, None)]  # it was taken from the run, which will be told
        room = record.permits - sum(holder.weight for holder in record.holders)
        ahead = [holder.id for holder in record.holders] + (ids[:place] if weight <= room else [])
        askers = [asker_of(one) for one in ahead]
        known = frozenset(asker[0] for asker in askers if asker is not None)
        behind = None if record.closed_until or None in askers else known
        found.append(RunWait(run, key, number, since, behind))
    return found


def _reach(met: set[str], ways: Mapping[str, Iterable[str]], first: str) -> None:
    """Go wherever the ways lead from here, but not on from who was met before."""
    left = [first]
    while left:
        name = left.pop()
        if name not in met:
            met.add(name)
            left += ways[name]


def _told(circle: list[RunWait], victim: RunWait) -> str:
    """Who has what and waits for what: whom it is told to first of all, and then whoever is in the way."""
    waited = {(wait.run.id, wait.what) for wait in circle if wait.number}
    told = []
    near = sorted(circle, key=lambda one: (one is not victim, one.run.id not in (victim.behind or ()), one.run.id))
    for wait in sorted(near[:MOST_TOLD], key=lambda one: (one.run.id, one.number or 0, one.what)):
        has = [repr(key) for _, key in wait.run.locks if (wait.run.id, key) not in waited]
        what = repr(wait.what) if wait.number else f"the child {wait.what}"
        told.append(f"{wait.run.id}{' has ' + ', '.join(has) + ' and' if has else ''} waits for {what}")
    more = len(circle) - MOST_TOLD
    return "; ".join([*told, f"and {more} more such waits"] if more > 0 else told)


async def _read(ask: Asking, run: str) -> Graph | None:
    """All that a run waits for. None as soon as one of them can go on: then so can, in the end, all who wait for it."""
    graph = Graph({}, {}, {})
    left, at_once = [run], 1
    while left:
        if len(graph.runs) + len(left) > MOST_RUNS:
            return None
        names, left = left[:at_once], left[at_once:]
        at_once *= 4  # most often one of the first few can go on
        seen = await asyncio.gather(*(ask(ReadRun(run=name)) for name in names))
        runs = [one.claim.run for one in seen if isinstance(one, RunSeen) and one.claim is not None]
        if len(runs) < len(names) or not all(_is_stuck(one) for one in runs):
            return None
        keys = sorted({key for one in runs for _, key in one.locks} - graph.locks.keys())
        looks = await asyncio.gather(*(ask(Inspect(key=key)) for key in keys))
        for key, look in zip(keys, looks, strict=True):
            if isinstance(look, LockSeen) and look.record is not None:
                graph.locks[key] = look.record
        behind = dict.fromkeys(left)
        for one in runs:
            waits = waits_of(one, graph.locks)
            if not waits or not all(wait.behind for wait in waits):
                return None
            graph.runs[one.id], graph.waits[one.id] = one, waits
            behind |= {name: None for wait in waits for name in sorted(wait.behind or ())}
        left = [name for name in behind if name not in graph.runs]
    return graph


def _is_stuck(run: Run) -> bool:
    return run.living and run.stuck is not None and run.stuck.seen == run.posted
