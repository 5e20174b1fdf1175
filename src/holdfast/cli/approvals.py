"""`holdfast approvals`: list the requests of runs that people answer, and answer one."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from ..workflow import OpenApproval
from .options import Settings, common, pass_settings
from .output import escaped_text, format_duration, format_time, print_json, print_line, print_rows
from .runs_reading import open_runs

COLUMNS = ("RUN", "WORKFLOW", "APPROVAL", "FOR", "UNTIL", "DATA")


@click.group()
@common
def approvals() -> None:
    """List the requests of runs that wait for a person, and answer them."""


@approvals.command("list")
@click.option("--workflow", help="Only requests of runs of this workflow.")
@click.option("--prefix", default="", help="Only requests of runs whose id begins with this text.")
@click.option("--limit", default=100, show_default=True, help="At most this many requests.")
@click.option("--after", help="Continue a list: the 'next' of the page before.")
@common
@pass_settings
def list_approvals(settings: Settings, *, workflow: str | None, prefix: str, limit: int, after: str | None) -> None:
    """List the open requests, the oldest first."""
    with open_runs(settings) as hf:
        page = hf.approvals.list(workflow=workflow, prefix=prefix, after=after, limit=limit)
        if settings.json:
            print_json({"approvals": [msgspec.structs.asdict(one) for one in page.approvals], "next": page.next})
            return
        if page.approvals:
            print_rows([_row(one) for one in page.approvals], COLUMNS)
        else:
            print_line(f"There are no open requests for approval in {hf.url}, namespace {hf.namespace}.")
    if page.next is not None:
        print_line(f"There are more requests: --after {page.next}", err=True)


def _row(one: OpenApproval) -> list[Any]:
    waited = (datetime.now(UTC) - one.asked_at).total_seconds()
    texts = (
        one.run_id,
        one.workflow,
        one.id,
        format_duration(max(0.0, waited)),
        "" if one.until is None else format_time(one.until),
        "" if one.data is None else json.dumps(one.data, ensure_ascii=False),
    )
    return [escaped_text(text) for text in texts]


@approvals.command("answer")
@click.argument("run_id", metavar="RUN")
@click.argument("name", metavar="APPROVAL")
@click.option("--approve", is_flag=True, help="The answer is yes; --approve or --reject must be given.")
@click.option("--reject", is_flag=True, help="The answer is no.")
@click.option("--by", help="Who answers; by default the user of this process.")
@click.option("--comment", default="", help="A text that is recorded with the answer.")
@common
@pass_settings
def answer_approval(
    settings: Settings, *, run_id: str, name: str, approve: bool, reject: bool, by: str | None, comment: str
) -> None:
    """Answer a request by its id, such as refund or refund#2. The first answer counts."""
    if approve == reject:
        both = ", not both" if approve else ""
        raise click.UsageError(f"Give --approve or --reject{both}. Nothing was answered.", click.get_current_context())
    who = getpass.getuser() if by is None else by
    with open_runs(settings) as hf:
        hf.approvals.answer(run_id, name, approved=approve, by=who, comment=comment)
    if settings.json:
        print_json({"run": run_id, "approval": name, "approved": approve, "by": who, "comment": comment})
    else:
        print_line(f"{name} of {run_id}: {'approved' if approve else 'rejected'} by {who}.")
