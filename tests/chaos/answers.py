"""Updates and approvals from four processes, while engines are killed and paused, and requests are sent again.

Replies to callers are lost at random: then the command is sent again. Each update is answered once: every sender of it
gets the same answer, each run numbers its answers without a gap, and none is lost. Each request for an approval is
answered once, by the person whose answer was accepted, and no answer reaches another request. An answer that is given
again changes nothing.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, workflow
from holdfast.errors import ApprovalNotOpen, HoldfastError, StoreUnavailable, UpdateTimeout
from holdfast.platform import elapsed
from holdfast.runtime import failpoints

TTL = 1.5
LONGEST = 600.0
LOST = 0.2
"""The share of the store's replies to updates and to answers of people that are lost."""
NAMESPACE = "answers"
GENERATION = 25
"""A run answers so many updates in one generation."""
AT_ONCE = 5
"""A run asks for so many approvals at once."""


@dataclass(frozen=True)
class Size:
    runs: int
    updates: int
    approvals: int
    people: int
    faults: int


SMALL = Size(runs=4, updates=40, approvals=30, people=4, faults=2)
FULL = Size(runs=20, updates=1_000, approvals=1_000, people=4, faults=30)


# -- engines ------------------------------------------------------------------------------------------


@workflow
async def ledger(ctx: Context, task: dict[str, int]) -> int:
    answered, goal = task["answered"], task["goal"]
    async for request in ctx.updates("add"):
        answered += 1
        request.reply({"key": request.payload, "number": answered})
        if answered == goal:
            return answered
        if answered % GENERATION == 0:
            raise ctx.continue_as_new({"answered": answered, "goal": goal})
    raise AssertionError


@workflow
async def payments(ctx: Context, number: int) -> list[str]:
    by: list[str] = []
    while len(by) < number:
        some = min(AT_ONCE, number - len(by))
        by += [answer.by for answer in await asyncio.gather(*(ctx.approve("pay") for _ in range(some)))]
    return by


async def drive(task: dict[str, Any], journal: Journal) -> None:
    async with Engine(
        task["url"],
        namespace=NAMESPACE,
        workflows=[ledger, payments],
        name=task["name"],
        worker_ttl=TTL,
        park_after=0.2,
        grace=5,
    ):
        journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)
    journal.note("done")


# -- people -------------------------------------------------------------------------------------------


def send(client: Client, journal: Journal, wanted: list[list[str]], chance: random.Random) -> None:
    """Send updates, some of them again. A caller that stops to wait asks again with the same key."""
    for run, key in wanted:
        for _ in range(2 if chance.random() < 0.2 else 1):
            while True:
                try:
                    answer = client.runs.update(
                        run, "add", key, idempotency_key=key, timeout=chance.choice([0.05, 2, 20])
                    )
                except (StoreUnavailable, UpdateTimeout):
                    continue
                journal.note("answer", run=run, key=key, answer=answer)
                break


def lose_replies(journal: Journal, chance: random.Random) -> None:
    """Lose some replies of the store: the client sends the command again, unchanged."""

    def reached(point: str) -> None:
        if point in ("after update", "after approve") and chance.random() < LOST:
            journal.note("lost", point=point)
            raise StoreUnavailable("the reply was lost by the campaign", ambiguous=True)

    failpoints.reached = reached


def decide(client: Client, journal: Journal, name: str, chance: random.Random) -> None:
    """Answer open requests until every run of payments has ended, some of them twice."""
    while client.runs.list(workflow="payments", status=("pending", "running", "suspended"), limit=1).runs:
        for request in client.approvals.list(limit=20).approvals:
            by = f"{name} {request.run_id} {request.id}"
            if chance.random() < 0.5:
                continue
            wanted = f"{request.id}#1" if request.id == "pay" else request.id
            accepted = False
            for _ in range(2 if chance.random() < 0.5 else 1):
                try:
                    client.approvals.answer(request.run_id, wanted, approved=True, by=by)
                except ApprovalNotOpen as error:
                    if repr(by) not in str(error):  # an answer whose reply was lost counts
                        break
                    journal.note("known", run=request.run_id, id=request.id)
                except StoreUnavailable:
                    continue
                else:
                    if accepted:
                        journal.note("accepted twice", run=request.run_id, id=request.id)
                accepted = True
                journal.note("accepted", run=request.run_id, id=request.id, by=by)


def process(task: dict[str, Any]) -> None:
    journal = Journal(task["journal"])
    if task["role"] == "engine":
        asyncio.run(drive(task, journal))
        return
    chance = random.Random(task["seed"])
    lose_replies(journal, random.Random(f"{task['seed']} lost"))
    with Client(task["url"], namespace=NAMESPACE) as client:
        send(client, journal, task["wanted"], chance)
        decide(client, journal, task["name"], chance)
    journal.note("done")


# -- the campaign ---------------------------------------------------------------------------------------


