"""The invariants of a lock, which hold after every step.

`violations` checks one settled record; `step_violations` checks one step: the record before and after, the command and
its outcome. Both return one sentence per violation. They share no code with `rules.lock`, so they can be used to check
the rules and every store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from msgspec.structs import replace

from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock import HINTED_AFTER_A_MISS, MAX_TOMBSTONES, MAX_WAITERS, OFFER_LIFE
from holdfast.rules.lock_record import Holder, LockRecord, Tombstone, Waiter

from .steps import Asked, Change, everyone, floor, identity_of, load, lowered, place_of

__all__ = ["MAX_TOKEN", "Asked", "step_violations", "violations"]

MAX_TOKEN = 2**53 - 1


def violations(record: LockRecord, now: int, *, offers: bool = True) -> list[str]:
    """What is wrong with a record that was settled at `now`. Without `offers` the head of the queue may fit."""
    found = [text for check in _STATE for text in check(record)]
    found += _everything_expired_is_removed(record, now)
    if offers:
        found += _no_waiter_is_missed(record)
    return found


def step_violations(
    before: LockRecord, asked: Asked, after: LockRecord, answer: out.Outcome, now: int, *, stored: bool = False
) -> list[str]:
    """What is wrong with one step of a command that may write.

    `stored` records were read back from a store, so what is unchanged is equal but not the same object.
    """
    change = Change(before, asked, after, answer, now)
    found = [text for check in _STEPS for text in check(change)]
    if not stored and after is not before and after == before:
        found.append("nothing changed, but it is not the same record object")
    return found


def _ids_and_tokens_are_unique(record: LockRecord) -> Iterator[str]:
    ids = [one.id for one in everyone(record)]
    stones = [stone.id for stone in record.tombstones]
    if len(set(ids)) != len(ids) or len(set(stones)) != len(stones):
        yield f"an attempt stands in the record twice: {ids} {stones}"
    if not {waiter.id for waiter in record.waiters}.isdisjoint(stones):
        yield "an attempt that must not come back waits"
    tokens = [holder.token for holder in record.holders]
    if any(later <= earlier for earlier, later in pairwise(tokens)):
        yield f"holders do not stand in the order of their tokens: {tokens}"
    numbers = [waiter.number for waiter in record.waiters]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield f"waiters do not stand in the order of their arrival: {numbers}"
    if not set(numbers).isdisjoint(holder.place.number for holder in record.holders if holder.place is not None):
        yield f"a place in the queue was given twice: {numbers}"
    if tokens and not 0 < min(tokens) <= max(tokens) <= record.fence:
        yield f"a token lies outside 1..fence {record.fence}: {tokens}"
    if record.fence > MAX_TOKEN:
        yield f"the fence {record.fence} does not fit into 53 bits"


def _everything_expired_is_removed(record: LockRecord, now: int) -> Iterator[str]:
    entries: list[Holder | Waiter | Tombstone] = [*record.holders, *record.waiters, *record.tombstones]
    for thing in entries:
        if (thing.ttl is None) != (thing.expires_at is None):
            yield f"{thing.id} has an end without a ttl, or a ttl without an end"
        elif thing.ttl is not None and thing.expires_at is not None:
            if thing.expires_at <= now:
                yield f"{thing.id} ended at {thing.expires_at} and is still there at {now}"
            if thing.expires_at > now + thing.ttl:
                yield f"{thing.id} lives until {thing.expires_at}, beyond {now} + {thing.ttl}"
    if bool(record.closed_until) != bool(record.closed_for):
        yield "closed_until and closed_for contradict each other"
    if record.closed_until and not now < record.closed_until <= now + record.closed_for:
        yield f"closed until {record.closed_until}, outside {now} + {record.closed_for}"


def _sizes_are_sound(record: LockRecord) -> Iterator[str]:
    if record.permits < 1 or any(one.weight < 1 for one in everyone(record)):
        yield "permits and weights are at least one"
    if any(waiter.weight > record.permits for waiter in record.waiters):
        yield "an attempt waits that can never fit"
    if len(record.tombstones) > MAX_TOMBSTONES:
        yield f"more than {MAX_TOMBSTONES} tombstones"


def _offers_keep_a_position(record: LockRecord) -> Iterator[str]:
    """An offer that can expire keeps its waiter's position and ends before it; nothing else keeps one."""
    for holder in record.holders:
        place = holder.place
        if (place is not None) != (holder.offered and holder.ttl is not None):
            yield f"{holder.id} has a place without an offer, or an offer without a place"
        elif place is not None:
            ends = place.expires_at
            if place.id != holder.id or place.passed or ends is None or (holder.expires_at or 0) > ends:
                yield f"the offer to {holder.id} outlives its place, or has that of another: {holder}"


