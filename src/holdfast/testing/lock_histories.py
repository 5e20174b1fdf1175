"""Random histories of locks and slots: a model (the rules on dictionaries) and a generator of plausible commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .. import commands as c
from ..rules import lock
from ..rules import lock_outcomes as out
from ..rules.lock_record import EMPTY, Kind, LockRecord
from ..rules.slot import EMPTY_SLOT, Address, Slot, Swapped
from .builders import ME, SECOND, START, read, swap

HOUR = 3_600


class LockModel:
    """The rules on plain dictionaries. Every store must give the same outcomes and records."""

    def __init__(self) -> None:
        self.records: dict[str, LockRecord] = {}
        self.slots: dict[Address, Slot] = {}

    def execute(self, commands: Sequence[c.Command], now: int) -> list[out.Outcome]:
        """The outcomes of a batch at that moment."""
        return [self._answer(command, now) for command in commands]

    def listed(self, now: int) -> dict[str, LockRecord]:
        """The records as `ListLocks` returns them."""
        return {key: lock.settle(self.records[key], now, offers=False)[0] for key in sorted(self.records)}

    def _answer(self, command: c.Command, now: int) -> out.Outcome:
        if isinstance(command, c.LockCommand):
            record, outcome = command.apply(self.records.get(command.key, EMPTY), now)
            if record is not EMPTY:
                self.records[command.key] = record
            return outcome
        if isinstance(command, c.SlotCommand):
            slot, outcome = command.apply(self.slots.get(command.address, EMPTY_SLOT), now)
            self.slots[command.address] = slot
            return outcome
        if isinstance(command, c.ListLocks):
            return self._list(command, now)
        if isinstance(command, c.SettleDue):
            return self._settle_due(command, now)
        if isinstance(command, c.Cleanup):
            return self._clean_up(command, now)
        raise TypeError(f"the model has no rule for {command}")

    def _list(self, command: c.ListLocks, now: int) -> c.LockPage:
        shown = self.listed(now)
        keys = [key for key in shown if key.startswith(command.prefix) and key > command.after]
        items = tuple(c.ListedLock(key=key, record=shown[key]) for key in keys[: command.limit])
        return c.LockPage(items=items, next=_next(keys, command.limit), now=now)

    def _settle_due(self, command: c.SettleDue, now: int) -> c.Swept:
        due = sorted(
            (record.due_at, key)
            for key, record in self.records.items()
            if record.due_at is not None and record.due_at <= now
        )
        keys = [key for _, key in due]
        changed = 0
        woken: tuple[str, ...] = ()
        hinted: tuple[str, ...] = ()
        for key in keys[: command.limit]:
            before = self.records[key]
            self.records[key], outcome = c.Settle(key=key).apply(before, now)
            changed += self.records[key] != before
            woken = (*woken, *outcome.woken)
            hinted = (*hinted, *outcome.hinted)
        seen = len(keys[: command.limit])
        return c.Swept(seen=seen, changed=changed, next=_next(keys, command.limit), woken=woken, hinted=hinted)

    def _clean_up(self, command: c.Cleanup, now: int) -> c.Swept:
        keys = [key for key in sorted(self.records) if key > command.after]
        page = keys[: command.limit]
        gone = [key for key in page if lock.removable(self.records[key], now, retention=command.retention)]
        for key in gone:
            del self.records[key]
        return c.Swept(seen=len(page), changed=len(gone), next=_next(keys, command.limit))


def _next(keys: list[str], limit: int) -> str | None:
    return keys[limit - 1] if len(keys) > limit else None


class LockHistoryGenerator:
    """Generates plausible random commands: it stores which attempts were granted what, and which writes were made.

    `second` is the length of a second in this history, in microseconds. For a store whose clock cannot be moved it is a
    few thousandths of a real second, so that leases expire while the history runs. With `listens`, attempts often state
    that their process receives hints.
    """

    def __init__(self, seed: int, *, second: int = SECOND, listens: bool = True) -> None:
        self.random = random.Random(seed)
        self.second = second
        self.listens = listens
        self.ttls = (None, second, 2 * second, 5 * second, 30 * second)
        self.crowded = bool(seed % 2)
        self.keys = [f"key:{n}" for n in range(3 if self.crowded else 20)]
        self.attempts = [f"{channel}.{n}" for channel in "abc" for n in range(3 if self.crowded else 1)]
        kinds: list[Kind] = ["mutex", "mutex", "semaphore", "lease", "rw"]
        self.kinds = {key: self.random.choice(kinds) for key in self.keys}
        self.tokens: dict[tuple[str, str], int] = {}
        self.offers: dict[str, tuple[str, int]] = {}  # by key: attempt and token; ("", 0) before an Inspect
        self.addresses: list[Address] = [("global", "", "k"), ("workflow", "w", "k"), ("execution", "w", "l")]
        self.writes: dict[Address, tuple[str, int]] = {}
        self.sent: list[c.Command] = []
        self._requests = 0

    def batch(self) -> list[c.Command]:
        """The next commands."""
        if not self.sent and not self.crowded:
            return [self._first(key) for key in self.keys]
        if self.offers and self.random.random() < 0.7:
            return self._after_an_offer()
        if self.random.random() < 0.4:
            return self._heartbeat()
        if self.random.random() < 0.1:
            return [self._slot_command() for _ in range(self.random.choice([1, 2, 6]))]
        return [self._command() for _ in range(self.random.choice([1, 1, 1, 2, 5, 12]))]

    def observe(self, commands: Sequence[c.Command], outcomes: Sequence[out.Outcome]) -> None:
        """Store what the next commands depend on."""
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(command, c.Acquire) and isinstance(outcome, out.Granted):
                self.tokens[command.key, command.id] = outcome.token
            elif isinstance(command, c.Inspect) and isinstance(outcome, out.LockSeen) and outcome.record is not None:
                offers = [one for one in outcome.record.holders if one.offered]
                self.offers.update((command.key, (one.id, one.token)) for one in offers)
            elif isinstance(command, c.Transfer) and isinstance(outcome, out.Transferred):
                self.tokens.pop((command.key, command.id), None)
                self.tokens[command.key, command.to_id] = outcome.token
            elif isinstance(command, c.SwapSlot) and isinstance(outcome, Swapped):
                known = self.writes.get(command.address, ("", 0))
                self.writes[command.address] = max(
                    known, (command.request, outcome.version), key=lambda write: write[1]
                )
            if outcome.woken and isinstance(command, c.LockCommand):
                self.offers[command.key] = ("", 0)

    def time_passes(self) -> float:
        """Time until the next batch, in seconds of the history; sometimes the clock is set back a little."""
        return self.random.choice([0, 0.000_001, 0.001, 0.001, 0.001, 0.999_999, 1, 2, 5, -3])

    def clock_jumps(self) -> float:
        """A step of the clock: rarely an hour forward or back, otherwise none."""
        return self.random.choice([0] * 30 + [HOUR, -HOUR])

    def _first(self, key: str) -> c.Command:
        """Acquire a key: in a history about heartbeats, each key is held from the start."""
        permits = 3 if self.kinds[key] in {"semaphore", "rw"} else 1
        command = c.Acquire(
            key=key, id=self.attempts[0], label=ME, kind=self.kinds[key], permits=permits, ttl=30 * self.second
        )
        self.sent.append(command)
        return command

    def _heartbeat(self) -> list[c.Command]:
        """Renew all grants that are known, mixed with a few other commands."""
        ttl = self.random.choice(self.ttls[-3:] if self.random.random() < 0.8 else self.ttls)
        batch: list[c.Command] = [c.Renew(key=k, id=me, token=token, ttl=ttl) for (k, me), token in self.tokens.items()]
        batch += [self._command() for _ in range(self.random.choice([0, 0, 1, 3]))]
        self.random.shuffle(batch)
        return batch[:40] or [self._command()]

    def _after_an_offer(self) -> list[c.Command]:
        """Read which attempt has the offer, then pass that attempt over."""
        key, (attempt, token) = self.offers.popitem()
        if not attempt:
            return [c.Inspect(key=key)]
        return [c.PassOver(key=key, id=attempt, token=token + (self.random.random() < 0.1))]

    def _slot_command(self) -> c.Command:
        pick = self.random
        address = pick.choice(self.addresses)
        if pick.random() < 0.2:
            return read(address)
        self._requests += 1
        last, version = self.writes.get(address, ("", 0)) if pick.random() < 0.8 else ("", 0)
        command = swap(
            f"{pick.choice('abc')}.{self._requests}",
            last,
            version,
            pick.choice([None, str(self._requests)]),
            address,
            acked=pick.choice([0, 0, 0, self._requests, max(0, self._requests - 5)]),
            reserve=pick.choice([0, 0, self.second // 20, 1_000 * self.second]),
        )
        self.sent.append(command)
        if pick.random() < 0.5:  # so that the next write in the same batch may follow it
            self.writes[address] = (command.request, version + 1)
        return command

    def _command(self) -> c.Command:
        pick = self.random
        if self.sent and pick.random() < 0.1:
            return pick.choice(self.sent)  # a reply was lost
        if pick.random() < 0.08:
            return self._slot_command()
        key, me = pick.choice(self.keys), pick.choice(self.attempts)
        token: int | None = self.tokens.get((key, me), START)
        ttl = pick.choice(self.ttls)
        kind: Kind = self.kinds[key] if pick.random() < 0.97 else "hold"
        permits = 1 if kind in {"mutex", "lease", "hold"} else pick.choice([3, 3, 3, 2])
        if pick.random() < 0.05:
            token = pick.choice([None, 1 + (token or 0)])
        makers: list[Callable[[], c.Command]] = [
            lambda: c.Acquire(
                key=key,
                id=me,
                label=ME,
                kind=kind,
                permits=permits,
                weight=pick.choice([1, 1, 1, 2]),
                ttl=ttl,
                queue=pick.random() < 0.4,
                waiter_ttl=pick.choice([self.second, 10 * self.second]),
                delay=pick.choice([0, 0, 0, self.second]),
                listens=pick.random() < 0.5 and self.listens,
            ),
            lambda: c.Renew(key=key, id=me, token=token, ttl=ttl),
            lambda: c.Release(key=key, id=me, token=token),
            lambda: c.Abandon(key=key, id=me, ttl=self.second),
            lambda: c.Transfer(key=key, id=me, token=token, to_id=pick.choice(self.attempts), to_label=ME, ttl=ttl),
            lambda: c.ForceRelease(key=key, by="operator", reason="why not"),
            lambda: c.Settle(key=key, leaving=pick.random() < 0.3),
            lambda: c.Inspect(key=key),
            lambda: c.ListLocks(prefix=pick.choice(["", "key:1", "x"]), limit=pick.choice([1, 3, 100])),
            lambda: c.SettleDue(limit=pick.choice([1, 100])),
            lambda: c.Cleanup(limit=pick.choice([1, 100]), retention=pick.choice([self.second, lock.RETENTION])),
        ]
        command = pick.choices(makers, weights=[40, 12, 12, 6, 10, 1, 4, 4, 3, 4, 2])[0]()
        self.sent.append(command)
        return command
