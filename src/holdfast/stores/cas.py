"""Stores over services that offer no more than conditional writes of single records: the compare-and-swap core.

A batch is one read of its records with the service's time, one pass of the rules, and one write of each changed
record on the condition that it has not changed since the read. Only the commands whose write was refused are
repeated. Records are independent of each other, so these stores support no workflows. `cas_adapter.py` defines what a
service must offer. Decision 27 describes what happens to a write whose reply is lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

from msgspec.structs import replace

from ..commands import Command, Failed, Release, Renew
from ..errors import StoreContended, StoreError, StoreUnavailable, StoreUnusable
from ..platform import elapsed, host_clock
from ..rules.lock_outcomes import Outcome, Released, Renewed
from ..rules.lock_record import Holder, LockRecord
from .batch_cost import AT_ONCE, parts_of
from .cas_adapter import LOCKS, CasAdapter, CasName, CasRead, CasService, CasWrite, StampedText
from .cas_groups import Group
from .cas_lists import LISTS, CasLists
from .cas_recent import RecentWrites, TimeBounds
from .cas_subjects import subject_of
from .cas_watch import CasWatch, hint_locally
from .common import failed, flaw
from .contract import Capabilities, Clock, Connection, Finding, Hint, Role, Store, Watch

TRIPS = 2
"""Round trips of a batch: one that reads and one that writes."""
MAX_AGE = 30.0
"""Seconds after which a decision is not written any more: its time is too old. Everything is read again."""
TRIES = 40
"""How often a command is decided, at most, if other clients change its record each time."""
PATIENCE = 2.0
"""Seconds after which a command fails if other clients change its record all the time. Its batch waits no longer."""
PAUSES = (0.002, 0.05)
"""The longest pause in seconds before the second try and before any later one; each is random, and they double."""


class CasStore:
    """The records of one namespace of a service."""

    out_of_process: Literal[True] = True

    def __init__(self, service: CasService, *, clock: Clock = host_clock) -> None:
        """A `clock` other than the host's replaces the clock of the service, for tests."""
        self.url, self.identity = service.url, service.identity
        self.service = service
        self._clock = clock
        self._now: Clock | None = None if clock is host_clock else clock
        self._recent = RecentWrites(self._now)
        self._closed = False

    def __repr__(self) -> str:
        return f"<CasStore {self.identity}>"

    @property
    def capabilities(self) -> Capabilities:
        """What this store can promise."""
        promised = replace(self.service.capabilities, workflows=False, trips=TRIPS)
        return promised if self._now is None else replace(promised, server_clock=False, clock_step=1)

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (no caller waits for a turn here)
        """Open a connection of its own."""
        self._check_open()
        return CasConnection(self.service, self.service.connect(), self._recent, self._now)

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Subscribe to hints: those of this process directly, those of others if the service can notify."""
        self._check_open()
        return CasWatch(self.service, channel, on_hint)

    def diagnose(self) -> tuple[Finding, ...]:
        """Check what the service knows about itself."""
        return self.service.diagnose()

    def reopen(self) -> Store:
        """The same, for the child of a fork."""
        return CasStore(self.service.reopen(), clock=self._clock)

    def close(self) -> None:
        """Release resources that the connections share."""
        self._closed = True
        self.service.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed. Open a new one.")


class CasConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, service: CasService, adapter: CasAdapter, recent: RecentWrites, now: Clock | None) -> None:
        self._service, self._recent, self._now = service, recent, now
        self._adapter: CasAdapter | None = adapter
        self._step = service.capabilities.clock_step if now is None else 0
        self._lists = CasLists(self)
        self._may_have_written = False  # whether something of this batch may have been written
        self.moments: list[int] = []
        """When each command of the last batch was decided, by the service's clock."""
        self.trips = 0
        """How many requests were sent."""
        self.conflicts = 0
        """How many writes were refused because another client was faster."""

    # -- a batch ---------------------------------------------------------------------------------------------

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the batch out: what precedes a list is written before the list is read."""
        self._check_open()
        self._may_have_written = False
        outcomes: list[Outcome | None] = [None] * len(commands)
        self.moments = [0] * len(commands)
        try:
            for listed, places in groupby(range(len(commands)), lambda place: isinstance(commands[place], LISTS)):
                if listed:
                    for place in places:
                        outcomes[place], self.moments[place] = self._list(commands[place])
                else:
                    self._decide(commands, list(places), outcomes)
        except StoreError as error:
            error.ambiguous = error.ambiguous or self._may_have_written
            raise
        return outcomes  # type: ignore[return-value]  # each command has an outcome now

    def close(self) -> None:
        """Close the connection."""
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.close()

    def _list(self, command: Command) -> tuple[Outcome, int]:
        wrong = flaw(command)
        if wrong is not None:
            return wrong, 0
        try:
            return self._lists.answer(command)
        except StoreError:
            raise
        except Exception as error:  # a bad command fails alone
            return failed(command, error), 0

    def _decide(self, commands: Sequence[Command], places: Sequence[int], outcomes: list[Outcome | None]) -> None:
        for part in parts_of([commands[place] for place in places]):
            groups: dict[CasName, Group] = {}
            for place in places[part.start : part.stop]:
                outcomes[place] = self._add(groups, place, commands[place])
            self.carry_out(groups.values())
            for group in groups.values():
                for place, outcome in group.answers.items():
                    outcomes[place], self.moments[place] = outcome, group.moment

    def _add(self, groups: dict[CasName, Group], place: int, command: Command) -> Outcome | None:
        """Add a command to the group of its record. Returns the failure of a command that cannot be decided."""
        wrong = flaw(command)
        if wrong is not None:
            return wrong
        try:
            subject = subject_of(self._service, command)
            adjusted = self._service.adjusted(command)
        except Exception as error:  # a bad command fails alone
            return failed(command, error)
        groups.setdefault(subject.name, Group(subject)).add(place, adjusted)
        return None

    # -- read, decide, write ---------------------------------------------------------------------------------

    def carry_out(self, groups: Iterable[Group], known: CasRead | None = None) -> None:
        """Decide on all groups until each command has an outcome. `known`: these records have just been read."""
        left = list(groups)
        began, tries = elapsed(), 0
        while left:
            since = elapsed()
            seen = self._seen(left, known, tries)
            known = None
            writes: list[tuple[Group, CasWrite]] = []
            for group in left:
                write = group.look(*seen[group.name])
                if write is not None:
                    writes.append((group, write))
            self._send_hints(group for group in left if not group.commands)
            if writes:
                if elapsed() - since > MAX_AGE:
                    for group, _ in writes:
                        group.written(False)  # noqa: FBT003
                else:
                    self._write_all(writes)
            left = [group for group, _ in writes if group.commands]
            tries += 1
            if left and (tries >= TRIES or elapsed() - began > PATIENCE):
                for group in left:
                    group.give_up(_contended(tries))
                return
            if left:
                time.sleep(random.uniform(0, min(PAUSES[1], PAUSES[0] * 2 ** (tries - 1))))

    def _seen(
        self, groups: Sequence[Group], known: CasRead | None, tries: int
    ) -> dict[CasName, tuple[StampedText | None, int]]:
        """The record of each group, with the time: remembered from this client's own last write, or read now."""
        seen: dict[CasName, tuple[StampedText | None, int]] = {}
        if tries == 0 and known is None:
            bounds = self._recent.bounds()
            for group in groups:
                if bounds is not None and (found := self._remembered(group, bounds)) is not None:
                    seen[group.name] = found, bounds.low
        missing = [group.name for group in groups if group.name not in seen]
        if missing:
            read = self.read(missing) if known is None else known
            seen.update((name, (read.found.get(name), read.now)) for name in missing)
        return seen

    def _remembered(self, group: Group, bounds: TimeBounds) -> StampedText | None:
        """The record as this client left it, if these commands only release or renew grants in it that are valid.

        Only the condition of a write shows that the record is still the same, so there must be something to write.
        """
        commands = [command for _, command in group.commands]
        if group.name.kind != LOCKS or not all(isinstance(one, Release | Renew) for one in commands):
            return None
        own = self._recent.get(group.name.key)
        if own is None or bounds.low < own.now:
            return None
        for now in (bounds.high + self._step, bounds.low):
            change, outcomes = group.subject.decide(own.found, commands, now)
            if not all(isinstance(one, Released | Renewed) for one in outcomes):
                return None
            if change is None or change.lock is None or _others(own.record, commands) != _others(change.lock, commands):
                return None
        return own.found

    def _write_all(self, writes: Sequence[tuple[Group, CasWrite]]) -> None:
        for (group, write), result in zip(writes, self.write([write for _, write in writes]), strict=True):
            group.written(result)
            if group.name.kind != LOCKS:
                continue
            applied = group.applied
            if result and applied is not None and applied.change.lock is not None and write.text is not None:
                own = StampedText(write.text, write.stamp)
                self._recent.note_write(group.name.key, own, applied.change.lock, applied.now)
            else:
                self._recent.forget(group.name.key, write.expected)
        self._send_hints(group for group, _ in writes if not group.commands)

    def _send_hints(self, groups: Iterable[Group]) -> None:
        outcomes = [outcome for group in groups for outcome in group.answers.values()]
        hint_locally(self._service.identity, outcomes)

    # -- requests --------------------------------------------------------------------------------------------

    def read(self, names: Sequence[CasName]) -> CasRead:
        """Read records with the time, in one request unless there are very many."""
        adapter = self._check_open()
        found: dict[CasName, StampedText] = {}
        now = 0
        for first in range(0, max(1, len(names)), AT_ONCE):
            self.trips += 1
            sent = elapsed()
            some, read_now = adapter.read(names[first : first + AT_ONCE])
            found.update(some)
            self._recent.note_reading(read_now, sent)
            now = max(now, read_now)  # no record of an earlier part may be later than the time of the decision
        if self._now is not None:
            return CasRead(found, self._now())
        return CasRead(found, now)

    def write(self, writes: Sequence[CasWrite]) -> Sequence[bool | None]:
        """Write records, in one request. Where the request failed and may have been carried out: None for each."""
        adapter = self._check_open()
        self.trips += 1
        try:
            results = adapter.write(writes)
        except StoreUnavailable as error:
            if not error.ambiguous:
                raise
            self._may_have_written = True
            return [None] * len(writes)
        except StoreError:
            raise
        except BaseException:
            self._may_have_written = True
            raise
        self._may_have_written |= any(result is not False for result in results)
        self.conflicts += sum(result is False for result in results)
        return results

    def keys(self, kind: str, *, prefix: str, after: str, limit: int) -> list[str]:
        """A page of keys, in one request."""
        self.trips += 1
        return self._check_open().keys(kind, prefix=prefix, after=after, limit=limit)

    def due(self, kind: str, *, until: int, limit: int) -> list[tuple[int, str]]:
        """The records that are due first, in one request."""
        self.trips += 1
        return self._check_open().due(kind, until=until, limit=limit)

    def bounds(self) -> TimeBounds | None:
        """What the service's clock shows now, as far as is known without a request."""
        return self._recent.bounds()

    @property
    def service(self) -> CasService:
        """The service."""
        return self._service

    def _check_open(self) -> CasAdapter:
        if self._adapter is None:
            raise StoreUnusable("this connection is closed. Open a new one.")
        return self._adapter


def _others(record: LockRecord, commands: Sequence[Command]) -> list[Holder]:
    """The holders that these commands are not about."""
    mine = {command.id for command in commands if isinstance(command, Release | Renew)}
    return [holder for holder in record.holders if holder.id not in mine]


def _contended(tries: int) -> Outcome:
    return Failed(
        error=StoreContended(
            f"other clients changed the record of this command before it could be written, {tries} times in a row. "
            "Nothing was changed for it. It can be sent again."
        )
    )
