"""Commands about many keys: listings, due records, cleanup."""

from __future__ import annotations

import pytest

from ... import commands as c
from ...errors import RecordUnreadable
from ...rules import lock_outcomes as out
from ..builders import DAY, SECOND, abandon, acquire, release, renew, wait
from .base import ANY_NAMES, SuiteBase, names

UNREADABLE = ["", "{", "[]", '{"kind":"thing"}', '{"fence":"x"}', '{"holders":[{"id":1}]}', "\x00"]
IN_ORDER = ["%", "A", "_", "a", "a%", "a_b", "ab", "b", "é", "\ud7ffx", "\ue000", "😀", "\U0010ffff", "\U0010ffffz"]
CANNOT_PLANT = (
    "plant() is not implemented for this store: if it keeps records as text, override plant() and return True"
)


class PagingTests(SuiteBase):
    """What `ListLocks`, `SettleDue` and `Cleanup` promise."""

    def pages(self, prefix: str = "", limit: int = c.PAGE) -> list[list[str]]:
        """The keys of all pages."""
        after: str | None = ""
        found = []
        while after is not None:
            page = self.ask(c.ListLocks(prefix=prefix, after=after, limit=limit), c.LockPage)
            assert len(page.items) <= max(1, limit)
            found.append([item.key for item in page.items])
            after = page.next
        return found

    def test_pages_come_in_order_and_end(self) -> None:
        self.send(*(acquire(f"key:{n}") for n in (3, 1, 5, 2, 4)))
        assert self.pages(limit=2) == [["key:1", "key:2"], ["key:3", "key:4"], ["key:5"]]
        assert self.pages(limit=5) == [["key:1", "key:2", "key:3", "key:4", "key:5"]]
        assert self.pages(limit=0) == [[f"key:{n}"] for n in range(1, 6)]

    @pytest.mark.parametrize("key", ANY_NAMES)
    def test_a_page_may_end_with_any_key(self, key: str) -> None:
        keys = sorted(["!", key, "~"])
        self.send(*(acquire(each) for each in keys))
        for after, following in zip(["", *keys], [*keys[:2], None], strict=False):
            page = self.ask(c.ListLocks(after=after, limit=1), c.LockPage)
            assert (len(page.items), page.next) == (1, following)
            assert self.ask(c.Cleanup(after=after, limit=1), c.Swept).next == following

    def test_a_list_of_many_keys_is_complete(self) -> None:
        keys = [f"key:{n:04}" for n in range(2 * c.PAGE + 1)]
        self.send(*(acquire(key) for key in keys))
        assert [key for page in self.pages() for key in page] == keys

    def test_an_empty_store_has_one_empty_page(self) -> None:
        assert self.pages() == [[]]

    @pytest.mark.parametrize("prefix", ["", "a", "a%", "a_", "_", "%", "A", "é", "\ud7ff", "😀", "\U0010ffff", "zz"])
    def test_a_prefix_lists_exactly_the_keys_that_begin_with_it(self, prefix: str) -> None:
        self.send(*(acquire(key) for key in reversed(IN_ORDER)))
        found = [key for page in self.pages(prefix=prefix, limit=3) for key in page]
        assert found == [key for key in IN_ORDER if key.startswith(prefix)]

    def test_the_cursor_may_be_before_or_beyond_the_prefix(self) -> None:
        self.send(*(acquire(key) for key in ("a", "b1", "b2", "c")))
        for after, found in (("a", ["b1", "b2"]), ("b1", ["b2"]), ("c", [])):
            page = self.ask(c.ListLocks(prefix="b", after=after), c.LockPage)
            assert [item.key for item in page.items] == found

    def test_a_listing_returns_settled_records_and_writes_nothing(self) -> None:
        self.send(acquire(), wait(waiter_ttl=2 * SECOND))
        stored = self.dump(self.address, "default")
        assert len(self.listed()["k"].waiters) == 1
        self.advance(2)
        assert self.listed()["k"].waiters == ()
        assert self.dump(self.address, "default") == stored

    def test_only_records_that_are_due_are_settled(self) -> None:
        for n in range(3):
            ttl = (0.5, 0.8, 60)[n]
            self.send(acquire(f"k{n}", ttl=ttl), wait(f"k{n}", f"w.{n}", waiter_ttl=90 * SECOND))
        self.send(acquire("k3", ttl=0.9), wait("k3", "w.3", waiter_ttl=90 * SECOND))
        self.send(acquire("nobody-waits", ttl=0.5))
        self.advance(1)
        first = self.ask(c.SettleDue(limit=2), c.Swept)
        assert first == c.Swept(seen=2, changed=2, next="k1", woken=("w.0", "w.1"))
        assert self.ask(c.SettleDue(), c.Swept) == c.Swept(seen=1, changed=1, woken=("w.3",))
        assert self.ask(c.SettleDue(), c.Swept) == c.Swept(seen=0, changed=0)

    def test_cleanup_removes_empty_records_whose_fence_is_old(self) -> None:
        for n in range(5):
            held = self.ask(acquire(f"k{n}", ttl=None), out.Granted)
            if n != 2:
                self.ask(release(f"k{n}", token=held.token), out.Released)
        self.advance(2)
        assert self.ask(c.Cleanup(), c.Swept) == c.Swept(seen=5, changed=0)
        assert self.ask(c.Cleanup(limit=2, retention=SECOND), c.Swept) == c.Swept(seen=2, changed=2, next="k1")
        assert self.ask(c.Cleanup(after="k1", limit=3, retention=SECOND), c.Swept) == c.Swept(seen=3, changed=2)
        assert set(self.stored()) == {"k2"}

    def test_cleanup_keeps_records_that_are_in_use(self) -> None:
        held = self.ask(acquire("forced"), out.Granted)
        self.ask(abandon("abandoned", ttl=60), out.Abandoned)
        self.ask(acquire("held"), out.Granted)
        self.send(acquire("lapsed", ttl=1), acquire("lapsed", "b.1", queue=True))
        self.advance(2)
        self.ask(c.ForceRelease(key="forced", by="operator", reason="stuck"), out.ForceReleased)
        assert self.ask(c.Cleanup(retention=SECOND), c.Swept) == c.Swept(seen=4, changed=0)
        assert self.seen("forced").fence == held.token

    def test_the_default_retention_is_a_week(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(release(token=held.token), out.Released)
        self.advance(7 * DAY - 10)
        assert self.ask(c.Cleanup(), c.Swept).changed == 0
        self.advance(11)
        assert self.ask(c.Cleanup(), c.Swept).changed == 1

    def test_tokens_still_rise_after_a_cleanup(self) -> None:
        tokens = []
        for n in range(3):
            tokens.append(self.ask(acquire(id=f"a.{n}"), out.Granted).token)
            self.ask(release(id=f"a.{n}", token=tokens[-1]), out.Released)
            self.advance(0.002)
            assert self.ask(c.Cleanup(retention=1_000), c.Swept).changed == 1
            assert self.ask(c.Inspect(key="k"), out.LockSeen).record is None
        assert tokens == sorted(set(tokens))

    def test_cleanup_keeps_a_record_whose_fence_is_ahead_of_the_clock(self) -> None:
        self.advance(30 * DAY)
        held = self.ask(acquire(), out.Granted)
        self.ask(release(token=held.token), out.Released)
        self.advance(-20 * DAY)
        assert self.ask(c.Cleanup(), c.Swept).changed == 0
        assert self.ask(acquire(id="b.1"), out.Granted).token > held.token

    def test_cleanup_keeps_a_key_that_was_used_recently(self) -> None:
        held = self.ask(acquire(), out.Granted)
        self.ask(release(token=held.token), out.Released)
        assert self.ask(c.Cleanup(), c.Swept) == c.Swept(seen=1, changed=0)

    @pytest.mark.parametrize("text", UNREADABLE)
    def test_an_unreadable_record_is_refused_by_name_and_kept(self, text: str) -> None:
        self.send(acquire("good"), acquire("held", ttl=1), wait("held", "w.1", waiter_ttl=60 * SECOND))
        if not self.plant(self.address, "default", "bad", text):
            pytest.skip(CANNOT_PLANT)
        self.advance(1)
        refused, granted, seen = self.send(acquire("bad"), acquire("fine"), c.Inspect(key="bad"))
        for outcome in (refused, seen):
            assert isinstance(outcome, c.Failed)
            assert isinstance(outcome.error, RecordUnreadable)
            assert outcome.error.key == "bad"
        assert isinstance(granted, out.Granted)
        bad, *others = self.ask(c.ListLocks(), c.LockPage).items
        assert (bad.key, bad.record) == ("bad", None)
        assert "'bad'" in bad.error
        assert all(item.record is not None for item in others)
        assert self.ask(c.SettleDue(limit=1), c.Swept) == c.Swept(seen=1, changed=1, woken=("w.1",))
        assert self.ask(c.Cleanup(retention=-(10**9) * SECOND), c.Swept).seen == 4
        assert self.ask(c.ListLocks(prefix="bad"), c.LockPage).items[0].error

    def test_an_unreadable_record_does_not_affect_other_renewals_of_its_batch(self) -> None:
        keys = [f"k{n}" for n in range(20)]
        grants = self.send(*(acquire(key) for key in keys))
        for place, text in enumerate(["{", '{"kind":"thing"}', '{"holders":7}']):
            if not self.plant(self.address, "default", keys[place], text):
                pytest.skip(CANNOT_PLANT)
        renewals = [
            renew(key, token=grant.token)
            for key, grant in zip(keys, grants, strict=True)
            if isinstance(grant, out.Granted)
        ]
        assert names(self.send(*renewals)) == ["Failed"] * 3 + ["Renewed"] * 17
