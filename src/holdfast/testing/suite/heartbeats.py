"""Heartbeats of steps: what is stored, when a silent step loses its worker, and what the next attempt finds."""

from __future__ import annotations

from typing import Any

import msgspec

from ... import commands as c
from ...commands import runs as r
from ...rules.lock_outcomes import Granted
from ...rules.runs import record as rule
from ...rules.runs.heartbeat_records import AttemptEnd, StepHeartbeat
from ...rules.runs.outcomes import (
    Blocked,
    Claimed,
    HeartbeatRecorded,
    NextDue,
    Posted,
    Recorded,
    RunRefused,
    RunSeen,
    Started,
    WorkerRegistered,
)
from ...rules.runs.record import Continue, Finish, Park, Run
from ..builders import ME, SECOND
from .generations import GenerationTests
from .runs import TYPES, record, start

TIMEOUT = SECOND
"""Microseconds until a heartbeat of these tests expires."""
LONG = 1_000 * SECOND


def beat(run: Run, step: str = "a", **more: Any) -> r.RecordHeartbeat:
    """A heartbeat of the first attempt of a step."""
    asked: dict[str, Any] = {"attempt": 1, "lasts": TIMEOUT, **more}
    return r.RecordHeartbeat(run=run.id, fence=run.fence, step=step, **asked)


