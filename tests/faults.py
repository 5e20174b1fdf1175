"""Real stores with a fault in the way: replies that get lost, connections that stall. Never a mock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import holdfast.client
from holdfast.commands import Command
from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store


class Plan:
    """What is to go wrong next, and a count of everything that went through."""

    def __init__(self) -> None:
        self.lose_reply_of: type[Command] | None = None
        self.lost: list[str] = []
        self.refuse: type[Command] | None = None
        self.sent: list[Command] = []
        self.batches: list[int] = []
        self.before: Callable[[Sequence[Command]], None] = lambda _commands: None
        self.after: Callable[[Sequence[Command]], None] = lambda _commands: None
        self.open_connections = 0

    def count(self, kind: type[Command]) -> int:
        return sum(isinstance(command, kind) for command in self.sent)


class FaultyConnection:
    def __init__(self, connection: Any, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._closed = False
        plan.open_connections += 1

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        plan = self._plan
        plan.before(commands)
        if plan.refuse is not None and any(isinstance(command, plan.refuse) for command in commands):
            raise StoreUnavailable("refused by the test's plan")
        outcomes = self._connection.execute(commands)
        plan.sent.extend(commands)
        plan.batches.append(len(commands))
        plan.after(commands)
        lost = plan.lose_reply_of
        if lost is not None and any(isinstance(command, lost) for command in commands):
            plan.lose_reply_of = None
            plan.lost.append(lost.__name__)
            raise StoreUnavailable("the reply was lost by the test's plan", ambiguous=True)
        return outcomes

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._plan.open_connections -= 1
        self._connection.close()


class FaultyStore:
    """A real store, reached through the plan."""

    def __init__(self, store: Any, plan: Plan) -> None:
        self._store = store
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def connect(self, role: Any) -> FaultyConnection:
        return FaultyConnection(self._store.connect(role), self._plan)

    def reopen(self) -> FaultyStore:
        return FaultyStore(self._store.reopen(), self._plan)


_patching = threading.Lock()


@contextmanager
def planned() -> Iterator[Plan]:
    """Clients that are made inside go through the plan."""
    plan = Plan()
    with _patching:
        holdfast.client.open_store = lambda url, **options: FaultyStore(open_store(url, **options), plan)
        try:
            yield plan
        finally:
            holdfast.client.open_store = open_store
    assert plan.open_connections == 0, "a connection was left open"
