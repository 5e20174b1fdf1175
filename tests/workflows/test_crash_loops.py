"""A run that crashes its worker is stopped after five crashes, while other runs complete; it is retried after a fix."""

from __future__ import annotations

import subprocess
import textwrap
from contextlib import ExitStack, contextmanager

from commandline import COMMAND, started
from waiting import PATIENCE, eventually

from holdfast import Client

FLOWS = """
    import asyncio
    import os
    import signal
    from pathlib import Path

    from holdfast import Context, Engine, step, workflow

    HERE = Path(__file__).parent


    def note(word: str) -> None:
        with (HERE / "notes").open("a") as file:
            file.write(f"{word}\\n")


    @step
    def deadly() -> str:
        note("deadly")
        if not (HERE / "antidote").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"


    @workflow
    async def poison(ctx: Context) -> str:
        await ctx.step("before", note, "before")
        return await deadly()


    @step
    async def work(name: str) -> str:
        await asyncio.sleep(1)  # longer than a worker lives beside the deadly one
        return name


    @workflow
    async def healthy(ctx: Context, name: str) -> str:
        return await work(name)


    engine = Engine(f"sqlite:///{HERE}/runs.db", workflows=[poison, healthy], worker_ttl=2)
"""


class Crew:
    """Two workers. A worker that has crashed is replaced, as a process manager does."""

    def __init__(self, folder, stack):
        self._folder, self._stack = folder, stack
        self.codes = []
        self.workers = [self._start(), self._start()]

    def _start(self):
        log = self._stack.enter_context((self._folder / "log").open("a"))
        command = [*COMMAND, "worker", "flows:engine"]
        return self._stack.enter_context(started(command, stdout=subprocess.DEVNULL, stderr=log, cwd=self._folder))

    def until(self, condition):
        """Wait for a condition, and replace crashed workers meanwhile."""

        def tended():
            for place, worker in enumerate(self.workers):
                if worker.poll() is not None:
                    self.codes.append(worker.returncode)
                    self.workers[place] = self._start()
            return condition()

        eventually(tended, within=5 * PATIENCE)


@contextmanager
def crew(folder):
    with ExitStack() as stack:
        yield Crew(folder, stack)


def test_a_run_that_crashes_its_worker_is_stopped_with_the_reason_and_can_be_retried(tmp_path):
    (tmp_path / "flows.py").write_text(textwrap.dedent(FLOWS))
    with Client(f"sqlite:///{tmp_path}/runs.db") as hf, crew(tmp_path) as workers:

        def noted(word):
            notes = tmp_path / "notes"
            return notes.exists() and notes.read_text().splitlines().count(word)

        beside = [hf.runs.start("healthy", f"well {n}") for n in range(3)]
        hf.runs.start("poison", id="poison")
        workers.until(lambda: noted("deadly") >= 2)
        beside.append(hf.runs.start("healthy", "well 3"))
        workers.until(lambda: hf.runs.get("poison").status == "blocked")
        workers.until(lambda: not any(hf.runs.get(run).living for run in beside))

        reason = hf.runs.get("poison").blocked.reason
        assert (reason.type, reason.message) == ("RunPoisoned", "5 workers in a row crashed while they drove this run")
        assert (noted("deadly"), noted("before")) == (5, 1)
        assert workers.codes == [-9] * 5
        assert [hf.runs.result(run, PATIENCE) for run in beside] == [f"well {n}" for n in range(4)]

        (tmp_path / "antidote").touch()
        assert hf.runs.retry("poison").status == "pending"
        assert hf.runs.result("poison", PATIENCE) == "survived"
        assert (noted("deadly"), noted("before")) == (6, 1)
        assert all(worker.poll() is None for worker in workers.workers)
