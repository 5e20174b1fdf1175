"""Runs that wait for each other in a circle: found, and told to the youngest of them.

A run is stuck when nothing but a lock can bring it on, and no event is on its way to it. Stuck runs of which each waits
for what others of them hold will wait for ever. What is read is not one moment of the store: so it is read twice, and
counts only if nothing of it has changed in between. While they are stuck, only somebody outside can change it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import msgspec

from ..commands import Command, Inspect
from ..rules.asks import asker_of, attempt_of
from ..rules.outcomes import Outcome, Seen
from ..rules.record import LockRecord
from ..rules.run import Event, Run
from ..rules.run_outcomes import RunSeen
from ..run_commands import PostEvent, SeeRun

MOST_RUNS = 1_000
"""A circle of more is not looked for."""

Asking = Callable[[Command], Awaitable[Outcome]]


class Wait(NamedTuple):
    """A stuck run, what it waits for by which ask, and the runs that are in its way; None: somebody else is, too."""

    run: Run
    key: str
    number: int
    since: int
    behind: frozenset[str] | None


class Graph(NamedTuple):
    """What was read."""

    runs: dict[str, Run]
    locks: dict[str, LockRecord]


async def resolve(ask: Asking, run: str) -> str:
    """Look for a circle that keeps this run from going on, and tell the youngest of it. Returns whom; empty: none."""
    graph = await _read(ask, [run])
    circle = circle_of(graph, run)
    if not circle or await _read(ask, [run]) != graph:
        return ""
    victim = max(circle, key=lambda wait: (wait.run.created_at, wait.run.id, wait.number))
    payload = msgspec.json.encode(_told(circle)).decode()
    event = Event(
        kind="deadlock", name=str(victim.number), payload=payload, key=f"deadlock/{victim.number}/{victim.since}"
    )
    await ask(PostEvent(run=victim.run.id, event=event))
    return victim.run.id


def circle_of(graph: Graph, run: str) -> list[Wait]:
    """The waits of those who wait for each other, and whom this run waits for."""
    waits = {name: _waits(graph, one) for name, one in graph.runs.items() if _is_stuck(one)}
    waits = {name: found for name, found in waits.items() if found}
    while True:  # who waits for somebody who can go on can go on, too
        free = [
            name
            for name, found in waits.items()
            if any(wait.behind is None or not wait.behind <= waits.keys() for wait in found)
        ]
        if not free:
            break
        for name in free:
            del waits[name]
    ahead = {name: frozenset().union(*(wait.behind or () for wait in found)) for name, found in waits.items()}
    circle = [name for name in _reached(ahead, [run]) if name in ahead and name in _reached(ahead, ahead[name])]
    return [wait for name in circle for wait in waits[name]]


def _is_stuck(run: Run) -> bool:
    return run.living and run.stuck >= 0 and run.stuck == run.posted


def _waits(graph: Graph, run: Run) -> list[Wait]:
    """What a stuck run waits for, and who is in its way: the holders; those before it only if they leave it no room."""
    found = []
    for number, key in run.locks:
        record, attempt = graph.locks.get(key), attempt_of(run.id, number)
        ids = [] if record is None else [waiter.id for waiter in record.waiters]
        if record is None or attempt not in ids:
            continue
        place = ids.index(attempt)
        me = record.waiters[place]
        mortal = any(holder.expires_at is not None for holder in record.holders)  # time will end it
        room = record.permits - sum(holder.weight for holder in record.holders)
        ahead = [holder.id for holder in record.holders] + (ids[:place] if me.weight <= room else [])
        askers = [asker_of(one) for one in ahead]
        behind = None if mortal or None in askers else frozenset(asker[0] for asker in askers if asker is not None)
        found.append(Wait(run, key, number, me.since, behind))
    return found


def _reached(ahead: dict[str, frozenset[str]], first: Iterable[str]) -> list[str]:
    found, left = dict[str, None](), list(first)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = None
            left += ahead.get(name, ())
    return list(found)


def _told(circle: list[Wait]) -> str:
    return ", ".join(f"{wait.run.id} waits for {wait.key!r}" for wait in sorted(circle, key=lambda one: one.run.id))


async def _read(ask: Asking, first: list[str]) -> Graph:
    """All stuck runs that this one waits for, whether at once or behind others, and the locks of these."""
    graph = Graph({}, {})
    left = first
    while left and len(graph.runs) < MOST_RUNS:
        seen = await asyncio.gather(*(ask(SeeRun(run=name)) for name in left))
        runs = [one.claim.run for one in seen if isinstance(one, RunSeen) and one.claim is not None]
        graph.runs.update({run.id: run for run in runs})
        keys = {key for run in runs if _is_stuck(run) for _, key in run.locks} - graph.locks.keys()
        looks = await asyncio.gather(*(ask(Inspect(key=key)) for key in keys))
        for key, look in zip(keys, looks, strict=True):
            if isinstance(look, Seen) and look.record is not None:
                graph.locks[key] = look.record
        there = [graph.locks[key] for key in keys if key in graph.locks]
        ids = [holder.id for record in there for holder in record.holders]
        ids += [waiter.id for record in there for waiter in record.waiters]
        named = dict.fromkeys(asker[0] for one in ids if (asker := asker_of(one)) is not None)
        left = [name for name in named if name not in graph.runs]
    return graph
