"""`holdfast worker`: drives the runs of an engine until it is told to stop.

The first SIGTERM or SIGINT drains: nothing more is claimed, and each run is let go as soon as it is at a good place, at
the latest when the grace is over. A second one ends the process there and then, as `kill -9` would; but the same one
again within a second is the first, for launchers signal a process and its group. The ready file is there while the
worker claims runs and the store answers; it is touched as a sign of life.
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
from .options import Settings, as_seconds, common_elsewhere, pass_settings
from .output import harmless, say, tell

LOOK_SECONDS = 5.0
"""How often the store is asked whether it still answers."""
STALE_SECONDS = 30.0
"""A ready file that was not touched for so long belongs to nobody who works."""
THREADS_SECONDS = 1.0
"""How long the threads of steps have to end after the worker has."""
ONCE_SECONDS = 1.0
"""The same signal again within this time is not a second one."""
STEP_THREADS = "holdfast-step"
NOBODY = "holdfast/ready"
"""A run that is not there: looking for it shows that the store answers."""


class TargetFailed(HoldfastError):
    """The module of the engine cannot be imported, or its factory failed."""


class NotReady(HoldfastError):
    """There is no worker that is ready."""


@click.command()
@click.argument("target", required=False)
@click.option("--grace", callback=as_seconds, default="30", show_default=True, help="Seconds to drain in.")
@click.option("--ready-file", type=click.Path(path_type=Path), help="A file that is there while the worker is ready.")
@click.option("--check", type=click.Path(path_type=Path), help="Exit with 0 if the worker of this ready file is ready.")
@common_elsewhere
@pass_settings
def worker(settings: Settings, target: str | None, grace: float, ready_file: Path | None, check: Path | None) -> None:
    """Drive the runs of an engine: TARGET is MODULE:NAME, such as myapp.flows:engine.

    NAME is an Engine that is not open, or a function that makes one; it says itself where its store is. SIGTERM or
    SIGINT drains, a second one ends it (the same one within a second counts once).
    """
    if check is not None:
        if target is not None or ready_file is not None:
            raise _usage("--check stands alone: it looks at the ready file of another process.")
        _checked(settings, check)
        return
    if target is None:
        raise _usage("Missing argument 'TARGET': MODULE:NAME, such as myapp.flows:engine.")
    if settings.url is not None or settings.namespace != "default":
        raise _usage("--url and --namespace are not for a worker: the engine itself says where its store is.")
    if ready_file is not None:
        _prepare(ready_file)
    engine = engine_of(target)
    _name(engine, target)
    _log_to_stderr()
    code = asyncio.run(ServedEngine(engine, grace, ready_file, as_json=settings.json).work())
    _end(code)


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())


# -- the engine -------------------------------------------------------------------------------------------------


def engine_of(target: str) -> Engine:
    """Import the engine that MODULE:NAME means."""
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
    made = "is"
    if callable(found) and not isinstance(found, Engine | Workflow | Step | type):
        found, made = _guarded(found, f"the factory {target}"), "made"
        if inspect.iscoroutine(found):
            found.close()
            raise _bad(f"the factory {target} is async: it must be a plain function that returns an Engine")
    if not isinstance(found, Engine):
        raise _bad(f"{target} {made} a {type(found).__name__}, not an Engine (or a function that makes one)")
    return found


def _name(engine: Engine, target: str) -> None:
    """An engine that has no name is told apart from its siblings: what drives, where, and as which process."""
    if engine._given_name is None:  # noqa: SLF001  (the same house)
        engine._given_name = f"{target.partition(':')[0]}@{socket.gethostname()}:{os.getpid()}"  # noqa: SLF001


def _bad(message: str) -> click.BadParameter:
    return click.BadParameter(message, click.get_current_context(), param_hint="TARGET")


def _imported(name: str) -> Any:
    try:
        return _guarded(lambda: importlib.import_module(name), f"the module {name}")
    except TargetFailed as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{name}.".startswith(f"{missing.name}."):
            raise _bad(f"there is no module {missing.name!r}, seen from {Path.cwd()}") from None
        raise


def _guarded(call: Callable[[], Any], what: str) -> Any:
    """Run somebody's code, and say in one line where it failed."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        if os.environ.get("HOLDFAST_DEBUG"):
            traceback.print_exception(error)
        *_, last = traceback.extract_tb(error.__traceback__)
        raise TargetFailed(
            f"{what} failed: {type(error).__name__}: {error} ({last.filename}, line {last.lineno}). "
            "HOLDFAST_DEBUG=1 shows all of it."
        ) from error


def _engines_in(module: Any) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Engine))
    return f"; its engines are: {', '.join(names)}" if names else ""


# -- the work ---------------------------------------------------------------------------------------------------


