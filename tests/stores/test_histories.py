"""Random histories: every store answers and stores exactly what the pure rules say."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from holdfast import commands as c
from holdfast.rules import lock
from holdfast.rules import outcomes as out
from holdfast.rules.record import EMPTY, LockRecord
from stores.asking import ME, SECOND, START, VirtualClock

HISTORIES = int(os.environ.get("HOLDFAST_HISTORIES", "480"))
COMMANDS = 100
CHUNKS = 5
TTLS = (None, 1 * SECOND, 2 * SECOND, 5 * SECOND, 30 * SECOND)


class Model:
    """The rules on a plain dictionary: what every store must be equal to."""

    def __init__(self) -> None:
        self.records: dict[str, LockRecord] = {}

    def execute(self, commands: Sequence[c.Command], now: int) -> list[out.Outcome]:
        return [self._answer(command, now) for command in commands]

    def _answer(self, command: c.Command, now: int) -> out.Outcome:
        if isinstance(command, c.LockCommand):
            record, outcome = command.apply(self.records.get(command.key, EMPTY), now)
            if record is not EMPTY:
                self.records[command.key] = record
            return outcome
        keys = sorted(self.records)
        if isinstance(command, c.ListLocks):
            keys = [key for key in keys if key.startswith(command.prefix) and key > command.after]
            items = [
                c.Listed(key=key, record=lock.settle(self.records[key], now, offers=False)[0])
                for key in keys[: command.limit]
            ]
            return c.Page(items=tuple(items), next=self._next(keys, command.limit), now=now)
        if isinstance(command, c.SettleDue):
            due = [key for key in keys if (self.records[key].due_at or now + 1) <= now]
            due.sort(key=lambda key: self.records[key].due_at)
            changed, woken = 0, ()
            for key in due[: command.limit]:
                before = self.records[key]
                self.records[key], more = lock.settle(before, now)
                changed += self.records[key] != before
                woken += more
            seen = len(due[: command.limit])
            return c.Swept(seen=seen, changed=changed, next=self._next(due, command.limit), woken=woken)
        keys = [key for key in keys if key > command.after]
        gone = [k for k in keys[: command.limit] if lock.removable(self.records[k], now, retention=command.retention)]
        for key in gone:
            del self.records[key]
        seen = len(keys[: command.limit])
        return c.Swept(seen=seen, changed=len(gone), next=self._next(keys, command.limit))

    @staticmethod
    def _next(keys: list[str], limit: int) -> str | None:
        return keys[limit - 1] if len(keys) > limit else None


class Storyteller:
    """Makes up commands that often make sense: it remembers who was granted what."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.crowded = bool(seed % 2)
        self.keys = [f"key:{n}" for n in range(3 if self.crowded else 20)]
        self.attempts = [f"{channel}.{n}" for channel in "abc" for n in range(3 if self.crowded else 1)]
        self.kinds = {key: self.random.choice(["item", "item", "semaphore", "lease", "rw"]) for key in self.keys}
        self.tokens: dict[tuple[str, str], int] = {}
        self.sent: list[c.Command] = []

    def batch(self) -> list[c.Command]:
        if not self.sent and not self.crowded:
            return [self.first(key) for key in self.keys]
        if self.random.random() < 0.4:
            return self.heartbeat()
        return [self.command() for _ in range(self.random.choice([1, 1, 1, 2, 5, 12]))]

    def first(self, key: str) -> c.Command:
        """Somebody holds each key at the beginning of a story about heartbeats."""
        permits = 3 if self.kinds[key] in ("semaphore", "rw") else 1
        command = c.Acquire(
            key=key, id=self.attempts[0], label=ME, kind=self.kinds[key], permits=permits, ttl=30 * SECOND
        )
        self.sent.append(command)
        return command

    def heartbeat(self) -> list[c.Command]:
        """Renew all that is known to be held, with some noise."""
        ttl = self.random.choice(TTLS[-3:] if self.random.random() < 0.8 else TTLS)
        held = [c.Renew(key=key, id=me, token=token, ttl=ttl) for (key, me), token in self.tokens.items()]
        held += [self.command() for _ in range(self.random.choice([0, 0, 1, 3]))]
        self.random.shuffle(held)
        return held[:40] or [self.command()]

    def command(self) -> c.Command:
        pick = self.random
        if self.sent and pick.random() < 0.1:
            return pick.choice(self.sent)
        key, me = pick.choice(self.keys), pick.choice(self.attempts)
        token = self.tokens.get((key, me), START)
        ttl = pick.choice(TTLS)
        kind = self.kinds[key] if pick.random() < 0.97 else "hold"
        permits = 1 if kind in ("item", "lease", "hold") else pick.choice([3, 3, 3, 2])
        if pick.random() < 0.05:
            token = pick.choice([None, token + 1])
        command = pick.choices(
            [
                lambda: c.Acquire(
                    key=key,
                    id=me,
                    label=ME,
                    kind=kind,
                    permits=permits,
                    weight=pick.choice([1, 1, 1, 2]),
                    ttl=ttl,
                    queue=pick.random() < 0.4,
                    waiter_ttl=pick.choice([SECOND, 10 * SECOND]),
                    delay=pick.choice([0, 0, 0, SECOND]),
                ),
                lambda: c.Renew(key=key, id=me, token=token, ttl=ttl),
                lambda: c.Release(key=key, id=me, token=token),
                lambda: c.Abandon(key=key, id=me, ttl=SECOND),
                lambda: c.Transfer(key=key, id=me, token=token, to_id=pick.choice(self.attempts), to_label=ME, ttl=ttl),
                lambda: c.ForceRelease(key=key, by="operator", reason="why not"),
                lambda: c.Settle(key=key),
                lambda: c.Inspect(key=key),
                lambda: c.ListLocks(prefix=pick.choice(["", "key:1", "x"]), limit=pick.choice([1, 3, 100])),
                lambda: c.SettleDue(limit=pick.choice([1, 100])),
                lambda: c.Cleanup(limit=pick.choice([1, 100]), retention=pick.choice([SECOND, lock.RETENTION])),
            ],
            weights=[40, 12, 12, 4, 10, 1, 4, 4, 3, 4, 2],
        )[0]()
        self.sent.append(command)
        return command

    def heard(self, commands: Sequence[c.Command], outcomes: Sequence[out.Outcome]) -> None:
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, out.Granted):
                self.tokens[command.key, command.id] = outcome.token
            elif isinstance(outcome, out.Transferred):
                self.tokens.pop((command.key, command.id), None)
                self.tokens[command.key, command.to_id] = outcome.token

    def time_passes(self) -> int:
        return self.random.choice([0, 1, 1000, 1000, 1000, SECOND - 1, SECOND, 2 * SECOND, 5 * SECOND, -3 * SECOND])

    def clock_jumps(self) -> int:
        return self.random.choice([0] * 30 + [3600 * SECOND, -3600 * SECOND])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_random_history_has_the_answers_and_the_records_that_the_rules_say(chunk, url, provider, opened):
    kinds: set[str] = set()
    for seed in range(chunk, HISTORIES, CHUNKS):
        clock = VirtualClock()
        namespace = f"history-{seed}"
        store = opened(url, namespace=namespace, clock=clock)
        connections = [store.connect(role) for role in ("commands", "heartbeats")]
        model, teller, told = Model(), Storyteller(seed), 0
        while told < COMMANDS:
            clock.now += teller.time_passes() + teller.clock_jumps()
            commands = teller.batch()
            expected = model.execute(commands, clock.now)
            outcomes = teller.random.choice(connections).execute(commands)
            assert outcomes == expected, f"seed {seed}, after {told} commands"
            teller.heard(commands, expected)
            told += len(commands)
            kinds.update(type(outcome).__name__ for outcome in outcomes)
        assert provider.dump(url, namespace) == model.records, f"seed {seed}"
        for connection in connections:
            connection.close()
    if HISTORIES // CHUNKS >= 20:
        assert kinds >= {
            "Granted", "Queued", "Busy", "Renewed", "Released", "Abandoned", "Transferred", "NotHeld", "TargetHolds",
            "Mismatch", "TooHeavy", "Gone", "ForceReleased", "Settled", "Seen", "Page", "Swept",
        }  # fmt: skip


def test_most_renewals_of_a_heartbeat_are_decided_by_the_store_itself(url, provider, opened, monkeypatch):
    """Otherwise the comparison above would compare the rule with itself."""
    if provider.name != "sqlite":
        pytest.skip(f"{provider.name} has no native form")
    store = opened(url)
    connection = store.connect("heartbeats")
    keys = [f"k{n}" for n in range(50)]
    grants = connection.execute([c.Acquire(key=key, id="a.1", label=ME, ttl=30 * SECOND) for key in keys])
    monkeypatch.setattr(c.Renew, "apply", None)
    renewals = [c.Renew(key=key, id="a.1", token=g.token, ttl=60 * SECOND) for key, g in zip(keys, grants, strict=True)]
    assert {type(outcome) for outcome in connection.execute(renewals)} == {out.Renewed}
