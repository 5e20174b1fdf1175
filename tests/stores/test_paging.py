"""Commands about many keys: listings, what is due, what may be forgotten, on every store."""

from __future__ import annotations

import pytest

from holdfast import commands as c
from holdfast.errors import RecordUnreadable
from holdfast.rules import lock
from holdfast.rules import outcomes as out
from stores.asking import SECOND, acquire, release, wait

DAY = 86_400


def ask(connection, command):
    (outcome,) = connection.execute([command])
    return outcome


def pages(connection, **options):
    after, found = "", []
    while after is not None:
        page = ask(connection, c.ListLocks(after=after, **options))
        assert len(page.items) <= max(1, options.get("limit", c.PAGE))
        found.append([item.key for item in page.items])
        after = page.next
    return found


def test_pages_come_in_order_and_end(connection):
    connection.execute([acquire(f"key:{n}") for n in (3, 1, 5, 2, 4)])
    assert pages(connection, limit=2) == [["key:1", "key:2"], ["key:3", "key:4"], ["key:5"]]
    assert pages(connection, limit=5) == [["key:1", "key:2", "key:3", "key:4", "key:5"]]
    assert pages(connection, limit=0) == [[f"key:{n}"] for n in range(1, 6)]


def test_an_empty_store_has_one_empty_page(connection):
    assert pages(connection) == [[]]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("", ["%", "A", "_", "a", "a%", "a_b", "ab", "b", "é", "\ud7ffx", "\ue000", "😀", "\U0010ffff", "\U0010ffffz"]),
        ("a", ["a", "a%", "a_b", "ab"]),
        ("a%", ["a%"]),
        ("a_", ["a_b"]),
        ("_", ["_"]),
        ("%", ["%"]),
        ("A", ["A"]),
        ("é", ["é"]),
        ("\ud7ff", ["\ud7ffx"]),
        ("😀", ["😀"]),
        ("\U0010ffff", ["\U0010ffff", "\U0010ffffz"]),
        ("zz", []),
    ],
)
def test_a_prefix_finds_just_the_keys_that_begin_with_it(connection, prefix, found):
    everything = [
        "a",
        "ab",
        "a%",
        "a_b",
        "b",
        "A",
        "%",
        "_",
        "é",
        "😀",
        "\ud7ffx",
        "\ue000",
        "\U0010ffff",
        "\U0010ffffz",
    ]
    connection.execute([acquire(key) for key in everything])
    assert [key for page in pages(connection, prefix=prefix, limit=3) for key in page] == found


def test_after_may_lie_before_or_beyond_the_prefix(connection):
    connection.execute([acquire(key) for key in ("a", "b1", "b2", "c")])
    assert [i.key for i in ask(connection, c.ListLocks(prefix="b", after="a")).items] == ["b1", "b2"]
    assert [i.key for i in ask(connection, c.ListLocks(prefix="b", after="b1")).items] == ["b2"]
    assert ask(connection, c.ListLocks(prefix="b", after="c")).items == ()


def test_a_listing_settles_for_the_eye_only(connection, clock, provider, url):
    connection.execute([acquire(), wait()])
    stored = provider.dump(url, "default")
    clock.pass_by(9)
    (item,) = ask(connection, c.ListLocks()).items
    assert len(item.record.waiters) == 1
    clock.pass_by(1)
    (item,) = ask(connection, c.ListLocks()).items
    assert item.record.waiters == ()
    assert provider.dump(url, "default") == stored


def test_only_records_that_are_due_are_settled(connection, clock):
    for n in range(4):
        connection.execute([acquire(f"k{n}", ttl=10 + n), wait(f"k{n}", f"w.{n}", waiter_ttl=60 * SECOND)])
    connection.execute([acquire("nobody-waits", ttl=1)])
    clock.pass_by(12)
    assert ask(connection, c.SettleDue(limit=2)) == c.Swept(seen=2, changed=2, next="k1", woken=("w.0", "w.1"))
    assert ask(connection, c.SettleDue()) == c.Swept(seen=1, changed=1, woken=("w.2",))
    assert ask(connection, c.SettleDue()) == c.Swept(seen=0, changed=0)