def _due_is_the_next_end(record: LockRecord) -> Iterator[str]:
    due = None
    if record.waiters or record.overflow is not None:
        moments = {one.expires_at for one in everyone(record)} | {record.closed_until or None}
        due = min((moment for moment in moments if moment is not None), default=None)
    if record.due_at != due:
        yield f"due at {record.due_at}, but the next thing to end while somebody waits is at {due}"


def _overflow_comes_after_the_listed(record: LockRecord) -> Iterator[str]:
    """The overflow is never empty, and every listed waiter whose place does not expire comes before it."""
    overflow = record.overflow
    if overflow is None:
        return
    if not 1 <= overflow.count <= overflow.last - overflow.first + 1:
        yield f"the overflow counts {overflow.count} waiters from {overflow.first} to {overflow.last}"
    late = [one.id for one in record.waiters if one.ttl is None and one.number >= overflow.first]
    if late:
        yield f"these are listed, and came after the first of the overflow: {late}"


def _no_waiter_is_missed(record: LockRecord) -> Iterator[str]:
    head = next((waiter for waiter in record.waiters if not waiter.passed), None)
    if head is not None and not record.closed_until and head.weight <= record.permits - load(record):
        yield f"a lost wake-up: {head.id} waits though it would fit"
    behind = record.overflow is None or (head is not None and head.number < record.overflow.first)
    if not behind and not record.closed_until and load(record) < record.permits:
        yield "a lost wake-up: a permit is free, and no waiter of the overflow was offered it"


def _fence_counts_every_grant(c: Change) -> Iterator[str]:
    """Every grant takes the next token: above the fence before it, and not behind the clock."""
    grants = len(c.answer.woken) + bool(c.direct)
    fence = max(c.before.fence + 1, c.now) + grants - 1 if grants else c.before.fence
    if c.after.fence != fence:
        yield f"the fence went from {c.before.fence} to {c.after.fence}, not to {fence}, by {grants} grants at {c.now}"
    for holder in c.fresh:
        if holder.token <= c.before.fence or holder.token < c.now:
            yield f"{holder.id} got the token {holder.token}: fence {c.before.fence}, clock {c.now}"
    if floor(c.after.holders, c.after.fence) < floor(c.holding.values(), c.before.fence):
        yield "the floor fell"


def _grants_fit(c: Change) -> Iterator[str]:
    """No grant takes the load above the permits. An offer may precede, in the same step, a cut of the permits."""
    taken = load(c.after)
    given = c.direct if c.asked.verb == "Transfer" else ""
    permits = c.after.permits if c.direct else max(c.before.permits, c.after.permits)
    if c.answer.woken or any(holder.id != given for holder in c.fresh):
        if taken > permits:
            yield f"a grant took the load to {taken} of {permits}"
    elif taken > sum(holder.weight for holder in c.holding.values()):
        yield f"the load rose to {taken} though nothing was granted"


def _grants_come_from_the_head(c: Change) -> Iterator[str]:
    """First in, first out among eligible waiters. A passed-over waiter gets no offer before it acquires again."""
    woken = list(c.answer.woken)
    gone = {w.id for w in c.left if w.weight > c.after.permits} | (
        {c.asked.id, c.asked.to_id} if isinstance(c.answer, out.Abandoned | out.Transferred) else set()
    )
    line = [one.id for one in c.line if one.id in woken or one.id not in gone]
    ends = [one.id for one in c.line if one.ttl is None and one.id in woken]
    if isinstance(c.answer, out.PassedOver) and woken[: len(line)] != line:  # then only those without an end
        line = [one for one in line if one in woken and one not in ends] + ends
    if woken != line[: len(woken)]:
        yield f"offered to {woken} while the line was {line}"
    if c.direct and c.asked.verb == "Acquire":
        mine = c.queue.get(c.direct)
        ahead = [
            one.id
            for one in c.line
            if one.id in line and one.id not in woken and (mine is None or one.number < mine.number)
        ]
        if [one for one in ahead if one != c.direct]:
            yield f"granted to {c.direct} while {ahead} stood before it"


