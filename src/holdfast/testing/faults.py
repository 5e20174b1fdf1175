"""Real stores with a fault in the way: replies that get lost, connections that stall. Never a mock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import client
from ..commands import Command
from ..errors import StoreUnavailable
from ..rules.outcomes import Outcome
from ..stores import open_store
from ..stores.contract import Connection, Role, Store


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
        """How many commands of a kind have been carried out."""
        return sum(isinstance(command, kind) for command in self.sent)


class FaultyConnection:
    """A real connection, used through the plan."""

    def __init__(self, connection: Connection, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._closed = False
        plan.open_connections += 1

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the commands out, unless the plan refuses; answer, unless the plan loses the reply."""
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
        """Close the real one."""
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

    def connect(self, role: Role) -> Connection:
        """A connection with the plan in the way."""
        return FaultyConnection(self._store.connect(role), self._plan)

    def reopen(self) -> Store:
        """The same store for the child of a fork, with the plan still in the way."""
        return FaultyStore(self._store.reopen(), self._plan)


_patching = threading.Lock()


@contextmanager
def clients_open(opening: Callable[..., Store]) -> Iterator[None]:
    """Clients that are made inside open their store in this way."""
    before = vars(client)["open_store"]
    setattr(client, "open_store", opening)  # noqa: B010  (a name that the module does not export)
    try:
        yield
    finally:
        setattr(client, "open_store", before)  # noqa: B010


@contextmanager
def planned(opening: Callable[..., Store] = open_store) -> Iterator[Plan]:
    """Clients that are made inside go through the plan."""
    plan = Plan()

    def through_the_plan(url: str, **options: Any) -> Store:
        return FaultyStore(opening(url, **options), plan)

    with _patching, clients_open(through_the_plan):
        yield plan
    if plan.open_connections:
        raise AssertionError("a connection was left open")
