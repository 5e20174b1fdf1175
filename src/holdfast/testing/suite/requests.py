"""Updates, which a run answers, and approvals, which people answer: what is posted, answered, closed, and removed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ... import commands as c
from ...commands import purging as p
from ...commands import runs as r
from ...commands.answers import AnswerApproval, PostUpdate, WatchUpdate
from ...rules.runs import updates
from ...rules.runs.outcomes import (
    AnsweredMeanwhile,
    ApprovalSeen,
    Posted,
    Purged,
    Recorded,
    RunRefused,
    Started,
    UpdateSeen,
)
from ...rules.runs.record import Finish, Park, Run, RunEvent
from ...rules.runs.requests import ANSWERED_PAGE, APPROVAL, OPEN_APPROVAL, UPDATE, NewApproval, Reply, RunRequests
from .generations import GenerationTests
from .runs import record, start

DONE = Finish("completed", "1")


def update(key: str = "k", run: str = "r", watcher: str = "a.1", name: str = "add") -> PostUpdate:
    """A request to a run."""
    return PostUpdate(run=run, event=RunEvent(kind="update", name=name, payload="7", key=key), watcher=watcher)


def reply(key: str = "k", answer: str = "8", **more: Any) -> RunRequests:
    """The answer of a run to a request."""
    return RunRequests(replies=(Reply(key=key, answer=answer, **more),))


def opening(*ids: str, name: str = "refund") -> RunRequests:
    """Requests for approvals."""
    return RunRequests(opens=tuple(NewApproval(id=one, name=name, data="1", at=1) for one in ids))


def answer(name: str = "refund", request: str = "q", run: str = "r", **more: Any) -> AnswerApproval:
    """The answer of a person."""
    more.setdefault("by", "ann")
    return AnswerApproval(run=run, name=name, approved=True, request=request, **more)


class RequestTests(GenerationTests):
    """What a store with workflows promises about updates and approvals."""

    def keys(self, kind: str) -> list[str]:
        """The keys of all records of a type."""
        return [item.key for item in self.ask(c.ListRecords(kind=kind), c.RecordPage).items]

    def test_an_update_is_posted_once_and_its_answer_is_returned_to_all_who_ask(self) -> None:
        run = self.running()
        first = self.ask(update(), UpdateSeen)
        again = self.ask(update(watcher="b.1"), UpdateSeen)
        assert (first.run.posted, again.run.posted) == (1, 1)
        assert again.update is not None
        assert again.update.watchers == ("a.1", "b.1")
        done = self.ask(record(run, "x", seen=1, requests=reply()), Recorded)
        assert {"a.1", "b.1"} <= set(done.notified)
        for outcome in (self.ask(update(), UpdateSeen), self.ask(WatchUpdate(run="r", first=1, key="k"), UpdateSeen)):
            assert outcome.update is not None
            assert (outcome.update.answer, outcome.update.refused, outcome.run.posted) == ("8", False, 1)
        self.ask(record(run, "y", at=2, seen=1, request="2", requests=reply(answer="9", refused=True)), Recorded)
        seen = self.ask(update(), UpdateSeen).update
        assert seen is not None
        assert (seen.answer, seen.refused) == ("8", False), "the first answer counts"

    def test_the_key_of_an_update_is_refused_for_an_update_with_another_name(self) -> None:
        run = self.running()
        self.ask(update(), UpdateSeen)
        for requests in (None, reply()):
            if requests is not None:
                self.ask(record(run, "x", seen=1, requests=requests), Recorded)
            refused = self.ask(update(name="remove", watcher="b.1"), UpdateSeen)
            assert refused.update is not None
            assert (refused.other, refused.update.name, refused.run.posted) == (True, "add", 1)
            assert "b.1" not in refused.update.watchers
        assert not self.ask(update(), UpdateSeen).other

    def test_the_answer_to_an_update_is_written_only_by_the_driver_of_the_run(self) -> None:
        run = self.running()
        self.ask(update(), UpdateSeen)
        stale = msgspec.structs.replace(run, fence=run.fence - 1)
        self.ask(record(stale, "x", seen=1, requests=reply()), RunRefused)
        seen = self.ask(update(), UpdateSeen).update
        assert seen is not None
        assert seen.answered_at is None

    def test_a_run_that_has_ended_gets_no_update_and_its_end_notifies_those_who_wait_for_an_answer(self) -> None:
        run = self.running()
        self.ask(update("asked", watcher="a.1"), UpdateSeen)
        self.ask(update("answered"), UpdateSeen)
        ended = self.ask(record(run, seen=2, then=DONE, requests=reply("answered")), Recorded)
        assert "a.1" in ended.notified
        self.ask(update("new"), RunRefused)
        for key, text in (("asked", ""), ("answered", "8")):
            seen = self.ask(update(key), UpdateSeen)
            assert seen.update is not None
            assert (seen.run.living, seen.update.answer) == (False, text)
        assert self.ask(update(run="nobody"), RunRefused).run is None

    def test_an_update_stays_with_the_run_that_was_asked_when_that_is_replaced(self) -> None:
        run = self.running()
        self.ask(update(), UpdateSeen)
        self.ask(record(run, seen=1, then=DONE, requests=reply()), Recorded)
        self.ask(start("r", request="2", worker="w.1", on_existing="replace_ended"), Started)
        again = self.ask(update(), UpdateSeen)
        assert again.update is not None
        assert (again.run.id, again.update.answer) == ("r~1", "8"), "sent again, it is not posted to the next run"
        watched = self.ask(WatchUpdate(run="r", first=1, key="k"), UpdateSeen)
        assert watched.run.id == "r~1"
        assert self.run_seen("r").posted == 0

    def test_updates_that_a_generation_has_not_answered_are_carried_into_the_next_one(self) -> None:
        before = self.running()
        for key in ("1", "2"):
            self.ask(update(key), UpdateSeen)
        self.continued(before, seen=2, keep=(2,), requests=reply("1"))
        after = self.again()
        assert (after.posted, self.ask(update("1"), UpdateSeen).run.posted) == (1, 1)
        self.ask(record(after, at=2, seen=1, request="n", requests=reply("2", "9")), Recorded)
        answers = [self.ask(update(key), UpdateSeen).update for key in ("1", "2")]
        assert [one.answer for one in answers if one is not None] == ["8", "9"]

    def test_answers_are_remembered_for_so_many_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(updates, "PAGE_SIZE", 1)
        monkeypatch.setattr(updates, "KEPT", 2)
        run = self.running()
        for number in range(1, 6):
            self.ask(update(str(number)), UpdateSeen)
            command = record(run, seen=number, request=f"q{number}", requests=reply(str(number)))
            self.ask(command, Recorded)
        assert (len(self.keys(UPDATE.name)), len(self.keys(ANSWERED_PAGE.name))) == (3, 3)
        assert self.ask(WatchUpdate(run="r", first=1, key="1"), UpdateSeen).update is None
        assert self.ask(update("5"), UpdateSeen).run.posted == 5
        assert self.ask(update("3"), UpdateSeen).run.posted == 5

    def test_a_request_for_an_approval_is_listed_until_it_is_answered_and_the_answer_is_an_event(self) -> None:
        run = self.running()
        self.ask(answer(), ApprovalSeen)
        self.ask(record(run, "asks", requests=opening("refund")), Recorded)
        assert len(self.keys(OPEN_APPROVAL.name)) == 1
        seen = self.ask(answer(comment="ok"), ApprovalSeen)
        assert (seen.why, seen.run.posted) == ("", 1)
        assert seen.approval is not None
        assert seen.approval.decision is not None
        assert (seen.approval.decision.by, seen.approval.decision.comment) == ("ann", "ok")
        assert self.keys(OPEN_APPROVAL.name) == []
        assert self.ask(answer(comment="ok"), ApprovalSeen).why == "", "sent again it is the same answer"
        assert self.ask(answer(request="other", by="bob"), ApprovalSeen).why == "answered"
        assert self.run_seen().posted == 1
        (event,) = self.ask(record(run, at=2, request="2"), Recorded).events
        assert (event.kind, event.name) == ("approval", "refund")
        assert msgspec.json.decode(event.payload) == {"approved": True, "by": "ann", "comment": "ok"}

    def test_an_answer_before_the_request_or_after_it_was_closed_is_refused(self) -> None:
        run = self.running()
        assert self.ask(answer(), ApprovalSeen).why == "unknown"
        self.ask(record(run, "asks", requests=opening("refund")), Recorded)
        self.ask(record(run, "late", at=2, request="2", requests=RunRequests(closes=("refund",))), Recorded)
        assert self.ask(answer(), ApprovalSeen).why == "closed"
        assert (self.keys(OPEN_APPROVAL.name), self.run_seen().posted) == ([], 0)
        assert self.ask(answer(run="nobody"), RunRefused).run is None

    def test_a_record_that_closes_a_request_which_was_answered_changes_nothing(self) -> None:
        run = self.running()
        self.ask(record(run, "asks", requests=opening("refund")), Recorded)
        self.ask(answer(), ApprovalSeen)
        late = record(run, "late", at=2, request="2", requests=RunRequests(closes=("refund",)))
        self.ask(late, AnsweredMeanwhile)
        assert self.run_seen().length == 2
        assert self.ask(record(run, "x", at=2, request="3"), Recorded).events[0].kind == "approval"

    def test_a_name_that_is_not_unique_must_be_made_so_by_an_id(self) -> None:
        run = self.running()
        self.ask(record(run, "asks", requests=opening("refund", "refund#2")), Recorded)
        assert self.ask(answer("refund"), ApprovalSeen).why == "ambiguous"
        first = self.ask(answer("refund#1"), ApprovalSeen).approval
        second = self.ask(answer("refund#2"), ApprovalSeen).approval
        assert [one.id for one in (first, second) if one is not None] == ["refund", "refund#2"]

    def test_the_open_requests_of_a_run_are_closed_where_it_ends_continues_or_is_retried(self) -> None:
        def opened(run: Run, at: int, request: str) -> None:
            self.ask(record(run, "asks", at=at, request=request, requests=opening("refund")), Recorded)
            assert len(self.keys(OPEN_APPROVAL.name)) == 1

        run = self.running()
        opened(run, 1, "1")
        self.continued(run, at=2)
        assert (self.keys(OPEN_APPROVAL.name), self.ask(answer(), ApprovalSeen).why) == ([], "closed")
        run = self.again()
        opened(run, 2, "2")
        self.ask(record(run, at=3, request="park", then=Park(None)), Recorded)
        self.ask(r.ReviveRun(run="r", fence=run.fence, keep=1, request="again"), Posted)
        assert (self.keys(OPEN_APPROVAL.name), self.run_seen().approvals) == ([], ())
        run = self.again()
        opened(run, 1, "3")
        self.ask(record(run, at=2, request="end", then=DONE), Recorded)
        assert (self.keys(OPEN_APPROVAL.name), self.ask(answer(), ApprovalSeen).why) == ([], "closed")

    def test_a_purge_removes_the_requests_of_a_run(self) -> None:
        run = self.running()
        self.ask(update(), UpdateSeen)
        self.ask(record(run, "asks", seen=1, requests=opening("refund")), Recorded)
        self.ask(record(run, at=2, seen=1, request="2", requests=reply()), Recorded)
        self.ask(record(run, at=2, seen=1, request="end", then=DONE), Recorded)
        ended_at = self.run_seen().ended_at
        assert ended_at is not None
        self.ask(p.PurgeRuns(roots=("r",), before=ended_at + 1), Purged)
        assert [self.keys(kind.name) for kind in (UPDATE, ANSWERED_PAGE, APPROVAL, OPEN_APPROVAL)] == [[], [], [], []]
