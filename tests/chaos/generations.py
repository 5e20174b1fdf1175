"""Runs without an end, while engines are killed and paused: one long run, and many chat threads.

The long run reads signals with numbers and continues as new after so many of them. At the end each number was read once
and in order, and what the store keeps of the run, and the time for a generation, have not grown.

The chat threads return when they have nothing to do, and continue with what has come meanwhile (`on_unread=`).
Every accepted message has one answer and one idempotency key at the receiver, and no two generations of a thread were
answering at once, unless a process was paused within the step.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from support.common import Crew, Journal, Report, Worker, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, current_step, step, workflow
from holdfast.commands import ListRecords, RecordPage
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.platform import elapsed
from holdfast.rules.runs.signal_keys import KEPT, SIGNAL_KEY, key_prefix

TTL = 1.5
LONGEST = 900.0
AHEAD = 3
"""The sender is at most so many generations ahead of the run."""


@dataclass(frozen=True)
class Size:
    generations: int
    signals: int
    threads: int
    messages: int
    senders: int
    faults: int


SMALL = Size(generations=8, signals=8, threads=5, messages=40, senders=4, faults=2)
FULL = Size(generations=1_000, signals=100, threads=50, messages=5_000, senders=4, faults=60)

MORE_ROWS = 60
"""Rows for workers, leases and pages of remembered keys, which may be more at one time than at the beginning."""
_journal: Journal | None = None


# -- a process ----------------------------------------------------------------------------------------


@step
async def mark(first: int, count: int) -> int:
    assert _journal is not None
    _journal.note("mark", first=first, count=count, key=current_step().idempotency_key)
    return first + count


@workflow
async def counting(ctx: Context, task: dict[str, int]) -> int:
    first, per, left = task["first"], task["per"], task["left"]
    for n in range(first, first + per):
        found = await ctx.wait_for_signal("n")
        if found != n:
            raise ValueError(f"the signal {found} came instead of {n}")
    following = await mark(first, per)
    if left == 1:
        return following
    raise ctx.continue_as_new({"first": following, "per": per, "left": left - 1})


@step
async def answer(message: str) -> str:
    assert _journal is not None
    info = current_step()
    _journal.note("begin", run=info.run_id, message=message, key=info.idempotency_key)
    await asyncio.sleep(0.002)
    _journal.note("end", run=info.run_id, message=message, key=info.idempotency_key)
    return f"re: {message}"


@workflow(on_unread="continue")
async def thread(ctx: Context, name: str) -> int:
    answered = 0
    while True:
        try:
            message = await ctx.wait_for_signal("message", timeout=0.05)
        except TimeoutError:
            return answered
        await answer(message)
        answered += 1
        if answered == 20:
            raise ctx.continue_as_new(name)


def engine_process(task: dict[str, Any]) -> None:
    global _journal  # noqa: PLW0603  (one process, one journal)
    _journal = Journal(task["journal"])
    asyncio.run(drive(task))


async def drive(task: dict[str, Any]) -> None:
    assert _journal is not None
    async with Engine(
        task["url"],
        namespace="generations",
        workflows=[counting, thread],
        name=task["name"],
        worker_ttl=TTL,
        park_after=0.2,
        grace=5,
    ):
        _journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)
    _journal.note("done")


# -- the campaign ---------------------------------------------------------------------------------------


def rows_of_all_tables(file: str) -> int:
    with closing(sqlite3.connect(file)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(db.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in tables)


class Campaign:
    def __init__(self, size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
        self.size, self.folder, self.report, self.kind = size, folder, report, place.kind
        self.chance = random.Random(seed)
        self.url, self.place = place.url(folder), place
        self.pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.faults = 0
        self.sent: dict[str, str] = {}  # accepted messages, and their threads
        self.kept: list[tuple[int, int]] = []  # generation, records of signal keys
        self.rows: list[int] = []  # entries and events of the long run, at the same times
        self.other_rows: list[int] = []  # on SQLite: rows of all tables but for remembered keys, at the same times

    def play(self) -> None:
        with Crew(__file__, self.folder) as crew, Client(self.url, namespace="generations") as client:
            for _ in range(3):
                crew.start({"url": self.url})
            for work in (self.count, self.chat):
                begun, errors = elapsed(), list[BaseException]()
                user = threading.Thread(target=self.guarded, args=(work, client, errors))
                user.start()
                self.trouble(crew, user)
                self.report.figure(f"{self.kind}: seconds of {work.__name__}", round(elapsed() - begun, 1))
                for error in errors:
                    self.report.broken(f"{self.kind}: {work.__name__}: {type(error).__name__}: {error}")
            if not crew.active():
                crew.start({"url": self.url})
            for worker in crew.running():
                worker.resume()
                worker.send_line("enough")
            until(lambda: not crew.running(), within=20)
            self.judge_counting(crew)
            self.judge_answers(crew)
            self.report.at_least(f"{self.kind}: kills and pauses", self.faults, self.size.faults * 0.5)

    def guarded(self, work: Any, client: Client, errors: list[BaseException]) -> None:
        try:
            work(client)
        except BaseException as error:  # reported by the thread that waits
            errors.append(error)

    def trouble(self, crew: Crew, user: threading.Thread) -> None:
        """Kill and pause engines while the user's thread is working; start new ones."""
        here = 0
        while user.is_alive():
            user.join(self.chance.uniform(0.2, 0.6))
            crew.resume_due(lambda: 0.1)
            active = [worker for worker in crew.active() if worker.notes("ready")]
            if here < self.size.faults and len(active) > 1:
                here += 1
                self.faults += 1
                victim: Worker = self.chance.choice(active)
                if self.chance.random() < 0.5:
                    victim.kill()
                else:
                    length, begun = self.chance.uniform(0.3, 2.5) * TTL, elapsed()
                    victim.pause(length)
                    self.pauses[victim.name].append((begun, begun + length + 5))
            if len(crew.active()) < 3 and len(crew.running()) < 5:
                crew.start({"url": self.url})

    # -- one long run -------------------------------------------------------------------------------------

    def count(self, client: Client) -> None:
        size = self.size
        run = client.runs.start("counting", {"first": 0, "per": size.signals, "left": size.generations}, id="counter")
        for n in range(size.generations * size.signals):
            if n % size.signals == 0:
                block = n // size.signals
                ready = until(lambda b=block: client.runs.get(run).generation > b - AHEAD, within=60)  # type: ignore[misc]
                if not ready:
                    raise TimeoutError(f"the generation {block - AHEAD + 1} was not reached within a minute")
                if block % max(1, size.generations // 10) == 0:
                    self.kept.append((block, self.keys_kept(client, run)))
                    history = client.runs.export(run)
                    self.rows.append(len(history.entries) + len(history.events))
                    if self.kind == "sqlite":
                        self.other_rows.append(rows_of_all_tables(self.place.file(self.url)) - self.kept[-1][1])
            for _ in range(2 if self.chance.random() < 0.05 else 1):  # some are sent again
                self.persist(lambda n=n: client.runs.signal(run, "n", n, idempotency_key=str(n)))  # type: ignore[misc]
            if n >= 3 * size.signals and self.chance.random() < 0.01:  # read by an earlier generation
                old = n - 2 * size.signals
                self.persist(lambda old=old: client.runs.signal(run, "n", -1, idempotency_key=str(old)))  # type: ignore[misc]
        result = client.runs.result(run, timeout=LONGEST)
        wanted = size.generations * size.signals
        self.report.demand(f"{self.kind}: the run has read {result} signals, and not {wanted}", kept=result == wanted)
        info, history = client.runs.get(run), client.runs.export(run)
        self.report.every(f"{self.kind}: generations", info.generation, size.generations)
        longest = 2 + 2 * size.signals + 10
        self.report.at_most(f"{self.kind}: entries of the last generation", len(history.entries), longest)
        self.report.at_most(f"{self.kind}: events of the last generation", len(history.events), size.signals)
        ahead = (AHEAD + 1) * size.signals  # events that the run has not read
        self.report.at_most(f"{self.kind}: entries and events at any time", max(self.rows), longest + ahead)
        if self.other_rows:
            allowed = self.other_rows[0] + longest + ahead + MORE_ROWS
            self.report.at_most(f"{self.kind}: rows of all tables at any time", max(self.other_rows), allowed)
        most = max(kept for _, kept in self.kept)
        self.report.at_most(f"{self.kind}: keys of signals that are remembered", most, KEPT + 3 * size.signals)

    def keys_kept(self, client: Client, run: str) -> int:
        found, after = 0, ""
        connection = client.runtime.store.connect("queries")
        try:
            while True:
                command = ListRecords(kind=SIGNAL_KEY.name, prefix=key_prefix(run), after=after, limit=1_000)
                (page,) = connection.execute([command])
                assert isinstance(page, RecordPage)
                found += len(page.items)
                if page.next is None:
                    return found
                after = page.next
        finally:
            connection.close()

    def persist(self, send: Any) -> None:
        """Send until it is known to be accepted; the key makes it count once."""
        while True:
            try:
                send()
            except StoreUnavailable:
                continue
            return

    def judge_counting(self, crew: Crew) -> None:
        marks = {one["first"]: one for one in sorted(crew.notes("mark"), key=lambda one: one["at"], reverse=True)}
        keys = defaultdict(set)
        for one in crew.notes("mark"):
            keys[one["first"]].add(one["key"])
        self.report.every(f"{self.kind}: generations that were marked", len(marks), self.size.generations)
        twice = [first for first, found in keys.items() if len(found) > 1]
        self.report.demand(f"{self.kind}: generations with several keys: {twice[:5]}", kept=not twice)
        times = [later["at"] - earlier["at"] for earlier, later in pairwise(marks[first] for first in sorted(marks))]
        part = max(1, len(times) // 10)
        if len(times) > 2 * part:
            first, last = median(times[:part]), median(times[-part:])
            self.report.figure(
                f"{self.kind}: ms a generation, the first and the last tenth", f"{first * 1e3:.0f}, {last * 1e3:.0f}"
            )
            if self.size.generations >= 1_000:
                self.report.at_most(f"{self.kind}: time of the last tenth / of the first", round(last / first, 2), 2)

    # -- chat threads -------------------------------------------------------------------------------------

    def chat(self, client: Client) -> None:
        with ThreadPoolExecutor(self.size.senders) as pool:
            for sent in pool.map(lambda n: self.send(client, n), range(self.size.senders)):
                self.sent.update(sent)
        names = [f"chat-{n}" for n in range(self.size.threads)]
        for name in names:
            try:
                client.runs.result(name, timeout=60)
            except HoldfastError as error:
                self.report.broken(f"{self.kind}: {name}: {type(error).__name__}: {error}")

    def send(self, client: Client, sender: int) -> dict[str, str]:
        chance, accepted = random.Random(sender), {}
        for n in range(self.size.messages // self.size.senders):
            name, text = f"chat-{chance.randrange(self.size.threads)}", f"{sender}/{n}"
            for _ in range(2 if chance.random() < 0.1 else 1):
                self.persist(lambda name=name, text=text: self.deliver(client, name, text))  # type: ignore[misc]
            accepted[text] = name
            until(lambda: False, within=chance.uniform(0, 0.02))
        return accepted

    def deliver(self, client: Client, name: str, text: str) -> None:
        client.runs.start_or_signal("thread", name, id=name, name="message", payload=text, idempotency_key=text)

    def judge_answers(self, crew: Crew) -> None:
        kind, report = self.kind, self.report
        keys: dict[str, set[str]] = defaultdict(set)
        spans: dict[str, list[tuple[float, float, str, str]]] = defaultdict(list)
        for worker in crew.workers:
            notes = worker.notes("begin", "end")
            ends = {(one["message"], one["key"]): one["at"] for one in notes if one["what"] == "end"}
            for one in notes:
                if one["what"] == "begin":
                    keys[one["message"]].add(one["key"])
                    end = ends.get((one["message"], one["key"]), worker.killed_at or one["at"])
                    spans[one["run"]].append((one["at"], max(end, one["at"]), one["key"], worker.name))
        report.at_least(f"{kind}: accepted messages", len(self.sent), self.size.messages * 0.9)
        report.every(f"{kind}: accepted messages with an answer", len(keys.keys() & self.sent.keys()), len(self.sent))
        twice = {message: found for message, found in keys.items() if len(found) > 1}
        report.demand(
            f"{kind}: {len(twice)} messages have several keys, such as {list(twice.items())[:2]}", kept=not twice
        )
        generations = {key.partition(":")[0] for found in keys.values() for key in found}
        report.figure(f"{kind}: generations of {self.size.threads} threads", len(generations))
        overlaps = 0
        for found in spans.values():
            for earlier, later in pairwise(sorted(found)):
                other = earlier[2].partition(":")[0] != later[2].partition(":")[0]
                overlaps += other and later[0] < earlier[1] and not self.paused(earlier)
        report.demand(f"{kind}: {overlaps} answers of two generations overlapped", kept=overlaps == 0)

    def paused(self, body: tuple[float, float, str, str]) -> bool:
        """Whether the process of this body was paused while it ran."""
        return any(begin < body[1] and body[0] < end for begin, end in self.pauses[body[3]])


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    Campaign(size, seed, folder, report, place).play()


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=engine_process, mariadb=True)
