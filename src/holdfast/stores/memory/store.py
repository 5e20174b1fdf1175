"""`memory://`: the rules under a mutex, and the model that every other store is compared with.

`memory://` is private to the store object; `memory://name` is shared by all stores with that name in this process, as
long as one of them is open. Nothing outlives the process, and a forked child starts empty.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import count, groupby, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakSet, WeakValueDictionary

from ...commands import Cleanup, Command, ListLocks, LockCommand, LockPage, Settle, SettleDue, SlotCommand, Swept
from ...commands.runs import RunCommand
from ...errors import InvalidKey, InvalidOption, StoreUnusable
from ...platform import after_fork_in_child
from ...rules import lock
from ...rules.lock_outcomes import Outcome
from ...rules.lock_record import EMPTY, LockRecord
from ...rules.runs.lock_queue import reader_of
from ...rules.runs.locks import notify_offered
from ...rules.slot import EMPTY_SLOT, Address, Slot
from ...validation import checked_key
from ..common import at_least_one, by_key, decided, failed, listed, swept, woken_by_channel
from ..contract import Capabilities, Clock, Finding, Hint, Role
from ..records import is_about_a_record
from .records import MemoryRecords
from .runs import MemoryRunRepository

if TYPE_CHECKING:
    from ..contract import Connection, Store, Watch

CAPABILITIES = Capabilities(durable=False, shared=False, server_clock=False, notifies=True, workflows=True)

_private = count(1)
_registry_lock = threading.Lock()
_named: WeakValueDictionary[str, _Space] = WeakValueDictionary()
_living: WeakSet[_Space] = WeakSet()


def open_memory(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open `memory://` (private) or `memory://name` (shared within the process)."""
    name = url.partition("://")[2]
    if not name:
        return MemoryStore(url="memory://", identity=f"memory:#{next(_private)}", space=_Space(), clock=clock)
    try:
        checked_key(name)
    except InvalidKey as error:
        raise InvalidOption(f"the name in memory://name must be a valid key: {error}") from None
    identity = (
        f"memory://{quote(name, safe='')}#{namespace}"  # the first # ends the name, whatever the namespace contains
    )
    with _registry_lock:
        space = _named.get(identity)
        if space is None:
            space = _named[identity] = _Space()
    return MemoryStore(url=f"memory://{name}", identity=identity, space=space, clock=clock)


class _Space:
    """The records of one namespace, and the watches on them."""

    def __init__(self) -> None:
        self.clear()
        _living.add(self)

    def clear(self) -> None:
        """Remove everything, with a new mutex: the old one may be held by a thread that does not exist after a fork."""
        self.mutex = threading.Lock()
        self.records: dict[str, LockRecord] = {}
        self.slots: dict[Address, Slot] = {}
        self.typed = MemoryRecords()
        self.runs = MemoryRunRepository(self.records.get, self.put, self.slots, self.typed)
        self.watches: dict[str, list[MemoryWatch]] = {}
        self._sorted: list[str] | None = []

    def put(self, key: str, record: LockRecord) -> None:
        if key not in self.records:
            self._sorted = None
        self.records[key] = record

    def remove(self, key: str) -> None:
        del self.records[key]
        self._sorted = None

    def keys_after(self, after: str, prefix: str = "") -> Iterator[str]:
        """The keys with the prefix that come after `after`, in order."""
        if self._sorted is None:
            self._sorted = sorted(self.records)
        keys = self._sorted
        start = max(bisect_right(keys, after), bisect_left(keys, prefix))
        for place in range(start, len(keys)):
            if not keys[place].startswith(prefix):
                return
            yield keys[place]


def _reset_after_fork() -> None:
    global _registry_lock  # noqa: PLW0603  (the old one may be held by a thread that is not in this process)
    _registry_lock = threading.Lock()
    for space in list(_living):
        space.clear()


after_fork_in_child(_reset_after_fork)


class MemoryStore:
    """A store over the records of a space."""

    def __init__(self, *, url: str, identity: str, space: _Space, clock: Clock) -> None:
        self.url = url
        self.identity = identity
        self.capabilities = CAPABILITIES
        self._space: _Space | None = space
        self._clock = clock

    def __repr__(self) -> str:
        return f"<MemoryStore {self.identity}>"

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (no caller waits here, so no role goes first)
        """Open a connection."""
        return MemoryConnection(self._open_space(), self._clock)

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Subscribe to hints. The thread whose command made the grant sends them, outside the mutex."""
        return MemoryWatch(self._open_space(), channel, on_hint)

    def diagnose(self) -> tuple[Finding, ...]:
        """Report that this store is neither durable nor shared; nothing else can be wrong with it."""
        return (
            Finding(
                check="durability",
                level="warning",
                detail="the records are in the memory of one process: they are lost when it ends, and no other process "
                "sees them",
                advice="Use this store for tests only, and sqlite:////absolute/path.db where locks must survive a "
                "process.",
            ),
        )

    def reopen(self) -> Store:
        """Open the store for the child of a fork, in which it is empty."""
        return MemoryStore(url=self.url, identity=self.identity, space=self._open_space(), clock=self._clock)

    def close(self) -> None:
        """Close the store. Closing the last store of a name removes the records."""
        self._space = None

    def _open_space(self) -> _Space:
        if self._space is None:
            raise StoreUnusable("this memory store is closed. Open a new one.")
        return self._space


class MemoryWatch:
    """A subscription within the process."""

    polls = False

    def __init__(self, space: _Space, channel: str, on_hint: Hint) -> None:
        self._space, self._channel, self.on_hint = space, channel, on_hint
        with space.mutex:
            space.watches.setdefault(channel, []).append(self)

    def expect(self, id: str, *, eager: bool) -> None:
        """Nothing to prepare: hints are direct."""

    def forget(self, id: str) -> None:
        """Nothing to undo."""

    def close(self) -> None:
        """End the subscription."""
        with self._space.mutex:
            watches = self._space.watches.get(self._channel, [])
            if self in watches:
                watches.remove(self)
            if not watches:
                self._space.watches.pop(self._channel, None)


class MemoryConnection:
    """Runs the rules, one batch within one acquisition of the mutex."""

    def __init__(self, space: _Space, clock: Clock) -> None:
        self._space: _Space | None = space
        self._clock = clock

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the commands out in their order."""
        space = self._space
        if space is None:
            raise StoreUnusable("this connection is closed. Open a new one.")
        with space.mutex:  # no loop in here: see test_interrupts.py
            outcomes, hints = _executed(space, commands, self._clock())
        for watch, ids in hints:
            watch.on_hint(ids)
        return outcomes

    def close(self) -> None:
        """Close the connection."""
        self._space = None


