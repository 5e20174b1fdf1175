"""The local queue of one lock: which callers of this process may go to the store now, and which wait for them.

At most a few callers of a process wait in the store at once; the others wait in this queue, in order of arrival. This
delays no caller: a caller waits here only while earlier callers of its process have no answer from the store, and the
store serves waiters in their order. When one of them is granted and others could hold the lock at the same time, many
callers are admitted together.

These classes have no lock of their own: `ProcessQueues` calls them while it holds its lock. An interrupt may end any
of the methods at any point. So a turn is added to its new place before it is removed from the old one, sums are
computed from the current contents, and every method finishes what an interrupted call has left incomplete.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain

from ..platform import elapsed
from ..rules.lock_record import Kind, Label
from ..runtime.grant import LocalGrant
from ..runtime.loop_probe import LoopProbe
from ..runtime.notifier import Notifier

A_FEW = 4
"""At most so many callers of one process wait for the store's answer at once, for a lock that can be shared."""
MANY = 64
"""The same limit while callers of this process hold the lock and further callers would fit beside them."""
PASS_OVER = 1.0
"""A caller that was admitted but sent no command for this many seconds, or whose event loop was blocked for this long,
is no longer counted."""

Address = tuple[str, str, Kind]
"""The store's identity, the key and the kind. The store refuses callers of another kind, so they do not wait here."""


class Turn:
    """One caller's turn at a lock. `open` is set when the caller may go to the store."""

    __slots__ = (
        "__weakref__",
        "_last",
        "acquisitions",
        "address",
        "admitted_at",
        "before",
        "context",
        "held",
        "label",
        "lease",
        "loop",
        "open",
        "permits",
        "sent",
        "since",
        "weight",
    )

    def __init__(
        self,
        address: Address,
        label: Label,
        *,
        context: object | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        weight: int = 1,
        permits: int = 1,
    ) -> None:
        """`context` is the caller of an exclusive lock, recognised when it acquires again; `loop` is its event loop."""
        self.address = address
        # Weak: a task whose loop was closed must be collected, not kept here.
        self.context = _none if context is None else weakref.ref(context)
        self.loop = _none if loop is None else weakref.ref(loop)
        self.label = label
        self.weight = weight
        self.permits = permits
        self.since = elapsed()
        self.open = Notifier()
        # Its position on arrival: the number of callers waiting in this queue, plus 1 in total for the callers that
        # have already left it.
        self.before = 0
        self.admitted_at = 0.0
        self.sent = False  # whether its command was sent to the store
        self.held: LocalGrant | None = None  # the grant whose end ends the turn
        self.lease: Callable[[], object] = _none  # a weak reference: the queue keeps no lease alive
        self.acquisitions = [1]  # numbers of the acquisitions not yet released; each is used once
        self._last = 1

    def acquire_again(self) -> None:
        """Its lease is acquired once more, by the caller that holds it."""
        self._last += 1
        self.acquisitions.append(self._last)

    def release(self, acquisition: int | None) -> bool:
        """Release this acquisition, or else the last. True if none is left: then the lease itself must be released."""
        if len(self.acquisitions) == 1 and acquisition in {None, self.acquisitions[0]}:
            return True
        if acquisition is None:
            self.acquisitions.pop()
        elif acquisition in self.acquisitions:
            self.acquisitions.remove(acquisition)
        return False

    @property
    def forgotten(self) -> bool:
        """Whether the lease was dropped: it cannot be released, and ends when its time runs out."""
        return self.held is not None and self.lease() is None

    @property
    def over(self) -> bool:
        """Whether the lease has ended or is lost, also if the turn has not been removed yet."""
        return self.held is not None and self.held.state != "held"


def _none() -> None:
    """Stands for a weak reference to nothing."""


class TurnsByWeight(dict[int, dict[Turn, None]]):
    """Turns by their weight. Sums are computed from lengths, so an interrupt cannot make them wrong."""

    __slots__ = ()

    def add(self, turn: Turn) -> None:
        """Add a turn; adding it twice is harmless."""
        turns = self.get(turn.weight)
        if turns is None:
            self[turn.weight] = {turn: None}
        else:
            turns[turn] = None

    def discard(self, turn: Turn) -> None:
        """Remove a turn if it is there."""
        turns = self.get(turn.weight)
        if turns is not None:
            turns.pop(turn, None)
            if not turns:
                self.pop(turn.weight, None)

    def has(self, turn: Turn) -> bool:
        """Whether it is here."""
        return turn in self.get(turn.weight, ())

    def turns(self) -> Iterator[Turn]:
        """All turns, as they are now."""
        return chain.from_iterable([tuple(turns) for turns in self.values()])

    def count(self) -> int:
        """How many turns there are."""
        return sum(map(len, self.values())) if self else 0

    def weight(self) -> int:
        """The sum of their weights."""
        return sum([weight * len(turns) for weight, turns in self.items()]) if self else 0


