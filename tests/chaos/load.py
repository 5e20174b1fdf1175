"""Thousands of callers of one lock: none fails, the rate is independent of their number, other locks stay fast.

Each section runs by itself when it is named on the command line, and so does each of its cases (`semaphore-10`):

- semaphore: more and more tasks pass through a semaphore of 3, in one process and in ten. Meanwhile a bystander, in
  another process, acquires and releases another lock of the same store.
- holders:   all permits of large semaphores are held for a long time, of one semaphore by one process, of the others
  by ten and by forty. No lease is lost, and each round of renewals of a process is fast.
- readers:   as many readers hold one read-write lock at the same time.
- mutex:     runs queue for one mutex and drain at a constant rate (load_runs.py).
- limit:     runs queue behind a concurrency limit and drain at a constant rate (load_runs.py).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, until
from support.workflow_stores import WorkflowStore, main

from holdfast import AsyncClient, Client
from holdfast.platform import elapsed
from support import load_runs

STARTING = 60.0
"""Seconds that processes may need to start."""
LONGEST = 240.0
"""Seconds that any other operation may need."""
LONGEST_OF_ALL = 3 * 3_600.0
PERMITS = 3
INSIDE = 0.001
"""Seconds for which a task holds the semaphore."""
SETTINGS = {"postgres": {"max_connections": "300"}}
"""Each process has two or three connections."""
BYSTANDER_RESTS = 0.005
"""Seconds between two turns of the bystander."""


@dataclass(frozen=True)
class Size:
    task_counts: tuple[int, ...]
    """Numbers of tasks on the semaphore."""
    turns: int
    """The minimum number of acquisitions, of all tasks together."""
    together: tuple[int, ...]
    """Numbers of processes for the semaphore and for the readers."""
    share: float
    """The minimum rate with the most tasks, as a share of the rate with the fewest."""
    bystander: float
    """The maximum p99 of the bystander's turns, in seconds."""
    seen: int
    """The minimum number of turns of the bystander for each number of tasks."""
    holders: int
    """Permits of each large semaphore, and as many readers."""
    spread: tuple[int, ...]
    """Numbers of processes for the holders; each number has its own semaphore."""
    ttl: float
    hold: float
    """Seconds for which everything is held."""
    renewal: float
    """The maximum time of one round of renewals, in seconds."""
    runs: load_runs.Size


SMALL = Size(
    task_counts=(10, 60),
    turns=60,
    together=(3,),
    share=0.1,
    bystander=5.0,
    seen=3,
    holders=60,
    spread=(3,),
    ttl=3.0,
    hold=4.0,
    renewal=5.0,
    runs=load_runs.SMALL,
)
"""Loose limits, since other tests run on the machine at the same time."""
FULL = Size(
    task_counts=(100, 300, 1_000, 3_000),
    turns=1_500,
    together=(1, 10),
    share=0.5,
    bystander=0.1,
    seen=200,
    holders=1_000,
    spread=(1, 10, 40),
    ttl=30.0,
    hold=300.0,
    renewal=0.3,
    runs=load_runs.FULL,
)


# -- a process ----------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    journal = Journal(job["journal"])
    if job["role"] == "bystander":
        pass_by(job, journal)
    elif job["role"] in ROLES:
        asyncio.run(ROLES[job["role"]](job, journal))
    else:
        load_runs.work(job, journal)


async def acquire_in_tasks(job: dict[str, Any], journal: Journal) -> None:
    """Each input line is the number of tasks that acquire the semaphore, and how often each does so."""
    async with AsyncClient(job["url"], name=job["name"]) as hf:

        async def task(turns: int) -> None:
            semaphore = hf.semaphore("acquire_in_tasks", permits=PERMITS)
            for _ in range(turns):
                async with semaphore:
                    await asyncio.sleep(INSIDE)

        async with hf.lock(job["name"]):  # so that the connections are open before the measurement
            journal.note("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            tasks, turns = map(int, line.split())
            ends = await asyncio.gather(*(task(turns) for _ in range(tasks)), return_exceptions=True)
            failures = [repr(end) for end in ends if isinstance(end, BaseException)]
            journal.note("done", failures=len(failures), such_as=failures[:1])


def pass_by(job: dict[str, Any], journal: Journal) -> None:
    """Acquire and release its own lock until it is stopped; then note the duration of each turn."""
    enough = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), enough.set()), daemon=True).start()
    turns: list[tuple[float, float]] = []
    with Client(job["url"], name=job["name"]) as hf:
        lock = hf.lock("bystander")
        with lock:
            journal.note("ready")
        while not enough.wait(BYSTANDER_RESTS):
            begun = elapsed()
            with lock:
                pass
            turns.append((begun, elapsed() - begun))
    journal.note("done", turns=turns)


