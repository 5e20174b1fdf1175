"""`holdfast worker`: drives the runs of an engine until a signal stops it.

The first SIGTERM or SIGINT drains: no more runs are claimed, and each run is released as soon as its steps in progress
have ended, at the latest when the grace period is over. A second signal ends the process at once, as `kill -9` would.
The same signal again within a second counts once, because launchers signal a process and its group. The ready file
exists while the worker claims runs and the store answers; it is touched regularly.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from .. import Engine, HoldfastError
from ..errors import StoreError
from ..workflow import Step, Workflow
from .exit_codes import FAILED
from .options import Settings, as_seconds, common_without_store, pass_settings
from .output import escaped, print_json, print_line

POLL_SECONDS = 5.0
"""How often it is checked that the store still answers."""
STALE_SECONDS = 30.0
"""The worker of a ready file that was not touched for this long does not work any more."""
THREADS_SECONDS = 1.0
"""How long the threads of steps have to end after the worker has ended."""
ONCE_SECONDS = 1.0
"""The same signal again within this time is not a second signal."""
STEP_THREADS = "holdfast-step"
NO_RUN = "holdfast/ready"
"""The id of no run: a query for it shows that the store answers."""


class TargetFailed(HoldfastError):
    """The module of the engine cannot be imported, or its factory failed."""


class NotReady(HoldfastError):
    """No worker is ready."""


@click.command()
@click.argument("target", required=False)
@click.option("--grace", callback=as_seconds, default="30", show_default=True, help="Seconds that draining may take.")
@click.option("--ready-file", type=click.Path(path_type=Path), help="A file that exists while the worker is ready.")
@click.option("--check", type=click.Path(path_type=Path), help="Exit with 0 if the worker of this ready file is ready.")
@common_without_store
@pass_settings
def worker(settings: Settings, target: str | None, grace: float, ready_file: Path | None, check: Path | None) -> None:
    """Drive the runs of an engine: TARGET is MODULE:NAME, such as myapp.flows:engine.

    NAME is an Engine that is not open, or a function that returns one; the engine determines its store. SIGTERM or
    SIGINT drains, a second signal ends it at once (the same signal within a second counts once).
    """
    if check is not None:
        if target is not None or ready_file is not None:
            raise _usage("--check takes no TARGET and no --ready-file: it reads the ready file of another process.")
        _checked(settings, check)
        return
    if target is None:
        raise _usage("Missing argument 'TARGET': MODULE:NAME, such as myapp.flows:engine.")
    if settings.url is not None or settings.namespace != "default":
        raise _usage("--url and --namespace cannot be used here: the engine determines its store.")
    if ready_file is not None:
        _prepare(ready_file)
    engine = engine_of(target)
    _name(engine, target)
    _log_to_stderr()
    code = asyncio.run(ServedEngine(engine, grace, ready_file, as_json=settings.json).serve())
    _end(code)


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())


# -- the engine -------------------------------------------------------------------------------------------------


def engine_of(target: str) -> Engine:
    """Import the engine that MODULE:NAME refers to."""
    found, relation = target_of(target)
    if not isinstance(found, Engine):
        raise _bad(f"{target} {relation} a {type(found).__name__}, not an Engine (or a function that returns one)")
    return found


def target_of(target: str) -> tuple[Any, str]:
    """Import what MODULE:NAME refers to, or what the function of that name returns; and "is" or "returned"."""
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise _bad(f"{target!r} is not MODULE:NAME, such as myapp.flows:engine")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: Any = _imported(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise _bad(f"there is no {name!r} in {module_name}{_engines_in(found)}")
        found = getattr(found, part)
    relation = "is"
    if callable(found) and not isinstance(found, Engine | Workflow | Step | type):
        found, relation = _guarded(found, f"the factory {target}"), "returned"
        if inspect.iscoroutine(found):
            found.close()
            raise _bad(f"the factory {target} is async: it must be a plain function that returns an Engine")
    return found, relation


def _name(engine: Engine, target: str) -> None:
    """Name an engine that has no name after its module, host and process."""
    name = f"{target.partition(':')[0]}@{socket.gethostname()}:{os.getpid()}"
    engine._options.setdefault("name", name)  # noqa: SLF001


def _bad(message: str) -> click.BadParameter:
    return click.BadParameter(message, click.get_current_context(), param_hint="TARGET")


def _imported(name: str) -> Any:
    try:
        return _guarded(lambda: importlib.import_module(name), f"the module {name}")
    except TargetFailed as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{name}.".startswith(f"{missing.name}."):
            raise _bad(f"there is no module {missing.name!r} in {Path.cwd()} or on Python's path") from None
        raise


def _guarded(call: Callable[[], Any], what: str) -> Any:
    """Run code of the application; an error names the line where it failed."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        if os.environ.get("HOLDFAST_DEBUG"):
            traceback.print_exception(error)
        *_, last = traceback.extract_tb(error.__traceback__)
        raise TargetFailed(
            f"{what} failed: {type(error).__name__}: {error} ({last.filename}, line {last.lineno}). "
            "HOLDFAST_DEBUG=1 prints the traceback."
        ) from error


