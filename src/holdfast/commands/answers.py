"""Commands about requests: updates, which a run answers, and approvals, which people answer."""

from __future__ import annotations

from ..rules.lock_outcomes import Outcome
from ..rules.runs import approvals, updates
from ..rules.runs.record import RunEvent
from ..rules.runs.repository import RunRepository
from .runs import RunCommand


class PostUpdate(RunCommand, frozen=True, kw_only=True):
    """Post a request to a run that has not ended, and notify the attempt `watcher` of the answer, or of the run's end.

    Answers `UpdateSeen`, with the answer if there is one already; `RunRefused` when the run has ended and does not know
    the request, or does not exist. Again, by the key of the event: nothing is posted. The key of a request with another
    name: nothing is posted, and `other` is set.
    """

    run: str
    event: RunEvent
    watcher: str = ""

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.updates.ask`."""
        return updates.ask(repo, now, run=self.run, event=self.event, watcher=self.watcher)


class WatchUpdate(RunCommand, frozen=True, kw_only=True):
    """Read a request of the run that began with the generation `first`, and notify this attempt of its answer.

    Answers `UpdateSeen`, without a request if that was forgotten; `RunRefused` when that run does not exist any more.
    Again: harmless.
    """

    run: str
    first: int
    key: str
    watcher: str = ""

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide by `rules.runs.updates.watch`."""
        return updates.watch(repo, run=self.run, first=self.first, key=self.key, watcher=self.watcher)


class AnswerApproval(RunCommand, frozen=True, kw_only=True):
    """Answer an open request of a run by its id, or by its name if that is unique. The run gets the answer.

    Answers `ApprovalSeen`; `RunRefused` when the run does not exist. Again: the same answer.
    """

    run: str
    name: str
    approved: bool
    by: str
    comment: str = ""
    request: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.approvals.answer`."""
        return approvals.answer(
            repo,
            now,
            run=self.run,
            name=self.name,
            approved=self.approved,
            by=self.by,
            comment=self.comment,
            request=self.request,
        )


REQUESTS = PostUpdate | WatchUpdate | AnswerApproval