def _called_are_hinted_and_passed_over(c: Change) -> Iterator[str]:
    """After a missed offer all waiters that can expire are passed over, and the first few of them are hinted.

    So are waiters that can no longer fit, if they do not ask again by themselves.
    """
    never_fit = [one.id for one in c.left if one.ttl is None and one.weight > c.after.permits and one.id not in c.named]
    hinted = (*(waiter.id for waiter in c.called[:HINTED_AFTER_A_MISS]), *never_fit)
    if c.answer.hinted != hinted:
        yield f"hinted are {c.answer.hinted}, and should be {hinted}"
    after = {waiter.id: waiter for waiter in c.after.waiters}
    for waiter in c.called:
        late = after.get(waiter.id)
        if late is not None and not late.passed and waiter.id not in c.named:
            yield f"{waiter.id} was called and is not passed over"


def _woken_are_the_new_offers(c: Change) -> Iterator[str]:
    offered = [holder.id for holder in c.fresh if holder.offered]
    if offered != [one for one in c.answer.woken if one in offered]:
        yield f"offers to {offered}, but woken are {c.answer.woken}"
    others = {holder.id for holder in c.fresh if not holder.offered} | (set(c.answer.woken) - set(offered))
    if not others <= c.named:
        yield f"granted or woken without being asked for or offered: {others - c.named}"


def _offers_have_the_right_length(c: Change) -> Iterator[str]:
    """An offer lasts for a second, doubled for each missed offer, and never longer than the waiter's position."""
    for holder in c.fresh:
        waiter = c.queue.get(holder.id)
        if not holder.offered:
            continue
        if waiter is None:
            yield f"an offer to {holder.id}, who did not wait"
            continue
        waiter = lowered(waiter, c.now)
        ttl, ends = waiter.ttl, waiter.expires_at
        if ttl is not None and ends is not None:
            ttl = min(ttl, OFFER_LIFE * 2**waiter.missed)
            ends = min(ends, c.now + ttl)
        if (holder.ttl, holder.expires_at) != (ttl, ends):
            yield f"the offer to {holder.id} lives until {holder.expires_at}, and should until {ends}"
        elif (holder.label, holder.weight, holder.delay, holder.unknown, holder.place) != (
            waiter.label, waiter.weight, waiter.delay, waiter.unknown, None if ttl is None else waiter
        ):  # fmt: skip
            yield f"the offer to {holder.id} is not what it waited for"


def _only_named_attempts_change(c: Change) -> Iterator[str]:
    """A holder expires or is shortened by time; otherwise only its own command changes it, and an expired holder is not
    revived."""
    kept = {holder.token: holder for holder in c.after.holders}
    for holder in c.before.holders:
        late = kept.get(holder.token)
        if holder.id not in c.holding:
            if late is not None:
                yield f"{holder.id} had ended and was revived under its old token"
        elif late is None:
            if holder.id not in c.named:
                yield f"{holder.id} lost a living grant by a step that did not name it"
        elif holder.id not in c.named:
            if late != lowered(holder, c.now):
                yield f"{holder.id} was changed by a step that did not name it"
        elif identity_of(late) != identity_of(holder) or (late.offered and not holder.offered):
            yield f"{holder.id} did not keep what is its own: {late}"


def _only_by_id_and_token(c: Change) -> Iterator[str]:
    """Renew, release and transfer need the attempt and its token; a `lease` may be named by its owner without a
    token."""
    if not isinstance(c.answer, out.Renewed | out.Released | out.Transferred | out.NotHolder | out.PassedOver):
        return
    held = c.holding.get(c.asked.id)
    right = held is not None and c.asked.token == held.token
    if c.asked.token is None:
        right = c.before.kind == "lease" and held is not None
    if c.asked.verb == "PassOver":
        right = held is not None and held.place is not None and c.asked.token == held.token
    if c.asked.id in c.answer.woken:
        return  # offered within this very step, under a token that the record before does not show
    if isinstance(c.answer, out.NotHolder):
        if right:
            yield f"{c.asked.id} holds, and the outcome says that it does not"
    elif c.named and not right:
        yield f"{c.asked.verb} of {c.asked.id} was done without the right id and token"


