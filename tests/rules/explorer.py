"""Explores every interleaving of a few owners on one lock, up to a depth.

The search is breadth first over distinct states. A state is the record, the clock, and what each owner believes; two
states are equal when they differ only in names, in the size of tokens or in the time of day, which no rule
distinguishes. Every step is checked against all invariants of `invariants.py`, and against mutual exclusion: an owner
that believes that it holds the lock does hold it, and there are never more such owners than permits.

Without trouble, owners acquire (queueing or not), renew, release and abandon while time passes, and begin again with a
new attempt: these paths are finite and are explored completely. With trouble, replies are lost, owners crash and
transfer, and messages of the earlier attempt arrive late: these paths are explored up to a depth.

    python -m tests.rules.explorer --depth 8
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.commands import Abandon, Acquire, LockCommand, PassOver, Release, Renew, Transfer
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, Holder, Label, LockRecord, Waiter

from .harness import SECOND, T0
from .invariants import Asked, step_violations, violations

TICK = SECOND
TTL = 3 * TICK
PATIENCE = 2 * TICK
LABEL = Label("owner")
PLAIN = ("Granted", "Queued", "Busy", "Renewed", "Released", "Abandoned", "NotHolder")
TROUBLED = (*PLAIN, "Transferred", "TargetHolds", "Gone", "PassedOver")
TO_THE_END = 1_000
MOST_MISSED = 1
"""An offer is not longer than a position, which is two ticks here: more misses than this make no difference."""

MINIMUM = {
    (1, False): (10_500, 125_000),
    (2, False): (3_200, 41_000),
    (1, True): (11_500, 56_000),
    (2, True): (20_000, 94_000),
}
"""By permits and trouble: three owners, explored completely, or with trouble to depth 6, give at least so many states
and transitions. Fewer mean that the search is broken."""


class Attempt(NamedTuple):
    """What an owner knows of one attempt: the token that it got (0: none) and until when it believes to hold the
    lock."""

    id: str
    token: int = 0
    until: int = 0


class Owner(NamedTuple):
    current: Attempt
    earlier: Attempt  # its late messages may still arrive; no owner believes that it holds
    count: int = 1

    def with_a_new_attempt(self) -> Owner:
        name = self.current.id.partition(".")[0]
        return Owner(Attempt(f"{name}.{self.count + 1}"), self.current._replace(until=0), self.count + 1)


class State(NamedTuple):
    record: LockRecord
    now: int
    owners: tuple[Owner, ...]


class Report(NamedTuple):
    depth: int
    states: int
    transitions: int
    answers: Counter[str]
    complete: bool  # no state was left to continue from: the depth did not limit the search

    def __str__(self) -> str:
        seen = ", ".join(f"{count:,} {name}" for name, count in self.answers.most_common())
        end = "complete" if self.complete else "cut"
        return f"depth {self.depth} ({end}): {self.states:,} states, {self.transitions:,} transitions; {seen}"


class Broken(AssertionError):
    """An invariant did not hold; the message contains it and the steps that lead there."""


def explore(*, owners: int, permits: int, depth: int, trouble: bool = True) -> Report:
    """Explore every path of up to `depth` steps. Without `trouble` no reply is lost, no owner crashes, no message is
    late."""
    start = State(EMPTY, T0, tuple(Owner(Attempt(f"{name}.1"), Attempt(f"{name}.0")) for name in "abcdefgh"[:owners]))
    seen = {_normal(start, trouble=trouble)}
    frontier: list[tuple[State, tuple[str, ...]]] = [(start, ())]
    transitions, answers = 0, Counter[str]()
    level = 0
    while frontier and level < depth:
        level += 1
        ahead = []
        for state, way in frontier:
            for name, following, answer in _steps(state, permits, way, trouble=trouble):
                transitions += 1
                answers[type(answer).__name__] += 1
                normal = _normal(following, trouble=trouble)
                if normal not in seen:
                    seen.add(normal)
                    ahead.append((following, (*way, name)))
        frontier = ahead
    return Report(level, len(seen), transitions, answers, complete=not frontier)


def _steps(
    state: State, permits: int, way: tuple[str, ...], *, trouble: bool
) -> Iterator[tuple[str, State, out.Outcome]]:
    yield "tick", _checked(state._replace(now=state.now + TICK), permits, (*way, "tick")), out.Settled()
    alive = {thing.id for thing in (*state.record.holders, *state.record.waiters)}
    unowned = alive - {owner.current.id for owner in state.owners}
    for place, owner in enumerate(state.owners):
        moves = [
            *_moves(owner, permits),
            *(_troubles(owner, state.owners, permits, unowned, state.record.holders) if trouble else ()),
        ]
        for name, command, lost in moves:
            step = f"{name} {owner.current.id}"
            record, answer = command.apply(state.record, state.now)
            problems = step_violations(state.record, Asked.of(command), record, answer, state.now)
            problems += violations(record, state.now)
            if problems:
                raise Broken("\n".join([*problems, " -> ".join((*way, step)), f"{answer}", f"{record}"]))
            after = _learn(state._replace(record=record), place, command, answer, lost=lost)
            yield step, _checked(after, permits, (*way, step)), answer
        if trouble and owner.current.id in alive and not unowned:
            step = f"crash of {owner.current.id}"
            yield step, _put(state, place, owner.with_a_new_attempt()), out.Settled()


Move = tuple[str, LockCommand, bool]  # its name, the command, and whether the reply is lost


def _moves(owner: Owner, permits: int) -> Iterator[Move]:
    me = owner.current
    yield "wait", _acquire(me.id, permits, queue=True), False
    yield "try", _acquire(me.id, permits, queue=False), False
    yield "abandon", Abandon(key="k", id=me.id, ttl=TTL), False
    if me.token:
        yield "renew", Renew(key="k", id=me.id, token=me.token, ttl=TTL), False
        yield "release", Release(key="k", id=me.id, token=me.token), False


def _troubles(
    owner: Owner, owners: tuple[Owner, ...], permits: int, unowned: set[str], holders: tuple[Holder, ...]
) -> Iterator[Move]:
    me, late = owner.current, owner.earlier
    yield "wait, reply lost", _acquire(me.id, permits, queue=True), True
    if not unowned or late.id in unowned:
        yield "late wait", _acquire(late.id, permits, queue=True), True
    if late.token:
        yield "late renew", Renew(key="k", id=late.id, token=late.token, ttl=TTL), True
        yield "late release", Release(key="k", id=late.id, token=late.token), True
    offer = next((holder for holder in holders if holder.id == me.id and holder.offered), None)
    if offer is not None:
        yield "pass over", PassOver(key="k", id=me.id, token=offer.token), True
    for other in owners:
        if me.token and other is not owner:
            to = other.current.id
            give = Transfer(key="k", id=me.id, token=me.token, to_id=to, to_label=LABEL, ttl=TTL)
            yield f"transfer to {to}", give, False


def _acquire(id: str, permits: int, *, queue: bool) -> Acquire:
    kind = "mutex" if permits == 1 else "semaphore"
    return Acquire(key="k", id=id, label=LABEL, kind=kind, permits=permits, ttl=TTL, queue=queue, waiter_ttl=PATIENCE)


def _learn(state: State, place: int, command: LockCommand, answer: out.Outcome, *, lost: bool) -> State:
    """Update what the owner believes. An owner that gives up its grant stops believing before the outcome arrives."""
    owner = state.owners[place]
    if lost:
        return state
    if isinstance(command, Release | Abandon):
        return _put(state, place, owner.with_a_new_attempt())
    if isinstance(command, Transfer):
        if isinstance(answer, out.Transferred):
            other = next(n for n, one in enumerate(state.owners) if one.current.id == command.to_id)
            given = state.owners[other].current._replace(token=answer.token, until=state.now + TTL)
            state = _put(state, other, state.owners[other]._replace(current=given))
        return _put(state, place, owner.with_a_new_attempt())
    if isinstance(answer, out.Granted):
        granted = owner.current._replace(token=answer.token, until=state.now + TTL)
        return _put(state, place, owner._replace(current=granted))
    if isinstance(answer, out.Renewed):
        return _put(state, place, owner._replace(current=owner.current._replace(until=state.now + TTL)))
    return _put(state, place, owner._replace(current=owner.current._replace(until=0)))


def _put(state: State, place: int, owner: Owner) -> State:
    return state._replace(owners=(*state.owners[:place], owner, *state.owners[place + 1 :]))


def _checked(state: State, permits: int, way: tuple[str, ...]) -> State:
    """Check exclusion: every owner that believes that it holds does hold, and there are not more of them than
    permits."""
    believing = [owner.current for owner in state.owners if owner.current.until > state.now]
    holds = {(holder.id, holder.token): holder for holder in state.record.holders}
    for owner in believing:
        holder = holds.get((owner.id, owner.token))
        if holder is None or holder.expires_at < owner.until:
            raise Broken(f"{owner.id} believes that it holds, and does not: {' -> '.join(way)}\n{state.record}")
    if len(believing) > permits:
        raise Broken(f"{len(believing)} believe that they hold: {' -> '.join(way)}\n{state.record}")
    return state


def _normal(state: State, *, trouble: bool) -> tuple:
    """The state without names, sizes of tokens and the time of day. Owners are distinguished by what they have."""
    record, now = state.record, state.now
    things = (*record.holders, *record.waiters)
    spot = {thing.id: number for number, thing in enumerate(things)}
    stones = {stone.id: _left(stone.expires_at, now) for stone in record.tombstones}
    tokens = {holder.token: number for number, holder in enumerate(record.holders)}
    givers = {holder.via: number for number, holder in enumerate(record.holders) if holder.via}

    def seen_by(attempt: Attempt) -> tuple[int, ...]:
        return (
            spot.get(attempt.id, -1),
            stones.get(attempt.id, 0),
            tokens.get(attempt.token, -1) if attempt.token else -2,
            givers.get(attempt.id, -1),
            _left(attempt.until, now),
        )

    return (
        len(record.holders),
        tuple(
            [
                (_left(holder.expires_at, now), holder.offered, _place(holder.place, record, now))
                for holder in record.holders
            ]
        ),
        tuple([_place(waiter, record, now)[:-1] for waiter in record.waiters]),
        tuple(sorted([(seen_by(one.current), seen_by(one.earlier) if trouble else ()) for one in state.owners])),
    )


def _place(place: Waiter | None, record: LockRecord, now: int) -> tuple[int, ...]:
    """A position in the queue: how long it is kept, how many offers were missed, and how many waiters would be before
    it."""
    if place is None:
        return ()
    before = sum(waiter.number < place.number for waiter in record.waiters)
    others = sum(other.place is not None and other.place.number < place.number for other in record.holders)
    return _left(place.expires_at, now), min(place.missed, MOST_MISSED), place.passed, before, others


def _left(moment: int, now: int) -> int:
    return max(0, moment - now)


def why_insufficient(report: Report, *, permits: int, trouble: bool) -> str:
    """Why a report is insufficient, or an empty text."""
    states, transitions = MINIMUM[permits, trouble]
    if report.states < states or report.transitions < transitions:
        return f"too quiet: expected at least {states:,} states and {transitions:,} transitions"
    expected = [name for name in (TROUBLED if trouble else PLAIN) if (name, permits) != ("TargetHolds", 1)]
    unseen = [name for name in expected if not report.answers[name]]
    if unseen:
        return f"too quiet: never answered {', '.join(unseen)}"
    return "" if trouble or report.complete else "the plain ways were not walked to the end"


def main() -> int:
    parser = argparse.ArgumentParser(description="Explore every interleaving of owners on one lock.")
    parser.add_argument("--depth", type=int, default=6, help="how many steps to go with trouble")
    parser.add_argument("--owners", type=int, default=3, help="three or more; fewer are too quiet")
    options = parser.parse_args()
    failed = 0
    for permits, trouble in MINIMUM:
        began = time.monotonic()
        depth = options.depth if trouble else TO_THE_END
        report = explore(owners=options.owners, permits=permits, depth=depth, trouble=trouble)
        kind = "in trouble" if trouble else "plain"
        took = time.monotonic() - began
        print(f"{options.owners} owners, {permits} permits, {kind}, {report} ({took:.1f} s)", flush=True)  # noqa: T201
        quiet = why_insufficient(report, permits=permits, trouble=trouble)
        if quiet:
            print(quiet, file=sys.stderr, flush=True)  # noqa: T201
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
