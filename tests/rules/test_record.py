"""The stored form of a record: stable, and open to newer versions; an unreadable record is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RecordUnreadable
from holdfast.rules import lock
from holdfast.rules.lock_record import (
    EMPTY,
    Forced,
    Holder,
    Label,
    LockRecord,
    Tombstone,
    Waiter,
    decode,
    encode,
)

from .harness import HOUR, SECOND, T0, LockHarness
from .hypothesis_settings import proven

FULL = {
    "kind": "semaphore",
    "permits": 3,
    "fence": T0,
    "version": 9,
    "holders": [
        {
            "id": "a",
            "label": {"name": "web", "host": "h1", "pid": 7, "team": "blue"},
            "token": T0,
            "since": T0,
            "ttl": HOUR,
            "expires_at": T0 + HOUR,
            "weight": 2,
            "offered": True,
            "delay": 5,
            "via": "z",
            "mood": {"calm": [1, 2.5, None, {"unknown": {"deep": True}}]},
        }
    ],
    "waiters": [
        {
            "id": "b",
            "label": {"name": "cli", "shell": "fish"},
            "since": T0,
            "ttl": None,
            "expires_at": None,
            "weight": 3,
            "delay": 4,
            "priority": 10**30,
        }
    ],
    "tombstones": [{"id": "c", "ttl": HOUR, "expires_at": T0 + HOUR, "reason": "never_fits", "why": "too heavy"}],
    "closed_until": T0 + SECOND,
    "closed_for": SECOND,
    "due_at": T0 + SECOND,
    "forced": {"at": T0, "by": "ada", "reason": "stuck", "holders": ["a"], "ticket": "OPS-1"},
    "region": "eu",
    "unknown": 5,
}


OF_TOMORROW = {"team", "mood", "shell", "priority", "why", "ticket", "region", "unknown"}


def known_only(value):
    if isinstance(value, list):
        return [known_only(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: known_only(item) for name, item in value.items() if name not in OF_TOMORROW}


def test_unknown_fields_survive_a_round_trip_at_every_level():
    text = json.dumps(FULL)
    record = decode("k", text)
    assert json.loads(encode(record)) == FULL
    assert decode("k", encode(record)) == record
    assert record.unknown == {"region": "eu", "unknown": 5}
    assert record.holders[0].label.unknown == {"team": "blue"}
    assert record.waiters[0].unknown == {"priority": 10**30}
    assert record.tombstones[0].unknown == {"why": "too heavy"}
    assert record.forced.unknown == {"ticket": "OPS-1"}


@pytest.mark.parametrize("path", [(), ("holders", 0), ("holders", 0, "label"), ("waiters", 0), ("waiters", 0, "label"),
                                  ("tombstones", 0), ("forced",)])  # fmt: skip
def test_a_single_unknown_field_survives_at_every_level(path):
    plain = known_only(FULL)
    spot = plain
    for part in path:
        spot = spot[part]
    spot["tomorrow"] = {"holders": [1], "unknown": {"label": 2}}
    assert json.loads(encode(decode("k", json.dumps(plain)))) == plain


def test_unknown_fields_survive_the_rules():
    """Renewed, queued, handed over: fields that a newer version wrote about a holder or waiter are kept."""
    value = {
        "fence": T0,
        "holders": [{"id": "a", "label": {"name": "a"}, "token": T0, "since": T0, "ttl": HOUR,
                     "expires_at": T0 + HOUR, "mood": 1}],
        "waiters": [{"id": "b", "label": {"name": "b"}, "since": T0, "ttl": HOUR, "expires_at": T0 + HOUR, "mood": 2}],
        "due_at": T0 + HOUR,
        "region": "eu",
    }  # fmt: skip
    harness = LockHarness(decode("k", json.dumps(value)))
    harness.later(SECOND).renew("a", T0, ttl=HOUR)
    harness.wait("b", waiter_ttl=HOUR)
    written = json.loads(encode(harness.record))
    assert (written["holders"][0]["mood"], written["waiters"][0]["mood"], written["region"]) == (1, 2, "eu")
    harness.release("a", T0)
    harness.acquire("b")
    written = json.loads(encode(harness.record))
    assert (written["holders"][0]["id"], written["holders"][0]["mood"], written["region"]) == ("b", 2, "eu")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        "",
        b" ",
        b"{",
        b'{"permits":',
        b"null",
        b"[]",
        b"0",
        b'"text"',
        b"{}{}",
        b"\xff\xfe\x00",
        b'{"kind":"\xff"}',
        "\ud800",
        b"[" * 100_000,
        b'{"label":' * 100_000,
        b'{"permits":"3"}',
        b'{"permits":1.5}',
        b'{"permits":null}',
        b'{"fence":true}',
        b'{"kind":"a kind of tomorrow"}',
        b'{"holders":{}}',
        b'{"holders":null}',
        b'{"holders":[1]}',
        b'{"holders":[{"id":"a"}]}',
        b'{"waiters":[{"id":"b","label":"b","since":1,"ttl":1,"expires_at":1}]}',
        b'{"tombstones":[{"id":"c","ttl":null,"expires_at":1}]}',
        b'{"forced":"yes"}',
        b'{"region":"eu","permits":"3"}',
        b"\x00" * 16,
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_an_unreadable_record_is_refused_by_name_and_never_taken_for_empty(text):
    with pytest.raises(RecordUnreadable, match="invoice:42") as caught:
        decode("invoice:42", text)
    assert caught.value.key == "invoice:42"
    assert not caught.value.retryable


def test_the_record_of_an_unused_key_is_an_empty_object():
    assert encode(EMPTY) == b"{}"
    assert decode("k", b"{}") == EMPTY


def test_the_stored_form_leaves_defaults_out_and_does_not_change():
    """Records on disk outlive versions of the code: this text is a promise."""
    harness = LockHarness()
    harness.acquire("a", label="web")
    harness.wait("b", weight=1, delay=7)
    assert encode(harness.record).decode() == (
        '{"fence":1790000000000000,"version":2,"holders":[{"id":"a","label":{"name":"web"},"token":1790000000000000,'
        '"since":1790000000000000,"ttl":30000000,"expires_at":1790000030000000}],"waiters":[{"id":"b","label":'
        '{"name":"b"},"since":1790000000000000,"ttl":5000000,"expires_at":1790000005000000,"delay":7}],'
        '"due_at":1790000005000000}'
    )


def test_text_that_looks_like_an_unknown_field_is_unchanged():
    record = LockRecord(holders=(Holder('"unknown":{', Label('{"unknown":{"a":1}}'), 1, 1, None, None),), fence=1)
    assert decode("k", encode(record)) == record


def test_a_record_may_be_read_as_text_or_bytes():
    assert decode("k", '{"permits":2}') == decode("k", b'{"permits":2}') == LockRecord(permits=2)


def test_the_largest_token_keeps_its_last_digit():
    record = LockRecord(fence=2**53 - 1)
    assert decode("k", encode(record)).fence == 2**53 - 1


moments = st.integers(0, 2**53)
maybe = st.none() | moments
words = st.text(max_size=6)
labels = st.builds(Label, words, words, st.integers(0, 9))
records = st.builds(
    LockRecord,
    kind=st.sampled_from(["mutex", "hold", "semaphore", "rw", "lease", "run", "worker"]),
    permits=st.integers(1, 9),
    fence=moments,
    version=moments,
    holders=st.lists(
        st.builds(Holder, words, labels, moments, moments, maybe, maybe, moments, st.booleans(), moments, words),
        max_size=2,
    ).map(tuple),
    waiters=st.lists(st.builds(Waiter, words, labels, moments, maybe, maybe, moments, moments), max_size=2).map(tuple),
    tombstones=st.lists(st.builds(Tombstone, words, moments, moments), max_size=2).map(tuple),
    closed_until=moments,
    closed_for=moments,
    due_at=maybe,
    forced=st.none() | st.builds(Forced, moments, words, words, st.lists(words, max_size=2).map(tuple)),
)


@proven
@given(records)
def test_every_record_survives_a_round_trip(record):
    assert decode("k", encode(record)) == record
    assert encode(decode("k", encode(record))) == encode(record)


@proven
@given(records, st.integers(-HOUR, 2**53))
def test_settling_twice_at_one_moment_equals_settling_once(record, now):
    """Even of a record that no rule could have written."""
    once, _ = lock.settle(record, now)
    again, woken = lock.settle(once, now)
    assert again is once
    assert woken == ()
