"""A process hangs in a step with `heartbeat_timeout`: another one takes the run over although the lease is valid.

The lease of a worker is a minute long, so that it does not end during a case. First a step sends heartbeats for several
timeouts beside an idle engine: nobody takes the run over. Then a process is paused in the middle of a step. Another
engine takes the run over within the timeout and a poll, and its attempt finds the details of the last heartbeat. When
the first process continues, its records are refused, and the result of the step stays that of the second process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, stretched, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, current_step, step, workflow
from holdfast.errors import AttemptEnded

NAMESPACE = "heartbeats"
TTL = 60.0
TIMEOUT = 2.0
TIMEOUTS = 3
"""For so many timeouts a step sends heartbeats beside an idle engine."""
POLL = 1.0
PAUSE = 0.05
"""Seconds for each page."""
PAGES_LEFT = 60
"""So many pages are left when the process is paused, or fewer on a slow machine."""
LONGEST = 60.0


@dataclass(frozen=True)
class Size:
    times: int


SMALL = Size(times=1)
FULL = Size(times=10)

_who = ""
_journal: Journal | None = None


def read_pages(run: str, pages: int) -> list[Any]:
    """Read pages, each with a heartbeat, from the one on that an earlier attempt has reported."""
    assert _journal is not None
    info = current_step()
    first = info.heartbeat_details or 0
    _journal.note("begin", run=run, first=first)
    for page in range(first + 1, pages + 1):
        try:
            info.heartbeat(page)
        except AttemptEnded:
            _journal.note("stopped", run=run)
            raise
        _journal.note("page", run=run, page=page)
        time.sleep(PAUSE)
    _journal.note("end", run=run)
    return [_who, first]


@step(heartbeat_timeout=TIMEOUT)
def in_thread(run: str, pages: int) -> list[Any]:
    return read_pages(run, pages)


@workflow
async def reading(ctx: Context, job: dict[str, Any]) -> list[Any]:
    return await in_thread(ctx.run_id, job["pages"])


def engine_process(task: dict[str, Any]) -> None:
    global _who, _journal
    _who, _journal = task["name"], Journal(task["journal"])
    asyncio.run(drive(task))


async def drive(task: dict[str, Any]) -> None:
    assert _journal is not None
    journal = _journal
    async with Engine(
        task["url"], namespace=NAMESPACE, workflows=[reading], name=task["name"], worker_ttl=TTL
    ) as engine:
        engine.events.subscribe(lambda event: journal.note("event", name=event.name))
        journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    task = {"url": place.url(folder)}
    with Crew(__file__, folder) as crew, Client(task["url"], namespace=NAMESPACE) as client:
        for number in range(size.times):
            case = Case(f"r{number}", task=task, crew=crew, client=client, report=report, kind=place.kind)
            case.stays()
            case.is_taken_over()
            case.close()
        report.figure(f"{place.kind}: takeovers", size.times)


class Case:
    """Two engines of one store: the first one drives the runs, and the second one waits."""

    def __init__(
        self, name: str, *, task: dict[str, Any], crew: Crew, client: Client, report: Report, kind: str
    ) -> None:
        self.name, self.client, self.report, self.kind = name, client, report, kind
        self.first = self.ready(crew.start(task))
        pages = round(TIMEOUTS * TIMEOUT / PAUSE)
        for suffix, more in (("beats", 0), ("hangs", PAGES_LEFT)):
            client.runs.start("reading", {"pages": pages + more}, id=f"{name}-{suffix}")
        until(lambda: len(self.first.notes("begin")) > 1, within=LONGEST)
        self.second = self.ready(crew.start(task))

    def ready(self, worker: Worker) -> Worker:
        until(lambda: worker.notes("ready"), within=LONGEST)
        return worker

    def demand(self, what: str, *, kept: bool) -> None:
        self.report.demand(f"{self.kind}: {what}", kept=kept)

    def stays(self) -> None:
        """A step that sends heartbeats stays with its worker."""
        result = self.client.runs.result(f"{self.name}-beats", timeout=LONGEST)
        self.demand(f"a run whose step sends heartbeats was taken over: {result}", kept=result == [self.first.name, 0])

    def is_taken_over(self) -> None:
        """The run of a process that hangs is taken over."""
        run = f"{self.name}-hangs"
        self.first.pause(LONGEST)
        began = time.monotonic()
        self.demand("nobody took the run over", kept=until(lambda: self.second.notes("begin"), within=LONGEST))
        took = time.monotonic() - began
        self.report.within(f"{self.kind}: seconds until the takeover", took, TIMEOUT + TIMEOUT / 4 + POLL)
        (begin,) = self.second.notes("begin")
        reported = max(note["page"] for note in self.first.notes("page") if note["run"] == run)
        sent = round(TIMEOUT / 4 / PAUSE) + 10  # heartbeats are sent four times in a timeout
        self.demand(
            f"the next attempt began after page {begin['first']}, and {reported} were read",
            kept=0 < reported - stretched(sent) < begin["first"] <= reported,
        )
        self.first.resume()
        left = until(lambda: self.first.notes("stopped"), within=LONGEST)
        self.demand("the first worker goes on with the step", kept=left)
        result = self.client.runs.result(run, timeout=LONGEST)
        self.demand(f"the result is {result}", kept=result == [self.second.name, begin["first"]])
        seen = self.client.runs.get(run)
        self.demand(f"the history has {seen.entries} entries", kept=seen.entries == 2)  # the input and the step
        self.demand(f"{seen.heartbeats} are left at the end", kept=not seen.heartbeats)
        missed = [note for note in self.second.notes("event") if note["name"] == "heartbeat_missed"]
        self.demand(f"there were {len(missed)} events about missed heartbeats", kept=len(missed) == 1)

    def close(self) -> None:
        self.first.kill()
        self.second.kill()


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=engine_process, mariadb=True)
