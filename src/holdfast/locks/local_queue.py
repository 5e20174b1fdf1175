"""The local queue of one lock: which callers of this process may ask the store now, and which wait for them.

At most a few callers of a process wait in the store at once; the others wait here, in order of arrival. That delays
nobody: a caller waits here only while earlier callers of its process are unanswered by the store, and the store
serves waiters in their order. Once one of them is granted and more would fit beside it, many follow together.

This is bookkeeping without a lock of its own: `ProcessQueues` calls it under its lock. An interrupt may end any of its
methods at any point, so a turn is put into its new place before it is taken out of the old one, sums are computed from
what is there, and every method finishes what an earlier call left undone.
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
from ..runtime.heartbeats import LoopProbe
from ..runtime.notifier import Notifier

A_FEW = 4
"""At most so many callers of one process are unanswered by the store, of a lock that can be shared."""
MANY = 64
"""At most so many are while callers of this process hold the lock and these would fit beside them."""
PASS_OVER = 1.0
"""Seconds after which a caller that was called and did not go, or whose event loop is stuck, is no longer counted."""

Address = tuple[str, str, Kind]
"""The store's identity, the key and the kind: callers of another kind are refused by the store, and wait for nobody."""


class Turn:
    """One caller's turn at a lock. `open` is set when it may go to the store."""

    __slots__ = (
        "__weakref__",
        "_last",
        "address",
        "asked",
        "before",
        "called_at",
        "context",
        "grips",
        "held",
        "label",
        "lease",
        "loop",
        "open",
        "permits",
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
        """`context` is the caller of an exclusive lock, which is recognised when it comes again; `loop` its loop."""
        self.address = address
        # Weak: a task whose loop is gone must be collected, not kept here.
        self.context = _nobody if context is None else weakref.ref(context)
        self.loop = _nobody if loop is None else weakref.ref(loop)
        self.label = label
        self.weight = weight
        self.permits = permits
        self.since = elapsed()
        self.open = Notifier()
        self.before = 0  # how many were waiting here, and one for those inside, when it came
        self.called_at = 0.0
        self.asked = False  # whether it has gone to the store
        self.held: LocalGrant | None = None  # the grant whose end ends the turn
        self.lease: Callable[[], object] = _nobody  # a weak reference: the queue keeps nothing alive
        self.grips = [1]  # one for each time that its lease was taken and not given back; a number is used once
        self._last = 1

    def grip(self) -> None:
        """Its lease is taken once more, by the caller that has it already."""
        self._last += 1
        self.grips.append(self._last)

    def let_go(self, grip: int | None) -> bool:
        """Give up this grip, or else the last one. True if no other is left, so that the lease itself is given back."""
        if len(self.grips) == 1 and grip in {None, self.grips[0]}:
            return True
        if grip is None:
            self.grips.pop()
        elif grip in self.grips:
            self.grips.remove(grip)
        return False

    @property
    def forgotten(self) -> bool:
        """Whether the lease inside was dropped: nobody can release it, and it ends when its time runs out."""
        return self.held is not None and self.lease() is None

    @property
    def over(self) -> bool:
        """Whether the lease inside has ended or is lost, also if nobody has ended the turn yet."""
        return self.held is not None and self.held.state != "held"


def _nobody() -> None:
    """What a weak reference to nothing answers."""


class TurnsByWeight(dict[int, dict[Turn, None]]):
    """Turns by their weight. Sums are computed from lengths, so no interrupt can falsify them."""

    __slots__ = ()

    def add(self, turn: Turn) -> None:
        """Add a turn; twice is harmless."""
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
    """The callers of one lock in this process, each in one place: waiting, called, asking, holding or passed over."""

    __slots__ = ("_exclusive", "_looked_at", "asking", "called", "holding", "passed", "waiting")

    def __init__(self, kind: Kind) -> None:
        self._exclusive = kind == "mutex"
        self.waiting: OrderedDict[Turn, None] = OrderedDict()  # in order of arrival
        self.called = TurnsByWeight()  # may go to the store, and has not gone yet
        self.asking = TurnsByWeight()  # has gone to the store, and has no answer
        self.holding = TurnsByWeight()
        self.passed = TurnsByWeight()  # called or asking, and not counted because its event loop is stuck
        self._looked_at = 0.0

    def enter(self, turn: Turn, *, once: bool) -> bool:
        """Go to the store at once, if nobody is in the way; else wait. True if it goes.

        A caller that tries once does not wait in the store, so it only has to fit beside all that came before.
        """
        go = not self.waiting and self._room(turn) and not (self.called and self._about_to_go(turn.loop()))
        if go or (once and self._fits_beside_all(turn)):
            self._ask(turn)
            return True
        turn.before = len(self.waiting) + 1
        self.waiting[turn] = None
        return False

    def inside(self) -> Iterator[Turn]:
        """Those that are not waiting here: first those that hold, then those that are on their way."""
        return chain.from_iterable(crowd.turns() for crowd in (self.holding, self.asking, self.called, self.passed))

    def goes(self, turn: Turn) -> None:
        """A caller that was called goes to the store now."""
        self._ask(turn)
        self.waiting.pop(turn, None)
        self.called.discard(turn)
        self.passed.discard(turn)

    def granted(self, turn: Turn) -> None:
        """The store has granted."""
        self.holding.add(turn)
        self.asking.discard(turn)
        self.passed.discard(turn)

    def remove(self, turn: Turn) -> None:
        """The turn is over, wherever it is."""
        self.waiting.pop(turn, None)
        self.called.discard(turn)
        self.asking.discard(turn)
        self.holding.discard(turn)
        self.passed.discard(turn)

    def call(self) -> list[Turn]:
        """Let those go for whom there is room now, in order of arrival. Returns them: their flags are to be set."""
        called: list[Turn] = []
        while self.waiting and (turn := self._next()) is not None and self._room(turn):
            turn.called_at = elapsed()
            self.called.add(turn)
            self.waiting.pop(turn, None)
            called.append(turn)
        return called

    def drop_over(self) -> None:
        """Remove turns whose lease is over, of an exclusive lock: there it is the only one in the way."""
        if self._exclusive:
            for turn in self.holding.turns():
                if turn.over:
                    self.remove(turn)

    def pass_over(self, looking: Turn, probe: Callable[[asyncio.AbstractEventLoop], LoopProbe]) -> None:
        """Count those no longer that do not go on because their event loop is stuck, and count them again when it runs.

        They keep the right to go: the store decides, and this queue only keeps callers from crowding there. The loop of
        the caller that looks runs, even if it was stuck just before and has not answered yet.
        """
        now = elapsed()
        if now - self._looked_at < PASS_OVER / 4:
            return
        self._looked_at = now
        for turn in chain(self.called.turns(), self.asking.turns(), self.passed.turns()):
            same_loop = turn.loop == looking.loop and turn.loop is not _nobody
            if not same_loop and _is_stuck(turn, now, probe):
                self.passed.add(turn)
                self.called.discard(turn)
                self.asking.discard(turn)
            elif self.passed.has(turn):
                (self.asking if turn.asked else self.called).add(turn)
                self.passed.discard(turn)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.called or self.asking or self.holding or self.passed)

    def _ask(self, turn: Turn) -> None:
        self.asking.add(turn)
        turn.asked = True

    def _next(self) -> Turn | None:
        """The first that waits, but for those on an event loop that is known to be stuck."""
        stuck = self._stuck_loops()
        return next((turn for turn in self.waiting if turn.loop not in stuck), None)

    def _stuck_loops(self) -> list[object]:
        return [turn.loop for turn in self.passed.turns() if turn.loop is not _nobody] if self.passed else []

    def _room(self, turn: Turn) -> bool:
        """Whether one more may ask the store."""
        if self._exclusive:
            return not (self.called or self.asking or self.holding)
        unanswered = self.called.count() + self.asking.count()
        # A holder of this process shows that permits, or a read-write lock's reading side, are to be had. Without that
        # sign a few are enough: the store could not serve the next one before these.
        return unanswered < A_FEW or (unanswered < MANY and bool(self.holding) and self._fits(turn))

    def _fits(self, turn: Turn) -> bool:
        """Whether its weight fits beside those inside."""
        inside = self.called.weight() + self.asking.weight() + self.holding.weight()
        return inside + turn.weight <= turn.permits

    def _fits_beside_all(self, turn: Turn) -> bool:
        """Whether its weight fits beside those inside and those that wait, but for those on a stuck event loop."""
        free = turn.permits - turn.weight
        free -= self.called.weight() + self.asking.weight() + self.holding.weight()
        stuck = self._stuck_loops()
        for other in self.waiting:
            if free < 0:
                break
            if other.loop not in stuck:
                free -= other.weight
        return free >= 0

    def _about_to_go(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether a caller on the same event loop was called and has not run yet: a new one must not overtake it."""
        return loop is not None and any(turn.loop() is loop for turn in self.called.turns())


def _is_stuck(turn: Turn, now: float, probe: Callable[[asyncio.AbstractEventLoop], LoopProbe]) -> bool:
    """Whether a caller does not go on: it was called and did not go, or its event loop does not run."""
    if not turn.asked and now - turn.called_at > PASS_OVER:
        return True
    loop = turn.loop()
    if loop is None:
        return turn.loop is not _nobody  # gone, or none: a thread that has asked is woken by its answer
    beat = probe(loop)
    return beat.stopped or beat.silent_for(now) > PASS_OVER
