"""The requests of a batcher: commands, and the way in which their outcomes are delivered.

A thread waits for its outcomes. An event loop awaits one outcome, or gets it by a callback. Outcomes for the same
loop are delivered together.
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
    """Some commands of one caller, and what to do with the answer. An error applies to all of them."""

    __slots__ = ("answered", "commands", "done")

    def __init__(self, commands: Sequence[Command], done: Done | None) -> None:
        self.commands = commands
        self.done = done
        self.answered = False

    def deliver(self, outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
        """Deliver the answer, once: after an interrupt all answers are delivered again, for requests that have none."""
        if not self.answered:
            self.answered = True
            self._handle(outcomes, error)

    def _handle(self, outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
        try:
            if self.done is not None:
                self.done(outcomes, error)
        except Exception:  # it must not end the batcher's thread, nor cost other requests their answers
            _log.exception("a callback for the outcome of a command failed")


class ThreadRequest(Request):
    """The request of a thread that waits for its outcomes."""

    __slots__ = ("_waiting", "error", "outcomes", "thread")

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__(commands, None)
        self.thread = threading.get_ident()
        self.outcomes: list[Outcome] | None = None
        self.error: HoldfastError | None = None
        self._waiting: threading.Lock | None = None

    def will_wait(self) -> None:
        """Another thread is going to run the request."""
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def wait(self) -> None:
        """Wait for the outcomes."""
        if self._waiting is not None:
            self._waiting.acquire()

    def _handle(self, outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
        self.outcomes = outcomes
        self.error = error
        if self._waiting is not None:
            self._waiting.release()

    def answers(self) -> list[Outcome]:
        """The outcomes; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        assert self.outcomes is not None  # noqa: S101  (delivered without an error)
        return self.outcomes


class LoopRequest(Request):
    """The request of an event loop for one outcome. Delivered together with the other requests of its loop."""

    __slots__ = ("loop",)

    def __init__(self, command: Command, loop: asyncio.AbstractEventLoop) -> None:
        self.commands = (command,)
        self.loop = loop

    @property
    def wanted(self) -> bool:
        """Whether the outcome is still awaited."""
        return True

    def settle(self, outcome: Outcome | None, error: HoldfastError | None) -> None:
        """Deliver the answer, on the loop."""
        raise NotImplementedError


class CallbackRequest(LoopRequest):
    """A request whose outcome is passed to a callback."""

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
                self._answer(copied(error))
        except Exception:  # it must not cost other requests their answers
            _log.exception("a callback for the outcome of a command failed")


class TaskRequest(LoopRequest):
    """A request whose outcome is awaited by a task."""

    __slots__ = ("future",)

    def __init__(self, command: Command, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(command, loop)
        self.future: asyncio.Future[Outcome] = loop.create_future()

    @property
    def wanted(self) -> bool:
        """Whether the outcome is still awaited."""
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
            self.future.set_exception(copied(error))


def copied(error: HoldfastError) -> HoldfastError:
    """A copy of the error for one more caller: two threads must not share one traceback."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


def deliver_all(batch: list[Request], outcomes: list[Outcome] | None, error: HoldfastError | None) -> None:
    """Deliver its outcomes to each request of a batch, or the error to all of them."""
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
            request.deliver(None if outcomes is None else outcomes[start:end], None if error is None else copied(error))
            start = end
    for loop, requests in by_loop.items():
        with suppress(RuntimeError):  # that loop was closed: its flows have abandoned their attempts
            loop.call_soon_threadsafe(_settle_all, requests, error)


def _settle_all(requests: list[tuple[LoopRequest, Outcome | None]], error: HoldfastError | None) -> None:
    for place, (request, outcome) in enumerate(requests):
        try:
            request.settle(outcome, error)
        except BaseException:  # such as SystemExit: the other requests still get their answers
            _settle_all(requests[place + 1 :], error)
            raise
