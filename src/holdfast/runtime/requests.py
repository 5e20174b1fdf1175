"""What goes through a lane: some commands, and what to do with their outcomes.

A thread waits for its outcomes; an event loop awaits one, or is called back with it. What belongs to one loop is
delivered to it together.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..commands import Command, Failed
from ..errors import HoldfastError
from ..rules.lock_outcomes import Outcome

Done = Callable[[list[Outcome] | None, HoldfastError | None], None]
Answer = Callable[[Outcome | HoldfastError], None]

_log = logging.getLogger("holdfast")


class Request:
    """Some commands of one caller, and what to do with the answer. `error` goes to all of them."""

    __slots__ = ("answered", "commands", "done")

    def __init__(self, commands: Sequence[Command], done: Done | None) -> None:
        self.commands = commands
        self.done = done
        self.answered = False

    def deliver(self, outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
        """Give the answer, once: after an interrupt it is given again to all, to reach those who have none."""
        if not self.answered:
            self.answered = True
            self._give(outcomes, error)

    def _give(self, outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
        try:
            if self.done is not None:
                self.done(outcomes, error)
        except Exception:  # it must not end the lane's thread, nor cost its neighbours their answers
            _log.exception("what was to be done with an answer failed")


class ThreadRequest(Request):
    """The parcel of a thread that waits for its outcomes."""

    __slots__ = ("_bell", "error", "outcomes", "thread")

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__(commands, None)
        self.thread = threading.get_ident()
        self.outcomes: list[Outcome] | None = None
        self.error: HoldfastError | None = None
        self._bell: threading.Lock | None = None

    def will_wait(self) -> None:
        """Another one is going to run it."""
        self._bell = threading.Lock()
        self._bell.acquire()

    def wait(self) -> None:
        """Wait for the outcomes."""
        if self._bell is not None:
            self._bell.acquire()

    def _give(self, outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
        self.outcomes = outcomes
        self.error = error
        if self._bell is not None:
            self._bell.release()

    def answers(self) -> list[Outcome]:
        """The outcomes, or what went wrong."""
        if self.error is not None:
            raise self.error
        assert self.outcomes is not None  # noqa: S101  (delivered without an error)
        return self.outcomes


class LoopRequest(Request):
    """The parcel of an event loop that wants one outcome. Delivered together with its loop's others."""

    __slots__ = ("loop",)

    def __init__(self, command: Command, loop: asyncio.AbstractEventLoop) -> None:
        self.commands = (command,)
        self.loop = loop

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return True

    def settle(self, outcome: Outcome | None, error: HoldfastError | None) -> None:
        """Give the answer, on the loop."""
        raise NotImplementedError


class CallbackRequest(LoopRequest):
    """A callback wants the outcome."""

    __slots__ = ("_answer",)

    def __init__(self, command: Command, loop: asyncio.AbstractEventLoop, answer: Answer) -> None:
        super().__init__(command, loop)
        self._answer = answer
        self.answered = False

    def settle(self, outcome: Outcome | None, error: HoldfastError | None) -> None:
        """Call back, once."""
        if self.answered:
            return
        self.answered = True
        try:
            if type(outcome) is Failed:
                self._answer(outcome.error)
            elif outcome is not None:
                self._answer(outcome)
            elif error is not None:
                self._answer(twin(error))
        except Exception:  # it must not cost its neighbours their answers
            _log.exception("what was to be done with an answer failed")


class TaskRequest(LoopRequest):
    """A task awaits the outcome."""

    __slots__ = ("future",)

    def __init__(self, command: Command, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(command, loop)
        self.future: asyncio.Future[Outcome] = loop.create_future()

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return not self.future.done()

    def settle(self, outcome: Outcome | None, error: HoldfastError | None) -> None:
        """Settle the future, once."""
        if self.future.done():
            return
        if type(outcome) is Failed:
            error, outcome = outcome.error, None
        if outcome is not None:
            self.future.set_result(outcome)
        elif error is not None:
            self.future.set_exception(twin(error))


def twin(error: HoldfastError) -> HoldfastError:
    """The same error for one more caller: two threads must not share one traceback."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


def deliver_all(batch: list[Request], outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
    """Give each parcel of a batch its outcomes, or all of them the error."""
    if len(batch) == 1 and not isinstance(batch[0], LoopRequest):
        batch[0].deliver(outcomes, error)
        return
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[LoopRequest, Outcome | None]]] = {}
    start = 0
    for request in batch:
        if isinstance(request, LoopRequest):
            by_loop.setdefault(request.loop, []).append((request, None if outcomes is None else outcomes[start]))
            start += 1
        else:
            end = start + len(request.commands)
            request.deliver(None if outcomes is None else outcomes[start:end], None if error is None else twin(error))
            start = end
    for loop, questions in by_loop.items():
        with suppress(RuntimeError):  # that loop was closed: its flows have given up what they asked for
            loop.call_soon_threadsafe(_settle_all, questions, error)


def _settle_all(questions: list[tuple[LoopRequest, Outcome | None]], error: HoldfastError | None) -> None:
    for place, (question, outcome) in enumerate(questions):
        try:
            question.settle(outcome, error)
        except BaseException:  # something wants to end the loop: the others get their answers all the same
            _settle_all(questions[place + 1 :], error)
            raise
