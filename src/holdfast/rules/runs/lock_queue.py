"""Runs that wait for a lock and are not listed in its record.

The record of a lock is read and written as a whole. So with thousands of waiters in it, every hand-over would be
expensive. The record lists the first `LISTED` runs that wait, and counts the others in its `overflow`. Each of the
others has a `LockWait` in the record of its own run. The store keeps these runs in order as members of the group
`queue_group(key)`, in the same index as the runs that are queued at a limit. When the listed runs have been served,
the lock takes the next runs from this index, in the same atomic step.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from ...errors import RecordUnreadable
from ..lock_record import Label, LockRecord, Overflow, Waiter
from .lock_requests import attempt_of
from .record import LockWait, Run, queue_group
from .repository import RunRepository

LISTED = 32
"""How many runs are listed among the waiters of a lock's record; also how many are taken from the overflow at once."""


class OverflowReader:
    """Takes the next waiters from the overflow of a lock, for one decision.

    `save` removes them from the records of their runs, together with the write of the lock's record; a decision that
    fails has taken nothing.
    """

    def __init__(self, repo: RunRepository, key: str) -> None:
        self.repo, self._key = repo, key
        self._taken: dict[tuple[str, int], LockWait] = {}

    def __call__(self, known: Overflow) -> tuple[list[Waiter], Overflow | None]:
        """The next waiters in their order, and the overflow that is left."""
        waiting = self._first()
        taken, rest = waiting[:LISTED], waiting[LISTED:]
        self._taken |= {(run, wait.number): wait for wait, run in taken}
        left = None
        if rest:
            left = replace(known, count=max(len(rest), known.count - len(taken)), first=rest[0][0].number)
        return [waiter_of(run, wait) for wait, run in taken], left

    def save(self) -> None:
        """Write what was taken: from now on the lock's record lists these waiters."""
        for name in dict.fromkeys(run for run, _ in self._taken):
            run = self.repo.run(name)
            if run is not None:
                kept = tuple(
                    wait for wait in run.waits if wait.key != self._key or (name, wait.number) not in self._taken
                )
                self.repo.save(replace(run, waits=kept))
        self._taken.clear()

    def forget(self) -> None:
        """Take nothing: the decision failed."""
        self._taken.clear()

    def _first(self) -> list[tuple[LockWait, str]]:
        """The first waits that were not taken yet, in their order, each with its run: more than `LISTED`, or all.

        A run that cannot be read is skipped.
        """
        limit = len(self._taken) + LISTED + 1
        while True:
            names = self.repo.members(queue_group(self._key), queued=True, limit=limit)
            found: dict[str, Run] = {}
            for name in names:
                with suppress(RecordUnreadable):
                    run = self.repo.run(name)
                    if run is not None:
                        found[name] = run
            waits = sorted(
                ((wait, name) for name, run in found.items() for wait in run.waits if wait.key == self._key),
                key=lambda item: item[0].number,
            )[: len(names)]  # the same run may have a second request further back
            waits = [item for item in waits if (item[1], item[0].number) not in self._taken]
            if len(waits) > LISTED or len(names) < limit:
                return waits
            limit *= 2


def reader_of(repo: RunRepository, key: str, record: LockRecord) -> OverflowReader | None:
    """The reader of the overflow of this record; None: it has none."""
    return None if record.overflow is None else OverflowReader(repo, key)


def waiter_of(run: str, wait: LockWait) -> Waiter:
    """The waiter of a run, as the record of the lock lists it."""
    return Waiter(
        id=attempt_of(run, wait.ask),
        label=label_of(run),
        since=wait.since,
        ttl=None,
        expires_at=None,
        weight=wait.weight,
        number=wait.number,
    )


def label_of(run: str) -> Label:
    """How a run is named in the record of a lock."""
    return Label(name=f"run {run}")
