"""The page of rules for every lock: pure functions from a record, a request and the time to a new record.

`settle` runs at the start and at the end of every rule: it ends what time has ended and hands free permits
to the head of the queue, so a release hands over in the same atomic step. A hand-over is an *offer* that
lives as long as the waiter's own sign of life, until the waiter confirms it. Every grant carries a token
that is higher than any before it and follows the clock. A thing whose `expires_at` equals `now` has ended.
A rule that changes nothing returns the very record that it was given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from . import outcomes as out
from .record import Forced, Holder, Kind, Label, LockRecord, Tombstone, Waiter

MAX_TOMBSTONES = 64
RETENTION = 7 * 86_400 * 1_000_000

_Mortal = TypeVar("_Mortal", Holder, Waiter, Tombstone)
Step = tuple[LockRecord, out.Outcome]


def settle(record: LockRecord, now: int, *, offers: bool = True) -> tuple[LockRecord, tuple[str, ...]]:
    """End what time has ended, then offer free permits to the queue in order. Returns whom it offered to.

    With `offers=False` nothing is handed over: a free permit waits for the head's own acquire.
    """
    holders = _living(record.holders, now)
    if holders is record.holders and not _restless(record):
        return record, ()
    waiters = _living(record.waiters, now)
    tombstones = _living(record.tombstones, now)
    closed_until, closed_for = record.closed_until, record.closed_for
    if len(holders) != len(record.holders):
        for holder in record.holders:
            lapsed = holder.expires_at
            if lapsed is not None and lapsed <= now and holder.delay and not holder.offered:
                closed_until, closed_for = max(closed_until, lapsed + holder.delay), max(closed_for, holder.delay)
    if closed_until:
        closed_until = min(closed_until, now + closed_for)
        if closed_until <= now:
            closed_until = closed_for = 0
    fence = record.fence
    woken: list[str] = []
    if offers and waiters and not closed_until:
        free = record.permits - sum(holder.weight for holder in holders)
        while waiters and waiters[0].weight <= free:
            head, waiters = waiters[0], waiters[1:]
            fence = next_token(fence, now)
            holders = (*holders, _offer(head, fence, now))
            free -= head.weight
            woken.append(head.id)
    due_at = _due_at(holders, waiters, closed_until)
    if (
        holders is record.holders
        and waiters is record.waiters
        and tombstones is record.tombstones
        and closed_until == record.closed_until
        and due_at == record.due_at
    ):
        return record, ()
    settled = replace(
        record,
        fence=fence,
        version=record.version + 1,
        holders=holders,
        waiters=waiters,
        tombstones=tombstones,
        closed_until=closed_until,
        closed_for=closed_for,
        due_at=due_at,
    )
    return settled, tuple(woken)


def _restless(record: LockRecord) -> bool:
    """Whether there is more in a record than holders, so that time or a free permit may change it."""
    return bool(record.waiters or record.tombstones or record.closed_until or record.due_at is not None)


def next_token(fence: int, now: int) -> int:
    """The token of the next grant: above every earlier one, and not behind the clock."""
    return max(fence + 1, now)


def floor(record: LockRecord) -> int:
    """The lowest token among the living holders; the fence where there are none."""
    return min((holder.token for holder in record.holders), default=record.fence)


def acquire(
    record: LockRecord,
    now: int,
    *,
    id: str,
    label: Label,
    kind: Kind,
    permits: int,
    weight: int,
    ttl: int | None,
    queue: bool,
    waiter_ttl: int | None,
    delay: int = 0,
    offers: bool = True,
) -> Step:
    """Take a permit, confirm an offer, keep a place in the queue, or be refused.

    The same attempt asking again gets the same grant (and its full ttl), or keeps its place. Only a new
    attempt changes the number of permits.
    """
    record, woken = settle(record, now, offers=offers)
    held = _find(record.holders, id)
    if held is not None:
        return _confirm(record, now, held, ttl=ttl, delay=delay, offers=offers, woken=woken)
    stone = _find(record.tombstones, id)
    if stone is not None:
        never_fits = stone.reason == "never_fits"
        return record, out.TooHeavy(permits=record.permits, woken=woken) if never_fits else out.Gone(woken=woken)
    if record.kind != kind and not record.idle:
        return record, out.Mismatch(found=record.kind, woken=woken)
    waiting = _find(record.waiters, id)
    permits_before = None
    if waiting is None:
        if weight > permits:
            return record, out.TooHeavy(permits=permits, woken=woken)
        if permits != record.permits or kind != record.kind:
            permits_before = record.permits if permits != record.permits and record.fence else None
            record, more = settle(_reshape(record, now, kind, permits), now, offers=offers)
            woken += more
    return _take_or_wait(
        record,
        now,
        Waiter(
            id=id,
            label=label,
            since=now if waiting is None else waiting.since,
            ttl=waiter_ttl,
            expires_at=_ends(now, waiter_ttl),
            weight=weight if waiting is None else waiting.weight,
            delay=delay,
            unknown=None if waiting is None else waiting.unknown,
        ),
        ttl=ttl,
        queue=queue,
        offers=offers,
        woken=woken,
        permits_before=permits_before,
    )


def _take_or_wait(
    record: LockRecord,
    now: int,
    me: Waiter,
    *,
    ttl: int | None,
    queue: bool,
    offers: bool,
    woken: tuple[str, ...],
    permits_before: int | None,
) -> Step:
    position = next((place for place, waiter in enumerate(record.waiters) if waiter.id == me.id), None)
    first = position == 0 or not record.waiters
    free = record.permits - sum(holder.weight for holder in record.holders)
    if first and me.weight <= free and not record.closed_until:
        token = next_token(record.fence, now)
        grant = Holder(
            id=me.id,
            label=me.label,
            token=token,
            since=now,
            ttl=ttl,
            expires_at=_ends(now, ttl),
            weight=me.weight,
            delay=me.delay,
            unknown=me.unknown,
        )
        record, more = _change(
            record, now, offers, fence=token, holders=(*record.holders, grant), waiters=_without(record.waiters, me.id)
        )
        return record, out.Granted(
            token=token,
            floor=floor(record),
            since=now,
            expires_at=grant.expires_at,
            woken=woken + more,
            permits_before=permits_before,
        )
    if position is None and not queue:
        return record, out.Busy(
            holders=record.holders,
            waiting=len(record.waiters),
            now=now,
            retry_in=_until(_due_at(record.holders, record.waiters, record.closed_until, always=True), now),
            woken=woken,
            permits_before=permits_before,
        )
    if position is None:
        position = len(record.waiters)
        waiters = (*record.waiters, me)
    else:
        waiters = (*record.waiters[:position], me, *record.waiters[position + 1 :])
    record, more = _change(record, now, offers, waiters=waiters)
    return record, out.Queued(
        position=position,
        holders=record.holders,
        now=now,
        recheck_in=_until(record.due_at, now),
        woken=woken + more,
        permits_before=permits_before,
    )


def _confirm(
    record: LockRecord, now: int, held: Holder, *, ttl: int | None, delay: int, offers: bool, woken: tuple[str, ...]
) -> Step:
    confirmed = replace(
        held,
        ttl=ttl,
        expires_at=_ends(now, ttl),
        offered=False,
        delay=delay,
        since=now if held.offered else held.since,
    )
    record, more = _change(record, now, offers, holders=_put(record.holders, confirmed))
    return record, out.Granted(
        token=confirmed.token,
        floor=floor(record),
        since=confirmed.since,
        expires_at=confirmed.expires_at,
        woken=woken + more,
    )


def renew(record: LockRecord, now: int, *, id: str, token: int | None, ttl: int | None, offers: bool = True) -> Step:
    """Prolong a living grant of this attempt and token, which confirms an offer. What has ended stays ended."""
    record, woken = settle(record, now, offers=offers)
    held = _held_by(record, id, token)
    if held is None:
        return record, out.NotHeld(woken=woken)
    longer = replace(held, ttl=ttl, expires_at=_ends(now, ttl), offered=False)
    record, more = _change(record, now, offers, holders=_put(record.holders, longer))
    return record, out.Renewed(floor=floor(record), expires_at=longer.expires_at, woken=woken + more)


def release(record: LockRecord, now: int, *, id: str, token: int | None, offers: bool = True) -> Step:
    """End a grant of this attempt and token, and offer what is free to the queue."""
    record, woken = settle(record, now, offers=offers)
    if _held_by(record, id, token) is None:
        return record, out.NotHeld(woken=woken)
    record, more = _change(record, now, offers, holders=_without(record.holders, id))
    return record, out.Released(woken=woken + more)


def abandon(record: LockRecord, now: int, *, id: str, ttl: int, offers: bool = True) -> Step:
    """Remove an attempt by its id alone, whatever it has become, and keep it from coming back for one ttl."""
    record, woken = settle(record, now, offers=offers)
    was = "nothing"
    if _find(record.holders, id) is not None:
        was = "holder"
    elif _find(record.waiters, id) is not None:
        was = "waiter"
    stones = (Tombstone(id=id, ttl=ttl, expires_at=now + ttl),) if ttl > 0 else ()
    record, more = _change(
        record,
        now,
        offers,
        holders=_without(record.holders, id),
        waiters=_without(record.waiters, id),
        tombstones=(*_without(record.tombstones, id), *stones)[-MAX_TOMBSTONES:],
    )
    return record, out.Abandoned(was=was, woken=woken + more)


def transfer(
    record: LockRecord,
    now: int,
    *,
    id: str,
    token: int | None,
    to_id: str,
    to_label: Label,
    ttl: int | None,
    offers: bool = True,
) -> Step:
    """Give a living grant to another attempt in one step, under a new and higher token."""
    record, woken = settle(record, now, offers=offers)
    held = _held_by(record, id, token)
    target = _find(record.holders, to_id)
    if held is None and target is not None and target.via == id:
        return record, _transferred(record, target, woken)
    if held is None:
        return record, out.NotHeld(woken=woken)
    if target is not None:
        return record, out.TargetHolds(woken=woken)
    fresh = next_token(record.fence, now)
    successor = replace(
        held,
        id=to_id,
        label=to_label,
        token=fresh,
        since=now,
        ttl=ttl,
        expires_at=_ends(now, ttl),
        via=id,
        offered=False,
    )
    record, more = _change(
        record,
        now,
        offers,
        fence=fresh,
        holders=(*_without(record.holders, id), successor),
        waiters=_without(record.waiters, to_id),
    )
    return record, _transferred(record, successor, woken + more)


def _transferred(record: LockRecord, holder: Holder, woken: tuple[str, ...]) -> out.Transferred:
    return out.Transferred(
        token=holder.token, floor=floor(record), since=holder.since, expires_at=holder.expires_at, woken=woken
    )


def force_release(record: LockRecord, now: int, *, by: str, reason: str, offers: bool = True) -> Step:
    """Put every holder out on an operator's word. Who and why is kept; the fence stays; the queue moves up."""
    record, woken = settle(record, now, offers=offers)
    put_out = record.holders
    if not put_out:
        return record, out.ForceReleased(holders=(), now=now, woken=woken)
    note = Forced(at=now, by=by, reason=reason, holders=tuple(str(holder.label) for holder in put_out))
    record, more = _change(record, now, offers, holders=(), forced=note)
    return record, out.ForceReleased(holders=put_out, now=now, woken=woken + more)


