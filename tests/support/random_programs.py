"""Random programs, as JSON, and the workflows that execute them.

`program` makes a program of steps, gather, wait for the first, timeouts, signals, children, patches and failures, to be
executed by an `Interpreter`. `plan` makes a list of programs, one for each generation of a run: they also continue as
new at a random place, inside locks, task groups and `finally`, and with children that live. A `GenerationInterpreter`
executes one of them, and notes in `SEEN` what it does and reads.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter, defaultdict

from holdfast import Context, StepFailed, WorkflowFailed, current_step, workflow
from holdfast.errors import RunEnded
from holdfast.workflow import Workflow

ON_UNREAD = ("keep", "continue", "fail")
LETTERS = "ab"


def program(chance: random.Random, depth: int = 3) -> list:
    """A random program, as JSON."""
    if depth == 0 or chance.random() < 0.25:
        return chance.choice([
            ["step", chance.randrange(100), chance.choice([0, 0, 1, 4])],
            ["sleep", chance.choice([0, 1, 5])],
            ["signal", chance.choice(LETTERS)],
            ["fail", chance.randrange(100)],
            ["details", chance.randrange(100)],
            ["chance"],
        ])  # fmt: skip
    kinds = ["seq", "seq", "gather", "gather", "first", "timeout", "child", "queue", "patched", "told child"]
    kind = chance.choice(kinds)
    if kind == "timeout":
        return ["timeout", chance.choice([0, 1, 3, 20]), program(chance, depth - 1)]
    if kind == "patched":
        return ["patched", chance.choice("xy"), program(chance, depth - 1), program(chance, depth - 1)]
    if kind == "child":
        return ["child", program(chance, depth - 2 if depth > 1 else 0)]
    if kind == "told child":
        options = {
            "on_parent_end": chance.choice([None, "cancel", "abandon"]),
            "delay": chance.choice([None, None, 0.002]),
            "timeout": chance.choice([None, 5]),
        }
        then = chance.choice(["result", "result", "cancel", "leave"])
        return ["told child", program(chance, depth - 2 if depth > 1 else 0), chance.choice(LETTERS), options, then]
    return [kind, *(program(chance, depth - 1) for _ in range(chance.choice([1, 2, 3])))]


def plan(chance: random.Random, *, timeless: bool, depth: int = 3) -> list:
    """Programs of the generations of a run. The result of a timeless one does not depend on what is first."""
    space = f"{chance.getrandbits(32):08x}"
    generations = chance.choice([1, 2, 3, 4])
    return [
        _part(chance, depth, space, _Rules(timeless=timeless, continues=n + 1 < generations))
        for n in range(generations)
    ]


class _Rules:
    """What may be in a part of a program. Locks are taken in the order of their names, so none waits in a cycle."""

    def __init__(self, *, timeless: bool, continues: bool, locks: str = "lmn") -> None:
        self.timeless, self.continues, self.locks = timeless, continues, locks

    def but(self, **changes: object) -> _Rules:
        return _Rules(**{**vars(self), **changes})


def _part(chance: random.Random, depth: int, space: str, rules: _Rules) -> list:  # noqa: PLR0911  (one case a kind)
    if depth == 0 or chance.random() < 0.15:
        leaves = [
            ["step", chance.getrandbits(30), chance.choice([0, 0, 1, 4])],
            ["sleep", chance.choice([0, 1, 5])],
            ["fail", chance.randrange(100)],
            ["details", chance.randrange(100)],
            ["chance"],
        ]
        if not rules.timeless:
            leaves += [[kind, chance.choice(LETTERS)] for kind in ("signal", "read", "update", "approve")]
        return chance.choice([*leaves, *([["continue"]] * 3 if rules.continues else [])])
    kinds = ["seq", "seq", "gather", "queue", "child", "left child", "mutex", "finally"]
    if not rules.timeless:
        kinds += ["first", "timeout", "patched"]
    kind = chance.choice(kinds)
    match kind:
        case "timeout":
            return ["timeout", chance.choice([0, 1, 3, 20]), _part(chance, depth - 1, space, rules)]
        case "patched":
            return ["patched", chance.choice("xy"), *(_part(chance, depth - 1, space, rules) for _ in range(2))]
        case "child" | "left child":
            return [kind, plan(chance, timeless=rules.timeless, depth=max(0, depth - 2))]
        case "mutex" if rules.locks:
            place = chance.randrange(len(rules.locks))
            inner = rules.but(locks=rules.locks[place + 1 :])
            return ["mutex", f"{space}-{rules.locks[place]}", _part(chance, depth - 1, space, inner)]
        case "mutex" | "finally":
            return ["finally", chance.getrandbits(30), _part(chance, depth - 1, space, rules)]
    if kind in ("gather", "queue") and rules.timeless:  # which siblings have begun would depend on time
        rules = rules.but(continues=False)
    return [kind, *(_part(chance, depth - 1, space, rules) for _ in range(chance.choice([1, 2, 3])))]


def depends_on_time(op: list) -> bool:
    """Whether the result depends on which task is first, or on whether a crash was before a marker was stored."""
    return op[0] in ("first", "timeout", "signal", "patched", "told child") or any(
        isinstance(part, list) and depends_on_time(part) for part in op
    )


def watched(value: int) -> dict[str, float]:
    """The options of a step: some have a `heartbeat_timeout`, which is never over."""
    return {"heartbeat_timeout": 60.0} if value % 3 == 0 else {}


async def effect(value: int, pause: float) -> int:
    info = current_step()
    assert info.heartbeat_details in (None, value), "these are the details of another step"
    stream = info.stream("steps")
    info.heartbeat(value)
    stream.write([value, "begin"])
    await asyncio.sleep(pause)
    stream.write([value, "end"])
    return value


async def failing(value: int) -> int:
    raise ValueError(str(value))


class Interpreter:
    """Executes one program. `child` is the workflow of its children."""

    def __init__(self, ctx: Context, child: Workflow) -> None:
        self.ctx, self.child = ctx, child
        self.details = SEEN.details[ctx.run_id, ctx.generation] = []

    async def step(self, value: int, pause: float) -> int:
        self.ctx.stream("code").write(["calls", value])
        try:
            return await self.ctx.step("effect", effect, value, pause, **watched(value))
        finally:
            self.ctx.stream("code").write(["called", value])

    async def signal(self, name: str) -> object:
        return await self.ctx.wait_for_signal(name, timeout=0.02)

    async def run(self, op: list) -> object:  # noqa: C901, PLR0911, PLR0912  (one case a kind)
        ctx = self.ctx
        kind, *parts = op
        match kind:
            case "step":
                return await self.step(parts[0], parts[1] / 1_000)
            case "fail":
                try:
                    return await ctx.step("failing", failing, parts[0])
                except StepFailed as error:
                    return ["failed", error.detail]
            case "sleep":
                await ctx.sleep(parts[0] / 1_000)
                return None
            case "signal":
                try:
                    return await self.signal(parts[0])
                except TimeoutError:
                    return "nobody"
            case "details":
                await ctx.set_details({"value": parts[0]})
                self.details.append({"value": parts[0]})
                return None
            case "chance":
                return [ctx.random(), str(ctx.uuid4()), ctx.now() == ctx.now()]
            case "seq":
                return [await self.run(part) for part in parts]
            case "gather":
                return await asyncio.gather(*(self.run(part) for part in parts))
            case "queue":
                queue: asyncio.Queue = asyncio.Queue()

                async def put(place: int, part: list) -> None:
                    await queue.put([place, await self.run(part)])

                async with asyncio.TaskGroup() as group:
                    for place, part in enumerate(parts):
                        group.create_task(put(place, part))
                return sorted([queue.get_nowait() for _ in parts], key=lambda pair: pair[0])
            case "first":
                tasks = [asyncio.create_task(self.run(part)) for part in parts]
                done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in pending:
                    task.cancel()
                return [[place, task.result()] for place, task in enumerate(tasks) if task in done]
            case "timeout":
                try:
                    async with asyncio.timeout(parts[0] / 1_000):
                        return await self.run(parts[1])
                except TimeoutError:
                    return "too late"
            case "patched":
                return await self.run(parts[1] if ctx.patched(parts[0]) else parts[2])
            case "child":
                try:
                    return await ctx.child(self.child, parts[0])
                except WorkflowFailed as error:
                    return error.status
            case "told child":
                return await self.tell(*parts)
        raise AssertionError(kind)

    async def tell(self, op: list, letter: str, options: dict, then: str) -> object:
        """Start a child, send it signals, and cancel it, leave it, or wait for it."""
        child = await self.ctx.start_child(self.child, op, **options)
        try:
            for n in range(2):
                await child.signal(letter, f"{letter}{n}")
        except RunEnded as error:
            return ["ended before", error.status]
        if then == "leave":
            return None
        if then == "cancel":
            await child.cancel("by chance")
        try:
            return await child.result()
        except WorkflowFailed as error:
            return error.status


class Seen:
    """What programs did outside of the store, by run and generation.

    `effects` are the arguments of step bodies by idempotency key. `reads` are the signals that were read by the code of
    a generation that was begun last: code that was begun before has not recorded what it read otherwise. Likewise
    `answers` are its replies to updates, `approvals` the outcomes of its requests (by whom, or None for a timeout),
    `details` what it has set, one after the other, and `written` what it has written to its stream "code".
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], dict[int, str]] = {}
        self.approvals: dict[tuple[str, int], dict[str, str | None]] = {}
        self.details: dict[tuple[str, int], list[dict[str, int]]] = {}
        self.written: dict[tuple[str, int], list[int]] = {}
        self.effects: dict[str, set[tuple[str, int, tuple[int, ...]]]] = defaultdict(set)
        self.reads: dict[tuple[str, int], list[tuple[str, int]]] = {}

    def clear(self) -> None:
        for seen in vars(self).values():
            seen.clear()

    def of(self, run: str) -> Counter[tuple[str, int, tuple[int, ...]]]:
        """The effects of the tree of a run: the idempotency key, the generation and the arguments of each.

        The keys are as if the run had no name. They are without the counts of children of equal names, which depend on
        time; steps are named after their values, and each value is in a program once.
        """
        return Counter(
            (_COUNT.sub("", key.removeprefix(run)), generation, arguments)
            for key, found in self.effects.items()
            if key.startswith(run) and key[len(run)] in ":~/"
            for _, generation, arguments in found
        )


