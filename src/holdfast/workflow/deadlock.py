"""Deadlock detection: finds runs that wait for each other, and notifies the youngest of them that waits for a lock.

A run is stuck if only a lock or the end of a child lets it continue, and it has received all its events. A group of
stuck runs waits forever if each of them waits for a lock that another run of the group holds, or for the end of
another run of the group. The reads are not one snapshot of the store. So all data is read twice, and used only if it
has not changed in between. A group of stuck runs can continue only after a change from outside of the group.
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
from ..rules.runs.lock_requests import attempt_of, run_of_attempt
from ..rules.runs.outcomes import Posted, RunSeen
from ..rules.runs.record import Run, RunEvent, is_stuck

MAX_RUNS = 1_000
"""Cycles that need more runs to be read are not searched for."""
MAX_DESCRIBED = 10
"""At most so many waits of a cycle are described."""

Execute = Callable[[Command], Awaitable[Outcome]]


class RunWait(NamedTuple):
    """What a stuck run waits for, and the runs that block it; None: a process or time blocks it.

    `what` and `number` are the key of a lock and the number of its request, or the id of a child and None.
    """

    run: Run
    what: str
    number: int | None
    since: int
    behind: frozenset[str] | None


class Graph(NamedTuple):
    """A run and all runs that it waits for, directly or indirectly; none of them can continue."""

    runs: dict[str, Run]
    locks: dict[str, LockRecord]
    waits: dict[str, list[RunWait]]


class CycleFound(NamedTuple):
    """A cycle: the notified run, whether it was not notified before, and the runs to search from next."""

    victim: str
    fresh: bool
    again: list[str]


async def resolve(execute: Execute, run: str) -> CycleFound | None:
    """Search for a cycle that blocks this run, and notify the youngest run in it that waits for a lock."""
    graph = await _read(execute, run)
    if graph is None or await _read(execute, run) != graph:
        return None
    cycle = cycle_of(graph)
    requests = [wait for wait in cycle if wait.number]
    if not requests:  # they wait only for children: there is no wait for a lock that could be refused
        return None
    victim = max(requests, key=lambda wait: (wait.run.created_at, wait.run.id, wait.number))
    payload = msgspec.json.encode(_description(cycle, victim)).decode()
    event = RunEvent(
        kind="deadlock", name=str(victim.number), payload=payload, key=f"deadlock/{victim.number}/{victim.since}"
    )
    posted = await execute(PostEvent(run=victim.run.id, event=event))
    again = [run] if run != victim.run.id else sorted({name for wait in graph.waits[run] for name in wait.behind or ()})
    return CycleFound(victim.run.id, isinstance(posted, Posted) and posted.fresh, again)


def cycle_of(graph: Graph) -> list[RunWait]:
    """The waits of runs that wait only for each other. Runs outside of the cycle can continue when it is resolved.

    Every run of the graph waits for another one. Walks go from runs to those that wait for them, until all runs are
    visited. The run at which the last walk begins is in such a cycle: none of the runs that it waits for was visited
    by an earlier walk, so the last walk visits all of them, which means that all of them wait for it.
    """
    ahead = {name: {other for wait in found for other in wait.behind or ()} for name, found in graph.waits.items()}
    behind = defaultdict[str, set[str]](set)
    for name, others in ahead.items():
        for other in others:
            behind[other].add(name)
    visited, last = set[str](), ""
    for name in ahead:
        if name not in visited:
            last = name
            _visit(visited, behind, name)
    cycle = set[str]()
    _visit(cycle, ahead, last)
    return [wait for name in ahead if name in cycle for wait in graph.waits[name]]


def waits_of(run: Run, locks: Mapping[str, LockRecord]) -> list[RunWait]:
    """What a stuck run waits for, and which runs block it: the holders; if permits are free, the waiters before it."""
    if not is_stuck(run) or run.stuck is None:
        return []
    youngest_first = reversed(run.stuck.children)  # if a child was notified already, it is the youngest
    found = [RunWait(run, child, None, 0, frozenset([child])) for child in youngest_first]
    for number, key in run.locks:
        record, attempt = locks.get(key, EMPTY), attempt_of(run.id, number)
        ids = [waiter.id for waiter in record.waiters]
        if any(holder.id == attempt for holder in record.holders):
            continue
        unlisted = next((wait for wait in run.waits if (wait.key, wait.ask) == (key, number)), None)
        if unlisted is not None:  # all listed waiters are before it; others of the overflow may be, too
            position, weight, since = len(ids), unlisted.weight, unlisted.since
        elif attempt in ids:
            position = ids.index(attempt)
            weight, since = record.waiters[position].weight, record.waiters[position].since
        else:
            return [RunWait(run, key, number, 0, None)]  # it was taken from the run, which will be notified
        room = record.permits - sum(holder.weight for holder in record.holders)
        ahead = [holder.id for holder in record.holders] + (ids[:position] if weight <= room else [])
        askers = [run_of_attempt(one) for one in ahead]
        known = frozenset(asker[0] for asker in askers if asker is not None)
        behind = None if record.closed_until or None in askers else known
        found.append(RunWait(run, key, number, since, behind))
    return found


def _visit(visited: set[str], edges: Mapping[str, Iterable[str]], first: str) -> None:
    """Visit everything that can be reached from here, except through what was visited before."""
    left = [first]
    while left:
        name = left.pop()
        if name not in visited:
            visited.add(name)
            left += edges[name]


def _description(cycle: list[RunWait], victim: RunWait) -> str:
    """Which run holds and waits for what; if there are many, those of the victim and of the runs that block it."""
    waited = {(wait.run.id, wait.what) for wait in cycle if wait.number}
    described = []
    near = sorted(cycle, key=lambda one: (one is not victim, one.run.id not in (victim.behind or ()), one.run.id))
    for wait in sorted(near[:MAX_DESCRIBED], key=lambda one: (one.run.id, one.number or 0, one.what)):
        held = [repr(key) for _, key in wait.run.locks if (wait.run.id, key) not in waited]
        what = repr(wait.what) if wait.number else f"the child {wait.what}"
        described.append(f"{wait.run.id}{' holds ' + ', '.join(held) + ' and' if held else ''} waits for {what}")
    more = len(cycle) - MAX_DESCRIBED
    return "; ".join([*described, f"and {more} more such waits"] if more > 0 else described)


async def _read(execute: Execute, run: str) -> Graph | None:
    """All that a run waits for. None as soon as one of these runs can continue: then all runs behind it can, later."""
    graph = Graph({}, {}, {})
    left, at_once = [run], 1
    while left:
        if len(graph.runs) + len(left) > MAX_RUNS:
            return None
        names, left = left[:at_once], left[at_once:]
        at_once *= 4  # most often one of the first few can continue
        seen = await asyncio.gather(*(execute(ReadRun(run=name)) for name in names))
        runs = [one.claim.run for one in seen if isinstance(one, RunSeen) and one.claim is not None]
        if len(runs) < len(names) or not all(is_stuck(one) for one in runs):
            return None
        keys = sorted({key for one in runs for _, key in one.locks} - graph.locks.keys())
        locks = await asyncio.gather(*(execute(Inspect(key=key)) for key in keys))
        for key, seen_lock in zip(keys, locks, strict=True):
            if isinstance(seen_lock, LockSeen) and seen_lock.record is not None:
                graph.locks[key] = seen_lock.record
        behind = dict.fromkeys(left)
        for one in runs:
            waits = waits_of(one, graph.locks)
            if not waits or not all(wait.behind for wait in waits):
                return None
            graph.runs[one.id], graph.waits[one.id] = one, waits
            behind |= {name: None for wait in waits for name in sorted(wait.behind or ())}
        left = [name for name in behind if name not in graph.runs]
    return graph