async def hold(job: dict[str, Any], journal: Journal) -> None:
    """Acquire so many permits, or so many read locks, and hold them until it is stopped."""
    async with AsyncClient(job["url"], name=job["name"]) as hf:
        hf.events.subscribe(partial(note_renewals, journal))
        if job["readers"]:
            lock = hf.rwlock(job["key"], ttl=job["ttl"]).read()
        else:
            lock = hf.semaphore(job["key"], permits=job["permits"], ttl=job["ttl"])
        await asyncio.to_thread(ready, journal)
        leases = await asyncio.gather(*(lock.acquire() for _ in range(job["count"])))
        journal.note("inside", count=len(leases))
        await asyncio.to_thread(sys.stdin.readline)
        journal.note("kept", count=sum(lease.valid for lease in leases))
        await asyncio.gather(*(lease.release() for lease in leases))
    journal.note("left")


def ready(journal: Journal) -> None:
    """Note that the process is ready, and wait for the start line."""
    journal.note("ready")
    sys.stdin.readline()


def note_renewals(journal: Journal, event: Any) -> None:
    if event.name == "leases_renewed":
        journal.note("renewed", leases=event.fields["leases"], seconds=event.fields["seconds"])
    elif event.name == "renewal_unknown":  # the record was in use by another client: send the command again
        journal.note("again")
    elif event.name in ("lease_lost", "lease_neglected"):
        journal.note("lost", event=event.name, why=str(event.fields.get("reason")))


ROLES = {"acquire_in_tasks": acquire_in_tasks, "holder": hold}


# -- the sections -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Everything that a case needs: its size, a folder, a store, and the report."""

    size: Size
    folder: Path
    report: Report
    place: WorkflowStore
    case: str

    @property
    def url(self) -> str:
        return self.place.url(self.folder)

    @property
    def name(self) -> str:
        return f"{self.place.kind}, {self.case}"

    def crew(self) -> Crew:
        return Crew(__file__, self.folder)

    def begin(self, workers: list[Worker]) -> bool:
        """Whether all of them are ready."""
        return self.came(workers, "ready", within=STARTING)

    def came(self, workers: list[Worker], what: str, *, times: int = 1, within: float = LONGEST) -> bool:
        """Whether all of them have noted this so many times."""
        until(
            lambda: all(len(one.notes(what)) >= times or not one.running for one in workers), within=within, every=0.05
        )
        came = all(len(worker.notes(what)) >= times for worker in workers)
        self.report.demand(f"{self.name}: not all processes reached {what!r}", kept=came)
        return came

    def complain(self, crew: Crew) -> None:
        for failure in crew.failures():
            self.report.broken(f"{self.name}: {failure}")


