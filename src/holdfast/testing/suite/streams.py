"""Streams of runs: which writers are refused, what is kept, and what readers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ...commands import Failed, ListRecords, RecordPage
from ...commands import purging as p
from ...commands import runs as r
from ...rules.runs import purging as purge_rules
from ...rules.runs import record as rule
from ...rules.runs.outcomes import (
    NextDue,
    Posted,
    Purged,
    PurgeStep,
    Recorded,
    RunRefused,
    Started,
    StreamRefused,
    StreamSeen,
    StreamWritten,
)
from ...rules.runs.own_records import own_prefix
from ...rules.runs.record import Continue, Finish, Park, Run
from ...rules.runs.stream_records import CHUNK_BYTES, CHUNK_ITEMS, STREAM, STREAM_CHUNK, STREAM_STEP, CodeItems
from ..builders import SECOND
from .generations import ENTRY, GenerationTests
from .runs import record, start

BOUND = 1_000_000


def write(run: Run, *values: object, name: str = "tokens", **more: Any) -> r.WriteStream:
    """Items that the first attempt of the step `answer` writes."""
    texts = tuple(msgspec.json.encode(value).decode() for value in values)
    asked: dict[str, Any] = {"step": "answer", "attempt": 1, "serial": 1, "number": 0, "max_bytes": BOUND} | more
    return r.WriteStream(run=run.id, fence=run.fence, first=run.first, name=name, values=texts, **asked)


def code(*values: object, index: int = 0, name: str = "tokens", **more: Any) -> CodeItems:
    """Items that workflow code writes."""
    texts = tuple(msgspec.json.encode(value).decode() for value in values)
    return CodeItems(name=name, index=index, values=texts, max_bytes=more.pop("max_bytes", BOUND), **more)


def values_of(seen: StreamSeen) -> list[Any]:
    """The values of a page."""
    return [msgspec.json.decode(text) for part in seen.parts for text in part.values]


class StreamTests(GenerationTests):
    """What a store with workflows promises about streams."""

    def wrote(self, command: r.WriteStream) -> int:
        """The offset after the items that were written."""
        return self.ask(command, StreamWritten).next

    def page(self, run: str = "r", after: int | None = None, name: str = "tokens", **more: Any) -> StreamSeen:
        """A page of a stream."""
        return self.ask(r.ReadStream(run=run, name=name, after=after, **more), StreamSeen)

    def items(self, run: str = "r", after: int | None = None, **more: Any) -> list[Any]:
        """All items of a stream, page by page."""
        found: list[Any] = []
        chunk = -1
        while True:
            seen = self.page(run, after, chunk=chunk, **more)
            assert seen.parts or after is None or after + 1 >= seen.next, "a page without items is the last one"
            if not seen.parts:
                return found
            at = seen.first if after is None else after + 1
            for part in seen.parts:
                assert part.offset == at, "no item is left out"
                at = part.end
            found += values_of(seen)
            after, chunk = at - 1, seen.chunk

    def records_of(self, run: Run) -> int:
        """How many records the streams of a run have."""
        prefix = own_prefix(run)
        return sum(len(self.list_records(kind.name, prefix)) for kind in (STREAM, STREAM_CHUNK, STREAM_STEP))

    def list_records(self, kind: str, prefix: str) -> Sequence[Any]:
        """The records of a type."""
        return self.ask(ListRecords(kind=kind, prefix=prefix, limit=1_000), RecordPage).items

    # -- writing ------------------------------------------------------------------------------------------------

    def test_items_are_read_in_the_order_in_which_they_were_written_after_any_offset(self) -> None:
        run = self.running()
        assert self.page().parts == ()
        assert self.page("nobody").run is None
        expected: list[int] = []
        while len(expected) < 3 * CHUNK_ITEMS:
            more = list(range(len(expected), len(expected) + 29))
            assert self.wrote(write(run, *more, number=len(expected))) == len(expected) + 29
            expected += more
        assert self.items() == expected
        for after in (-1, 0, 28, 29, CHUNK_ITEMS - 2, CHUNK_ITEMS - 1, CHUNK_ITEMS, len(expected) - 1, 10_000):
            assert self.items(after=after) == expected[after + 1 :]
        assert self.items(limit=1) == expected
        assert self.items(name="other") == []
        assert self.records_of(run) == 2 + len(expected) // CHUNK_ITEMS

    def test_a_write_that_is_sent_again_adds_what_is_missing(self) -> None:
        run = self.running()
        first = write(run, "a", "b")
        assert [self.wrote(first), self.wrote(first)] == [2, 2]
        assert self.wrote(write(run, "a", "b", "c", "é 😀 \u0000")) == 4
        last = write(run, "d", number=4, over=True)
        assert [self.wrote(last), self.wrote(last), self.wrote(write(run, "d", number=4))] == [5, 5, 5]
        assert self.items() == ["a", "b", "c", "é 😀 \u0000", "d"]

    def test_two_writes_of_one_batch_are_in_order(self) -> None:
        run = self.running()
        many = list(range(100))
        outcomes = self.send(
            write(run, *many), write(run, "x", number=100), r.ReadStream(run="r", name="tokens", after=97)
        )
        assert values_of(outcomes[2])[-1] == "x"  # type: ignore[arg-type]
        assert self.items() == [*many, "x"]

    def test_a_worker_that_lost_the_run_writes_nothing(self) -> None:
        (before,) = self.lost()
        self.add_worker("w.2")
        (after,) = self.claim("w.2")
        refused = self.ask(write(before, "late"), RunRefused)
        assert refused.run is not None
        assert refused.run.fence == after.fence
        assert self.wrote(write(after, "new")) == 1
        self.ask(write(before, "late", number=1), RunRefused)
        assert self.items() == ["new"]

    def lost(self) -> list[Run]:
        """A run whose worker's lease has expired."""
        self.ask(start("r"), Started)
        return self.claim_and_expire("w.1")

    @pytest.mark.parametrize("then", [Park(None), Finish("completed", "7"), Continue('"next"', ENTRY)])
    def test_a_run_that_is_not_driven_any_more_has_no_writers(self, then: Any) -> None:
        run = self.running()
        assert self.wrote(write(run, "a")) == 1
        assert self.ask(record(run, then=then), Recorded).done
        self.ask(write(run, "b", number=1), RunRefused)
        assert self.items() == ["a"]

    def test_an_attempt_that_is_over_or_was_followed_by_another_writes_nothing(self) -> None:
        run = self.running()
        assert self.wrote(write(run, "a", "b", over=True)) == 2
        assert self.ask(write(run, "late", number=2), StreamRefused).why == "over"
        assert self.wrote(write(run, "c", attempt=2, serial=2)) == 3
        assert self.ask(write(run, "late", number=2), StreamRefused).why == "superseded"
        assert self.ask(write(run, "late"), StreamRefused).why == "superseded"
        assert self.ask(write(run, "d", attempt=3, serial=3, number=1), StreamRefused).why == "unknown"
        assert self.ask(write(run, "d", attempt=2, serial=2, number=2), StreamRefused).why == "unknown"
        assert self.wrote(write(run, "other", step="other", serial=1)) == 4
        assert self.wrote(write(run, "d", attempt=2, serial=2, number=1)) == 5
        assert self.items() == ["a", "b", "c", "other", "d"]

    def test_an_attempt_that_was_followed_by_another_writes_to_no_stream_of_the_run(self) -> None:
        run = self.running()
        assert self.wrote(write(run, "a", serial=1)) == 1
        assert self.wrote(write(run, "b", serial=1, name="other")) == 1
        assert self.wrote(write(run, "c", attempt=2, serial=2, name="other")) == 2
        assert self.ask(write(run, "late", serial=1, number=1), StreamRefused).why == "superseded"
        assert self.ask(write(run, "late", serial=1, name="new"), StreamRefused).why == "superseded"
        assert self.ask(write(run, "a", serial=1), StreamRefused).why == "superseded"
        assert self.wrote(write(run, "x", step="another", serial=1)) == 2
        assert self.wrote(write(run, "d", attempt=2, serial=2)) == 3
        assert (self.items(), self.items(name="other"), self.items(name="new")) == (["a", "x", "d"], ["b", "c"], [])

    def test_attempts_are_compared_under_one_fence_only(self) -> None:
        """The next worker counts its attempts from 1 again."""
        (before,) = self.lost()
        self.add_worker("w.2")
        (run,) = self.claim("w.2")
        assert self.wrote(write(run, "a", serial=7)) == 1
        self.ask(record(run, then=Park(0)), Recorded)
        (again,) = self.claim("w.2")
        assert again.fence > run.fence > before.fence
        assert self.wrote(write(again, "b", serial=1)) == 2
        assert self.items() == ["a", "b"]

    def test_items_say_which_attempt_has_written_them(self) -> None:
        run = self.running()
        self.wrote(write(run, "a", "b"))
        self.wrote(write(run, "x", step="other", serial=2))
        self.wrote(write(run, "c", number=2))
        self.wrote(write(run, "d", "e", attempt=2, serial=3))
        found = [(one.offset, one.step, one.attempt, one.began, one.index) for one in self.page().parts]
        assert found == [(0, "answer", 1, 0, 0), (2, "other", 1, 2, 0), (3, "answer", 1, 0, 2), (4, "answer", 2, 4, 0)]

    def test_few_attempts_that_are_over_are_remembered(self) -> None:
        run = self.running()
        for n in range(40):
            self.wrote(write(run, n, step=f"s{n}", serial=n, over=n % 2 == 0))
        (head,) = [one.record for one in self.list_records(STREAM.name, own_prefix(run))]
        assert sum(one.over for one in head.writers) == 16
        assert sum(not one.over for one in head.writers) == 20

    # -- workflow code ------------------------------------------------------------------------------------------

    def test_items_of_workflow_code_are_written_with_the_record_and_once(self) -> None:
        run = self.running()
        command = record(run, "a", streams=(code(1, 2), code("x", name="other")))
        assert self.ask(command, Recorded).done
        assert self.ask(command, Recorded).done
        self.ask(record(run, "b", at=1, request="refused", streams=(code("no", index=2),)), RunRefused)
        end = record(run, "b", at=2, request="end", streams=(code(3, index=2),), then=Finish("completed", "7"))
        assert self.ask(end, Recorded).done
        assert self.items() == [1, 2, 3]
        assert self.items(name="other") == ["x"]
        assert [(one.step, one.began, one.index) for one in self.page().parts] == [("", 0, 0)]

    def test_a_repeated_attempt_of_workflow_code_can_be_told_apart(self) -> None:
        run = self.running()
        self.ask(record(run, "a", streams=(code(1, 2),)), Recorded)
        self.ask(record(run, "b", at=2, request="b", streams=(code(2, index=1),)), Recorded)
        self.ask(record(run, "c", at=3, request="c", streams=(code(1, 2, attempt=2),)), Recorded)
        self.ask(record(run, "d", at=4, request="d", streams=(code(3, index=2, attempt=2),)), Recorded)
        found = [(one.offset, one.attempt, one.began, one.index, len(one.values)) for one in self.page().parts]
        assert found == [(0, 1, 0, 0, 2), (2, 1, 0, 1, 1), (3, 2, 3, 0, 3)]

    def test_the_generations_of_a_run_have_one_stream(self) -> None:
        run = self.running()
        self.wrote(write(run, "a"))
        assert self.continued(run, streams=(code("b"),)).done
        again = self.again()
        self.wrote(write(again, "c"))
        assert self.items() == ["a", "b", "c"]
        assert [one.generation for one in self.page().parts] == [1, 1, 2]
        assert [one.began for one in self.page().parts] == [0, 1, 2]

    def test_a_run_that_replaces_another_begins_an_empty_stream(self) -> None:
        run = self.running()
        self.wrote(write(run, "a"))
        self.ask(record(run, then=Finish("completed", "7")), Recorded)
        fresh = self.running(request="again", on_existing="replace_ended")
        assert self.items() == []
        self.wrote(write(fresh, "b"))
        assert self.items() == ["b"]
        assert self.items("r~1") == ["a"]

    def test_a_revived_run_goes_on_with_its_stream(self) -> None:
        run = self.running()
        self.wrote(write(run, "a"))
        self.ask(record(run, then=Finish("failed", "7"), streams=(code("b"),)), Recorded)
        self.ask(r.ReviveRun(run="r", fence=run.fence, keep=1, request="again"), Posted)
        self.ask(write(run, "late", number=1), RunRefused)
        (again,) = self.claim()
        self.wrote(write(again, "c"))
        assert self.items() == ["a", "b", "c"]

    # -- the bound ----------------------------------------------------------------------------------------------

    def test_the_oldest_items_of_a_long_stream_are_removed_and_their_reader_is_told(self) -> None:
        run = self.running()
        text, bound, written = "x" * 1_000, 40_000, 0
        while written < 120:
            written = self.wrote(write(run, *[text] * 10, number=written, max_bytes=bound))
        seen = self.page()
        assert 120 - 60 <= seen.first <= 120 - 30, "about as much is kept as may be"
        assert len(self.items()) == 120 - seen.first
        assert len(self.items(after=seen.first - 1)) == 120 - seen.first
        for after in (-1, 0, seen.first - 2):
            missed = self.page(after=after)
            assert (missed.truncated, missed.first, missed.parts) == (True, seen.first, ())
        assert self.records_of(run) <= 2 + bound // CHUNK_BYTES + 2
        self.wrote(write(run, "y" * 2 * bound, number=120, max_bytes=bound))
        assert self.page().first > seen.first
        assert len(self.items()[-1]) == 2 * bound, "the latest item is kept, however large it is"

    def test_large_items_are_stored_in_chunks_of_their_own(self) -> None:
        run = self.running()
        large = [f"{n}" * 9_000 for n in range(9)]
        for number, one in enumerate(large):
            self.wrote(write(run, one, "small", number=2 * number))
        expected = [value for one in large for value in (one, "small")]
        assert self.items() == expected
        for after in range(18):
            assert self.items(after=after) == expected[after + 1 :]

    def test_a_purge_removes_the_streams_of_a_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = self.running()
        self.wrote(write(run, "of a step", name="c"))
        self.ask(record(run, then=Finish("completed", "7"), streams=(code(*range(200)), code(1, name="b"))), Recorded)
        other = self.running("other")
        self.wrote(write(other, "stays"))
        assert self.records_of(run) == 7
        assert self.purged("r") == Purged(trees=1, runs=1)
        assert self.records_of(run) == 0
        assert self.records_of(other) == 2
        again = self.running(request="again")
        assert (again.first, self.items()) == (1, [])
        monkeypatch.setattr(purge_rules, "WORK_AT_ONCE", 16)  # two chunks
        self.ask(record(again, then=Finish("completed", "7"), streams=(code(*range(400)),)), Recorded)
        assert self.purged("r").large == ("r",)
        steps = [p.PurgeTree(root="r", before=self.much_later(), purge="p", step=step) for step in ("mark", "hide")]
        assert [self.ask(step, PurgeStep).state for step in steps] == ["marked", "hidden"]
        remove = p.PurgeTree(root="r", before=self.much_later(), purge="p", step="remove")
        left = [self.records_of(again)]
        while self.ask(remove, PurgeStep).state != "removed":
            left.append(self.records_of(again))
        assert left == sorted(left, reverse=True)
        assert len(left) > 2
        assert self.records_of(again) == 0

    def purged(self, run: str) -> Purged:
        """Purge the tree of a run that has ended."""
        return self.ask(p.PurgeRuns(roots=(run,), before=self.much_later()), Purged)

    def much_later(self) -> int:
        """A time in the future."""
        return self.ask(r.ReadNextDue(types=("order",)), NextDue).now + 3_600 * SECOND

    # -- readers ------------------------------------------------------------------------------------------------

    def test_a_reader_is_notified_of_new_items_and_of_the_end(self) -> None:
        run = self.running()
        look = r.WatchStream(run="r", name="tokens", id="x.1")
        assert self.ask(look, StreamSeen).registered
        written = self.ask(write(run, "a"), StreamWritten)
        assert written.woken == ("x.1",)
        seen = self.ask(look, StreamSeen)
        assert (values_of(seen), seen.registered) == (["a"], False), "there is something new"
        again = r.WatchStream(run="r", name="tokens", id="x.1", after=0)
        assert self.ask(again, StreamSeen).registered
        recorded = self.ask(record(run, "e", streams=(code("b"),)), Recorded)
        assert recorded.woken == ("x.1",)
        end = self.ask(record(run, at=2, request="end", then=Finish("completed", "7")), Recorded)
        assert "x.1" in end.woken
        last = self.ask(r.WatchStream(run="r", name="tokens", id="x.1", after=1), StreamSeen)
        assert (last.parts, last.registered) == ((), False)
        assert last.run is not None
        assert not last.run.living

    def test_a_reader_that_went_away_is_forgotten(self) -> None:
        self.add_worker("w.1", "order", seconds=600)
        run = self.ask(start("r", worker="w.1"), Started).run
        for n in range(rule.WATCHERS):
            assert self.ask(r.WatchStream(run="r", name="tokens", id=f"x.{n}"), StreamSeen).registered
        assert not self.ask(r.WatchStream(run="r", name="tokens", id="x.more"), StreamSeen).registered
        self.advance(31)
        assert self.ask(r.WatchStream(run="r", name="tokens", id="x.more"), StreamSeen).registered
        assert self.run_seen().watchers == ("x.more",)
        assert self.ask(write(run, "a"), StreamWritten).woken == ("x.more",)
        self.advance(31)
        assert self.ask(write(run, "b", number=1), StreamWritten).woken == ()

    def test_a_value_of_a_wrong_type_fails_alone(self) -> None:
        run = self.running()
        wrong = r.WriteStream(**(msgspec.structs.asdict(write(run, "a")) | {"values": (7,)}))
        (failed, written) = self.send(wrong, write(run, "a"))
        assert isinstance(failed, Failed)
        assert isinstance(written, StreamWritten)
        assert self.items() == ["a"]