def _queue_keeps_its_order(c: Change) -> Iterator[str]:
    ids = [waiter.id for waiter in c.after.waiters]
    line = [one for one in c.queue if one in ids]
    if isinstance(c.answer, out.Queued) and c.asked.id not in c.queue:
        line.append(c.asked.id)
    if ids != line:
        yield f"the queue is {ids}, and should be {line}"
    called = {waiter.id for waiter in c.called}
    for waiter in c.after.waiters:
        early = c.queue.get(waiter.id)
        if early is None:
            continue
        kept = lowered(early, c.now)
        if isinstance(c.answer, out.Queued) and waiter.id == c.asked.id:
            if place_of(early) != place_of(waiter) or waiter.passed:
                yield f"the place of {waiter.id} was changed: {waiter}"
        elif waiter != (replace(kept, passed=True) if waiter.id in called else kept):
            yield f"the place of {waiter.id} was changed: {waiter}"
    stones = {stone.id for stone in c.after.tombstones if stone.reason == "never_fits"}
    for waiter in c.left:
        never_fits = waiter.weight > c.after.permits and waiter.id in stones
        named = waiter.id in c.named and not isinstance(c.answer, out.PassedOver)
        if not (waiter.id in c.answer.woken or named or never_fits):
            yield f"{waiter.id} lost its place for no reason"


def _tombstones_hold(c: Change) -> Iterator[str]:
    after = {stone.id: stone for stone in c.after.tombstones}
    for stone in c.stones.values():
        kept = after.get(stone.id)
        if kept is None and len(after) < MAX_TOMBSTONES:
            yield f"the tombstone of {stone.id} was lost"
        elif kept is not None and stone.id not in c.named and kept != lowered(stone, c.now):
            yield f"the tombstone of {stone.id} was changed"
    if c.asked.verb == "Acquire" and c.asked.id in c.stones and c.asked.id not in c.holding:
        if not isinstance(c.answer, out.Gone | out.TooHeavy):
            yield f"{c.asked.id} was abandoned, and is not refused: {c.answer}"
    elif isinstance(c.answer, out.Gone):
        yield f"{c.asked.id} was refused as gone, and never was"


def _closed_only_by_an_expired_grant(c: Change) -> Iterator[str]:
    """The lock-delay counts from the expiry of a confirmed grant that was not released."""
    until, length = c.before.closed_until, c.before.closed_for
    for holder in c.before.holders:
        if holder.expires_at is not None and holder.expires_at <= c.now and holder.delay and not holder.offered:
            until, length = max(until, holder.expires_at + holder.delay), max(length, holder.delay)
    until = min(until, c.now + length)
    if c.after.closed_until != (until if until > c.now else 0):
        yield f"closed until {c.after.closed_until}, and should be until {until} (now {c.now})"
    if c.after.closed_until and (c.answer.woken or (c.direct and c.asked.verb == "Acquire")):
        yield "a grant was made while the key was closed"


def _kind_and_permits_change_only_by_a_new_attempt(c: Change) -> Iterator[str]:
    before, after, answer = c.before, c.after, c.answer
    reported = getattr(answer, "permits_before", None)
    fresh_attempt = c.asked.id not in c.holding and c.asked.id not in c.queue
    if (before.kind, before.permits) != (after.kind, after.permits):
        if not (isinstance(answer, out.Granted | out.Queued | out.Busy | out.TooManyWaiters) and fresh_attempt):
            yield f"kind or permits were changed by {c.asked.verb} of {c.asked.id}"
        if before.kind != after.kind and (c.holding or c.queue):
            yield "the kind changed while the key was in use"
    if reported != (before.permits if before.permits != after.permits and (before.fence or answer.woken) else None):
        yield f"permits went from {before.permits} to {after.permits}, and the answer says {reported}"
    if before.forced != after.forced and not isinstance(answer, out.ForceReleased):
        yield "the note of a forced release was changed"
    if before.unknown != after.unknown:
        yield "fields of another version were lost"
    if before != after and before.version >= after.version:
        yield "the record changed and its version did not rise"
    elif before.version != after.version and before == replace(after, version=before.version):
        yield "the version rose though nothing changed"


