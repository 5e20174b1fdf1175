"""Random histories of runs with limits: limits that change, starts that exceed them, and runs that end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from .. import commands as c
from ..commands import runs as r
from ..rules.lock_outcomes import Outcome
from ..rules.runs.limits import Limit, LimitKey, OnExcess, WorkflowLimits
from ..rules.runs.outcomes import LimitsDiffer, LimitsPublished
from ..rules.runs.record import Ending, Finish, NewRun
from .builders import SECOND
from .run_histories import RunHistoryGenerator

ANSWERS: tuple[OnExcess, ...] = ("reject", "queue", "queue", "queue", "skip", "cancel_oldest", "cancel_newest")
KEYS = ('"ann"', '"bob é"', "7")
NAMES = ("all", "customer", "pace")


class LimitHistoryGenerator(RunHistoryGenerator):
    """Generates runs, many of which exceed their limits."""

    def __init__(self, seed: int, *, second: int = SECOND) -> None:
        super().__init__(seed, second=second)
        self.ids = [f"run-{n}" for n in range(14)]
        self.terms: dict[str, WorkflowLimits] = {}

    def batch(self) -> list[c.Command]:
        """The next commands. The first batch registers all workers and publishes limits."""
        first = not self.sent
        return [*super().batch(), self._publish("order")] if first else super().batch()

    def observe(self, commands: Sequence[c.Command], outcomes: Sequence[Outcome]) -> None:
        """Store what the next commands depend on."""
        super().observe(commands, outcomes)
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, LimitsPublished | LimitsDiffer):
                name = command.workflow if isinstance(command, r.PublishLimits | r.ReadLimits) else "order"
                self.terms[name] = outcome.terms or WorkflowLimits()

    def _limit(self, name: str) -> Limit:
        pick = self.random
        pace = name == "pace"
        return Limit(
            name=name,
            max=pick.choice([1, 1, 2, 3]),
            per=pick.choice([1, 4]) * self.second if pace else 0,
            path="customer" if name == "customer" else "",
            on_excess=pick.choice(["reject", "queue"]) if pace else pick.choice(ANSWERS),
            max_queue=pick.choice([None, None, 1, 3]),
        )

    def _publish(self, workflow: str) -> c.Command:
        pick = self.random
        names = pick.choice([("all",), ("customer",), ("all", "customer"), ("pace",), NAMES, ()])
        return r.PublishLimits(
            workflow=workflow,
            terms=WorkflowLimits(
                limits=tuple(self._limit(name) for name in names), version=pick.choice([0, 0, 1, 1, 2])
            ),
        )

    def _new(self, *, parent: str = "") -> NewRun:
        pick = self.random
        new = replace(super()._new(parent=parent), type=pick.choice(["order", "order", "order@2", "order@*", "mail"]))
        terms = self.terms.get(new.type.partition("@")[0], WorkflowLimits())
        places = tuple(
            LimitKey(limit.name, pick.choice(KEYS) if limit.path else "")
            for limit in terms.limits
            if pick.randrange(20)
        )
        digest = terms.digest if pick.randrange(20) else "another"
        return replace(new, places=places, priority=pick.choice([0, 0, 0, 5, -1]), terms=digest)

    def _then(self) -> Ending | None:
        return super()._then() if self.random.randrange(5) > 1 else Finish("completed", "1")

    def _more(self) -> list[tuple[int, Callable[[], c.Command]]]:
        worker = self.random.choice(self.workers)
        return [
            (30, lambda: r.StartRun(new=self._first(), worker=self.random.choice(["", worker]))),
            (3, lambda: self._publish(self.random.choice(["order", "order", "mail"]))),
            (2, lambda: r.ReadLimits(workflow=self.random.choice(["order", "mail"]))),
        ]