def _engines_in(module: Any) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Engine))
    return f"; its engines are: {', '.join(names)}" if names else ""


# -- the work ---------------------------------------------------------------------------------------------------


class ServedEngine:
    """An engine that this process drives, from its opening to its end."""

    def __init__(self, engine: Engine, grace: float, ready_file: Path | None, *, as_json: bool) -> None:
        self._engine, self._grace, self._file, self._json = engine, grace, ready_file, as_json
        self._stopping = asyncio.Event()
        self._signal = ""
        self._signalled_at = 0.0

    async def serve(self) -> int:
        """Open the engine, drive runs until a signal arrives, drain. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._signalled, one)
        await self._engine.open()
        try:
            self._warn()
            self._report("ready", f"ready: {self._described()}")
            await self._wait_for_signal()
        finally:
            self._update_ready_file(answers=False)
            self._report("draining", f"{self._signal or 'stopping'}: draining for at most {self._grace:g} s.")
            await self._engine.drain(self._grace)
        self._report("stopped", "stopped.")
        return 0

    async def _wait_for_signal(self) -> None:
        while not self._stopping.is_set():
            self._update_ready_file(answers=await self._answers())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), POLL_SECONDS)

    async def _answers(self) -> bool:
        """Whether the store answers; a query in progress is abandoned when the worker has to stop."""
        query = asyncio.ensure_future(self._engine.get(NO_RUN))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([query, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if not query.done():
            query.cancel()
            return False
        return not isinstance(query.exception(), StoreError)

    def _signalled(self, one: signal.Signals) -> None:
        if self._stopping.is_set():
            if one.name == self._signal and time.monotonic() - self._signalled_at < ONCE_SECONDS:
                return
            self._update_ready_file(answers=False)
            with suppress(OSError, ValueError):
                click.echo(
                    "holdfast: ended at once; other workers claim its runs when its lease has expired.", err=True
                )
                sys.stdout.flush()
            os._exit(FAILED)
        self._signal, self._signalled_at = one.name, time.monotonic()
        self._stopping.set()

    def _update_ready_file(self, *, answers: bool) -> None:
        if self._file is None:
            return
        try:
            if answers and not self._stopping.is_set():
                self._file.write_text(f"{os.getpid()}\n", encoding="ascii")
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            logging.getLogger("holdfast.worker").warning("the ready file cannot be written or removed: %s", error)

    def _described(self) -> str:
        client = self._engine._client  # noqa: SLF001  (it is open)
        assert client is not None  # noqa: S101
        kinds = ", ".join(self._kinds()) or "nothing"
        return f"{client.label(None).name} drives {kinds} in {client.url}, namespace {client.namespace}"

    def _warn(self) -> None:
        """Warn of an engine that would drive nothing."""
        if not self._kinds():
            print_line(
                "holdfast: this engine has no workflows, so it drives nothing: give it workflows=[...].", err=True
            )
        elif not self._engine._recover:  # noqa: SLF001
            print_line(
                "holdfast: this engine has recover=False, so it claims no runs, and a worker starts none: remove "
                "recover=False.",
                err=True,
            )

    def _kinds(self) -> list[str]:
        return sorted(self._engine._workflows)  # noqa: SLF001

    def _report(self, event: str, message: str) -> None:
        if self._json:
            print_json({"event": event, "pid": os.getpid(), "workflows": self._kinds()})
        else:
            print_line(message)
        sys.stdout.flush()


def _end(code: int) -> None:
    """Exit, even if the thread of a step never ends: its run was released."""
    deadline = time.monotonic() + THREADS_SECONDS
    while any(thread.name.startswith(STEP_THREADS) for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            _end_now(code)
        time.sleep(0.01)
    click.get_current_context().exit(code)


def _end_now(code: int) -> NoReturn:
    print_line("holdfast: a step that blocks a thread was abandoned; another worker executes it again.", err=True)
    atexit._run_exitfuncs()  # noqa: SLF001  (other packages registered them)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _log_to_stderr() -> None:
    """Print the log lines of the library and of `ctx.log`, unless the application configures logging."""
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        ours = logging.getLogger("holdfast")
        if ours.level == logging.NOTSET:
            ours.setLevel(logging.INFO)


# -- readiness --------------------------------------------------------------------------------------------------


def _prepare(path: Path) -> None:
    """Check that the ready file can be written, and remove that of an earlier process."""
    try:
        path.unlink(missing_ok=True)
        path.touch()
        path.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise click.BadParameter(
            f"{escaped(str(path))} cannot be written ({reason}).",
            click.get_current_context(),
            param_hint="--ready-file",
        ) from None


def _checked(settings: Settings, path: Path) -> None:
    try:
        age = time.time() - path.stat().st_mtime
        pid = int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise NotReady(f"no worker is ready: the file {path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise NotReady(f"{path} is not the ready file of a worker ({error}).") from None
    if age > STALE_SECONDS:
        raise NotReady(f"the worker {pid} has not touched {path} for {age:.0f} s: it was killed, or it hangs.")
    if settings.json:
        print_json({"ready": True, "pid": pid})
    else:
        print_line(f"ready: worker process {pid}.")
