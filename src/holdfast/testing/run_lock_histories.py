"""Random histories of runs that acquire and release locks, beside clients that use the same locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from .. import commands as c
from ..commands import runs as r
from ..rules.lock_outcomes import Granted, Outcome
from ..rules.lock_record import Kind
from ..rules.runs.lock_requests import LockRequest, attempt_of
from ..rules.runs.record import Ending, NewRun, RunEvent, worker_key
from .builders import ME, SECOND
from .run_histories import RunHistoryGenerator

KEYS: tuple[tuple[str, Kind, int], ...] = (("a é", "mutex", 1), ("b", "semaphore", 2), ("c", "rw", 3))


class RunLockHistoryGenerator(RunHistoryGenerator):
    """Generates runs that contend for a few locks."""

    def __init__(self, seed: int, *, second: int = SECOND) -> None:
        super().__init__(seed, second=second)
        self.ids = [f"run-{n}" for n in range(5)]
        self._held: dict[tuple[str, str], int] = {}

    def batch(self) -> list[c.Command]:
        """The next commands. The first batch gives some workers long leases, and each of them drives a run."""
        if self.sent:
            return super().batch()
        batch = super().batch()
        for worker, run in zip(self.workers[:3], self.ids, strict=False):
            lease = c.Acquire(key=worker_key(worker), id=worker, label=ME, kind="worker", ttl=60 * self.second)
            new = NewRun(id=run, type="order", input="1", request=self._request())
            batch += [lease, r.StartRun(new=new, worker=worker)]
        return batch

    def time_passes(self) -> float:
        """Time until the next batch, in seconds of the history."""
        return self.random.choice([0, 0, 0.001, super().time_passes()])

    def _then(self) -> Ending | None:
        return self.random.choice([None, None, None, None, None, None, None, super()._then()])

    def observe(self, commands: Sequence[c.Command], outcomes: Sequence[Outcome]) -> None:
        """Store what the next commands depend on."""
        super().observe(commands, outcomes)
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(command, c.Acquire) and isinstance(outcome, Granted):
                self._held[command.key, command.id] = outcome.token

    def _ask(self) -> LockRequest:
        pick = self.random
        number = pick.randrange(4)
        key, kind, permits = pick.choice([KEYS[number % len(KEYS)]] * 9 + [KEYS[0]])
        if pick.choice([True, False]):
            return LockRequest(number=number, key=key, give=True)
        return LockRequest(
            number=number,
            key=key,
            kind=pick.choice([kind] * 12 + ["mutex"]),
            permits=pick.choice([permits] * 12 + [permits + 1]),
            weight=pick.choice([1, 1, 1, permits] if kind == "rw" else [1] * 20 + [9]),
            ttl=pick.choice([None, None, None, 2 * self.second]),
        )

    def _record(self) -> r.RecordRun:
        pick = self.random
        record = super()._record()
        run = self.known.get(record.run)
        lock_requests = {ask.number: ask for ask in (self._ask() for _ in range(pick.choice([0, 1, 1, 1, 2, 3])))}
        right = pick.randrange(10) and run is not None
        return replace(
            record,
            fence=run.fence if right and run is not None else record.fence,
            at=run.length if right and run is not None else record.at,
            swap=pick.choice([record.swap, None, None]),
            lock_requests=tuple(lock_requests.values()),
            stuck=pick.choice([None, None, (), ("c-0", "ä")]),
        )

    def _client(self) -> c.Command:
        """A client that uses the same locks."""
        pick = self.random
        (key, kind, permits), attempt = pick.choice(KEYS), f"x.{pick.randrange(3)}"
        token = self._held.get((key, attempt), 0)
        return pick.choice(
            [
                c.Acquire(
                    key=key,
                    id=attempt,
                    label=ME,
                    kind=kind,
                    permits=permits,
                    ttl=pick.choice([None, 2 * self.second, 5 * self.second]),
                    queue=pick.choice([True, True, False]),
                    waiter_ttl=3 * self.second,
                ),
                c.Release(key=key, id=attempt, token=token),
                c.Release(key=key, id=attempt, token=token),
                c.Renew(key=key, id=attempt, token=token, ttl=2 * self.second),
                c.Abandon(key=key, id=attempt, ttl=self.second),
                c.Settle(key=key),
                c.Inspect(key=key),
                c.ForceRelease(key=key, by="me", reason="because"),
                self._renewal(key),
            ]
        )

    def _renewal(self, key: str) -> c.Command:
        """The renewal of a lock with a ttl by the driver of its run."""
        attempt = attempt_of(self.random.choice(self.ids), self.random.randrange(4))
        return c.Renew(key=key, id=attempt, token=self._held.get((key, attempt), 0), ttl=2 * self.second)

    def _deadlock(self) -> c.Command:
        event = RunEvent(
            kind="deadlock", name=str(self.random.randrange(4)), key=self.random.choice(["", "deadlock/1"])
        )
        return r.PostEvent(run=self.random.choice(self.ids), event=event)

    def _more(self) -> list[tuple[int, Callable[[], c.Command]]]:
        return [(150, self._record), (110, self._client), (5, self._deadlock), (20, self._claim)]