class LocalQueue:
    """The callers of one lock in this process, each in one place: waiting, admitted, requesting, holding or passed."""

    __slots__ = ("_checked_at", "_exclusive", "admitted", "holding", "passed", "requesting", "waiting")

    def __init__(self, kind: Kind) -> None:
        self._exclusive = kind == "mutex"
        self.waiting: OrderedDict[Turn, None] = OrderedDict()  # in order of arrival
        self.admitted = TurnsByWeight()  # may go to the store, and has not sent its command yet
        self.requesting = TurnsByWeight()  # has sent its command, and has no answer
        self.holding = TurnsByWeight()
        self.passed = TurnsByWeight()  # admitted or requesting, and not counted because its event loop is blocked
        self._checked_at = 0.0

    def enter(self, turn: Turn, *, once: bool) -> bool:
        """Go to the store at once, if no other caller blocks that; else wait. True if it goes.

        A caller that tries once does not wait in the store, so its weight only has to fit beside all earlier callers.
        """
        go = not self.waiting and self._room(turn) and not (self.admitted and self._pending_on(turn.loop()))
        if go or (once and self._fits_beside_all(turn)):
            self._mark_sent(turn)
            return True
        turn.before = len(self.waiting) + 1
        self.waiting[turn] = None
        return False

    def inside(self) -> Iterator[Turn]:
        """Turns that do not wait here: first the holders, then those that go to the store."""
        return chain.from_iterable(
            place.turns() for place in (self.holding, self.requesting, self.admitted, self.passed)
        )

    def send(self, turn: Turn) -> None:
        """A caller that was admitted sends its command now."""
        self._mark_sent(turn)
        self.waiting.pop(turn, None)
        self.admitted.discard(turn)
        self.passed.discard(turn)

    def granted(self, turn: Turn) -> None:
        """The store has granted the lock."""
        self.holding.add(turn)
        self.requesting.discard(turn)
        self.passed.discard(turn)

    def remove(self, turn: Turn) -> None:
        """The turn has ended, whatever its place."""
        self.waiting.pop(turn, None)
        self.admitted.discard(turn)
        self.requesting.discard(turn)
        self.holding.discard(turn)
        self.passed.discard(turn)

    def admit(self) -> list[Turn]:
        """Admit callers for which there is room now, in order of arrival. Returns them: their notifiers must be set."""
        admitted: list[Turn] = []
        while self.waiting and (turn := self._next()) is not None and self._room(turn):
            turn.admitted_at = elapsed()
            self.admitted.add(turn)
            self.waiting.pop(turn, None)
            admitted.append(turn)
        return admitted

    def drop_over(self) -> None:
        """Remove turns whose lease has ended, of an exclusive lock: there only the holder blocks other callers."""
        if self._exclusive:
            for turn in self.holding.turns():
                if turn.over:
                    self.remove(turn)

    def pass_over(self, checking: Turn, probe: Callable[[asyncio.AbstractEventLoop], LoopProbe]) -> None:
        """Do not count callers whose event loop is blocked, and count them again when it runs.

        They may still go to the store, which decides; this queue only limits how many callers wait there. The loop of
        the caller that checks is running, even if it was blocked just before and has not answered its probe yet.
        """
        now = elapsed()
        if now - self._checked_at < PASS_OVER / 4:
            return
        self._checked_at = now
        for turn in chain(self.admitted.turns(), self.requesting.turns(), self.passed.turns()):
            same_loop = turn.loop == checking.loop and turn.loop is not _none
            if not same_loop and _is_stuck(turn, now, probe):
                self.passed.add(turn)
                self.admitted.discard(turn)
                self.requesting.discard(turn)
            elif self.passed.has(turn):
                (self.requesting if turn.sent else self.admitted).add(turn)
                self.passed.discard(turn)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.admitted or self.requesting or self.holding or self.passed)

    def _mark_sent(self, turn: Turn) -> None:
        self.requesting.add(turn)
        turn.sent = True

    def _next(self) -> Turn | None:
        """The first waiting turn, without those on an event loop that is known to be blocked."""
        stuck = self._stuck_loops()
        return next((turn for turn in self.waiting if turn.loop not in stuck), None)

    def _stuck_loops(self) -> list[object]:
        return [turn.loop for turn in self.passed.turns() if turn.loop is not _none] if self.passed else []

    def _room(self, turn: Turn) -> bool:
        """Whether one more caller may go to the store."""
        if self._exclusive:
            return not (self.admitted or self.requesting or self.holding)
        unanswered = self.admitted.count() + self.requesting.count()
        # A holder of this process shows that permits, or the reading side of a read-write lock, are available.
        # Otherwise a few callers are enough: the store could not serve the next one before these.
        return unanswered < A_FEW or (unanswered < MANY and bool(self.holding) and self._fits(turn))

    def _fits(self, turn: Turn) -> bool:
        """Whether its weight fits beside the turns that do not wait here."""
        inside = self.admitted.weight() + self.requesting.weight() + self.holding.weight()
        return inside + turn.weight <= turn.permits

    def _fits_beside_all(self, turn: Turn) -> bool:
        """Whether its weight fits beside all other turns, without those that wait on a blocked event loop."""
        free = turn.permits - turn.weight
        free -= self.admitted.weight() + self.requesting.weight() + self.holding.weight()
        stuck = self._stuck_loops()
        for other in self.waiting:
            if free < 0:
                break
            if other.loop not in stuck:
                free -= other.weight
        return free >= 0

    def _pending_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether a caller on the same event loop was admitted and has not run yet: a new one must not overtake it."""
        return loop is not None and any(turn.loop() is loop for turn in self.admitted.turns())


def _is_stuck(turn: Turn, now: float, probe: Callable[[asyncio.AbstractEventLoop], LoopProbe]) -> bool:
    """Whether a caller makes no progress: it was admitted and sent nothing, or its event loop does not run."""
    if not turn.sent and now - turn.admitted_at > PASS_OVER:
        return True
    loop = turn.loop()
    if loop is None:
        return turn.loop is not _none  # closed, or none: a thread that has sent its command is woken by its answer
    loop_probe = probe(loop)
    return loop_probe.stopped or loop_probe.silent_for(now) > PASS_OVER