def _executed(
    space: _Space, commands: Sequence[Command], now: int
) -> tuple[list[Outcome], list[tuple[MemoryWatch, list[str]]]]:
    """Carry the commands out, under the mutex. Also returns the hints for each watch."""
    outcomes: list[Outcome] = []
    hints: list[str] = []
    for what, some in groupby(commands, _subject):
        if what == "locks":
            outcomes += _decide(space, list(some), now, hints)
        elif what == "records":
            outcomes += _decide_records(space, list(some), now, hints)
        else:
            outcomes += [_alone(space, command, now, hints) for command in some]
    woken = woken_by_channel(outcomes, hints)
    return outcomes, [(watch, ids) for channel, ids in woken.items() for watch in space.watches.get(channel, ())]


def _subject(command: Command) -> str:
    if isinstance(command, LockCommand) and type(command.key) is str:
        return "locks"
    return "records" if is_about_a_record(command) else ""


def _decide(space: _Space, commands: list[Any], now: int, hints: list[str]) -> list[Outcome]:
    """Decide on commands about locks, those about one key together. Runs are notified in the order of the commands."""
    answers: dict[int, Outcome] = {}
    for key, some in by_key(commands).items():
        before = space.records.get(key, EMPTY)
        reader = reader_of(space.runs, key, before)
        after, outcomes = decided(before, [command for _, command in some], now, _as_it_is, reader)
        if after is not None:
            space.put(key, after)
        answers.update(zip([place for place, _ in some], outcomes, strict=True))
    for place in range(len(commands)):
        if answers[place].notified:
            hints += notify_offered(space.runs, now, answers[place].notified)
    return [answers[place] for place in range(len(commands))]


def _decide_records(space: _Space, commands: list[Any], now: int, hints: list[str]) -> list[Outcome]:
    outcomes = space.typed.decide(commands, now)
    for outcome in outcomes:
        if outcome.notified:
            hints += notify_offered(space.runs, now, outcome.notified)
    return outcomes


def _as_it_is(record: LockRecord) -> LockRecord:
    return record


def _alone(space: _Space, command: Command, now: int, hints: list[str]) -> Outcome:
    try:
        outcome = _answer(space, command, now)
    except Exception as error:  # a bad command fails alone
        return failed(command, error)
    if outcome.notified and not isinstance(command, RunCommand):
        hints += notify_offered(space.runs, now, outcome.notified)
    return outcome


def _answer(space: _Space, command: Command, now: int) -> Outcome:
    if isinstance(command, SlotCommand):
        slot = space.slots.get(command.address, EMPTY_SLOT)
        changed, outcome = command.apply(slot, now)
        if changed is not slot:
            space.slots[command.address] = changed
        return outcome
    if isinstance(command, RunCommand):
        return command.apply(space.runs, now)
    if isinstance(command, ListLocks):
        return _list(space, command, now)
    if isinstance(command, SettleDue):
        return _settle_due(space, command, now)
    if isinstance(command, Cleanup):
        return _clean_up(space, command, now)
    if (found := space.typed.look(command, now)) is not None:
        return found
    raise TypeError(f"{type(command).__name__} is not a command that this store supports")


def _list(space: _Space, command: ListLocks, now: int) -> LockPage:
    limit = at_least_one(command.limit)
    keys = list(islice(space.keys_after(command.after, command.prefix), limit + 1))
    items = tuple(listed(key, space.records[key], now) for key in keys[:limit])
    return LockPage(items=items, next=keys[limit - 1] if len(keys) > limit else None, now=now)


def _settle_due(space: _Space, command: SettleDue, now: int) -> Swept:
    limit = at_least_one(command.limit)
    due = sorted(
        (record.due_at, key)
        for key, record in space.records.items()
        if record.due_at is not None and record.due_at <= now
    )
    changed = 0
    outcomes = []
    for _, key in due[:limit]:
        before = space.records[key]
        reader = reader_of(space.runs, key, before)
        after, (outcome,) = decided(before, [Settle(key=key)], now, _as_it_is, reader)
        if after is not None:
            space.put(key, after)
            changed += 1
        outcomes.append(outcome)
    following = due[limit - 1][1] if len(due) > limit else None
    return swept(outcomes, changed, following)


def _clean_up(space: _Space, command: Cleanup, now: int) -> Swept:
    limit = at_least_one(command.limit)
    keys = list(islice(space.keys_after(command.after), limit + 1))
    gone = [key for key in keys[:limit] if lock.removable(space.records[key], now, retention=command.retention)]
    for key in gone:
        space.remove(key)
    return Swept(seen=len(keys[:limit]), changed=len(gone), next=keys[limit - 1] if len(keys) > limit else None)
