"""`holdfast runs export` and `holdfast runs replay`: histories as files, and their check against code.

Both only read the store. The code of the workflows runs in this process, without any effect.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from .. import Client, Engine, HoldfastError
from ..errors import NonDeterminismError, UnknownRun
from ..rules.runs.record import ANY_VERSION, LIVING
from ..workflow import RunHistory, Workflow
from ..workflow.history_check import check_history
from .exit_codes import FAILED
from .options import Settings, common, pass_settings
from .output import print_json, print_line
from .runs_reading import open_runs
from .worker import target_of

_OTHERS = re.compile(r"[^\x20-\x7e\n]")
PAGE = 100
"""How many runs are listed at once."""


class FileExists(HoldfastError):
    """The file exists already. Nothing was written."""


class FileUnusable(HoldfastError):
    """The file cannot be read or written."""


# -- export -----------------------------------------------------------------------------------------------------


@click.command("export")
@click.argument("run_id", metavar="RUN")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@common
@pass_settings
def export_run(settings: Settings, *, run_id: str, output: Path | None, force: bool) -> None:
    """Write the history of a run as JSON, for 'holdfast runs replay' and for tests.

    The file contains the input, results and signals of the run in plain text.
    """
    if output is not None and output.exists() and not force:
        raise _exists(output)
    with open_runs(settings) as hf:
        history = hf.runs.export(run_id)
    text = history.to_json()
    if output is None:
        _print(text, settings)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise FileUnusable(f"{output} cannot be written ({error.strerror or error}).") from None
    entries = len(history.entries) - 1
    if settings.json:
        print_json({"run": run_id, "file": str(output), "entries": entries})
    else:
        print_line(f"{output}: {run_id} of {history.run.workflow}, {_count(entries, 'entry', 'entries')}.")


def _print(text: str, settings: Settings) -> None:
    """Print the JSON in ASCII, so that it can be read back whatever the encoding and the terminal are."""
    if settings.json:
        print_json(json.loads(text))
    else:
        click.echo(_OTHERS.sub(lambda found: json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f"), text), nl=False)


def _exists(path: Path) -> FileExists:
    return FileExists(f"{path} exists already. Nothing was written: use --force to overwrite it.")


# -- replay -----------------------------------------------------------------------------------------------------


@click.command("replay")
@click.argument("target", metavar="MODULE:NAME")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--status", multiple=True, help="Only runs with this status; may be given several times.  [not ended]")
@click.option("--workflow", help="Only runs of this workflow.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many runs, the newest first.")
@common
@pass_settings
@click.pass_context
def replay_runs(
    context: click.Context,
    settings: Settings,
    *,
    target: str,
    files: tuple[Path, ...],
    status: tuple[str, ...],
    workflow: str | None,
    limit: int | None,
) -> None:
    """Check code against the histories of runs, before it is deployed. Exits with 1 if a run does not fit.

    It also exits with 1 if the code does not have the workflow of a FILE.

    MODULE:NAME is an Engine, a function that returns one, or a workflow. Without FILE, the runs in the store are
    checked that have not ended: of the engine's own store, unless --url is given. Nothing is executed or changed.
    """
    found, relation = target_of(target)
    if not isinstance(found, Engine | Workflow):
        message = f"{target} {relation} a {type(found).__name__}, not an Engine or a workflow"
        raise click.BadParameter(message, context, param_hint="MODULE:NAME")
    known = {found.type: found} if isinstance(found, Workflow) else found._workflows  # noqa: SLF001
    if files:
        if status or workflow or limit:
            raise click.UsageError(
                "--status, --workflow and --limit are for runs in the store, not for files.", context
            )
        result = _check(known, map(_read, files))
    else:
        store, store_options = _store_of(settings, found, context)
        with open_runs(store, store_options) as hf:
            result = _check(known, _histories(hf, status or LIVING, workflow, limit))
    result.show(settings, target)
    context.exit(FAILED if result.differ or (files and result.unknown) else 0)


def _store_of(
    settings: Settings, found: Engine | Workflow[Any, Any], context: click.Context
) -> tuple[Settings, Mapping[str, object] | None]:
    """The store to read: that of the options, or else that of the engine."""
    if settings.url is not None or isinstance(found, Workflow):
        return settings, None
    where, options = found._where, found._options  # noqa: SLF001
    if where is not None and not isinstance(where, str):
        raise click.UsageError(
            "This engine was given a client or a connection pool: give its store with --url.", context
        )
    namespace = settings.namespace if settings.namespace != "default" else options.get("namespace", "default")
    return Settings(where, namespace, settings.json), options.get("store_options")


def _histories(
    hf: Client, status: tuple[str, ...], workflow: str | None, limit: int | None
) -> Iterator[tuple[str, RunHistory]]:
    after, left = None, limit
    while left is None or left > 0:
        page = hf.runs.list(
            status=status, workflow=workflow, after=after, limit=PAGE if left is None else min(PAGE, left)
        )
        for one in page.runs:
            with suppress(UnknownRun):  # it was removed meanwhile
                yield one.id, hf.runs.export(one.id)
        left = None if left is None else left - len(page.runs)
        after = page.next
        if after is None:
            return


def _read(path: Path) -> tuple[str, RunHistory]:
    try:
        history = RunHistory.read(path)
    except OSError as error:
        raise FileUnusable(f"{path} cannot be read ({error.strerror or error}).") from None
    return f"{path}: {history.run.id}", history


class _Result:
    """What was checked, and what did not fit."""

    def __init__(self) -> None:
        self.checked = 0
        self.differ: list[dict[str, str]] = []
        self.unknown: Counter[str] = Counter()

    def show(self, settings: Settings, target: str) -> None:
        """Print it."""
        if settings.json:
            print_json({"checked": self.checked, "differ": self.differ, "unknown": dict(self.unknown)})
            return
        for one in self.differ:
            print_line(f"{one['name']} ({one['workflow']}): {_difference(one)}")
        differ = (
            _count(len(self.differ), "of them differs", "of them differ")
            if self.differ
            else "all of them fit"
            if self.checked
            else ""
        )
        summary = f"{_count(self.checked, 'run was', 'runs were')} checked"
        print_line(f"{summary}; {differ}." if differ else f"{summary}.")
        if self.unknown:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(self.unknown.items()))
            total = _count(self.unknown.total(), "run was", "runs were")
            print_line(f"{total} not checked, because {target} does not have the workflow: {names}.")


def _check(known: Mapping[str, Workflow[Any, Any]], histories: Iterable[tuple[str, RunHistory]]) -> _Result:
    result = _Result()
    for name, history in histories:
        run = history.run
        workflow = _workflow_for(known, run.type)
        if workflow is None:
            result.unknown[run.type.removesuffix(ANY_VERSION)] += 1
            continue
        result.checked += 1
        try:
            check_history(workflow, history)
        except HoldfastError as error:
            sides = (error.recorded, error.found) if isinstance(error, NonDeterminismError) else ("", "")
            result.differ.append(
                {
                    "run": run.id,
                    "name": name,
                    "workflow": run.type.removesuffix(ANY_VERSION),
                    "status": run.status,
                    "recorded": sides[0],
                    "code": sides[1],
                    "error": f"{type(error).__name__}: {error}",
                }
            )
    return result


def _workflow_for(known: Mapping[str, Workflow[Any, Any]], kind: str) -> Workflow[Any, Any] | None:
    """The workflow that drives runs of this type. A run that was started by name takes the last version."""
    if kind.endswith(ANY_VERSION):
        versions = [one for one in known.values() if one.any_type == kind]
        return versions[-1] if versions else None
    return known.get(kind)


def _difference(one: dict[str, str]) -> str:
    return f"history: {one['recorded']}; code: {one['code']}" if one["recorded"] else one["error"]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