def test_cleanup_removes_what_is_empty_and_long_behind_the_clock(connection, clock, provider, url):
    for n in range(5):
        held = ask(connection, acquire(f"k{n}", ttl=None))
        if n != 2:
            connection.execute([release(f"k{n}", token=held.token)])
    assert ask(connection, c.Cleanup()) == c.Swept(seen=5, changed=0)
    clock.pass_by(7 * DAY + 1)
    assert ask(connection, c.Cleanup(limit=2)) == c.Swept(seen=2, changed=2, next="k1")
    assert ask(connection, c.Cleanup(after="k1", limit=3)) == c.Swept(seen=3, changed=2)
    assert set(provider.dump(url, "default")) == {"k2"}


def test_tokens_still_rise_after_a_cleanup(connection, clock):
    held = ask(connection, acquire())
    connection.execute([release(token=held.token)])
    clock.pass_by(2)
    assert ask(connection, c.Cleanup(retention=SECOND)).changed == 1
    assert ask(connection, acquire(id="b.1")).token > held.token


def test_a_fence_ahead_of_the_clock_is_not_forgotten(connection, clock):
    clock.pass_by(30 * DAY)
    held = ask(connection, acquire())
    connection.execute([release(token=held.token)])
    clock.pass_by(-20 * DAY)
    assert ask(connection, c.Cleanup()).changed == 0
    assert ask(connection, acquire(id="b.1")).token > held.token


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind":"thing"}', '{"fence":"x"}', '{"holders":[{"id":1}]}', "\x00"])
def test_a_record_that_cannot_be_read_is_refused_by_name_and_kept(connection, provider, url, clock, text):
    if provider.plant is None:
        pytest.skip(f"{provider.name} keeps no text that could be unreadable")
    connection.execute([acquire("good"), acquire("held", ttl=5), wait("held", "w.1", waiter_ttl=60 * SECOND)])
    clock.pass_by(6)
    provider.plant(url, "default", "bad", text)
    refused, granted, seen = connection.execute([acquire("bad"), acquire("fine"), c.Inspect(key="bad")])
    assert isinstance(refused.error, RecordUnreadable)
    assert refused.error.key == "bad"
    assert isinstance(granted, out.Granted)
    assert isinstance(seen.error, RecordUnreadable)
    bad, *others = ask(connection, c.ListLocks()).items
    assert (bad.key, bad.record) == ("bad", None)
    assert "'bad'" in bad.error
    assert all(item.record is not None for item in others)
    assert ask(connection, c.SettleDue(limit=1)) == c.Swept(seen=1, changed=1, woken=("w.1",))
    assert ask(connection, c.Cleanup(retention=-(10**9) * SECOND)).seen == 4
    assert ask(connection, c.ListLocks(prefix="bad")).items[0].error


def test_a_record_that_cannot_be_read_spares_the_renewals_beside_it(connection, provider, url, clock):
    if provider.plant is None:
        pytest.skip(f"{provider.name} keeps no text that could be unreadable")
    keys = [f"k{n}" for n in range(20)]
    grants = connection.execute([acquire(key) for key in keys])
    for place, text in enumerate(["{", '{"kind":"thing"}', '{"holders":7}']):
        provider.plant(url, "default", keys[place], text)
    clock.pass_by(1)
    renewals = [c.Renew(key=key, id="a.1", token=g.token, ttl=30 * SECOND) for key, g in zip(keys, grants, strict=True)]
    outcomes = connection.execute(renewals)
    assert [type(outcome) for outcome in outcomes] == [c.Failed] * 3 + [out.Renewed] * 17


def test_the_default_retention_is_a_week():
    assert c.Cleanup().retention == lock.RETENTION == 7 * DAY * SECOND
