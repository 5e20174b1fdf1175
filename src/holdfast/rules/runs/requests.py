"""What is stored of updates, which a run answers, and of approvals, which people answer; and what a record carries."""

from __future__ import annotations

import msgspec

from ..record_type import RecordStruct, RecordType


class Update(RecordStruct, frozen=True):
    """A request. `answer` is JSON text, or the reason where it was refused.

    `watchers` are notified when the answer is stored.
    """

    name: str
    asked_at: int
    watchers: tuple[str, ...] = ()
    answered_at: int | None = None
    answer: str = ""
    refused: bool = False


class AnsweredPage(RecordStruct, frozen=True):
    """The digests of the keys of requests that were answered, the last one at `at`."""

    at: int
    keys: tuple[str, ...]


class AnsweredPages(RecordStruct, frozen=True):
    """The pages `first` to `last` of a run exist."""

    first: int = 1
    last: int = 1


class Reply(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer of a run to the request with this key: JSON text, or the reason why it was refused."""

    key: str
    answer: str
    refused: bool = False


class ApprovalDecision(RecordStruct, frozen=True):
    """The answer of a person, and the id of the command that gave it."""

    approved: bool
    by: str
    comment: str
    at: int
    request: str


class ApprovalRequest(RecordStruct, frozen=True):
    """A request: open, decided, or closed because the run does not wait for it any more. `data` is JSON text."""

    run: str
    workflow: str
    id: str
    name: str
    data: str
    asked_at: int
    until: int | None = None
    decision: ApprovalDecision | None = None
    closed_at: int | None = None

    @property
    def open(self) -> bool:
        """Whether it can be answered."""
        return self.decision is None and self.closed_at is None


class ApprovalName(RecordStruct, frozen=True):
    """How many requests of a run have this name, and the id of the first one."""

    first: str
    count: int = 1


class NewApproval(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A request that a run opens with its record. `until` is when the run stops waiting for it.

    `at` is the time of the run when it was made. The store's time would be another one in each try to write the record,
    and the request is listed under it.
    """

    id: str
    name: str
    data: str
    at: int
    until: int | None = None


class RunRequests(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a record of a run does about requests: answers to updates, approvals that are opened, and closed."""

    replies: tuple[Reply, ...] = ()
    opens: tuple[NewApproval, ...] = ()
    closes: tuple[str, ...] = ()


NO_REQUESTS = RunRequests()

UPDATE = RecordType("update", Update)
ANSWERED_PAGE = RecordType("answered-updates", AnsweredPage)
ANSWERED_PAGES = RecordType("answered-update-pages", AnsweredPages)
APPROVAL = RecordType("approval", ApprovalRequest)
APPROVAL_NAME = RecordType("approval-name", ApprovalName)
OPEN_APPROVAL = RecordType("open-approval", ApprovalRequest)