_COUNT = re.compile(r"#[0-9]+")
SEEN = Seen()


class GenerationInterpreter(Interpreter):
    """Executes the program of one generation of a plan."""

    def __init__(self, ctx: Context, child: Workflow, given: dict) -> None:
        super().__init__(ctx, child)
        self.plan, self.n, self.trail = given["plan"], given.get("n", 0), given.get("trail", [])
        self.reads = SEEN.reads[ctx.run_id, ctx.generation] = []
        self.written = SEEN.written[ctx.run_id, ctx.generation] = []
        self.answers = SEEN.answers[ctx.run_id, ctx.generation] = {}
        self.approvals = SEEN.approvals[ctx.run_id, ctx.generation] = {}

    async def step(self, value: int, pause: float) -> int:
        run, generation = self.ctx.run_id, self.ctx.generation

        async def noted(n: int, value: int, pause: float) -> int:
            SEEN.effects[current_step().idempotency_key].add((run, generation, (n, value)))
            return await effect(value, pause)

        self.ctx.stream("code").write(value)
        self.written.append(value)
        return await self.ctx.step(f"effect-{value}", noted, self.n, value, pause, **watched(value))

    async def signal(self, name: str) -> object:
        number = await super().signal(name)
        self.reads.append((name, number))
        return number

    async def approve(self, name: str) -> object:
        """Ask for an approval. Its number is in its data, because its id is only known to the store."""
        number = len(self.approvals)
        self.approvals[f"{name} {number}"] = "waits"
        try:
            answer = await self.ctx.approve(name, f"{name} {number}", timeout=0.02)
        except TimeoutError:
            self.approvals[f"{name} {number}"] = None
            return "nobody decides"
        self.approvals[f"{name} {number}"] = answer.by
        return answer.by

    async def run(self, op: list) -> object:  # noqa: PLR0911  (one case a kind)
        ctx = self.ctx
        kind, *parts = op
        match kind:
            case "continue":
                raise ctx.continue_as_new({"plan": self.plan, "n": self.n + 1, "trail": [*self.trail, self.n]})
            case "read":
                found = []  # not by ctx.signals(), which returns later: other tasks may have read newer signals by then
                while True:
                    try:
                        found.append(await ctx.wait_for_signal(parts[0], timeout=0))
                    except TimeoutError:
                        return found
                    self.reads.append((parts[0], found[-1]))
            case "update":
                try:
                    async with asyncio.timeout(0.02):
                        request = await anext(ctx.updates(parts[0]))
                except TimeoutError:
                    return "nobody asks"
                self.answers[request.payload] = f"{request.payload} in {ctx.generation}"
                request.reply(self.answers[request.payload])
                return request.payload
            case "approve":
                return await self.approve(parts[0])
            case "mutex":
                async with ctx.mutex(parts[0], scope="execution"):
                    return await self.run(parts[1])
            case "finally":
                try:
                    return await self.run(parts[1])
                finally:
                    await self.step(parts[0], 0)
            case "child":
                return await super().run(["child", {"plan": parts[0]}])
            case "left child":
                await ctx.start_child(self.child, {"plan": parts[0]})
                return None
        return await super().run(op)


@workflow(on_unread="keep")
async def keeping(ctx: Context, given: dict) -> object:
    play = GenerationInterpreter(ctx, keeping, given)
    return [play.n, play.trail, await play.run(play.plan[play.n])]


@workflow(on_unread="continue")
async def continuing(ctx: Context, given: dict) -> object:
    return await keeping.function(ctx, given)


@workflow(on_unread="fail")
async def failing_unread(ctx: Context, given: dict) -> object:
    return await keeping.function(ctx, given)


BY_UNREAD = dict(zip(ON_UNREAD, (keeping, continuing, failing_unread), strict=True))


def without_random_values(value: object) -> object:
    """Without random values: another run has other numbers."""
    if isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], float):
            return "chance"
        return [without_random_values(one) for one in value]
    return value
