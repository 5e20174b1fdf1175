"""Records of any type, tested with an example type: read, change, remove, list, due times, and wake-ups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ... import commands as c
from ...commands import runs as r
from ...errors import RecordUnreadable
from ...rules import lock_outcomes as out
from ...rules.record_type import MAX_MOMENT
from ...rules.runs.lock_requests import attempt_of
from ...rules.runs.outcomes import RunSeen
from ..builders import SECOND, acquire, read, swap
from ..record_histories import RecordHistoryGenerator, RecordModel
from ..tally import (
    STICKER,
    TALLY,
    Counted,
    CountRun,
    EndTally,
    LeaveTally,
    Member,
    PokeTally,
    ReplaceTally,
    SeeTally,
    SetSticker,
    Tally,
    TallyEnded,
    TallySeen,
    add,
)
from .base import names
from .commands import unchecked
from .comparison import CHUNKS, HistoryComparison
from .concurrency import ConcurrencyTests
from .hints import HintTests
from .paging import CANNOT_PLANT, IN_ORDER
from .runs import start

UNREADABLE = ["", "{", "[]", "null", '{"members":7}', '{"members":[{"id":1}]}', '{"ends_at":"soon"}']
EVERY_ANSWER = {"Counted", "TallyEnded", "TallySeen", "RecordPage", "RecordsDue"}


class RecordTests(HistoryComparison, HintTests, ConcurrencyTests):
    """What `RecordCommand`, `ListRecords` and `ListDueRecords` promise for every type."""

    def tally(self, key: str = "k") -> Tally | None:
        """The count of this key."""
        return self.ask(SeeTally(key=key), TallySeen).tally

    def record_keys(self, prefix: str = "", limit: int = c.PAGE, kind: str = TALLY.name) -> list[list[str]]:
        """The keys of all pages."""
        after: str | None = ""
        found = []
        while after is not None:
            page = self.ask(c.ListRecords(kind=kind, prefix=prefix, after=after, limit=limit), c.RecordPage)
            assert len(page.items) <= max(1, limit)
            found.append([item.key for item in page.items])
            after = page.next
        return found

    def due(self, limit: int = c.PAGE) -> list[str]:
        """The keys of the counts that are due."""
        return [item.key for item in self.ask(c.ListDueRecords(kind=TALLY.name, limit=limit), c.RecordsDue).items]

    # -- one record -------------------------------------------------------------------------------------------

    def test_a_record_is_created_changed_read_by_other_clients_and_removed(self) -> None:
        other = self.connect(store=self.opened())
        assert self.ask(SeeTally(key="k"), TallySeen, other).tally is None
        assert self.ask(add(), Counted).total == 1
        assert self.ask(add("b.1", by=5), Counted, other).total == 6
        members = (Member(id="a.1", count=1, requests=("q",)), Member(id="b.1", count=5, requests=("q",)))
        assert self.ask(SeeTally(key="k"), TallySeen, other).tally == Tally(members=members)
        self.send(LeaveTally(key="k", id="a.1"))
        assert self.ask(LeaveTally(key="k", id="b.1"), Counted, other).total == 0
        assert self.tally() is None
        assert self.record_keys() == [[]]
        assert self.ask(add(), Counted).total == 1

    def test_a_change_that_is_sent_again_is_made_once(self) -> None:
        for _ in range(3):
            assert self.ask(add(), Counted).total == 1
        assert [outcome.total for outcome in self.send(add(), add()) if isinstance(outcome, Counted)] == [1, 1]

    def test_commands_of_one_batch_build_on_each_other(self) -> None:
        outcomes = self.send(
            add(), add(request="r"), LeaveTally(key="k", id="a.1"), SeeTally(key="k"), add("b.1"),
            add("b.1", "r", by=7), add(key="l"), SeeTally(key="k"), EndTally(key="k"),
        )  # fmt: skip
        totals = [outcome.total for outcome in outcomes if isinstance(outcome, Counted)]
        seen = [outcome.tally for outcome in outcomes if isinstance(outcome, TallySeen)]
        assert (totals, [tally and tally.total for tally in seen]) == ([1, 2, 0, 1, 8, 1], [None, 8])
        assert outcomes[-1] == TallyEnded(ended=False)
        after = self.tally()
        assert after is not None
        assert after.total == 8

    def test_commands_about_records_keep_their_order_among_other_commands(self) -> None:
        outcomes = self.send(
            acquire(), add(), c.ListRecords(kind=TALLY.name), swap("a.1"), LeaveTally(key="k", id="a.1"), c.ListLocks(),
            c.ListRecords(kind=TALLY.name), read(), add("b.1"),
        )  # fmt: skip
        assert names(outcomes) == [
            "Granted", "Counted", "RecordPage", "Swapped", "Counted", "LockPage", "RecordPage", "SlotSeen", "Counted",
        ]  # fmt: skip
        pages = [[item.key for item in one.items] for one in outcomes if isinstance(one, c.RecordPage)]
        assert pages == [["k"], []]

    def test_many_records_in_one_batch(self) -> None:
        keys = [f"k{n:02}" for n in range(40)]
        assert names(self.send(*(add(key=key) for key in keys))) == ["Counted"] * 40
        outcomes = self.send(*(add(request="r", key=key) for key in reversed(keys)))
        assert [outcome.total for outcome in outcomes if isinstance(outcome, Counted)] == [2] * 40

    def test_namespaces_types_and_keys_are_kept_apart(self) -> None:
        there = self.connect(store=self.opened("other"))
        self.send(add(), add(key="l", by=5), SetSticker(key="k", text="blue"))
        assert self.ask(SeeTally(key="k"), TallySeen, there).tally is None
        assert self.ask(c.ListRecords(kind=TALLY.name), c.RecordPage, there).items == ()
        self.send(LeaveTally(key="k", id="a.1"))
        assert self.ask(SetSticker(key="k", text="red"), TallySeen).tally == Tally(note="blue")
        assert (self.record_keys(), self.record_keys(kind=STICKER.name)) == ([["l"]], [["k"]])

    def test_any_text_in_a_record_is_kept_as_it_is(self) -> None:
        note = "\x00 é 😀 \" ' % _ ; -- \n \\u0000"
        self.ask(add(note=note), Counted)
        after = self.tally()
        assert after is not None
        assert after.note == note

    def test_a_value_that_cannot_be_stored_fails_alone(self) -> None:
        outcomes = self.send(
            add(), add(request="r", by=unchecked("much")), add(request="s", ttl=2 * MAX_MOMENT), add(request="t"),
            add(request="u", note="\ud800"), add(key=unchecked(7)), add(key=unchecked([])), add(key="\ud800"),
            add(request="v", key="l"),
        )  # fmt: skip
        bad = ["Failed"] * 2
        assert names(outcomes) == ["Counted", *bad, "Counted", *bad, *bad, "Counted"]
        assert self.record_keys() == [["k", "l"]]
        after = self.tally()
        assert after is not None
        assert after.total == 2

    def test_reading_a_record_changes_nothing_and_creates_none(self) -> None:
        self.ask(SeeTally(key="k"), TallySeen)
        self.ask(EndTally(key="k"), TallyEnded)
        self.ask(LeaveTally(key="k", id="a.1"), Counted)
        assert self.record_keys() == [[]]

    # -- lists ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("prefix", ["", "a", "a%", "a_", "_", "%", "A", "é", "\ud7ff", "😀", "\U0010ffff", "zz"])
    def test_a_prefix_lists_exactly_the_records_whose_keys_begin_with_it(self, prefix: str) -> None:
        self.send(*(add(key=key) for key in reversed(IN_ORDER)))
        found = [key for page in self.record_keys(prefix, limit=3) for key in page]
        assert found == [key for key in IN_ORDER if key.startswith(prefix)]

    def test_pages_of_records_come_in_order_and_end(self) -> None:
        self.send(*(add(key=f"key:{n}") for n in (3, 1, 5, 2, 4)), SetSticker(key="key:6", text=""))
        assert self.record_keys(limit=2) == [["key:1", "key:2"], ["key:3", "key:4"], ["key:5"]]
        assert self.record_keys(limit=0) == [[f"key:{n}"] for n in range(1, 6)]
        for after, found in (("", ["key:1", "key:2"]), ("key:4", ["key:5"]), ("z", []), ("a", ["key:1", "key:2"])):
            page = self.ask(c.ListRecords(kind=TALLY.name, prefix="key", after=after, limit=2), c.RecordPage)
            assert [item.key for item in page.items] == found

    def test_a_page_may_have_any_size(self) -> None:
        self.send(*(add(key=f"k{n}", ttl=0) for n in range(3)))
        self.advance(0.001)
        for limit in (2**31, 2**53, 2**62):
            page = self.ask(c.ListRecords(kind=TALLY.name, limit=limit), c.RecordPage)
            due = self.ask(c.ListDueRecords(kind=TALLY.name, limit=limit), c.RecordsDue)
            assert (len(page.items), page.next, len(due.items), due.more) == (3, None, 3, False)

    def test_a_list_of_many_records_is_complete(self) -> None:
        keys = [f"key:{n:04}" for n in range(2 * c.PAGE + 1)]
        self.send(*(add(key=key) for key in keys))
        assert [key for page in self.record_keys() for key in page] == keys

    def test_records_that_are_due_are_found_by_their_time(self) -> None:
        self.send(*(add(key=f"k{n}", ttl=ttl) for n, ttl in enumerate((900_000, 500_000, None, 60 * SECOND, 700_000))))
        assert self.due() == []
        self.advance(1)
        assert self.due() == ["k1", "k4", "k0"]
        page = self.ask(c.ListDueRecords(kind=TALLY.name, limit=2), c.RecordsDue)
        assert ([item.key for item in page.items], page.more) == (["k1", "k4"], True)
        self.send(EndTally(key="k1"), add(key="k4", request="r"), add(key="k0", request="r", ttl=60 * SECOND))
        assert self.due() == []
        self.send(add(key="k4", request="s", ttl=0))
        assert self.due() == ["k4"]
        assert self.ask(c.ListDueRecords(kind=STICKER.name), c.RecordsDue).items == ()

    def test_the_list_of_an_unknown_record_type_is_empty(self) -> None:
        assert self.record_keys(kind="nobody-defined-this") == [[]]

    # -- waking -----------------------------------------------------------------------------------------------

    def test_attempts_that_a_command_wakes_are_hinted_on_their_channel(self) -> None:
        watch, received = self.watching()
        watch.expect("b.1", eager=True)
        self.ask(add("b.1"), Counted)
        assert self.ask(add("a.1"), Counted).woken == ("b.1",)
        self.eventually(_was_hinted(received, "b.1"))
        assert {attempt for ids in received for attempt in ids or ()} <= {"b.1"}

    def test_hints_of_a_command_are_sent_even_if_no_record_changes(self) -> None:
        watch, received = self.watching()
        watch.expect("b.1", eager=True)
        self.send(add("b.1"))

        def hinted() -> bool:  # a hint that is sent before the subscription is active is not received
            self.send(PokeTally(key="k"), PokeTally(key="nothing"))
            return any("b.1" in ids if ids is not None else watch.polls for ids in received)

        self.eventually(hinted)

    # -- what cannot be read ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("text", UNREADABLE)
    def test_an_unreadable_record_is_refused_by_name_and_left_unchanged(self, text: str) -> None:
        self.send(add(key="good", ttl=0))
        if not self.plant_record(self.address, "default", TALLY.name, "bad", text):
            pytest.skip(CANNOT_PLANT)
        commands: list[c.Command] = [add(key="bad"), LeaveTally(key="bad", id="a.1"), SeeTally(key="bad")]
        batches: list[list[c.Command]] = [[*commands, add(key="fine")], [commands[0]], [commands[2]]]
        if self.store.capabilities.workflows:
            batches += [[CountRun(run="r", key="bad")], [ReplaceTally(key="bad", note="")]]
        for batch in batches:
            for command, outcome in zip(batch, self.send(*batch), strict=True):
                if getattr(command, "key", "") == "bad":
                    assert isinstance(outcome, c.Failed)
                    assert isinstance(outcome.error, RecordUnreadable)
                    assert outcome.error.key == "bad"
                else:
                    assert outcome == Counted(total=1)
        bad, *others = self.ask(c.ListRecords(kind=TALLY.name), c.RecordPage).items
        assert (bad.key, bad.record, "'bad'" in bad.error) == ("bad", None, True)
        assert [(item.key, item.error) for item in others] == [("fine", ""), ("good", "")]

    def test_unreadable_records_do_not_hide_due_records_after_them(self) -> None:
        self.send(add(key="good", ttl=0))
        for n in range(30):
            if not self.plant_record(self.address, "default", TALLY.name, f"bad{n}", "{"):
                pytest.skip(CANNOT_PLANT)
        self.advance(1)
        assert self.due(limit=1) == ["good"]

    def test_fields_that_a_newer_version_wrote_are_kept(self) -> None:
        text = '{"members":[{"id":"b.1","count":2,"colour":"red"}],"shape":{"round":[1]}}'
        self.connect()
        if not self.plant_record(self.address, "default", TALLY.name, "k", text):
            pytest.skip(CANNOT_PLANT)
        assert self.ask(add(), Counted).total == 3
        newer = Member(id="b.1", count=2, unknown={"colour": "red"})
        mine = Member(id="a.1", count=1, requests=("q",))
        assert self.tally() == Tally(members=(newer, mine), unknown={"shape": {"round": [1]}})

    # -- runs, and many at once -------------------------------------------------------------------------------

    def test_a_command_about_runs_changes_a_run_and_a_record_in_one_step(self) -> None:
        if not self.store.capabilities.workflows:
            pytest.skip("this store has no workflows")
        self.send(add(by=4), start("r"))
        outcomes = self.send(CountRun(run="r", key="k"), CountRun(run="nobody", key="l"), CountRun(run="r", key="new"))
        assert names(outcomes) == ["Counted", "TallyEnded", "Counted"]
        seen = self.ask(r.ReadRun(run="r"), RunSeen)
        assert seen.claim is not None
        assert seen.claim.run.attributes == {"total": 1}
        assert self.record_keys() == [["k", "new"]]
        again = self.send(CountRun(run="r", key="k"), add("c.1"), CountRun(run="r", key="k"))
        assert [outcome.total for outcome in again if isinstance(outcome, Counted)] == [6, 7, 8]
        after = self.tally()
        assert after is not None
        assert after.total == 8
        self.send(ReplaceTally(key="k", note="new"), ReplaceTally(key="l", note="new"))
        assert (self.tally("k"), self.tally("l")) == (Tally(note="new"), Tally(note="new"))

    def test_a_run_that_a_record_wakes_gets_an_event(self) -> None:
        if not self.store.capabilities.workflows:
            pytest.skip("this store has no workflows")
        self.send(start("r"), start("s"), add(attempt_of("r", 3)), add(attempt_of("s", 4), key="l"))
        assert self.ask(add("b.1"), Counted).woken == (attempt_of("r", 3),)
        self.send(add("b.1", key="l"), add("b.1", "r", key="m"))
        for run, number in (("r", "3"), ("s", "4")):
            seen = self.ask(r.ReadRun(run=run, history=True), RunSeen)
            assert seen.claim is not None
            assert [(event.kind, event.name) for event in seen.claim.events] == [("lock", number)]

    def test_threads_that_change_one_record_lose_no_change(self) -> None:
        def work(me: str) -> None:
            connection = self.store.connect("commands")
            try:
                for n in range(self.rounds):
                    outcome: out.Outcome | None = None
                    while outcome is None or (isinstance(outcome, c.Failed) and outcome.error.retryable):
                        (outcome,) = connection.execute([add(f"{me}.1", f"q{n}", ttl=self.rounds * SECOND)])
                    assert isinstance(outcome, Counted), outcome
            finally:
                connection.close()

        self.together(work)
        after = self.tally()
        assert after is not None
        assert after.total == self.workers * self.rounds

    @pytest.mark.parametrize("chunk", range(CHUNKS))
    def test_a_random_history_of_records_has_the_outcomes_of_the_rules(self, chunk: int) -> None:
        kinds: set[str] = set()
        for seed in self.chunk_of_seeds(chunk):
            reads: list[c.Command] = [c.ListRecords(kind=kind, limit=1000) for kind in (TALLY.name, STICKER.name)]
            generator = RecordHistoryGenerator(seed, second=self.second)
            kinds |= self.compare_history(f"records-{seed}", RecordModel(), generator, partial(list, reads))
        self.seen_all(kinds, EVERY_ANSWER)


def _was_hinted(received: list[list[str] | None], id: str) -> Callable[[], bool]:
    return lambda: any(ids is None or id in ids for ids in received)