class ServedEngine:
    """An engine at work, from its opening to its end."""

    def __init__(self, engine: Engine, grace: float, ready_file: Path | None, *, as_json: bool) -> None:
        self._engine, self._grace, self._file, self._json = engine, grace, ready_file, as_json
        self._told_to_stop = asyncio.Event()
        self._signal = ""
        self._signalled_at = 0.0

    async def work(self) -> int:
        """Open, drive until told to stop, drain. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._signalled, one)
        await self._engine.open()
        try:
            self._warn()
            self._say("ready", f"ready: {self._described()}")
            await self._wait_until_told()
        finally:
            self._ready(answers=False)
            self._say("draining", f"{self._signal or 'the end'}: draining for at most {self._grace:g} s.")
            await self._engine.drain(self._grace)
        self._say("stopped", "stopped.")
        return 0

    async def _wait_until_told(self) -> None:
        while not self._told_to_stop.is_set():
            self._ready(answers=await self._answers())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told_to_stop.wait(), LOOK_SECONDS)

    async def _answers(self) -> bool:
        """Whether the store answers; a look that takes too long is left when the worker is told to stop."""
        look = asyncio.ensure_future(self._engine.get(NOBODY))
        told = asyncio.ensure_future(self._told_to_stop.wait())
        try:
            await asyncio.wait([look, told], return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        if not look.done():
            look.cancel()
            return False
        return not isinstance(look.exception(), StoreError)

    def _signalled(self, one: signal.Signals) -> None:
        if self._told_to_stop.is_set():
            if one.name == self._signal and time.monotonic() - self._signalled_at < ONCE_SECONDS:
                return
            self._ready(answers=False)
            with suppress(OSError, ValueError):
                click.echo("holdfast: stopped at once; its runs go on elsewhere when its lease has run out.", err=True)
                sys.stdout.flush()
            os._exit(FAILED)
        self._signal, self._signalled_at = one.name, time.monotonic()
        self._told_to_stop.set()

    def _ready(self, *, answers: bool) -> None:
        if self._file is None:
            return
        try:
            if answers and not self._told_to_stop.is_set():
                self._file.write_text(f"{os.getpid()}\n", encoding="ascii")
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            logging.getLogger("holdfast.worker").warning("the ready file cannot be changed: %s", error)

    def _described(self) -> str:
        client = self._engine._client  # noqa: SLF001  (the same house; it is open)
        assert client is not None  # noqa: S101
        kinds = ", ".join(self._kinds()) or "nothing"
        return f"{client.label(None).name} drives {kinds} in {client.url}, namespace {client.namespace}"

    def _warn(self) -> None:
        """Say of what kind of engine nobody has a use in a worker."""
        if not self._kinds():
            say("holdfast: this engine has no workflows, so it drives nothing: give it workflows=[...].", err=True)
        elif not self._engine._recover:  # noqa: SLF001
            say(
                "holdfast: this engine has recover=False, so it claims nothing by itself, and a worker starts nothing: "
                "leave recover=False out.",
                err=True,
            )

    def _kinds(self) -> list[str]:
        return sorted(self._engine._workflows)  # noqa: SLF001

    def _say(self, event: str, words: str) -> None:
        if self._json:
            tell({"event": event, "pid": os.getpid(), "workflows": self._kinds()})
        else:
            say(words)
        sys.stdout.flush()


def _end(code: int) -> None:
    """Leave, also when the thread of a step never ends: it is nobody's any more."""
    deadline = time.monotonic() + THREADS_SECONDS
    while any(thread.name.startswith(STEP_THREADS) for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            _end_now(code)
        time.sleep(0.01)
    click.get_current_context().exit(code)


def _end_now(code: int) -> NoReturn:
    say("holdfast: a step that blocks a thread was left in the middle; another worker begins it again.", err=True)
    atexit._run_exitfuncs()  # noqa: SLF001  (what others wanted to happen at the end)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _log_to_stderr() -> None:
    """Show what the library and `ctx.log` have to say, unless the application has said how to log."""
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        ours = logging.getLogger("holdfast")
        if ours.level == logging.NOTSET:
            ours.setLevel(logging.INFO)


# -- readiness --------------------------------------------------------------------------------------------------


def _prepare(path: Path) -> None:
    """See that a ready file can be written; one of an earlier life is removed."""
    try:
        path.unlink(missing_ok=True)
        path.touch()
        path.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise click.BadParameter(
            f"{harmless(str(path))} cannot be written ({reason}).",
            click.get_current_context(),
            param_hint="--ready-file",
        ) from None


def _checked(settings: Settings, path: Path) -> None:
    try:
        age = time.time() - path.stat().st_mtime
        pid = int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise NotReady(f"no worker is ready: there is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise NotReady(f"{path} is no ready file of a worker ({error}).") from None
    if age > STALE_SECONDS:
        raise NotReady(f"the worker {pid} has not touched {path} for {age:.0f} s: it was killed, or it is stuck.")
    if settings.json:
        tell({"ready": True, "pid": pid})
    else:
        say(f"ready: the worker {pid}.")
