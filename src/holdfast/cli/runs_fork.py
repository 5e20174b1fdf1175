"""`holdfast runs fork` and `holdfast runs import`: new runs from the history of others.

Nothing here drives a run: a fork is claimed by a worker like any run that was started.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from .. import Client, HoldfastError
from ..errors import InvalidOption, InvalidValue
from ..workflow import RunHistory
from .options import Settings, common, pass_settings
from .output import print_json, print_line
from .runs_reading import open_runs, read_run, run_document, type_text, workers_for
from .runs_replay import FileUnusable


class NotForked(HoldfastError):
    """The run cannot be forked there. Nothing was started."""


class NotImported(HoldfastError):
    """The history cannot be imported. Nothing was changed."""


@click.command("fork")
@click.argument("run_id", metavar="RUN")
@click.option("--from-step", metavar="STEP", help="Keep the history before this step.  [the failure of the run]")
@click.option("--input", "text", metavar="JSON", help="The input of the new run.  [that of RUN]")
@click.option("--id", "new_id", metavar="NEW", help="The id of the new run.  [random]")
@common
@pass_settings
def fork_run(settings: Settings, *, run_id: str, from_step: str | None, text: str | None, new_id: str | None) -> None:
    """Start a new run with the history of RUN before a step: what is kept is not executed again.

    STEP is an id as 'holdfast runs show' prints it, such as charge#2. RUN is not changed.
    """
    value = msgspec.UNSET if text is None else _value(text)
    with open_runs(settings) as hf:
        try:
            info = hf.runs.fork(run_id, from_step=from_step, input=value, id=new_id)
        except InvalidOption as error:  # about the run: no usage error
            raise NotForked(str(error)) from None
        then = _next_worker(hf, info.id)
    kept = info.entries - 2  # besides the input, and the entry that names the origin
    entries = "1 entry of its history is" if kept == 1 else f"{kept} entries of its history are"
    if settings.json:
        print_json(run_document(info))
    else:
        print_line(f"{info.id} is forked from {run_id}: {entries} kept. {then}")


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--id", "new_id", metavar="NEW", help="The id of the run in this store.  [that in the file]")
@click.option("--run", "run", is_flag=True, help="Let the run continue here: its next steps are executed.")
@common
@pass_settings
def import_run(settings: Settings, *, file: Path, new_id: str | None, run: bool) -> None:
    """Write a run that 'holdfast runs export' has written into this store, for debugging it.

    Nothing is executed: a run that had not ended is cancelled here, unless --run is given. A store that does not
    exist is created.
    """
    with open_runs(settings, create=True) as hf:
        try:
            history = RunHistory.read(file)
            info = hf.runs.import_(history, id=new_id, run=run)
        except OSError as error:
            raise FileUnusable(f"{file} cannot be read ({error.strerror or error}).") from None
        except (InvalidOption, InvalidValue) as error:  # about the file: no usage error
            raise NotImported(str(error)) from None
        was = "" if history.run.status == info.status else f" (it was {history.run.status})"
        then = _next_worker(hf, info.id) if run else f"It is {info.status}{was}, and nothing of it is executed."
    if settings.json:
        print_json(run_document(info))
    else:
        print_line(f"{info.id} of {info.workflow} is imported. {then}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON ({error})", param_hint="--input") from None


def _next_worker(hf: Client, run_id: str) -> str:
    """A sentence about the workers that can claim a new run."""
    kind = read_run(hf, run_id).claim.run.type
    if workers := workers_for(hf, kind):
        return f"It can be claimed by {', '.join(workers)}."
    return f"No living worker has the workflow {type_text(kind)} registered: start one."
