"""Replays a history with other code and without any effect, to check before a deploy that the code fits.

Nothing is started, sent or stored. If the code requests a step that is not in the history, it waits. Only the last
attempt of a workflow is replayed, because earlier attempts have no effect any more.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ..errors import HoldfastError, InvalidOption, NonDeterminismError, NotInWorkflow
from ..rules.runs.record import NewRun
from ..runtime.codec import encode_value
from ..validation import MICROSECONDS, time_of
from . import journal as j
from .blocking_code import BlockingCodeWatch
from .context import StepCall
from .continuing import continues, unread_error, unread_signals
from .definition import Workflow
from .failures import failure_of, refusal_in
from .history import RunHistory
from .pause import pause_of
from .queries import RESTART
from .replay import Replay

OF_THE_ENGINE = ("holdfast.errors.", "RunPoisoned", "RunFailed")
"""Errors that the engine records for a run whose code has not ended."""
SHOWN = 200
"""Characters of a value in a message."""


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the code does with a history that it fits.

    `entries` counts the entries that were delivered. `ended` is how the code has ended ("completed", "failed",
    "cancelled", or "continued" if its next generation is to begin), or None; then `waits_for` is what it waits for.
    """

    run_id: str
    workflow: str
    entries: int
    ended: str | None
    waits_for: tuple[str, ...] = ()


class _End(NamedTuple):
    """How code has ended: a value as JSON text, or the type and the text of an error."""

    status: str
    value: str = ""
    kind: str = ""
    text: str = ""

    def __str__(self) -> str:
        if self.status == "completed":
            return f"returned {_short(self.value)}"
        return f"{self.status} with {_short(self.text)}"


class _NoEffects:
    """Ignores every request of the code."""

    def __init__(self) -> None:
        self.refusal: NotInWorkflow | None = None
        self.watch = BlockingCodeWatch()  # not started

    def called(self, call: StepCall) -> None:
        """Do not begin a step."""

    def dropped(self, call: StepCall) -> None:
        """There is no step to stop."""

    def cancel_child(self, id: str, reason: str) -> None:
        """Do not cancel a child."""

    def reclaim(self, new: NewRun) -> None:
        """Do not look for a child."""

    def refused(self, error: NotInWorkflow) -> None:
        """The code waits for a thread."""
        self.refusal = error

    def blocking(self, seconds: float, line: str) -> None:
        """Nothing else runs in this thread that the code could delay."""

    def noted(self, entry: j.AnyEntry) -> None:
        """Do not write an entry."""


def check_history(workflow: Workflow[Any, Any], history: RunHistory) -> ReplayReport:
    """Replay a history to the code of a workflow, without any effect.

    Raises `NonDeterminismError` with both sides of the first difference, and `InvalidValue` if the code cannot read the
    input or a recorded value.
    """
    if not isinstance(workflow, Workflow):
        raise InvalidOption(f"{workflow!r} is no workflow: give the function that is decorated with @workflow")
    if history.run.workflow != workflow.name:
        raise InvalidOption(f"this is the history of a run of {history.run.workflow!r}, and not of {workflow.name!r}")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _checked(workflow, history)
    # The loop of workflow code cannot run inside a task of another loop, so it runs in a thread.
    with ThreadPoolExecutor(1, "holdfast-replay") as thread:
        return thread.submit(copy_context().run, _checked, workflow, history).result()


def _checked(workflow: Workflow[Any, Any], history: RunHistory) -> ReplayReport:
    run, texts = history.run, history.entries
    pause = pause_of(texts)
    if pause is not None and not run.living:  # it ended in the pause between two attempts: no code has run since
        return ReplayReport(run_id=run.id, workflow=run.workflow, entries=0, ended=run.status)
    if pause is not None:
        begun = j.AttemptBegun(at=pause.entry.again_at, seen=run.posted)
        texts = (*texts, j.encode_entry(begun))
    elif len(texts) == j.beginning(texts) and run.last.startswith(RESTART):
        texts = (*texts, j.encode_entry(j.AttemptBegun(at=run.created_at, seen=0)))
    effects = _NoEffects()
    # The next process that drives the run claims it once more.
    claimed = replace(run, claims=run.claims + 1)
    code = Replay(claimed, workflow, effects, max_bytes=sys.maxsize, transactional=True)
    try:
        code.replay(texts, history.events)
        if effects.refusal is not None:
            raise effects.refusal
        ended = _end_of(code)
        if not run.living:
            _compare_ends(history, code, ended)
        return ReplayReport(
            run_id=run.id,
            workflow=run.workflow,
            entries=_delivered(history),
            ended=None if ended is None else ended.status,
            waits_for=_waits_of(code) if ended is None else (),
        )
    finally:
        code.leave()


def _delivered(history: RunHistory) -> int:
    """How many entries belong to the last attempt."""
    entries = [j.decode_entry(text) for text in history.entries[1:]]
    return next((n for n, entry in enumerate(reversed(entries)) if isinstance(entry, j.BegunAgain)), len(entries))


# -- the end ------------------------------------------------------------------------------------------------------


def _end_of(code: Replay) -> _End | None:
    root = code.root
    if root is None or not root.done():
        return None
    error = None if root.cancelled() else root.exception()
    if code.continuing is not None and continues(error):
        return _End("continued", text="ContinueAsNew")
    if root.cancelled():
        return _End("cancelled", text="CancelledError")
    if error is not None:
        failure = failure_of(refusal_in(error) or error)
        return _End("failed", kind=failure.type, text=str(failure))
    what = f"the result of {code.workflow.name!r}"
    try:
        text = encode_value(root.result(), code.workflow.output_type, what=what, max_bytes=sys.maxsize)
        if code.workflow.on_unread == "fail" and (unread := unread_signals(code)):
            raise unread_error(code, unread)
    except HoldfastError as unfit:  # as the driver does: the run fails
        failure = failure_of(unfit)
        return _End("failed", kind=failure.type, text=str(failure))
    return _End("completed", text)


def _compare_ends(history: RunHistory, code: Replay, found: _End | None) -> None:
    """Raise if the code does not end as the run has ended."""
    run = history.run
    if run.status == "completed":
        recorded = _End("completed", run.result or "null")
        if found is not None and found.status == "completed" and _same(found.value, recorded.value):
            return
    else:
        failure = j.read_failure(run.result or "")
        recorded = _End(run.status, kind=failure.type, text=str(failure))
        if found is None:  # it may have been ended from outside, or by an error of the engine
            if run.status != "failed" or failure.type.startswith(OF_THE_ENGINE):
                return
        elif found.status != "completed" and (run.status != "failed" or found.kind == recorded.kind):
            return
    does = f"waits for {', '.join(_waits_of(code)) or 'nothing'}" if found is None else str(found)
    raise NonDeterminismError(
        f"the run {run.id!r} of {run.type!r} does not end as its history does. There it {recorded}; the code {does}. "
        "The workflow was changed after the run, or decides by something that is not recorded.",
        recorded=f"the run {recorded}",
        found=does,
    )


def _same(one: str, other: str) -> bool:
    with suppress(msgspec.MsgspecError):
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    return one == other


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _waits_of(code: Replay) -> tuple[str, ...]:
    """What the code waits for, in words."""
    found = [*code.waits]
    if (timer := code.loop.next_timer()) is not None:
        found.append(f"a timer until {time_of(round(timer.when() * MICROSECONDS)):%Y-%m-%d %H:%M:%S} UTC")
    return tuple(found)