def semaphore(stage: Stage, processes: int) -> None:
    """Run more and more tasks through the semaphore, beside a bystander."""
    size, report, name = stage.size, stage.report, stage.name
    rates: dict[int, float] = {}
    spans: dict[int, tuple[float, float]] = {}
    with stage.crew() as crew:
        bystander = crew.start({"url": stage.url, "role": "bystander"})
        workers = [crew.start({"url": stage.url, "role": "acquire_in_tasks"}) for _ in range(processes)]
        if stage.begin([bystander, *workers]):
            for number, tasks in enumerate(size.task_counts, 1):
                mine, turns = max(1, tasks // processes), max(1, size.turns // tasks)
                begun = elapsed()
                for worker in workers:
                    worker.send_line(f"{mine} {turns}")
                if not stage.came(workers, "done", times=number):
                    break
                ended = max(worker.notes("done")[-1]["at"] for worker in workers)
                rates[tasks], spans[tasks] = mine * turns * processes / (ended - begun), (begun, ended)
            bystander.send_line("enough")
            stage.came([bystander], "done")
            for note in crew.notes("done"):
                failures = note.get("failures", 0)
                report.demand(f"{name}: {failures} tasks failed, such as {note.get('such_as')}", kept=not failures)
        stage.complain(crew)
        turns_seen = [tuple(turn) for note in bystander.notes("done") for turn in note["turns"]]
    for tasks, rate in rates.items():
        report.figure(f"{name}: {tasks} tasks, turns a second", rate)
        begun, ended = spans[tasks]
        beside = sorted(took for at, took in turns_seen if begun <= at < ended)
        report.at_least(f"{name}: {tasks} tasks, turns of the bystander", len(beside), size.seen)
        if beside:
            p99 = beside[int(len(beside) * 0.99)]
            report.within(
                f"{name}: {tasks} tasks, p99 of the bystander, ms", round(1_000 * p99), 1_000 * size.bystander
            )
    if len(rates) == len(size.task_counts):
        first, last = size.task_counts[0], size.task_counts[-1]
        report.at_least(f"{name}: rate at {last} tasks / rate at {first}", rates[last] / rates[first], size.share)


def holders(stage: Stage) -> None:
    """Hold all permits of several semaphores at the same time, each by a different number of processes."""
    size, report = stage.size, stage.report
    with stage.crew() as crew, Client(stage.url) as hf:
        groups = {processes: start_holders(stage, crew, processes, readers=False) for processes in size.spread}
        if all(entered(stage, group, processes) for processes, group in groups.items()):
            time.sleep(size.hold)
            for processes, group in groups.items():
                name, total = f"{stage.name}, {processes} processes", size.holders // processes * processes
                seen = len(hf.locks.inspect(f"holders-{processes}").holders)
                report.every(f"{name}: holders in the store after {size.hold:g} s", seen, total)
                leave(stage, group)
                judge_holders(stage, name, group, total)
        stage.complain(crew)


def judge_holders(stage: Stage, name: str, group: list[Worker], total: int) -> None:
    """Check that all leases were kept, and that no round of renewals was slow."""
    size, report = stage.size, stage.report
    report.every(f"{name}: leases kept", sum(note["count"] for one in group for note in one.notes("kept")), total)
    rounds = sorted(note["seconds"] for one in group for note in one.notes("renewed"))
    report.at_least(f"{name}: rounds of renewals", len(rounds), int(len(group) * size.hold / size.ttl))
    if rounds:
        report.figure(f"{name}: a round of renewals, median, ms", round(1_000 * rounds[len(rounds) // 2]))
        report.within(f"{name}: a round, slowest, ms", round(1_000 * rounds[-1]), 1_000 * size.renewal)
    report.figure(f"{name}: renewals that were sent again", sum(len(one.notes("again")) for one in group))
    for note in (note for one in group for note in one.notes("lost")):
        report.broken(f"{name}: {note['event']}: {note['why']}")


def readers(stage: Stage, processes: int) -> None:
    """Check that all readers hold the lock at the same time."""
    total = stage.size.holders // processes * processes
    with stage.crew() as crew, Client(stage.url) as hf:
        workers = start_holders(stage, crew, processes, readers=True)
        if entered(stage, workers, processes):
            inside = len(hf.locks.inspect("readers").holders)
            stage.report.every(f"{stage.name}: readers inside at once", inside, total)
            leave(stage, workers)
        stage.complain(crew)


def start_holders(stage: Stage, crew: Crew, processes: int, *, readers: bool) -> list[Worker]:
    """Start processes that together acquire one lock as many times as there are holders."""
    count = stage.size.holders // processes
    job = {
        "url": stage.url,
        "role": "holder",
        "ttl": stage.size.ttl,
        "readers": readers,
        "key": "readers" if readers else f"holders-{processes}",
        "count": count,
        "permits": count * processes,
    }
    return [crew.start(job) for _ in range(processes)]


def entered(stage: Stage, workers: list[Worker], processes: int) -> bool:
    """Whether all processes hold the lock as many times as they should."""
    if not stage.begin(workers):
        return False
    begun = elapsed()
    for worker in workers:
        worker.send_line("begin")
    if not stage.came(workers, "inside"):
        return False
    took = max(worker.notes("inside")[0]["at"] for worker in workers) - begun
    stage.report.figure(f"{stage.name}: seconds until all {processes} processes hold it", took)
    return True


def leave(stage: Stage, workers: list[Worker]) -> None:
    for worker in workers:
        worker.send_line("leave")
    stage.came(workers, "left")


# -- the campaign -------------------------------------------------------------------------------------


def cases(size: Size) -> dict[str, Callable[[Stage], None]]:
    """All cases by name; each name begins with the name of its section."""
    found: dict[str, Callable[[Stage], None]] = {}
    for processes in size.together:
        found[f"semaphore-{processes}"] = partial(semaphore, processes=processes)
    found["holders"] = holders
    for processes in size.together:
        found[f"readers-{processes}"] = partial(readers, processes=processes)
    return found | load_runs.cases(size.runs)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument(
        "sections", nargs="*", help="sections or cases, such as `semaphore` or `semaphore-10` (default: all)"
    )
    return made


def prove(size: Size, chosen: list[str], folder: Path, report: Report, place: WorkflowStore) -> None:
    """Run the selected cases on one store."""
    played = 0
    for case, play in cases(size).items():
        if not chosen or case in chosen or case.partition("-")[0] in chosen:
            home = folder / case
            home.mkdir()
            play(Stage(size, home, report, place, case))
            played += 1
    report.at_least(f"{place.kind}: cases", played, max(1, len(chosen)))


if __name__ == "__main__":
    options = parser()

    def prove_chosen(size: Size, _seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
        prove(size, options.parse_args().sections, folder, report, place)

    main(
        __file__,
        prove_chosen,
        small=SMALL,
        full=FULL,
        work=work,
        parser=options,
        longest=LONGEST_OF_ALL,
        settings=SETTINGS,
    )
