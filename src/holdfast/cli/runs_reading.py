"""Runs as the commands read them: what a run waits for, which workers have its workflow, and its JSON document.

For the commands that show runs (runs_show.py) and those that act on them (runs.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from .. import Client
from ..errors import StoreUnusable
from ..rules.runs import record as rule
from ..rules.runs.outcomes import Claim
from ..runtime.codec import MAX_BYTES
from ..runtime.runners import run as run_flow
from ..validation import time_of
from ..workflow import BlockInfo, RunInfo
from ..workflow.pause import pause_of
from ..workflow.queries import RunQueries, info
from .options import Settings, open_client
from .output import format_time


class RunSnapshot(NamedTuple):
    """A run: for people, as it is stored, and the time on the store's clock in microseconds."""

    info: RunInfo
    claim: Claim
    now: int


class Waits(NamedTuple):
    """The locks that a run waits for, and the children, if they are known."""

    locks: Sequence[str]
    children: Sequence[str]


class PauseInfo(NamedTuple):
    """The pause between two attempts of a workflow, for people."""

    until: str
    attempt: str
    over: bool
    children: str
    """The children of the failed attempt, which must end first; empty if there are none."""


@contextmanager
def open_runs(
    settings: Settings, store_options: Mapping[str, object] | None = None, *, create: bool = False
) -> Iterator[Client]:
    """A client for one command about runs. Unless the command may `create` the store, it must exist already."""
    with open_client(settings, create=create, store_options=store_options) as hf:
        if not hf.runtime.store.capabilities.workflows:
            raise StoreUnusable(f"{hf.url} does not support workflows: it has no runs.")
        yield hf


def read_run(hf: Client, run_id: str, *, history: bool = False) -> RunSnapshot:
    """Read a run, with its journal if `history` is set. Raises `UnknownRun`."""
    claim, seen = run_flow(RunQueries(hf, max_bytes=MAX_BYTES).see(run_id, history=history), hf.runtime.batchers)
    return RunSnapshot(info(claim.run, holder=seen.holder), claim, seen.now)


def waits_of(hf: Client, run: rule.Run) -> Waits:
    """The locks and children that a run waits for."""
    keys = dict.fromkeys(key for _, key in run.locks)
    unlisted = {wait.key for wait in run.waits}
    waited = [
        key
        for key in keys
        if key in unlisted or any(one.owner == f"run {run.id}" for one in hf.locks.inspect(key).waiters)
    ]
    return Waits(waited, () if run.stuck is None else run.stuck.children)


def pause_info(found: RunSnapshot) -> PauseInfo | None:
    """The pause that a run is in, by its journal (read it with `history`); None if it is in none, or is cancelled."""
    run = found.claim.run
    pause = pause_of(found.claim.entries) if run.living and not run.cancelling else None
    if pause is None:
        return None
    return PauseInfo(
        until=format_time(time_of(pause.entry.again_at)),
        attempt=f"attempt {pause.attempt + 1}",
        over=pause.entry.again_at <= found.now,
        children=", ".join(pause.entry.children),
    )


def starts_at(found: RunSnapshot) -> str | None:
    """When a run begins, at the earliest, whose start was delayed; None if that time has come, or it has ended."""
    run = found.claim.run
    delayed = run.living and rule.is_delayed(run, found.now)
    return format_time(time_of(run.not_before)) if run.not_before and delayed else None


def workers_for(hf: Client, kind: str) -> list[str]:
    """The names of the living workers that have this type of workflow registered."""
    return run_flow(RunQueries(hf, max_bytes=MAX_BYTES).who_can(kind), hf.runtime.batchers)


def type_text(kind: str) -> str:
    """The stored type of a run for people: a workflow, with its version if the run has one."""
    return f"{kind.removesuffix(rule.ANY_VERSION)} in any version" if kind.endswith(rule.ANY_VERSION) else kind


def workflow_text(one: RunInfo) -> str:
    """The workflow of a run, with its version."""
    return one.workflow if one.version is None else f"{one.workflow}@{one.version}"


def run_document(found: RunInfo) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "id": found.id,
        "workflow": found.workflow,
        "version": found.version,
        "status": found.status,
        "holder": found.holder,
        "created_at": found.created_at,
        "started_at": found.started_at,
        "ended_at": found.ended_at,
        "due_at": found.due_at,
        "parent": found.parent,
        "idempotency_key": found.idempotency_key,
        "attributes": found.attributes,
        "locks": list(found.locks),
        "entries": found.entries,
        "result": found.result,
        "error": None if found.error is None else msgspec.structs.asdict(found.error),
        "code": found.code,
        "blocked": None if found.blocked is None else _block_document(found.blocked),
        "generation": found.generation,
        "continued_at": found.continued_at,
        "replaces": found.replaces,
        "replaced_by": found.replaced_by,
        "details": found.details,
        "heartbeats": [msgspec.structs.asdict(one) for one in found.heartbeats],
        "timeout": found.timeout,
        "starts_at": found.starts_at,
        "cancel_reason": found.cancel_reason,
        "cancelled_by": None if found.cancelled_by is None else msgspec.structs.asdict(found.cancelled_by),
    }


def _block_document(block: BlockInfo) -> dict[str, Any]:
    return {
        "reason": msgspec.structs.asdict(block.reason),
        "since": block.since,
        "tries": block.tries,
        "code": block.code,
    }


def blocking_text(block: BlockInfo) -> str:
    """Why a run is blocked, and since when."""
    tries = "once" if block.tries == 1 else f"{block.tries} times"
    code = "" if block.code is None else f" by code {block.code}"
    return f"blocked since {format_time(block.since)}, tried {tries}, last{code}: {block.reason}"


def blocked_at_limits(hf: Client, run: rule.Run) -> list[str]:
    """The blocked runs of the same workflow that are counted under a limit of a queued run: it waits for them."""
    page = hf.runs.list(status="blocked", workflow=run.workflow)
    queries = RunQueries(hf, max_bytes=MAX_BYTES)
    found = (run_flow(queries.see(one.id), hf.runtime.batchers)[0].run for one in page.runs)
    return [one.id for one in found if set(one.places) & set(run.places)]
