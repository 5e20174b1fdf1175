"""Random programs of several generations, on every store, with crashes at commits.

A run is started, or begins with a signal (`start_or_signal`). It continues as new at random places, and because of
unread signals. While it runs, signals are sent to it, some of them twice, and the worker that drives it loses its lease
just before or just after a commit, as if it had been killed there. After some of these crashes the engine has a release
that cannot read the input of any run: each run that it claims is blocked, until the release is rolled back. At the end

- the stored history replays to the result that was stored,
- each idempotency key was used by one generation, with the same arguments each time,
- each update that was answered has one answer, which its senders got, and the code gave,
- each answer to a request for an approval that was accepted was received, or the run did not wait for it to its end,
- each accepted signal was read once, in the order in which those of its name were sent, or is unread,
- the details of the run are those that its code has set last, in whichever generation,
- its code has written each item to its stream once, and each step that completed has its items there, in order,
- a program whose result does not depend on time has the result and the effects that it has without a crash,
- a fork of the run from a random step ends as the run did,
- a run that replaces it leaves it as it was, under its other id, and keeps the same promises,
- an imported copy of it is exported again as it was, and executes nothing,
- and a purge removes all of them with their children.

HOLDFAST_PROGRAMS is the number of programs, as for test_random_replay.py; servers get a part of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import closing, suppress
from copy import copy

from random_programs import BY_UNREAD, LETTERS, ON_UNREAD, SEEN, plan, without_random_values
from stream_checks import check_items_of_steps, items_of_code
from waiting import eventually_async

from holdfast import WorkflowFailed
from holdfast.commands import ForceRelease
from holdfast.commands.runs import ReadRun
from holdfast.errors import ApprovalNotOpen, InvalidOption, RunEnded, RunLocked, UnknownRun, UpdateTimeout
from holdfast.rules.runs.record import worker_key
from holdfast.runtime import failpoints
from holdfast.stores import open_store
from holdfast.workflow import journal as j
from holdfast.workflow.blocking_code import BlockingCodeWatch
from holdfast.workflow.continuing import unread_signals
from holdfast.workflow.history_check import check_history
from holdfast.workflow.queries import result_of
from holdfast.workflow.replay import Replay

PROGRAMS = int(os.environ.get("HOLDFAST_PROGRAMS", "500"))
SHARES = {"memory": 20, "sqlite": 100}
"""A store has one of so many programs; others, one of 250."""
CRASHES = 3
POINTS = 40
"""The crashes are at some of the first commits of this number."""
SIGNALS = 6
MORE = ("fork", "copy", "replaced")
"""What is done with a run that has ended: all of it where there is a crash at each commit, else one by chance."""
EVERY_COMMIT = 1_000_000
"""The first seed of the programs that have a crash at each commit."""


def programs(url: str) -> range:
    return range(max(1, PROGRAMS // SHARES.get(url.partition(":")[0], 250)))


class Crashes:
    """Ends the lease of the worker of an engine at the n-th failpoint that is reached, for each n of `at`."""

    def __init__(self, engine, url: str, at: set[int]) -> None:
        self.engine, self.url, self.at = engine, url, set(at)
        self.reached, self.points = 0, []
        self.good, self.blocked = dict(engine._workflows), 0

    def __call__(self, point: str) -> None:
        """Called by a thread that sends commands, so that nothing is sent or answered meanwhile."""
        self.reached += 1
        worker = self.engine._worker
        lease = None if worker is None else worker._lease
        if self.reached not in self.at or lease is None or not worker.id:
            return
        self.points.append(point)
        release = ForceRelease(key=worker_key(worker.id), by="test", reason="crash")
        with closing(open_store(self.url, namespace="default")) as store, closing(store.connect("commands")) as direct:
            direct.execute([release])
        if len(self.points) % 2:  # the first crash, the third one, ...
            worker._loop.call_soon_threadsafe(self.deploy_badly)
        worker._loop.call_soon_threadsafe(worker._lost, lease)

    def deploy_badly(self) -> None:
        """From now on no claimed run fits."""
        for kind, flow in self.good.items():
            bad = copy(flow)
            bad.input_type = int
            self.engine._workflows[kind] = bad

    async def roll_back(self) -> None:
        """Have the release that fits again as soon as a run is blocked, and let all blocked runs be tried."""
        while True:
            runs = (await self.engine.list(status="blocked")).runs
            if runs:
                self.blocked += len(runs)
                self.engine._workflows.update(self.good)
            for run in runs:
                with suppress(RunLocked, RunEnded):
                    await self.engine.retry(run.id)
            await asyncio.sleep(0.01)


class NoEffects:
    """Fails on every effect: a complete replay must not request any."""

    refused = None

    def __init__(self):
        self.watch = BlockingCodeWatch()  # not started

    def __getattr__(self, name):
        raise AssertionError(f"a finished history asks for {name}")

    def blocking(self, seconds, line):
        """Nothing else runs here."""

    def dropped(self, call):
        """A step that is no longer awaited is part of the history."""

    def cancel_child(self, id, reason):
        """So is a child that was cancelled."""


async def ended(handle):
    """How a run has ended: its result, or its error."""
    try:
        return await handle.result(20)
    except WorkflowFailed as error:
        return [error.status, error.kind, error.detail]


async def begun(engine, flow, given: dict, name: str, chance: random.Random | None, *, base: int) -> tuple:
    """Start a run, or replace one that has ended, by a start or by a signal. Returns its handle, and the signal."""
    if chance is not None and chance.random() < 0.3:
        letter = chance.choice(LETTERS)
        signal = {"name": letter, "payload": base, "idempotency_key": f"key {base}"}
        for _ in range(chance.choice([1, 2])):  # the second one is known, or its run has ended and knows it
            handle = await engine.start_or_signal(flow, given, id=name, **signal)
        return handle, [(letter, base)]
    return await engine.start(flow, given, id=name, on_existing="replace_ended"), []


async def sent(handle, chance: random.Random, base: int) -> list[tuple[str, int]]:
    """Send signals to a run, and some of them again. Returns those that were accepted, in their order."""
    accepted: list[tuple[str, int]] = []
    with suppress(RunEnded):
        for number in range(base + 1, base + 1 + chance.randrange(SIGNALS)):
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.005, 0.02]))
            name = chance.choice(LETTERS)
            await handle.signal(name, number, idempotency_key=f"key {number}")
            accepted.append((name, number))
            if chance.random() < 0.3:
                name, again = chance.choice(accepted)
                await handle.signal(name, again, idempotency_key=f"key {again}")
    return accepted


async def asked(handle, chance: random.Random, base: int) -> dict[int, str]:
    """Send updates to a run, each of them twice at the same time. Returns the answers."""
    answers: dict[int, str] = {}

    async def ask(number: int, name: str, pause: float) -> None:
        await asyncio.sleep(pause)
        with suppress(RunEnded, UpdateTimeout):
            answer = await handle.update(name, number, idempotency_key=f"update {number}", timeout=20)
            assert answers.setdefault(number, answer) == answer

    async with asyncio.TaskGroup() as group:
        for number in range(base, base + chance.randrange(SIGNALS)):
            name = chance.choice(LETTERS)
            for _ in range(2):
                group.create_task(ask(number, name, chance.choice([0, 0.001, 0.01, 0.03])))
    return answers


async def decide(engine, name: str, chance: random.Random, accepted: dict[str, str]) -> None:
    """Answer the requests of a run until it has ended, each by two people."""
    while (await engine.get(name)).living:
        for request in (await engine.approvals.list(prefix=name)).approvals:
            for by in ("ann", "bob"):
                if request.run_id == name and chance.random() < 0.5:
                    with suppress(ApprovalNotOpen):
                        await engine.approvals.answer(name, request.id, approved=True, by=by)
                        assert accepted.setdefault(request.id, by) == by, "one answer counts"
                        accepted[f"{request.id}: {request.data}"] = by
        await asyncio.sleep(0.003)


async def play(
    engine, flow, given: dict, name: str, chance: random.Random | None, *, base: int = 0
) -> tuple[object, list]:
    """Run a plan to its end, and all of its children. Returns its end, and the signals that it accepted.

    The signals have numbers from `base` on.
    """
    handle, accepted = await begun(engine, flow, given, name, chance, base=base)
    if chance is not None:
        decided: dict[str, str] = {}
        people = asyncio.create_task(decide(engine, name, random.Random(chance.random()), decided))
        senders = asyncio.create_task(asked(handle, random.Random(chance.random()), base))
        accepted += await sent(handle, chance, base)
        await people
        check_requests(name, await senders, decided)
    end = await ended(handle)
    await eventually_async(lambda: is_over(engine, name))
    return end, accepted


async def is_over(engine, name: str) -> bool:
    return not any(run.status in LIVING for run in (await engine.list(prefix=name)).runs)


LIVING = ("queued", "pending", "running", "suspended", "blocked")


async def replayed(engine, name: str) -> tuple[object, set[int]]:
    """The result of the replay of the last generation of a run, and the numbers of the signals that it left unread."""
    claim = (await engine._worker.execute(ReadRun(run=name, history=True))).claim
    flow = next(one for one in BY_UNREAD.values() if one.type == claim.run.type)
    code = Replay(claim.run, flow, NoEffects(), max_bytes=2**20, transactional=False)
    done = asyncio.Event()

    def replay():
        code.replay(claim.entries, claim.events)
        done.set()

    asyncio.get_running_loop().call_soon(replay)
    await asyncio.wait_for(done.wait(), 10)
    assert code.done
    result, left = code.root.result(), unread_signals(code)
    unread = {int(event.payload) for event in left.values() if event.kind == "signal"}
    code.leave()
    if claim.run.status == "completed":
        assert result_of(claim.run, object) == result
    else:
        failure = j.read_failure(claim.run.result)
        assert failure.type == "holdfast.errors.SignalsUnread", failure
        assert left
    return result, unread


def check_effects() -> None:
    for key, found in SEEN.effects.items():
        assert len(found) == 1, f"the key {key!r} was used with {found}"
        ((run, generation, _),) = found
        assert key.startswith(f"{run}:" if generation == 1 else f"{run}~{generation}:"), (key, found)


def check_signals(name: str, accepted: list, unread: set[int], after: int = 0) -> None:
    """Each accepted signal was read once, in order, by one of the generations above `after`, or is unread."""
    generations = sorted(generation for run, generation in SEEN.reads if run == name and generation > after)
    read = [pair for generation in generations for pair in SEEN.reads[name, generation]]
    assert sorted([*(number for _, number in read), *unread]) == [number for _, number in accepted], (read, unread)
    for letter in LETTERS:
        numbers = [number for one, number in read if one == letter]
        assert numbers == sorted(numbers), read


def check_requests(name: str, answers: dict[int, str], decided: dict[str, str]) -> None:
    """Each answer that a sender got was given by the code; no answer that was accepted met a timeout."""
    given = {}
    for (run, _), found in SEEN.answers.items():
        if run == name:
            given |= found
    assert answers.items() <= given.items()
    for decision, by in decided.items():
        wanted, colon, data = decision.partition(": ")
        if colon:
            _, mark, generation = wanted.partition("~")
            received = SEEN.approvals[name, int(generation) if mark else 1].get(data, "not reached again")
            assert received in (by, "waits", "not reached again"), (decision, by, received)


async def check_details(engine, name: str, after: int = 0) -> None:
    """The details are those that the code has set last, in one of the generations above `after`."""
    run = await engine.get(name)
    found = [SEEN.details.get((name, generation), []) for generation in range(after + 1, run.generation + 1)]
    values = [value for one in found for value in one]
    assert run.details == (values[-1] if values else None), values


async def check_streams(engine, name: str, after: int = 0) -> None:
    """The code of each generation above `after` has written each item once, and completed steps all of theirs."""
    items = await items_of_code(engine, name)
    run = await engine.get(name)
    written = [
        (generation, value)
        for generation in range(after + 1, run.generation + 1)
        for value in SEEN.written.get((name, generation), ())
    ]
    assert [(item.generation, item.value) for item in items] == written
    await check_items_of_steps(engine, name)


async def check_fork(engine, name: str, fork: str, chance: random.Random, *, timeless: bool) -> None:
    """A fork from a random step of the last generation ends, and as the run did if time makes no difference."""
    history = await engine.export(name)
    steps = [entry.id for entry in map(j.decode_entry, history.entries[1:]) if isinstance(entry, j.StepDone)]
    if not steps:
        return
    try:
        await engine.fork(name, from_step=chance.choice(steps), id=fork)
    except InvalidOption:  # a fork of a fork's or of a cancelled part
        return
    end = await ended(engine.handle(fork))
    await eventually_async(lambda: is_over(engine, fork))
    result, _ = await replayed(engine, fork)
    if timeless:
        origin = result_of(history.run, object)
        assert without_random_values(end) == without_random_values(origin) == without_random_values(result)


async def check_copy(engine, name: str) -> None:
    """A copy of a run has its history and its end, and executes nothing."""
    history, effects = await engine.export(name), sum(map(len, SEEN.effects.values()))
    await engine.import_(history, id=f"i{name}")
    copy = await engine.export(f"i{name}")
    assert (copy.run.status, copy.run.result) == (history.run.status, history.run.result)
    assert (copy.run.generation, copy.entries[0]) == (history.run.generation, history.entries[0])
    assert copy.run.details == history.run.details
    assert sum(map(len, SEEN.effects.values())) == effects


async def check_replaced(engine, flow, given: dict, name: str, chance: random.Random) -> None:
    """The run that replaces a run has the generations after its, and reads only signals of its own."""
    before = await engine.export(name)
    _, accepted = await play(engine, flow, given, name, chance, base=100)
    _, unread = await replayed(engine, name)
    check_signals(name, accepted, unread, after=before.run.generation)
    await check_details(engine, name, after=before.run.generation)
    await check_streams(engine, name, after=before.run.generation)
    run = await engine.get(name)
    assert run.replaces == f"{name}~{before.run.generation}"
    assert run.generation > before.run.generation
    kept = await engine.export(run.replaces)
    assert (kept.entries, kept.events) == (before.entries, before.events)
    assert (kept.run.status, kept.run.result, kept.run.replaced_by) == (before.run.status, before.run.result, name)


async def check_purge(engine, name: str) -> None:
    """A purge removes a run, all that it has started, and what was made of it."""
    report = await engine.purge(older_than=0)
    assert (report.kept_living, report.kept_young, report.kept_unreadable) == (0, 0, 0)
    for prefix in (name, f"f{name}", f"i{name}"):
        assert not (await engine.list(prefix=prefix)).runs
    try:
        await engine.get(name)
    except UnknownRun:
        return
    raise AssertionError(f"{name} was not purged")


async def check_program(engine, url: str, seed: int, monkeypatch, at: set[int] | None = None) -> Crashes:
    """Play one program with crashes, and compare it with itself without."""
    chance = random.Random(seed)
    timeless = chance.random() < 0.4
    flow = BY_UNREAD["keep" if timeless else chance.choice(ON_UNREAD)]
    given = {"plan": plan(chance, timeless=timeless)}
    at = {chance.randrange(1, POINTS) for _ in range(CRASHES)} if at is None else at
    name = f"c{seed}-{min(at, default=0)}"
    crashes = Crashes(engine, url, at)
    what = f"seed {seed}, crashes at {sorted(at)}: {flow.name} {given}"
    monkeypatch.setattr(failpoints, "reached", crashes)
    rolling_back = asyncio.create_task(crashes.roll_back())
    try:
        end, accepted = await play(engine, flow, given, name, chance)
        _, unread = await replayed(engine, name)
        check_signals(name, accepted, unread)
        await check_details(engine, name)
        await check_streams(engine, name)
        assert (await engine.get(name)).locks == ()
        check_history(flow, await engine.export(name))
        effects = SEEN.of(name)
        more = MORE if seed >= EVERY_COMMIT else (chance.choice(MORE),)
        if "fork" in more:
            await check_fork(engine, name, f"f{name}", chance, timeless=timeless)
        if "copy" in more:
            await check_copy(engine, name)
        if "replaced" in more:
            await check_replaced(engine, flow, given, name, chance)
        check_effects()
        if timeless:
            whole, _ = await play(engine, flow, given, f"w{name}", None)
            assert without_random_values(whole) == without_random_values(end)
            assert SEEN.of(f"w{name}") == effects
        await check_purge(engine, name)
    except BaseException as error:
        error.add_note(f"{what}\ncrashed {crashes.points}")
        raise
    finally:
        rolling_back.cancel()
        engine._workflows.update(crashes.good)
        monkeypatch.setattr(failpoints, "reached", None)
        SEEN.clear()
    return crashes


def test_a_random_program_of_generations_with_crashes_has_the_right_effects_and_loses_no_signal(
    url, engine_on, monkeypatch
):
    async def scenario():
        async with engine_on(url, list(BY_UNREAD.values()), worker_ttl=60) as engine:
            for seed in programs(url):
                await check_program(engine, url, seed, monkeypatch)

    asyncio.run(scenario())


def test_a_random_program_of_generations_survives_a_crash_at_each_of_its_commits(url, engine_on, monkeypatch):
    """One program after another, each played once for each failpoint that it reaches."""

    async def scenario():
        async with engine_on(url, list(BY_UNREAD.values()), worker_ttl=60) as engine:
            crashes, blocked, seed = 0, 0, EVERY_COMMIT
            while crashes < 4 * len(programs(url)):
                points = (await check_program(engine, url, seed, monkeypatch, at=set())).reached
                for point in range(1, points + 1):
                    blocked += (await check_program(engine, url, seed, monkeypatch, at={point})).blocked
                crashes, seed = crashes + points, seed + 1
            assert blocked, "some run was claimed by the release that does not fit"

    asyncio.run(scenario())
