"""Requests to runs, and requests of runs to people: updates and approvals, as flows and as public methods.

An update is sent once and then watched: what is sent again is recognised by its key. The answer to an approval names
the request by its id, and is recognised when it is sent again.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any

import msgspec

from ..commands import ListRecords, RecordPage
from ..commands.answers import AnswerApproval, PostUpdate, WatchUpdate
from ..errors import ApprovalNotOpen, InvalidKey, InvalidOption, RunEnded, UnknownRun, UpdateRefused, UpdateTimeout
from ..platform import elapsed
from ..rules.runs.outcomes import ApprovalSeen, RunRefused, UpdateSeen
from ..rules.runs.record import Run, RunEvent
from ..rules.runs.requests import OPEN_APPROVAL, ApprovalRequest
from ..runtime.base import BaseClient
from ..runtime.codec import decode_value, encode_message
from ..runtime.flows import Flow, Wait, send
from ..runtime.runners import run, run_async
from ..validation import checked_count, checked_key, time_of
from .context_requests import checked_text
from .definition import Workflow

POLL_SECONDS = 0.5
"""Initial pause between two looks for an answer; also the fixed one without notifications."""
MAX_POLL_SECONDS = 10.0
"""The longest such pause with notifications."""
PAGE = 100


class OpenApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits for an answer. `until` is when the run stops waiting for it."""

    run_id: str
    workflow: str
    id: str
    name: str
    data: Any
    asked_at: datetime
    until: datetime | None = None


class ApprovalsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of open requests, the oldest first, and the cursor of the next page (None: this is the last page)."""

    approvals: tuple[OpenApproval, ...]
    next: str | None


class RequestQueries:
    """The flows, for one client."""

    def __init__(self, client: BaseClient, *, max_bytes: int) -> None:
        self._client, self._max_bytes = client, max_bytes

    def update(
        self,
        run_id: str,
        name: str,
        payload: Any,
        *,
        timeout: float | None,
        idempotency_key: str | None,
        output: Any,
    ) -> Flow[Any]:
        """Send a request to a run, and wait for its answer."""
        event = self._event(name, payload, idempotency_key)
        runtime = self._client.runtime
        attempt = runtime.new_attempt()
        flag = runtime.flag(attempt)
        deadline = None if timeout is None else elapsed() + timeout
        watch = runtime.watched()
        pause = POLL_SECONDS
        try:
            outcome, _ = yield from send(
                PostUpdate(run=checked_key(run_id, what="run id"), event=event, watcher=attempt)
            )
            while True:
                flag.clear()
                seen = self._checked(outcome, run_id, name)
                if seen.update is not None and seen.update.answered_at is not None:
                    if seen.update.refused:
                        raise UpdateRefused(
                            f"the run {run_id!r} has refused the update {name!r}: {seen.update.answer}",
                            run_id=run_id,
                            reason=seen.update.answer,
                        )
                    return decode_value(seen.update.answer, output, what=f"the reply to the update {name!r}")
                if not seen.run.living:
                    raise _unanswered(seen.run, run_id, name)
                left = pause if deadline is None else min(pause, deadline - elapsed())
                if left <= 0:
                    raise UpdateTimeout(
                        f"the run {run_id!r} did not answer the update {name!r} within {timeout or 0:g} s. The request "
                        "stays with the run. To wait for its answer again, send it with the same idempotency_key."
                    )
                yield Wait(flag, left)
                if not watch.polls:
                    pause = min(2 * pause, MAX_POLL_SECONDS)
                outcome, _ = yield from send(
                    WatchUpdate(run=run_id, first=seen.run.first, key=event.key, watcher=attempt)
                )
        finally:
            runtime.unflag(attempt)

    def _event(self, name: str, payload: Any, idempotency_key: str | None) -> RunEvent:
        key = secrets.token_hex(8) if idempotency_key is None else checked_key(idempotency_key, what="idempotency key")
        name = checked_key(name, what="update name")
        text = encode_message(payload, what=f"the update {name!r}", max_bytes=self._max_bytes)
        return RunEvent(kind="update", name=name, payload=text, key=f"update/{key}")

    def _checked(self, outcome: Any, run_id: str, name: str) -> UpdateSeen:
        if isinstance(outcome, RunRefused):
            if outcome.run is None:
                raise UnknownRun(f"there is no run with the id {run_id!r} in this namespace", run_id=run_id)
            raise RunEnded(
                f"the run {run_id!r} has ended ({outcome.run.status}), so it cannot answer the update {name!r}. "
                "Nothing was changed.",
                run_id=run_id,
                status=outcome.run.status,
            )
        assert isinstance(outcome, UpdateSeen)  # noqa: S101
        if outcome.other:
            there = "" if outcome.update is None else outcome.update.name
            raise InvalidOption(
                f"the idempotency key was used for the update {there!r} of the run {run_id!r}, so it cannot identify "
                f"the update {name!r}. This update was not sent. Give it a key of its own: the keys of a run's updates "
                "are compared whatever the names are."
            )
        return outcome

    def open_approvals(self, *, workflow: str, prefix: str, after: str | None, limit: int) -> Flow[ApprovalsPage]:
        """Read a page of open requests."""
        checked_count(limit, what="limit")
        found: list[OpenApproval] = []
        cursor = after or ""
        while True:
            page, _ = yield from send(ListRecords(kind=OPEN_APPROVAL.name, after=cursor, limit=PAGE))
            assert isinstance(page, RecordPage)  # noqa: S101
            for item in page.items:
                if len(found) == limit:
                    return ApprovalsPage(approvals=tuple(found), next=cursor)
                cursor = item.key
                request = item.record
                if (
                    isinstance(request, ApprovalRequest)
                    and request.run.startswith(prefix)
                    and workflow in ("", request.workflow)
                ):
                    found.append(_open(request))
            if page.next is None:
                return ApprovalsPage(approvals=tuple(found), next=None)
            cursor = page.next

    def answer(self, run_id: str, name: str, *, approved: bool, by: str, comment: str | None) -> Flow[None]:
        """Answer an open request."""
        if not isinstance(approved, bool):
            raise InvalidOption(f"approved={approved!r} is neither True nor False")
        command = AnswerApproval(
            run=checked_key(run_id, what="run id"),
            name=checked_key(name, what="name of an approval"),
            approved=approved,
            by=_checked_author(by),
            comment="" if comment is None else checked_text(comment, what="the comment of an approval"),
            request=secrets.token_hex(8),
        )
        outcome, _ = yield from send(command)
        if isinstance(outcome, RunRefused):
            raise UnknownRun(f"there is no run with the id {run_id!r} in this namespace", run_id=run_id)
        assert isinstance(outcome, ApprovalSeen)  # noqa: S101
        if outcome.why:
            raise ApprovalNotOpen(f"{_why_not(outcome, name)} Nothing was changed.", run_id=run_id, name=name)


def _checked_author(by: str) -> str:
    if by == "":
        raise InvalidKey("by is empty. Nothing was answered: give the name of the person or program that answers.")
    return checked_key(by, what="name in by=")


def _why_not(seen: ApprovalSeen, name: str) -> str:
    run, request = seen.run, seen.approval
    if seen.why == "ambiguous":
        return (
            f"the run {run.id!r} has had several requests for the approval {name!r}: name the one to answer by its id, "
            f"such as {name}#2, or {name}#1 for the first one. `approvals list` shows those that are open."
        )
    if seen.why == "unknown":
        ended = "" if run.living else f", and has ended ({run.status})"
        return f"the run {run.id!r} has not asked for the approval {name!r}{ended}."
    assert request is not None  # noqa: S101
    if request.decision is not None:
        what = "approved" if request.decision.approved else "rejected"
        return f"the approval {request.id!r} of the run {run.id!r} was {what} by {request.decision.by!r} already."
    return f"the run {run.id!r} does not wait for the approval {request.id!r} any more."


def _unanswered(run: Run, run_id: str, name: str) -> RunEnded:
    return RunEnded(
        f"the run {run_id!r} has ended ({run.status}) without answering the update {name!r}.",
        run_id=run_id,
        status=run.status,
    )


def _open(request: ApprovalRequest) -> OpenApproval:
    return OpenApproval(
        run_id=request.run,
        workflow=request.workflow,
        id=request.id,
        name=request.name,
        data=msgspec.json.decode(request.data),
        asked_at=time_of(request.asked_at),
        until=None if request.until is None else time_of(request.until),
    )


class Approvals:
    """`client.approvals` of a synchronous client: the requests of runs that people answer.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     hf.approvals.list().approvals
    ()
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._queries = RequestQueries(client, max_bytes=client.max_bytes)

    def list(
        self,
        *,
        workflow: Workflow[Any, Any] | str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
    ) -> ApprovalsPage:
        """A page of open requests, the oldest first; `after` is the `next` of the page before.

        `prefix` is the beginning of the ids of the runs.
        """
        flow = self._queries.open_approvals(workflow=_name(workflow), prefix=prefix, after=after, limit=limit)
        return run(flow, self._client.runtime.batchers)

    def answer(self, run_id: str, name: str, *, approved: bool, by: str, comment: str | None = None) -> None:
        """Answer a request, by its id such as `refund#2`. The first answer counts; later ones raise `ApprovalNotOpen`.

        `by` is who answers. It is recorded, and is not checked. A comment has at most 2,000 characters.
        """
        flow = self._queries.answer(run_id, name, approved=approved, by=by, comment=comment)
        run(flow, self._client.runtime.batchers)


class AsyncApprovals:
    """`client.approvals` of an asynchronous client, and `engine.approvals`."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._queries = RequestQueries(client, max_bytes=client.max_bytes)

    async def list(
        self,
        *,
        workflow: Workflow[Any, Any] | str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
    ) -> ApprovalsPage:
        """A page of open requests, the oldest first; `after` is the `next` of the page before."""
        flow = self._queries.open_approvals(workflow=_name(workflow), prefix=prefix, after=after, limit=limit)
        return await run_async(flow, self._client.runtime.batchers)

    async def answer(self, run_id: str, name: str, *, approved: bool, by: str, comment: str | None = None) -> None:
        """Answer a request by its id, such as `refund#2`. The first counts, later ones raise `ApprovalNotOpen`."""
        flow = self._queries.answer(run_id, name, approved=approved, by=by, comment=comment)
        await run_async(flow, self._client.runtime.batchers)


def _name(workflow: Workflow[Any, Any] | str | None) -> str:
    if workflow is None:
        return ""
    return workflow.name if isinstance(workflow, Workflow) else checked_key(workflow, what="workflow name")