class HeartbeatTests(GenerationTests):
    """What a store with workflows promises about heartbeats of steps."""

    def beat(self, run: Run, step: str = "a", **more: Any) -> int:
        """Store a heartbeat, and return the time of the store."""
        return self.ask(beat(run, step, **more), HeartbeatRecorded).now

    def kept(self, run: str = "r") -> dict[str, tuple[int, str | None]]:
        """The attempt and the details of the heartbeats of a run, by step; none of them expires."""
        heartbeats = self.run_seen(run).heartbeats
        assert [one.expires_at for one in heartbeats] == [None] * len(heartbeats)
        return {one.step: (one.attempt, one.details) for one in heartbeats}

    def claiming(self, worker: str, **more: Any) -> Claimed:
        """What a claim answers."""
        return self.ask(r.ClaimRuns(worker=worker, types=(*TYPES, ("order@*", "order")), **more), Claimed)

    def test_a_heartbeat_is_stored_and_the_first_that_expires_is_the_due_time_of_its_run(self) -> None:
        run = self.running()
        first = self.beat(run, details="1", lasts=2 * LONG)
        second = self.beat(run, "b", attempt=3, lasts=LONG)
        seen = self.run_seen()
        assert seen.heartbeats == (
            StepHeartbeat("a", 1, first, first + 2 * LONG, "1"),
            StepHeartbeat("b", 3, second, second + LONG),
        )
        assert (seen.status, seen.due_at) == ("running", second + LONG)
        due = self.ask(r.ReadNextDue(types=("order",)), NextDue)
        assert due.next_due == second + LONG, "a worker that is idle wakes in time"
        later = self.beat(run, "b", attempt=3, lasts=3 * LONG)
        assert self.run_seen().due_at == first + 2 * LONG
        assert [one.step for one in self.run_seen().heartbeats] == ["a", "b"]
        assert later >= second

    def test_a_heartbeat_without_details_keeps_those_of_the_last_one(self) -> None:
        run = self.running()
        self.beat(run, lasts=None, details='{"page":7}')
        self.beat(run, lasts=None, attempt=2)
        assert (self.run_seen().due_at, self.kept()) == (None, {"a": (2, '{"page":7}')})
        self.beat(run, lasts=None, attempt=2, details="null")
        assert self.kept() == {"a": (2, "null")}

    def test_a_heartbeat_needs_the_fence_of_a_run_that_is_driven(self) -> None:
        run = self.running()
        self.ask(beat(msgspec.structs.replace(run, fence=run.fence - 1)), RunRefused)
        assert self.ask(beat(msgspec.structs.replace(run, id="nobody")), RunRefused).run is None
        refused = self.ask(beat(msgspec.structs.replace(run, fence=run.fence + 1)), RunRefused)
        assert (refused.holder, self.run_seen().heartbeats) == ("worker w.1", ())
        self.ask(record(run, then=Park(None)), Recorded)
        self.ask(beat(run), RunRefused)

    def test_a_run_whose_step_is_silent_is_taken_from_a_worker_that_has_its_lease(self) -> None:
        run = self.running()
        self.add_worker("v.1")
        self.beat(run, details='"page 7"', attempt=2)
        self.beat(run, "b", lasts=LONG)
        early = self.claiming("v.1")
        if self.steers:
            assert (early.claims, early.silent) == ((), ())
        self.advance(1.5)
        late = self.claiming("v.1")
        (claim,) = late.claims
        assert [(one.run, one.workflow, one.step, one.attempt, one.worker) for one in late.silent] == [
            ("r", "order", "a", 2, "worker w.1")
        ]
        taken = claim.run
        assert (taken.worker, taken.crashes, taken.due_at, taken.fence > run.fence) == ("v.1", 1, None, True)
        assert self.kept() == {"a": (2, '"page 7"')}, "the next attempt has the details, and nothing expires"
        self.ask(beat(run), RunRefused)
        self.ask(record(run, "late"), RunRefused)
        self.ask(record(taken, "x"), Recorded)
        self.advance(1.5)
        self.add_worker("w.1")
        assert self.claiming("w.1").claims == ()

    def test_a_run_whose_steps_send_heartbeats_stays_with_its_worker(self) -> None:
        run = self.running()
        self.add_worker("v.1")
        for _ in range(3):
            self.beat(run, lasts=LONG)
            self.advance(1.5)
            assert self.claiming("v.1").claims == ()
            assert self.claiming("v.1", runs=("r",)).claims == (), "nor by its name"
        self.beat(run)
        self.beat(run, lasts=None)
        self.advance(1.5)
        assert self.claiming("v.1").claims == (), "this heartbeat does not expire"

    def test_a_worker_does_not_take_its_own_run_from_itself(self) -> None:
        run = self.running()
        self.beat(run)
        self.advance(1.5)
        assert self.claiming("w.1").claims == ()
        assert self.run_seen().fence == run.fence
        assert [claim.run.fence for claim in self.claiming("w.1", runs=("r",)).claims] == [run.fence]
        self.ask(start("other"), Started)
        assert [claim.run.id for claim in self.claiming("w.1", limit=2).claims] == ["other"]
        self.add_worker("v.1")
        self.advance(1.5)
        assert [claim.run.id for claim in self.claiming("v.1").claims] == ["r"]

    def test_a_silent_run_that_a_program_has_locked_stays_with_its_worker(self) -> None:
        run = self.running()
        self.beat(run)
        self.add_worker("v.1")
        self.ask(c.Acquire(key=rule.run_key("order", "r"), id="z.1", label=ME, kind="run", ttl=60 * SECOND), Granted)
        self.advance(1.5)
        assert self.claiming("v.1").claims == ()
        seen = self.run_seen()
        assert (seen.worker, seen.fence, seen.crashes) == ("w.1", run.fence, 0)

    def test_a_run_whose_step_is_silent_again_and_again_is_blocked(self) -> None:
        run = self.running()
        for n in range(1, rule.POISONED):
            self.beat(run)
            self.advance(1.5)
            (claim,) = self.claiming(self.add_worker(f"v.{n}")).claims
            run = claim.run
            assert run.crashes == n
        self.beat(run, details="1")
        self.advance(1.5)
        last = self.claiming(self.add_worker("v.9"))
        assert ([one.id for one in last.poisoned], [one.run for one in last.silent], last.claims) == (["r"], ["r"], ())
        assert (self.run_seen().status, self.kept()) == ("blocked", {"a": (1, "1")})

    def test_of_silent_runs_that_may_crash_their_worker_a_claim_takes_one(self) -> None:
        for name in ("a", "b"):
            self.running(name)
        self.add_worker("w.1", seconds=60)
        runs = [self.run_seen(name) for name in ("a", "b")]
        for n in (1, 2):
            for run in runs:
                self.beat(run)
            self.advance(1.5)
            runs = [claim.run for claim in self.claiming(self.add_worker(f"v.{n}"), suspects=2).claims]
            assert len(runs) == 2
        for run in runs:
            self.beat(run)
        self.advance(1.5)
        assert len(self.claiming(self.add_worker("v.3"), suspects=1).claims) == 1

    def test_the_end_of_an_attempt_is_recorded_with_its_result(self) -> None:
        run = self.running()
        for step in ("done", "again", "bare", "other"):
            self.beat(run, step, lasts=LONG, details=None if step == "bare" else '"x"')
        ends = (AttemptEnd("done"), AttemptEnd("again", again=True), AttemptEnd("bare", again=True), AttemptEnd("new"))
        self.ask(record(run, "result", attempt_ends=ends), Recorded)
        seen = self.run_seen()
        assert [(one.step, one.expires_at is None) for one in seen.heartbeats] == [("again", True), ("other", False)]
        assert seen.due_at == seen.heartbeats[1].expires_at
        self.ask(record(run, at=2, request="2", attempt_ends=(AttemptEnd("other"),)), Recorded)
        assert (self.run_seen().due_at, self.kept()) == (None, {"again": (1, '"x"')})
        self.ask(record(run, "y", at=2, request="3"), Recorded)
        assert self.kept() == {"again": (1, '"x"')}, "a record without ends changes none"
        self.ask(record(run, at=3, request="3", attempt_ends=(AttemptEnd("again"),)), Recorded)
        assert self.kept() == {"again": (1, '"x"')}, "it was sent again, with the id of an earlier one"

    def test_entries_are_recorded_beside_heartbeats(self) -> None:
        run = self.running()
        now = self.beat(run, lasts=LONG)
        self.ask(record(run, "x"), Recorded)
        seen = self.run_seen()
        assert (seen.due_at, seen.length) == (now + LONG, 2)
        self.ask(record(run, at=2, request="2", then=Finish("completed", "1")), Recorded)
        ended = self.run_seen()
        assert (ended.status, ended.due_at, ended.heartbeats) == ("completed", None, ())

    def test_no_heartbeat_expires_where_no_worker_drives_the_run(self) -> None:
        run = self.running()
        self.beat(run, lasts=LONG, details="1")
        self.beat(run, "bare", lasts=LONG)
        self.ask(record(run, then=Park(None)), Recorded)
        assert (self.run_seen().due_at, self.kept()) == (None, {"a": (1, "1")})
        (again,) = self.claiming("w.1", runs=("r",)).claims
        self.beat(again.run, lasts=LONG)
        self.ask(r.BlockRun(run="r", fence=again.run.fence, reason="{}", engine="e", request="b"), Blocked)
        assert self.kept() == {"a": (1, "1")}
        self.ask(r.UnblockRun(run="r", fence=again.run.fence, request="u"), Posted)
        (again,) = self.claiming("w.1").claims
        self.beat(again.run, lasts=LONG)
        self.ask(r.UnregisterWorker(worker="w.1"), WorkerRegistered)
        seen = self.run_seen()
        assert (seen.status, seen.crashes, self.kept()) == ("pending", 0, {"a": (1, "1")})

    def test_the_run_of_a_crashed_worker_keeps_the_details(self) -> None:
        self.add_worker("v.1")
        (started,) = self.add_worker_and("w.1", seconds=1, then=[start(worker="w.1")])
        assert isinstance(started, Started)
        self.beat(started.run, lasts=LONG, details="1")
        self.advance(1.5)
        (claim,) = self.claiming("v.1").claims
        assert (claim.run.crashes, claim.run.due_at, self.kept()) == (1, None, {"a": (1, "1")})

    def test_a_run_that_begins_again_has_no_heartbeats(self) -> None:
        run = self.running()
        self.beat(run, lasts=LONG, details="1")
        self.ask(record(run, then=Continue('"next"', '["continued"]')), Recorded)
        seen = self.run_seen()
        assert (seen.status, seen.heartbeats, (seen.due_at or 0) < 0) == ("pending", (), True)
        (again,) = self.claiming("w.1").claims
        self.beat(again.run, lasts=LONG, details="1")
        self.ask(record(again.run, at=2, request="p", then=Park(None)), Recorded)
        parked = self.ask(r.ReadRun(run="r"), RunSeen).claim
        assert parked is not None
        self.ask(r.ReviveRun(run="r", fence=parked.run.fence, keep=1, request="v"), Posted)
        assert self.run_seen().heartbeats == ()