def removable(record: LockRecord, now: int, *, retention: int = RETENTION) -> bool:
    """Whether a record may be forgotten: nothing in it lives, and its fence is long behind the clock.

    A token that follows the clock will then be higher than any that this key ever issued.
    """
    record, _ = settle(record, now)
    return (
        record.idle
        and not record.tombstones
        and not record.closed_until
        and not record.unknown  # a newer version's, and not ours to forget
        and record.fence < now - retention
        and (record.forced is None or record.forced.at < now - retention)
    )


def _change(record: LockRecord, now: int, offers: bool, **fields: object) -> tuple[LockRecord, tuple[str, ...]]:  # noqa: FBT001
    """Write the fields, then settle what follows from them."""
    changed, woken = settle(replace(record, **fields), now, offers=offers)
    if changed == record:
        return record, woken
    return replace(changed, version=record.version + 1), woken


def _reshape(record: LockRecord, now: int, kind: Kind, permits: int) -> LockRecord:
    """Take over the caller's kind (of an idle record) and number of permits; who can no longer fit must go."""
    stay = tuple(waiter for waiter in record.waiters if waiter.weight <= permits)
    gone = tuple(waiter for waiter in record.waiters if waiter.weight > permits)
    stones = tuple(
        Tombstone(id=w.id, ttl=w.ttl or RETENTION, expires_at=now + (w.ttl or RETENTION), reason="never_fits")
        for w in gone
    )
    return replace(
        record,
        kind=kind,
        permits=permits,
        waiters=stay,
        tombstones=(*record.tombstones, *stones)[-MAX_TOMBSTONES:],
        version=record.version + 1,
    )


