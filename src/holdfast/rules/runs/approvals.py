"""Approvals: requests of a run that a person answers. Each has an id, a record, and, while it is open, a row in a list.

A request is opened and closed by the record of the run that journals it, and answered by a command that posts the
answer to the run in the same step. So there is one order: a record that closes a request which was answered meanwhile
is refused, and the run is replayed with the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from ..lock_outcomes import Outcome
from .helpers import known
from .helpers import post as post_to
from .outcomes import ApprovalSeen, RunRefused
from .own_records import own_key, with_records
from .record import Run, RunEvent
from .repository import RunRepository
from .requests import (
    APPROVAL,
    APPROVAL_NAME,
    OPEN_APPROVAL,
    ApprovalDecision,
    ApprovalName,
    ApprovalRequest,
    NewApproval,
)

KIND = "approvals"
"""The name under which a run notes that it has such records."""
_FIRST = re.compile(r"(.+)#1")


def open_key(run: Run, asked_at: int, id: str) -> str:
    """The key of a request in the list of those that are open, the oldest first."""
    return f"{max(0, asked_at):016d}/{own_key(run, id)}"


def answered(repo: RunRepository, run: Run, closes: Iterable[str]) -> bool:
    """Whether one of these requests was answered, so that it is too late to close it."""
    requests = (repo.record(APPROVAL, own_key(run, name)) for name in closes)
    return any(request is not None and request.decision is not None for request in requests)


def change(repo: RunRepository, now: int, run: Run, opens: Iterable[NewApproval], closes: Iterable[str]) -> Run:
    """Open and close requests of a run, and write the run."""
    after = run
    for new in opens:
        if new.id not in after.approvals:
            _open(repo, after, new)
            after = with_records(replace(after, approvals=(*after.approvals, new.id)), KIND)
    for name in closes:
        if name in after.approvals:
            _close(repo, now, after, name)
            after = replace(after, approvals=tuple(one for one in after.approvals if one != name))
    if after is not run:
        repo.save(after)
    return after


def close_all(repo: RunRepository, now: int, run: Run) -> None:
    """Close all open requests of a run that ends or begins anew; the caller writes the run."""
    for name in run.approvals:
        _close(repo, now, run, name)


def answer(
    repo: RunRepository, now: int, *, run: str, name: str, approved: bool, by: str, comment: str, request: str
) -> Outcome:
    """Answer a request by its id, or by its name if no other request of the run has that name."""
    found = known(repo, run)
    if found is None:
        return RunRefused(run=None)
    wanted = _id_of(repo, found, name)
    if wanted is None:
        return ApprovalSeen(run=found, why="ambiguous")
    there = repo.record(APPROVAL, own_key(found, wanted))
    if there is None:
        return ApprovalSeen(run=found, why="unknown")
    if there.decision is not None:
        return ApprovalSeen(run=found, approval=there, why="" if there.decision.request == request else "answered")
    if there.closed_at is not None or not found.living or wanted not in found.approvals:
        return ApprovalSeen(run=found, approval=there, why="closed")
    decided = replace(
        there, decision=ApprovalDecision(approved=approved, by=by, comment=comment, at=now, request=request)
    )
    repo.put_record(APPROVAL, own_key(found, wanted), decided)
    repo.put_record(OPEN_APPROVAL, open_key(found, there.asked_at, wanted), None)
    payload = msgspec.json.encode({"approved": approved, "by": by, "comment": comment}).decode()
    left = replace(found, approvals=tuple(one for one in found.approvals if one != wanted))
    posted = post_to(repo, now, left, RunEvent(kind="approval", name=wanted, payload=payload))
    return ApprovalSeen(run=posted.run, approval=decided, woken=posted.woken)


def _id_of(repo: RunRepository, run: Run, text: str) -> str | None:
    """The id that an answer names; None where a name is not unique. `refund#1` is always the first one of its name."""
    named = repo.record(APPROVAL_NAME, own_key(run, text))
    if named is not None:
        return named.first if named.count == 1 else None
    first = _FIRST.fullmatch(text)
    named = None if first is None else repo.record(APPROVAL_NAME, own_key(run, first[1]))
    return text if named is None else named.first


def _open(repo: RunRepository, run: Run, new: NewApproval) -> None:
    key = own_key(run, new.id)
    if repo.record(APPROVAL, key) is None:
        named = repo.record(APPROVAL_NAME, own_key(run, new.name))
        named = ApprovalName(first=new.id) if named is None else replace(named, count=named.count + 1)
        repo.put_record(APPROVAL_NAME, own_key(run, new.name), named)
    request = ApprovalRequest(
        run=run.id, workflow=run.workflow, id=new.id, name=new.name, data=new.data, asked_at=new.at, until=new.until
    )
    repo.put_record(APPROVAL, key, request)
    repo.put_record(OPEN_APPROVAL, open_key(run, request.asked_at, request.id), request)


def _close(repo: RunRepository, now: int, run: Run, id: str) -> None:
    request = repo.record(APPROVAL, own_key(run, id))
    if request is not None:
        repo.put_record(OPEN_APPROVAL, open_key(run, request.asked_at, request.id), None)
        if request.open:
            repo.put_record(APPROVAL, own_key(run, id), replace(request, closed_at=now))
