"""Readers follow the streams of runs while the engines that write them are killed and paused past their leases.

Each run has several steps, async ones and threads, that write items, and its code writes items between them. Each
reader breaks off again and again, and continues at its offset. At the end every reader has seen the same items in
order, without a gap, and ended with its run; what workflow code wrote is there once; of each step the attempt whose
result was recorded is there completely, after all items of earlier attempts, which are beginnings of what they were to
write. So nothing of a process that had lost its run was stored.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.common import Crew, Journal, Report, Worker, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, current_step, workflow
from holdfast.errors import StoreUnavailable, StreamWriteRefused
from holdfast.workflow import StreamItem

TTL = 1.5
LONGEST = 600.0
PAUSE = 0.01
"""Seconds between two items of a step."""


@dataclass(frozen=True)
class Size:
    runs: int
    readers: int
    """For each run."""
    steps: int
    items: int
    """Of each step."""
    faults: int


SMALL = Size(runs=3, readers=3, steps=6, items=60, faults=4)
FULL = Size(runs=5, readers=4, steps=20, items=200, faults=40)

_journal: Journal | None = None


# -- a process ----------------------------------------------------------------------------------------


async def speak(items: int) -> str:
    body, stream = uuid4().hex, current_step().stream("tokens")
    for n in range(items):
        await stream.write([body, n])
        await asyncio.sleep(PAUSE)
    return body


def speak_in_a_thread(items: int) -> str:
    body, stream = uuid4().hex, current_step().stream("tokens")
    for n in range(items):
        try:
            stream.write([body, n])
        except StreamWriteRefused:
            assert _journal is not None
            _journal.note("refused", body=body)
            raise
        time.sleep(PAUSE)
    return body


@workflow
async def talk(ctx: Context, task: dict[str, int]) -> list[str]:
    bodies: list[str] = []
    for n in range(task["steps"]):
        ctx.stream("tokens").write(["code", n])
        kind = speak_in_a_thread if n % 2 else speak
        bodies.append(await ctx.step(f"speak-{n}", kind, task["items"]))
    ctx.stream("tokens").write(["code", task["steps"]])
    return bodies


def engine_process(task: dict[str, Any]) -> None:
    global _journal  # noqa: PLW0603  (one process, one journal)
    _journal = Journal(task["journal"])
    asyncio.run(drive(task))


async def drive(task: dict[str, Any]) -> None:
    assert _journal is not None
    async with Engine(
        task["url"], namespace="streams", workflows=[talk], name=task["name"], worker_ttl=TTL, park_after=0.2, grace=5
    ):
        _journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


# -- the campaign ---------------------------------------------------------------------------------------


class Reader:
    """Reads the stream of one run to its end, in pieces of random lengths."""

    def __init__(self, client: Client, run: str, seed: str) -> None:
        self.run, self.items, self.error = run, list[StreamItem[Any]](), ""
        self._client, self._chance = client, random.Random(seed)
        self.pieces = 0
        self.thread = threading.Thread(target=self._guarded, daemon=True)
        self.thread.start()

    def _guarded(self) -> None:
        try:
            while not self._piece():
                self.pieces += 1
        except Exception as error:  # reported by the campaign
            self.error = f"{type(error).__name__}: {error}"

    def _piece(self) -> bool:
        """Read some items; whether the stream has ended."""
        after = self.items[-1].offset if self.items else None
        left = self._chance.choice([1, 20, 500, 100_000])
        try:
            for item in self._client.runs.stream(self.run, "tokens", after=after):
                self.items.append(item)
                left -= 1
                if not left:
                    return False
        except StoreUnavailable:
            return False
        return True


class Campaign:
    def __init__(self, size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
        self.size, self.seed, self.folder, self.report, self.kind = size, seed, folder, report, place.kind
        self.chance = random.Random(seed)
        self.url = place.url(folder)
        self.faults = self.repeated = 0

    def play(self) -> None:
        size = self.size
        with Crew(__file__, self.folder) as crew, Client(self.url, namespace="streams") as client:
            for _ in range(3):
                crew.start({"url": self.url})
            task = {"steps": size.steps, "items": size.items}
            runs = [client.runs.start("talk", task, id=f"talk-{n}") for n in range(size.runs)]
            readers = [Reader(client, run, f"{self.seed} {run} {n}") for run in runs for n in range(size.readers)]
            self.trouble(crew, client, readers)
            for run in runs:
                self.judge(client, run, [reader for reader in readers if reader.run == run])
            refused = sum(len(worker.notes("refused")) for worker in crew.workers)
        total = sum(len(reader.items) for reader in readers[:: size.readers])
        self.report.figure(f"{self.kind}: items of {size.runs} runs, each seen by {size.readers} readers", total)
        self.report.figure(f"{self.kind}: readers that continued at an offset", sum(one.pieces for one in readers))
        self.report.figure(f"{self.kind}: writes refused in threads of paused processes", refused)
        self.report.at_least(f"{self.kind}: kills and pauses", self.faults, size.faults * 0.5)
        self.report.at_least(f"{self.kind}: attempts of steps that were repeated", self.repeated, 1)

    def trouble(self, crew: Crew, client: Client, readers: list[Reader]) -> None:
        """Kill and pause engines while there are readers, mostly those that drive a run; start new ones."""
        deadline = time.monotonic() + LONGEST
        while any(reader.thread.is_alive() for reader in readers) and time.monotonic() < deadline:
            time.sleep(self.chance.uniform(0.1, 0.4))
            crew.resume_due(lambda: 0.1)
            active = [worker for worker in crew.active() if worker.notes("ready")]
            if self.faults < self.size.faults and len(active) > 1:
                self.faults += 1
                driving = self.driving(client, readers) if self.chance.random() < 0.7 else set()
                victim: Worker = self.chance.choice([one for one in active if one.name in driving] or active)
                if self.chance.random() < 0.5:
                    victim.kill()
                else:
                    victim.pause(self.chance.uniform(0.5, 2.5) * TTL)
            if len(crew.active()) < 3 and len(crew.running()) < 5:
                crew.start({"url": self.url})
        until(lambda: not any(reader.thread.is_alive() for reader in readers), within=5)

    def driving(self, client: Client, readers: list[Reader]) -> set[str]:
        """The names of the engines that drive runs."""
        return {client.runs.get(run).holder or "" for run in sorted({reader.run for reader in readers})}

    def judge(self, client: Client, run: str, readers: list[Reader]) -> None:
        def demand(what: str, *, kept: bool) -> None:
            self.report.demand(f"{self.kind}: {run}: {what}", kept=kept)

        for reader in readers:
            demand(
                f"a reader failed or did not end: {reader.error}",
                kept=not reader.error and not reader.thread.is_alive(),
            )
        bodies = client.runs.result(run, timeout=LONGEST)
        items = readers[0].items
        demand("readers have seen different items", kept=all(reader.items == items for reader in readers))
        demand("items are missing", kept=[item.offset for item in items] == list(range(len(items))))
        of_code = [item for item in items if item.step is None]
        demand(
            "what workflow code wrote is not there once and in order",
            kept=[item.value for item in of_code] == [["code", n] for n in range(self.size.steps + 1)],
        )
        by_step: dict[str, dict[int, list[StreamItem[Any]]]] = defaultdict(lambda: defaultdict(list))
        for item in items:
            if item.step is not None:
                by_step[item.step][item.began].append(item)
        for n, body in enumerate(bodies):
            self.judge_step(demand, f"speak-{n}", by_step[f"speak-{n}"], body)

    def judge_step(self, demand: Any, step: str, attempts: dict[int, list[StreamItem[Any]]], body: str) -> None:
        """The items of each attempt, by the offset at which it began."""
        ordered = [attempts[began] for began in sorted(attempts)]
        self.repeated += len(ordered) - 1
        for place, found in enumerate(ordered):
            whole = [[found[0].value[0], n] for n in range(len(found))]
            demand(f"{step}: an attempt is not a beginning of its text", kept=[one.value for one in found] == whole)
            demand(f"{step}: the indexes are wrong", kept=[one.index for one in found] == list(range(len(found))))
            if place + 1 < len(ordered):
                last, following = found[-1].offset, ordered[place + 1][0].offset
                demand(f"{step}: an attempt has written after a later one", kept=last < following)
        final = ordered[-1] if ordered else []
        demand(f"{step}: the recorded attempt is not the last one", kept=bool(final) and final[0].value[0] == body)
        demand(f"{step}: {len(final)} of {self.size.items} items are there", kept=len(final) == self.size.items)
        shown: list[StreamItem[Any]] = []
        for one in (item for found in ordered for item in found):
            shown = [one] if one.begins else [*shown, one]
        demand(f"{step}: a reader that drops repeated text has other text", kept=shown == final)


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    Campaign(size, seed, folder, report, place).play()


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=engine_process, mariadb=True)
