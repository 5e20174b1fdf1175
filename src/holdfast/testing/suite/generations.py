"""Generations of a run: the step that replaces its history, and what the run keeps."""

from __future__ import annotations

from typing import Any

import pytest

from ...commands import runs as r
from ...rules.runs import signal_keys
from ...rules.runs.outcomes import Claimed, Posted, Recorded, RunRefused, RunSeen, Started
from ...rules.runs.record import Continue, Finish, Run, generation_id
from .run_locks import give, take
from .run_queues import RunQueueTests
from .runs import record, signal, start

ENTRY = '{"kind":"continued","at":1}'
TYPES = (("order", "order"), ("order@*", "order"))


class GenerationTests(RunQueueTests):
    """What a store with workflows promises about runs that continue as new."""

    def running(self, run: str = "r", **more: Any) -> Run:
        """A run that the worker `w.1` drives."""
        return self.ask(start(run, worker=self.add_worker("w.1", "order", "order@*"), **more), Started).run

    def continued(self, run: Run, *entries: str, **more: Any) -> Recorded:
        """Let the run begin its next generation with the input "next"."""
        options = {name: more.pop(name) for name in ("keep", "locks") if name in more}
        more.setdefault("request", f"continue {run.generation}")
        command = record(run, *entries, then=Continue('"next"', ENTRY, **options), **more)
        return self.ask(command, Recorded)

    def again(self) -> Run:
        """The run, claimed for its next generation."""
        found = self.ask(r.ClaimRuns(worker="w.1", types=TYPES), Claimed)
        assert len(found.claims) == 1
        return found.claims[0].run

    def test_the_next_generation_has_an_empty_history_and_a_higher_fence(self) -> None:
        before = self.running(key="k", attributes={"n": 1})
        self.ask(record(before, "a", "b"), Recorded)
        assert self.continued(before, "c", at=3).done
        claim = self.ask(r.ReadRun(run="r", history=True), RunSeen).claim
        assert claim is not None
        after = claim.run
        assert (claim.entries, claim.events) == (('"next"', ENTRY), ())
        assert (after.status, after.type, after.worker) == ("pending", "order@*", "")
        assert (after.generation, after.length, after.claims, after.posted) == (2, 2, 0, 0)
        assert (after.key, after.attributes, after.created_at) == ("k", {"n": 1}, before.created_at)
        assert after.fence > before.fence
        late = record(before, "late", at=3, request="late")
        assert self.ask(late, RunRefused).run == after
        driven = self.again()
        assert (driven.type, driven.claims) == ("order", 1)
        assert driven.fence > after.fence
        assert self.ask(record(driven, then=Finish("completed", "7"), request="end"), Recorded).done
        known = self.ask(start("other", key="k"), Started)
        assert (known.run.id, known.fresh) == ("r", False)

    def test_a_record_that_is_sent_again_begins_one_generation(self) -> None:
        before = self.running()
        command = record(before, "a", then=Continue('"next"', ENTRY))
        assert self.ask(command, Recorded).done
        assert self.ask(command, Recorded).done
        self.again()
        assert self.ask(command, Recorded).done
        claim = self.ask(r.ReadRun(run="r", history=True), RunSeen).claim
        assert claim is not None
        assert (claim.run.generation, claim.entries) == (2, ('"next"', ENTRY))

    def test_events_that_the_generation_has_not_read_stay_in_their_order(self) -> None:
        before = self.running()
        for n in range(5):
            self.ask(signal(name=f"s{n}", key=f"k{n}"), Posted)
        refused = self.continued(before, keep=(2, 5), seen=4)
        assert not refused.done, "there is an event that the driver has not seen"
        assert [event.number for event in refused.events] == [5]
        assert self.continued(before, keep=(2, 5), seen=5, request="again").done
        claim = self.ask(r.ReadRun(run="r", history=True), RunSeen).claim
        assert claim is not None
        assert [(event.number, event.name) for event in claim.events] == [(1, "s1"), (2, "s4")]
        assert claim.run.posted == 2
        assert self.ask(signal(name="s5", key="k5"), Posted).number == 3
        for n in range(6):  # those that were read, and those that were not
            assert not self.ask(signal(name="again", key=f"k{n}"), Posted).fresh
        after = self.again()
        assert after.posted == 3
        assert self.continued(after, keep=()).done
        for n in range(6):
            assert not self.ask(signal(name="again", key=f"k{n}"), Posted).fresh
        assert self.ask(signal(name="new", key=""), Posted).number == 1

    def test_keys_of_signals_are_remembered_for_so_many_signals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(signal_keys, "KEPT", 4)
        run = self.running()
        for generation in range(1, 6):
            for n in (1, 2):
                assert self.ask(signal(key=f"{generation}.{n}"), Posted).fresh
            assert self.continued(run, seen=2).done
            run = self.again()
        assert run.remembered is not None
        assert run.remembered.count == 4
        for generation in (4, 5):
            assert not self.ask(signal(key=f"{generation}.2"), Posted).fresh
        assert self.ask(signal(key="1.1"), Posted).fresh, "forgotten"

    def test_keys_of_signals_are_forgotten_after_a_day(self) -> None:
        run = self.running()
        self.ask(signal(key="old"), Posted)
        assert self.continued(run, seen=1).done
        self.advance(24 * 3600 + 1)
        self.add_worker("w.1", "order", "order@*")
        run = self.again()
        self.ask(signal(key="newer"), Posted)
        assert self.continued(run, seen=1).done
        assert self.ask(signal(key="old"), Posted).fresh
        assert not self.ask(signal(key="newer"), Posted).fresh

    def test_a_run_keeps_the_locks_that_it_names_and_releases_the_others(self) -> None:
        run = self.running()
        token = self.wants(run, take(1, "a"), take(2, "b"), take(3, "c")).answers[0].token
        other = self.ask(start("other", worker="w.1"), Started).run
        assert [one.what for one in self.wants(other, take(1, "a"), take(2, "b"), take(3, "c")).answers] == [
            "queued"
        ] * 3
        assert self.continued(run, locks=(1,), lock_requests=(give(3, "c"),)).done
        assert self.run_seen("r").locks == ((1, "a"),)
        again = self.again()
        assert self.wants(again, take(1, "a")).answers[0].token == token, "it still has the lock"
        taken = [
            one.what for one in self.wants(self.run_seen("other"), take(1, "a"), take(2, "b"), take(3, "c")).answers
        ]
        assert taken == ["queued", "granted", "granted"]

    def test_ids_of_generations(self) -> None:
        assert [generation_id("r", n) for n in (1, 2, 30)] == ["r", "r~2", "r~30"]
