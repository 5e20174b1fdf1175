"""`holdfast worker`: a real process that drives runs, real signals, and the messages about unusable targets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import textwrap
import time
import uuid
from contextlib import contextmanager

import psycopg
import pytest
import real_servers
from commandline import COMMAND, answer, environment, failure, holdfast, started
from waiting import PATIENCE, eventually

from holdfast import Client
from holdfast.cli.worker import ONCE_SECONDS
from holdfast.testing.proxy import Proxy

FLOWS = """
    import asyncio
    import time
    from pathlib import Path

    from holdfast import Context, Engine, step, workflow

    HERE = Path(__file__).parent


    @step
    async def greet(name: str) -> str:
        return f"hello {name}"


    @workflow
    async def hello(ctx: Context, name: str) -> str:
        return await greet(name)


    @workflow
    async def waits(ctx: Context) -> str:
        await greet("you")
        return await ctx.wait_for_signal("go")


    @step
    async def wait_for_file(name: str) -> str:
        (HERE / f"{name}.begun").touch()
        while not (HERE / name).exists():
            await asyncio.sleep(0.01)
        return name


    @workflow
    async def slow(ctx: Context, name: str) -> str:
        return await wait_for_file(name)


    @step
    def block(name: str) -> None:
        (HERE / f"{name}.begun").touch()
        time.sleep(600)


    @workflow
    async def blocks(ctx: Context, name: str) -> None:
        await block(name)


    def make():
        return Engine(f"sqlite:///{HERE}/hf.db", workflows=[hello, waits, slow, blocks], name="smith", worker_ttl=5)


    engine = make()
    number = 7


    async def make_async():
        return make()


    def make_nothing():
        return None


    def make_trouble():
        return {}["nothing"]
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the module `flows`."""
    (tmp_path / "flows.py").write_text(textwrap.dedent(FLOWS))
    return tmp_path


@pytest.fixture
def hf(folder):
    with Client(f"sqlite:///{folder}/hf.db") as client:
        yield client


@contextmanager
def worker(folder, *arguments, target="flows:engine"):
    """A worker that has printed that it is ready."""
    command = [*COMMAND, "worker", target, *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder}
    with started(command, **options) as popen:
        line = popen.stdout.readline()
        assert line, popen.stderr.read()
        popen.ready = line
        yield popen


def ended(popen):
    """Its exit code, and the remaining output."""
    out, err = popen.communicate(timeout=PATIENCE)
    return popen.returncode, out, err


@pytest.mark.parametrize("target", ["flows:engine", "flows:make"])
def test_the_target_may_be_an_engine_or_a_factory_of_one(folder, hf, target):
    before = hf.runs.start("hello", "ann")
    with worker(folder, target=target) as popen:
        assert popen.ready.startswith("ready: smith drives blocks, hello, slow, waits in sqlite:///")
        assert popen.ready.endswith("/hf.db, namespace default\n")
        assert hf.runs.result(before, timeout=PATIENCE) == "hello ann"
        assert hf.runs.result(hf.runs.start("hello", "bob"), timeout=PATIENCE) == "hello bob"


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_releases_waiting_runs_at_once_and_finishes_the_steps_in_progress(folder, hf, which):
    waiting = hf.runs.start("waits")
    busy = hf.runs.start("slow", "file")
    with worker(folder) as popen:
        eventually((folder / "file.begun").exists)
        eventually(lambda: hf.runs.get(waiting).entries == 2)
        popen.send_signal(which)
        eventually(lambda: hf.runs.get(waiting).status == "suspended")
        assert hf.runs.get(busy).holder == "smith", "it is still driven"
        (folder / "file").touch()
        code, out, _ = ended(popen)
    assert (code, out.splitlines()) == (0, [f"{which.name}: draining for at most 30 s.", "stopped."])
    assert hf.runs.get(busy).status == "completed"


def test_a_run_that_is_not_done_within_the_grace_period_is_released_at_once(folder, hf):
    busy = hf.runs.start("slow", "file")
    with worker(folder, "--grace", "0.2") as popen:
        eventually((folder / "file.begun").exists)
        popen.terminate()
        assert ended(popen)[0] == 0
    assert hf.runs.get(busy).status == "pending"
    (folder / "file").touch()
    with worker(folder):
        assert hf.runs.result(busy, timeout=PATIENCE) == "file"


def test_a_step_that_blocks_a_thread_does_not_prevent_the_exit(folder, hf):
    hf.runs.start("blocks", "file")
    with worker(folder, "--grace", "0.1") as popen:
        eventually((folder / "file.begun").exists)
        popen.terminate()
        code, out, err = ended(popen)
    assert (code, out.splitlines()[-1]) == (0, "stopped.")
    assert "a step that blocks a thread was abandoned" in err


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_worker_at_once(folder, hf, second):
    hf.runs.start("slow", "file")
    with worker(folder, "--grace", "600", "--ready-file", str(folder / "ready")) as popen:
        eventually((folder / "file.begun").exists)
        popen.terminate()
        assert popen.stdout.readline().startswith("SIGTERM: draining")
        if second == signal.SIGTERM:
            time.sleep(ONCE_SECONDS)
        popen.send_signal(second)
        code, out, err = ended(popen)
    assert (code, out) == (1, "")
    assert "ended at once" in err
    assert not (folder / "ready").exists()


def test_the_same_signal_twice_within_a_moment_counts_once(folder, hf):
    busy = hf.runs.start("slow", "file")
    with worker(folder, "--grace", "600") as popen:
        eventually((folder / "file.begun").exists)
        popen.terminate()
        assert popen.stdout.readline().startswith("SIGTERM: draining")
        popen.terminate()  # as a launcher does, which signals the process and then its group
        (folder / "file").touch()
        code, out, _ = ended(popen)
    assert (code, out) == (0, "stopped.\n")
    assert hf.runs.get(busy).status == "completed"


@pytest.mark.parametrize(
    ("options", "words"),
    [("", "has no workflows"), ("workflows=[hello], recover=False", "has recover=False, so it claims no runs")],
)
def test_an_engine_that_would_drive_nothing_is_warned_about(folder, options, words):
    (folder / "idle.py").write_text(
        f"from flows import HERE, Engine, hello\nengine = Engine(f'sqlite:///{{HERE}}/hf.db', {options})\n"
    )
    with worker(folder, target="idle:engine") as popen:
        popen.terminate()
        code, _, err = ended(popen)
    assert code == 0
    assert words in err


def test_the_help_does_not_list_options_that_are_refused():
    printed = holdfast("worker", "--help").stdout
    assert "--url" not in printed
    assert "--namespace" not in printed
    assert "--json" in printed
    assert "--url" in holdfast("runs", "list", "--help").stdout


def test_after_a_kill_within_a_step_another_worker_takes_over_when_the_lease_has_expired(folder, hf):
    busy = hf.runs.start("slow", "file")
    with worker(folder) as popen:
        eventually((folder / "file.begun").exists)
        popen.kill()
        popen.wait(PATIENCE)
        (folder / "file").touch()
        with worker(folder):
            assert hf.runs.result(busy, timeout=PATIENCE) == "file"


def test_the_ready_file_exists_while_the_worker_is_ready_and_is_removed_when_it_drains(folder, hf):
    file = folder / "ready"
    file.write_text("1\n")
    hf.runs.start("slow", "file")
    with worker(folder, "--ready-file", str(file)) as popen:
        eventually(lambda: file.exists() and file.read_text() == f"{popen.pid}\n")
        done = holdfast("worker", "--check", str(file))
        assert (done.exit_code, done.stdout) == (0, f"ready: worker process {popen.pid}.\n")
        assert answer(holdfast("worker", "--check", str(file), "--json")) == {"ready": True, "pid": popen.pid}
        eventually((folder / "file.begun").exists)
        popen.terminate()
        eventually(lambda: not file.exists())
        assert popen.poll() is None, "it drains"
        assert "no worker is ready" in failure(holdfast("worker", "--check", str(file)), 1)
        (folder / "file").touch()
        assert ended(popen)[0] == 0


def test_a_ready_file_with_an_old_timestamp_means_not_ready(tmp_path):
    file = tmp_path / "ready"
    file.write_text("4711\n")
    os.utime(file, (time.time() - 60, time.time() - 60))
    assert "4711 has not touched" in failure(holdfast("worker", "--check", str(file)), 1)
    file.write_text("a letter to my aunt")
    assert "not the ready file" in failure(holdfast("worker", "--check", str(file)), 1)


@pytest.fixture(params=["postgres", "valkey"])
def proxy(request, folder):
    """A proxy to a real server, and a module `far` whose engine connects through it."""
    server, kind = real_servers.shared(request.param), {"postgres": "schema", "valkey": "prefix"}[request.param]
    name = f"worker_{uuid.uuid4().hex}"
    with Proxy(server.host, server.port) as way:
        url = f"{way.url_for(server.url)}?{kind}={name}"
        (folder / "far.py").write_text(
            f"from flows import Engine, hello\nengine = Engine({url!r}, workflows=[hello])\n"
        )
        way.url = url
        yield way
    if request.param == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA {name} CASCADE")


def test_while_the_store_does_not_answer_the_worker_is_not_ready_and_then_it_continues(folder, proxy):
    file = folder / "ready"
    with worker(folder, "--ready-file", str(file), target="far:engine") as popen:
        eventually(file.exists)
        proxy.refuse()
        proxy.cut()
        eventually(lambda: not file.exists(), within=60)
        proxy.go_on()
        eventually(file.exists, within=60)
        with Client(proxy.url) as hf:
            assert hf.runs.result(hf.runs.start("hello", "ann"), timeout=PATIENCE) == "hello ann"
        popen.terminate()
        assert ended(popen)[0] == 0


def test_with_json_each_change_is_a_document(folder):
    with worker(folder, "--json") as popen:
        first = json.loads(popen.ready)
        popen.terminate()
        code, out, _ = ended(popen)
    assert first == {"event": "ready", "pid": popen.pid, "workflows": ["blocks", "hello", "slow", "waits"]}
    assert (code, [json.loads(line)["event"] for line in out.splitlines()]) == (0, ["draining", "stopped"])


def run(folder, *arguments):
    """A worker that ends at once."""
    return subprocess.run(
        [*COMMAND, "worker", *arguments],
        capture_output=True, text=True, cwd=folder, env=environment(), timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["flows"], 2, "'flows' is not MODULE:NAME"),
        (["flows.py:engine/x"], 2, "is not MODULE:NAME"),
        (["nowhere:engine"], 2, "there is no module 'nowhere' in "),
        (["flows.inner:engine"], 2, "there is no module 'flows.inner'"),
        (["flows:engin"], 2, "there is no 'engin' in flows; its engines are: engine"),
        (["flows:number"], 2, "flows:number is a int, not an Engine"),
        (["flows:hello"], 2, "flows:hello is a Workflow, not an Engine"),
        (["flows:make_nothing"], 2, "flows:make_nothing returned a NoneType, not an Engine"),
        (["flows:make_async"], 2, "is async"),
        (["flows:make_trouble"], 1, "the factory flows:make_trouble failed: KeyError: 'nothing' ("),
        (["broken:engine"], 1, "the module broken failed: ZeroDivisionError: division by zero ("),
        (["lacks:engine"], 1, "the module lacks failed: ModuleNotFoundError: No module named 'stripey'"),
        (["leaves:engine"], 1, "the module leaves failed: SystemExit: 3"),
        ([], 2, "Missing argument 'TARGET'"),
        (["flows:engine", "--url", "memory://"], 2, "the engine determines its store"),
        (["flows:engine", "--grace", "soon"], 2, "'soon'"),
        (["flows:engine", "--ready-file", "no/such/folder/ready"], 2, "cannot be written"),
        (["flows:engine", "--check", "x"], 2, "--check takes no TARGET"),
    ],
)
def test_an_unusable_target_is_reported_in_one_line(folder, arguments, code, words):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "lacks.py").write_text("import stripey\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    done = run(folder, *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("holdfast: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_an_unreachable_store_ends_the_worker_with_one_line_after_the_log(folder):
    (folder / "away.py").write_text("from holdfast import Engine\nengine = Engine('redis://u:hunter2@127.0.0.1:1/0')\n")
    done = run(folder, "away:engine", "--ready-file", "ready")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("holdfast: the server redis://")
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "ready").exists()


def test_messages_of_ctx_log_are_on_stderr_unless_the_application_configures_logging(folder, hf):
    (folder / "talks.py").write_text(
        textwrap.dedent("""
        from flows import HERE
        from holdfast import Context, Engine, workflow

        @workflow
        async def talks(ctx: Context) -> None:
            ctx.log.info("I was here")

        engine = Engine(f"sqlite:///{HERE}/hf.db", workflows=[talks])
        """)
    )
    run_id = hf.runs.start("talks")
    with worker(folder, target="talks:engine") as popen:
        assert popen.ready.startswith(f"ready: talks@{socket.gethostname()}:{popen.pid} drives talks in ")
        hf.runs.result(run_id, timeout=PATIENCE)
        popen.terminate()
        _, _, err = ended(popen)
    assert f"INFO holdfast.run: [{run_id}] I was here" in err