def _grant_outcomes_match_the_record(c: Change) -> Iterator[str]:
    answer, after = c.answer, c.after
    if isinstance(answer, out.Granted | out.Renewed | out.Transferred):
        holder = next((h for h in after.holders if h.id == (c.asked.to_id or c.asked.id)), None)
        if holder is None:
            yield f"{answer} was returned to an attempt that does not hold"
            return
        if holder.offered or holder.expires_at != answer.expires_at:
            yield f"the holder is {holder}, the answer {answer}"
        if answer.floor != min(h.token for h in after.holders):
            yield f"the floor is {answer.floor}, the tokens are {[h.token for h in after.holders]}"
        if not isinstance(answer, out.Renewed) and (holder.token, holder.since) != (answer.token, answer.since):
            yield f"the holder is {holder}, the answer {answer}"
    held = c.holding.get(c.asked.id)
    if c.asked.verb == "Acquire" and held and not (isinstance(answer, out.Granted) and answer.token == held.token):
        yield f"a re-send of {c.asked.id} did not get its own grant again: {answer}"
    if (
        isinstance(answer, out.Transferred)
        and c.named
        and (c.asked.to_id in c.holding or any(one.id == c.asked.id for one in everyone(after)))
    ):
        yield "a transfer left its giver in, or took from a target that held"


def _refusal_outcomes_match_the_record(c: Change) -> Iterator[str]:
    answer, after = c.answer, c.after
    mine = next((waiter for waiter in after.waiters if waiter.id == c.asked.id), None)
    eligible = [one for one in after.waiters if not one.passed and (mine is None or one.number < mine.number)]
    if isinstance(answer, out.Queued) and (
        mine is None
        or answer.position != len(eligible)
        or answer.recheck_in != (None if after.due_at is None else after.due_at - c.now)
        or answer.holders != after.holders
    ):
        yield f"{c.asked.id} got {answer}, the queue is {after.waiters}"
    fits = mine is not None and mine.weight <= after.permits - load(after)
    if isinstance(answer, out.Queued) and fits and not eligible and not after.closed_until:
        yield f"{c.asked.id} has to wait though a permit was free for it"
    if isinstance(answer, out.TooManyWaiters) and (len(after.waiters), mine) != (answer.waiting, None):
        yield f"the answer {answer} has a wrong number of waiters, or the attempt has a position"
    if isinstance(answer, out.TooManyWaiters) and answer.waiting < MAX_WAITERS:
        yield "the queue was called full and is not"
    if isinstance(answer, out.Busy) and (answer.holders, answer.waiting) != (after.holders, after.waiting):
        yield f"the answer {answer} has wrong holders or waiters"
    if isinstance(answer, out.Released | out.Abandoned) and any(one.id == c.asked.id for one in everyone(after)):
        yield f"{c.asked.id} is still there"
    if isinstance(answer, out.Abandoned) and all(stone.id != c.asked.id for stone in after.tombstones):
        yield f"{c.asked.id} was given up without a tombstone"
    if isinstance(answer, out.Mismatch) and (answer.found != after.kind or after.idle):
        yield "refused for a kind that is not in use"
    if isinstance(answer, out.TargetHolds) and c.asked.to_id not in {holder.id for holder in after.holders}:
        yield "refused for a target that does not hold"
    if isinstance(answer, out.ForceReleased) and answer.holders and after.forced is None:
        yield "a forced release left no note"


_STATE: tuple[Callable[[LockRecord], Iterator[str]], ...] = (
    _ids_and_tokens_are_unique,
    _sizes_are_sound,
    _offers_keep_a_position,
    _due_is_the_next_end,
    _overflow_comes_after_the_listed,
)
_STEPS: tuple[Callable[[Change], Iterator[str]], ...] = (
    _fence_counts_every_grant,
    _grants_fit,
    _grants_come_from_the_head,
    _woken_are_the_new_offers,
    _called_are_hinted_and_passed_over,
    _offers_have_the_right_length,
    _only_named_attempts_change,
    _only_by_id_and_token,
    _queue_keeps_its_order,
    _tombstones_hold,
    _closed_only_by_an_expired_grant,
    _kind_and_permits_change_only_by_a_new_attempt,
    _grant_outcomes_match_the_record,
    _refusal_outcomes_match_the_record,
)