class Campaign:
    def __init__(self, size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
        self.size, self.folder, self.report, self.kind = size, folder, report, place.kind
        self.chance = random.Random(seed)
        self.url = place.url(folder)
        self.faults = 0

    def play(self) -> None:
        size = self.size
        with Crew(__file__, self.folder) as crew, Client(self.url, namespace=NAMESPACE) as client:
            for _ in range(3):
                crew.start({"url": self.url, "role": "engine"})
            each = size.approvals // size.runs
            keys = self.start(client, each)
            people = [
                crew.start({"url": self.url, "role": "person", "seed": number, "wanted": self.part(keys, number)})
                for number in range(size.people)
            ]
            self.trouble(crew, people)
            if not self.engines(crew):
                crew.start({"url": self.url, "role": "engine"})
            results = {}
            for number in range(size.runs):
                for kind in ("ledger", "payments"):
                    try:
                        results[f"{kind}-{number}"] = client.runs.result(f"{kind}-{number}", timeout=60)
                    except HoldfastError as error:
                        self.report.broken(f"{self.kind}: {kind}-{number}: {type(error).__name__}: {error}")
            for worker in crew.running():
                worker.resume()
                worker.send_line("enough")
            until(lambda: not crew.running(), within=20)
            self.judge_updates(crew, keys, results)
            self.judge_approvals(crew, results, each)
            left = client.approvals.list().approvals
            self.report.demand(f"{self.kind}: requests are open after the end: {left[:2]}", kept=not left)
            self.report.at_least(f"{self.kind}: kills and pauses", self.faults, size.faults * 0.5)

    def start(self, client: Client, each: int) -> list[list[str]]:
        """Start the runs. Returns the updates: the run and the key of each."""
        per = self.size.updates // self.size.runs
        for number in range(self.size.runs):
            client.runs.start("ledger", {"answered": 0, "goal": per}, id=f"ledger-{number}")
            client.runs.start("payments", each, id=f"payments-{number}")
        keys = [[f"ledger-{number}", f"{number}/{one}"] for number in range(self.size.runs) for one in range(per)]
        self.chance.shuffle(keys)
        return keys

    def part(self, keys: list[list[str]], number: int) -> list[list[str]]:
        """The updates that one person sends; some are sent by a second one too."""
        size = self.size
        return [
            pair
            for place, pair in enumerate(keys)
            if place % size.people == number or (place % 5 == 0 and (place + 1) % size.people == number)
        ]

    def engines(self, crew: Crew) -> list[Worker]:
        return [worker for worker in crew.active() if worker.notes("ready")]

    def trouble(self, crew: Crew, people: list[Worker]) -> None:
        """Kill and pause engines while people are at work; start new ones."""
        give_up = elapsed() + LONGEST
        while any(worker in crew.running() for worker in people) and elapsed() < give_up:
            until(lambda: False, within=self.chance.uniform(0.2, 0.6))
            crew.resume_due(lambda: 0.1)
            active = self.engines(crew)
            if self.faults < self.size.faults and len(active) > 1:
                self.faults += 1
                victim = self.chance.choice(active)
                if self.chance.random() < 0.5:
                    victim.kill()
                else:
                    victim.pause(self.chance.uniform(0.3, 2.5) * TTL)
            engines = [worker for worker in crew.running() if worker not in people]
            if len(active) < 3 and len(engines) < 5:
                crew.start({"url": self.url, "role": "engine"})
        slow = [worker.name for worker in people if worker in crew.running()]
        self.report.demand(f"{self.kind}: these people are not done within {LONGEST:g} s: {slow}", kept=not slow)

    def judge_updates(self, crew: Crew, keys: list[list[str]], results: dict[str, Any]) -> None:
        answers: dict[str, list[Any]] = defaultdict(list)
        numbers: dict[str, dict[str, int]] = defaultdict(dict)
        for one in crew.notes("answer"):
            answers[one["key"]].append(one["answer"])
            numbers[one["run"]][one["key"]] = one["answer"]["number"]
        kind, report = self.kind, self.report
        report.every(f"{kind}: updates with an answer", len(answers), len(keys))
        resent = sum(len(found) > 1 for found in answers.values())
        report.at_least(f"{kind}: updates that were sent again", resent, len(keys) * 0.1)
        differ = [key for key, found in answers.items() if any(answer != found[0] for answer in found)]
        report.demand(f"{kind}: updates with several answers: {differ[:3]}", kept=not differ)
        wrong = [key for key, found in answers.items() if found[0]["key"] != key]
        report.demand(f"{kind}: updates with the answer of another one: {wrong[:3]}", kept=not wrong)
        for run, found in numbers.items():
            whole = sorted(found.values()) == list(range(1, len(found) + 1)) and results.get(run) == len(found)
            report.demand(f"{kind}: {run} has answered {results.get(run)} times, seen {len(found)}", kept=whole)

    def judge_approvals(self, crew: Crew, results: dict[str, Any], each: int) -> None:
        accepted: dict[tuple[str, str], set[str]] = defaultdict(set)
        for one in crew.notes("accepted"):
            accepted[one["run"], one["id"]].add(one["by"])
        kind, report = self.kind, self.report
        report.every(f"{kind}: approvals that were accepted", len(accepted), each * self.size.runs)
        again = [[one["run"], one["id"]] for one in crew.notes("accepted twice")]
        report.demand(f"{kind}: answers that were accepted twice: {again[:3]}", kept=not again)
        lost = sum(one["point"] == "after approve" for one in crew.notes("lost"))
        report.at_least(f"{kind}: lost replies to answers of people", lost, 1)
        report.at_least(f"{kind}: answers that were given again", len(crew.notes("known")), 1)
        twice = [found for found in accepted.values() if len(found) > 1]
        report.demand(f"{kind}: requests with several answers: {twice[:2]}", kept=not twice)
        for number in range(self.size.runs):
            run = f"payments-{number}"
            for place, by in enumerate(results.get(run, ()), 1):
                wanted = "pay" if place == 1 else f"pay#{place}"
                right = by.endswith(f" {run} {wanted}") and accepted[run, wanted] == {by}
                report.demand(f"{kind}: {run} got {by!r} for {wanted}, accepted {accepted[run, wanted]}", kept=right)


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    Campaign(size, seed, folder, report, place).play()


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=process, mariadb=True)
