"""`replay`: checks in a test that changed code fits the histories of earlier runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InvalidOption
from ..workflow.definition import Workflow
from ..workflow.history import RunHistory
from ..workflow.history_check import ReplayReport, check_history


def replay(workflow: Workflow[Any, Any], history: RunHistory | str | bytes | Path) -> ReplayReport:
    """Replay a history to the code of a workflow. No step is executed, and nothing is stored.

    `history` is what `client.runs.export(run_id)` returns, its JSON text, or the path of a file that `holdfast runs
    export` has written. Raises `NonDeterminismError` where the code deviates from the history, or ends in another way
    than the run; its `recorded` and `found` are the two sides. Raises `InvalidValue` where the code cannot read a
    stored value.

    >>> import asyncio
    >>> from holdfast import workflow
    >>> from holdfast.testing import TestEngine, replay
    >>> @workflow
    ... async def order(ctx, item: str) -> None:
    ...     await ctx.wait_for_signal("paid")
    >>> async def test():
    ...     async with TestEngine([order]) as engine:
    ...         handle = await engine.start(order, "book")
    ...         await engine.settle()
    ...         return replay(order, await engine.export(handle.id))
    >>> asyncio.run(test()).waits_for
    ("the signal 'paid'",)
    """
    return check_history(workflow, _read(history))


def _read(history: RunHistory | str | bytes | Path) -> RunHistory:
    if isinstance(history, RunHistory):
        return history
    if isinstance(history, Path):
        return RunHistory.read(history)
    if isinstance(history, str | bytes):
        if history.lstrip()[:1] in ("{", b"{"):
            return RunHistory.from_json(history)
        return RunHistory.read(history if isinstance(history, str) else history.decode())
    raise InvalidOption(f"a history is a RunHistory, its JSON text or the path of a file, not {history!r}")