def _living(things: tuple[_Mortal, ...], now: int) -> tuple[_Mortal, ...]:
    """Drop what has ended, and lower what a clock step has stretched to now + its ttl."""
    for thing in things:
        expires_at = thing.expires_at
        if expires_at is not None and (expires_at <= now or expires_at > now + (thing.ttl or 0)):
            break
    else:
        return things
    kept = []
    for thing in things:
        expires_at = thing.expires_at
        if expires_at is None:
            kept.append(thing)
        else:
            ends = min(expires_at, now + (thing.ttl or 0))
            if ends > now:
                kept.append(thing if ends == expires_at else replace(thing, expires_at=ends))
    return tuple(kept)


def _offer(waiter: Waiter, token: int, now: int) -> Holder:
    return Holder(
        id=waiter.id,
        label=waiter.label,
        token=token,
        since=now,
        ttl=waiter.ttl,
        expires_at=waiter.expires_at,
        weight=waiter.weight,
        offered=True,
        delay=waiter.delay,
        unknown=waiter.unknown,
    )


def _due_at(
    holders: tuple[Holder, ...], waiters: tuple[Waiter, ...], closed_until: int, *, always: bool = False
) -> int | None:
    """The earliest moment at which time alone can change the record, while somebody waits for it."""
    if not waiters and not always:
        return None
    ends = [holder.expires_at for holder in holders if holder.expires_at is not None]
    ends += [waiter.expires_at for waiter in waiters if waiter.expires_at is not None]
    if closed_until:
        ends.append(closed_until)
    return min(ends, default=None)


def _until(moment: int | None, now: int) -> int | None:
    return None if moment is None else max(0, moment - now)


def _ends(now: int, ttl: int | None) -> int | None:
    return None if ttl is None else now + ttl


def _held_by(record: LockRecord, id: str, token: int | None) -> Holder | None:
    """The living grant of this attempt; only a `lease` may be named by its owner alone."""
    held = _find(record.holders, id)
    if held is None or (token is None and record.kind != "lease"):
        return None
    return held if token is None or held.token == token else None


def _find(things: Iterable[_Mortal], id: str) -> _Mortal | None:
    for thing in things:
        if thing.id == id:
            return thing
    return None


def _without(things: tuple[_Mortal, ...], id: str) -> tuple[_Mortal, ...]:
    return tuple(thing for thing in things if thing.id != id)


def _put(holders: tuple[Holder, ...], changed: Holder) -> tuple[Holder, ...]:
    return tuple(changed if holder.id == changed.id else holder for holder in holders)
