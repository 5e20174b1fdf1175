"""The compare-and-swap core: what it sends, and what becomes of a write whose reply is lost.

The service is the dictionary of docs/stores/adapter.md, with faults at the adapter (`dict_adapter.py`).
"""

from __future__ import annotations

from itertools import count

import pytest
from dict_adapter import adapter_of, faulty_store
from msgspec.structs import replace

from holdfast import commands as c
from holdfast.errors import InvalidValue, StoreContended, StoreError, StoreUnavailable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY
from holdfast.rules.slot import SlotSeen, Swapped
from holdfast.stores import cas, cas_recent
from holdfast.stores.cas_adapter import LOCKS, CasName, CasRead
from holdfast.testing.builders import (
    SECOND,
    START,
    ManualClock,
    abandon,
    acquire,
    pass_over,
    read,
    release,
    renew,
    swap,
    transfer,
    wait,
)
from holdfast.testing.tally import Counted, SeeTally, add

_ids = count(1)


class Bench:
    """A store, a connection with faults, and another client on the same records."""

    def __init__(self):
        self.clock = ManualClock()
        self.store = faulty_store(self.clock)
        self.connection = self.store.connect("commands")
        self.other = self.store.reopen().connect("commands")
        self.adapter = adapter_of(self.connection)
        self.table = self.store.service.table

    def ask(self, command, connection=None):
        (outcome,) = (connection or self.connection).execute([command])
        return outcome

    def requests(self, *commands):
        """What is sent for a batch."""
        self.adapter.requests.clear()
        outcomes = self.connection.execute(commands)
        return list(self.adapter.requests), outcomes

    def meddle(self, key="k"):
        """Another client writes the record of a lock, without changing who holds it."""
        assert isinstance(self.ask(abandon(key, f"x.{next(_ids)}"), self.other), out.Abandoned)

    def record(self, key="k"):
        return self.ask(c.Inspect(key=key), self.other).record or EMPTY

    def holders(self, key="k"):
        return [(holder.id, holder.token) for holder in self.record(key).holders]

    def lose(self, fault, between=lambda: None):
        """The reply to the next write is lost."""
        self.adapter.fault, self.adapter.between = fault, between


@pytest.fixture
def bench():
    return Bench()


def is_ambiguous(outcome):
    return isinstance(outcome, c.Failed) and isinstance(outcome.error, StoreUnavailable) and outcome.error.ambiguous


# -- requests ---------------------------------------------------------------------------------------------------------


def test_an_uncontended_pair_takes_three_trips(bench):
    acquiring, (granted,) = bench.requests(acquire())
    releasing, (released,) = bench.requests(release(token=granted.token))
    assert (acquiring, releasing) == (["read", "write"], ["write"])
    assert isinstance(released, out.Released)
    assert bench.holders() == []
    assert bench.connection.trips == 3


def test_a_batch_of_any_number_of_records_takes_two_trips(bench):
    keys = [f"k{n}" for n in range(300)]
    sent, outcomes = bench.requests(*map(acquire, keys), swap("a.1"), add())
    assert sent == ["read", "write"]
    assert {type(one) for one in outcomes} == {out.Granted, Swapped, Counted}


def test_a_hundred_renewals_take_one_write_where_the_records_are_as_this_client_left_them(bench):
    grants = bench.connection.execute([acquire(f"k{n}") for n in range(100)])
    bench.clock.pass_by(1)
    heartbeats = bench.store.connect("heartbeats")  # another connection of the same client
    outcomes = heartbeats.execute([renew(f"k{n}", token=grant.token) for n, grant in enumerate(grants)])
    assert {type(one) for one in outcomes} == {out.Renewed}
    assert adapter_of(heartbeats).requests == ["write"]


def test_renewals_among_records_that_others_have_changed_take_two_trips_and_then_those_once_more(bench):
    grants = bench.connection.execute([acquire(f"k{n}") for n in range(10)])
    bench.clock.pass_by(1)
    bench.meddle("k3")
    renewals = [renew(f"k{n}", token=grant.token) for n, grant in enumerate(grants)]
    sent, outcomes = bench.requests(*renewals)
    assert sent == ["write", "read", "write"]
    assert {type(one) for one in outcomes} == {out.Renewed}
    assert bench.connection.conflicts == 1


def test_a_renewal_and_an_acquire_go_together(bench):
    granted = bench.ask(acquire())
    bench.clock.pass_by(1)
    sent, outcomes = bench.requests(renew(token=granted.token), acquire("other", "b.1"))
    assert sent == ["read", "write"]
    assert [type(one) for one in outcomes] == [out.Renewed, out.Granted]


def test_a_release_with_a_waiter_reads_first_and_hands_over(bench):
    granted = bench.ask(acquire())
    bench.ask(wait(id="b.1"), bench.other)
    sent, (released,) = bench.requests(release(token=granted.token))
    assert sent == ["write", "read", "write"]
    assert released.woken == ("b.1",)


def test_a_record_that_was_taken_by_another_client_is_not_released_by_memory(bench):
    granted = bench.ask(acquire(ttl=1))
    bench.clock.pass_by(2)
    taken = bench.ask(acquire(id="b.1"), bench.other)
    bench.clock.now = START  # by this clock, the first grant has not expired
    assert isinstance(bench.ask(release(token=granted.token)), out.NotHolder)
    assert bench.holders() == [("b.1", taken.token)]


def test_a_waiter_that_polls_writes_nothing_between_its_signs_of_life(bench):
    bench.ask(acquire(), bench.other)
    bench.ask(wait(id="b.1"))
    for _ in range(3):
        bench.clock.pass_by(1)
        sent, (queued,) = bench.requests(wait(id="b.1"))
        assert sent == ["read"]
        assert isinstance(queued, out.Queued)
    bench.clock.pass_by(3)
    assert bench.requests(wait(id="b.1"))[0] == ["read", "write"]


def test_only_the_commands_whose_records_others_changed_are_decided_again(bench):
    def meddle_once():
        bench.adapter.before_read = lambda: None
        bench.ask(acquire("b", "x.1"), bench.other)

    original = bench.adapter.write
    seen = []

    def write(writes):
        if not seen:
            meddle_once()
        seen.append([one.name.key for one in writes])
        return original(writes)

    bench.adapter.write = write
    outcomes = bench.connection.execute([acquire("a"), acquire("b"), acquire("c")])
    assert [type(one) for one in outcomes] == [out.Granted, out.Busy, out.Granted]
    assert seen == [["a", "b", "c"]]
    assert bench.connection.conflicts == 1


def test_a_record_that_others_change_all_the_time_fails_alone_and_can_be_sent_again(bench, monkeypatch):
    monkeypatch.setattr(cas, "TRIES", 5)
    original = bench.adapter.write

    def write(writes):
        bench.meddle("hot")
        return original(writes)

    bench.adapter.write = write
    hot, calm = bench.connection.execute([acquire("hot"), acquire("calm")])
    assert isinstance(hot, c.Failed)
    assert isinstance(hot.error, StoreContended)
    assert not hot.error.ambiguous
    assert isinstance(calm, out.Granted)
    assert bench.holders("hot") == []
    assert bench.connection.conflicts == 5


def meddling(bench, write):
    def write_after_another(writes):
        bench.meddle()
        return write(writes)

    return write_after_another


def test_clients_that_lost_a_race_together_do_not_come_back_together(monkeypatch):
    """Two clients lose the same races. Their pauses are random, grow, and stay short."""
    pauses = []
    monkeypatch.setattr(cas.time, "sleep", lambda pause: pauses[-1].append(pause))
    monkeypatch.setattr(cas, "TRIES", 12)
    for _ in range(2):
        pauses.append([])
        bench = Bench()
        bench.adapter.write = meddling(bench, bench.adapter.write)
        assert isinstance(bench.ask(acquire()).error, StoreContended)
    first, second = pauses
    assert len(first) == len(second) == 11
    assert not set(first) & set(second)
    assert all(0 <= pause <= cas.PAUSES[1] for pause in first + second)
    assert max(first) > cas.PAUSES[0]


def test_a_store_says_what_is_weaker(bench):
    promised = bench.store.capabilities
    assert (promised.trips, promised.workflows, promised.server_clock) == (2, False, False)


def test_a_record_that_is_too_large_fails_alone(bench):
    bench.store.service.max_bytes = 1_000
    large, small, large_record, record = bench.connection.execute(
        [swap("a.1", value='"' + "x" * 1_000 + '"'), swap("a.2"), add(note="x" * 1_000), add(request="r")]
    )
    for outcome in (large, large_record):
        assert isinstance(outcome, c.Failed)
        assert isinstance(outcome.error, InvalidValue)
    assert f"the record of {swap('a.1').address[-1]!r} would be" in str(large.error)
    assert (type(small), record) == (Swapped, Counted(total=1))


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_decision_that_is_too_old_is_thrown_away_and_made_again(bench, monkeypatch):
    """The process was paused between its read and its write, for longer than the ttl of the lock."""
    late = 0.0
    real = cas.elapsed
    monkeypatch.setattr(cas, "elapsed", lambda: real() + late)
    decide = bench.store.service.observed
    bench.ask(acquire(id="b.1", ttl=5), bench.other)

    def pause(key, record, stamp, now):
        nonlocal late
        if not late:
            late = cas.MAX_AGE + 1
            bench.clock.pass_by(late)
        return decide(key, record, stamp, now)

    bench.store.service.observed = pause
    monkeypatch.setattr(cas, "PATIENCE", 100.0)
    sent, (queued,) = bench.requests(wait(id="c.1"))
    assert sent == ["read", "read", "write"]
    assert isinstance(queued, out.Granted)  # by the time of the second read, the holder has expired
    assert queued.since == bench.clock.now


def test_the_time_is_taken_after_the_records(bench):
    """A holder that was granted while the records were read must not seem to come from the future."""

    def slow():
        bench.clock.pass_by(3)

    bench.adapter.before_read = slow
    assert bench.ask(acquire()).since == bench.clock.now


def test_the_time_of_a_read_in_parts_is_that_of_the_latest_part(bench, monkeypatch):
    """The services of two parts may be two servers, whose clocks differ."""
    monkeypatch.setattr(cas, "AT_ONCE", 2)
    bench.connection._now = None
    times = iter((START + SECOND, START + 3 * SECOND, START + 2 * SECOND))
    read_part = bench.adapter.read
    monkeypatch.setattr(bench.adapter, "read", lambda names: replace_time(read_part(names), next(times)))
    seen = bench.connection.read([CasName(LOCKS, f"k{n}") for n in range(5)])
    assert seen.now == START + 3 * SECOND


def replace_time(seen, now):
    return CasRead(seen.found, now)


def own_time(bench, monkeypatch):
    """A store by the service's own clock. Returns functions to read the clock, and to let time pass."""
    moment = [1_000.0]
    monkeypatch.setattr(cas, "elapsed", lambda: moment[0])
    monkeypatch.setattr(cas_recent, "elapsed", lambda: moment[0])
    store = faulty_store()
    store.service.table = bench.table
    connection = store.connect("commands")
    adapter = adapter_of(connection)
    original = type(adapter).read

    def service_clock():
        return START + round(moment[0] * SECOND)

    def timed(names, delay=(0.0, 0.0)):
        moment[0] += delay[0]
        found = original(adapter, names)._replace(now=service_clock())
        moment[0] += delay[1]
        return found

    def pass_by(seconds):
        moment[0] += seconds

    adapter.read = timed
    return connection, adapter, timed, service_clock, pass_by


def test_a_renewal_without_a_read_uses_a_lower_bound_of_the_time(bench, monkeypatch):
    connection, adapter, timed, service_clock, pass_by = own_time(bench, monkeypatch)
    adapter.read = lambda names: timed(names, (0.2, 0.3))  # so long the request and the reply are on their way
    (granted,) = connection.execute([acquire(ttl=30)])
    pass_by(5)
    adapter.requests.clear()
    (renewed,) = connection.execute([renew(token=granted.token, ttl=30)])
    assert adapter.requests == ["write"]
    assert renewed.expires_at == service_clock() + 30 * SECOND - round(0.3 * SECOND)
    assert connection.moments == [service_clock() - round(0.3 * SECOND)]


def test_a_grant_that_may_have_expired_is_not_renewed_by_memory(bench, monkeypatch):
    connection, adapter, timed, _, pass_by = own_time(bench, monkeypatch)
    adapter.read = lambda names: timed(names, (0.0, 0.5))
    (granted,) = connection.execute([acquire(ttl=10)])
    pass_by(9.7)  # the lower bound lies before the expiry, the upper bound behind it
    assert isinstance(connection.execute([renew(token=granted.token)])[0], out.NotHolder)
    assert adapter.requests.count("read") == 2


def test_an_old_reading_of_the_clock_is_not_used(bench, monkeypatch):
    connection, adapter, _, _, pass_by = own_time(bench, monkeypatch)
    (granted,) = connection.execute([acquire(ttl=1_000)])
    pass_by(cas_recent.MAX_AGE + 1)
    adapter.requests.clear()
    assert isinstance(connection.execute([renew(token=granted.token)])[0], out.Renewed)
    assert adapter.requests == ["read", "write"]


def test_another_holder_is_never_removed_by_memory(bench, monkeypatch):
    connection, adapter, _, _, pass_by = own_time(bench, monkeypatch)
    options = {"kind": "semaphore", "permits": 3}
    connection.execute([acquire(id="b.1", ttl=5, **options)])
    (mine,) = connection.execute([acquire(id="a.1", ttl=30, **options)])
    pass_by(6)
    adapter.requests.clear()
    connection.execute([renew(token=mine.token)])
    assert adapter.requests == ["read", "write"]


# -- lost replies -----------------------------------------------------------------------------------------------------

APPLIED = ["applied", "applied, error", "late"]
DROPPED = ["dropped", "dropped, error"]


@pytest.mark.parametrize("fault", APPLIED + DROPPED)
def test_an_acquire_whose_reply_is_lost_is_granted_once(bench, fault):
    bench.lose(fault)
    granted = bench.ask(acquire())
    assert isinstance(granted, out.Granted)
    assert bench.holders() == [("a.1", granted.token)]


@pytest.mark.parametrize("fault", ["applied", "dropped"])
def test_an_acquire_whose_reply_is_lost_beside_another_writer_is_granted_once(bench, fault):
    bench.ask(abandon(id="y.1"))  # so that there is a record
    bench.lose(fault, bench.meddle)
    granted = bench.ask(acquire())
    assert isinstance(granted, out.Granted)
    assert bench.holders() == [("a.1", granted.token)]
    assert bench.record().fence == granted.token


@pytest.mark.parametrize("fault", APPLIED + DROPPED)
def test_a_release_whose_reply_is_lost_is_made_once_and_answered(bench, fault):
    granted = bench.ask(acquire())
    bench.lose(fault)
    assert isinstance(bench.ask(release(token=granted.token)), out.Released)
    assert bench.holders() == []


def test_a_release_that_another_writer_may_have_covered_is_answered_as_unknown(bench):
    """The lock was released, and another client has taken it: "not the holder" would be wrong."""
    granted = bench.ask(acquire())
    bench.lose("applied", lambda: bench.ask(acquire(id="b.1"), bench.other))
    assert is_ambiguous(bench.ask(release(token=granted.token)))
    assert [id for id, _ in bench.holders()] == ["b.1"]


def test_a_release_that_was_certainly_not_made_is_made(bench):
    granted = bench.ask(acquire())
    bench.lose("dropped", bench.meddle)
    assert isinstance(bench.ask(release(token=granted.token)), out.Released)
    assert bench.holders() == []


def test_a_release_by_the_owners_name_is_not_repeated_on_a_later_grant(bench):
    """The same owner has acquired the lease again: releasing it by its name alone would take that away."""
    bench.ask(acquire(kind="lease"))
    bench.lose("applied", lambda: bench.ask(acquire(kind="lease"), bench.other))
    assert is_ambiguous(bench.ask(release(token=None)))
    assert [id for id, _ in bench.holders()] == ["a.1"]


@pytest.mark.parametrize("fault", ["applied", "dropped"])
def test_a_renewal_whose_reply_is_lost_beside_another_writer_prolongs(bench, fault):
    granted = bench.ask(acquire())
    bench.clock.pass_by(5)
    bench.lose(fault, bench.meddle)
    renewed = bench.ask(renew(token=granted.token))
    assert renewed.expires_at == bench.record().holders[0].expires_at == bench.clock.now + 30 * SECOND


@pytest.mark.parametrize("fault", ["applied", "dropped"])
def test_a_transfer_whose_reply_is_lost_beside_another_writer_has_one_successor(bench, fault):
    granted = bench.ask(acquire())
    bench.lose(fault, bench.meddle)
    moved = bench.ask(transfer(token=granted.token))
    assert isinstance(moved, out.Transferred)
    assert bench.holders() == [("c.1", moved.token)]


def test_a_transfer_whose_successor_has_released_since_is_answered_as_unknown(bench):
    granted = bench.ask(acquire())

    def release_at_once():
        ((successor, token),) = bench.holders()
        bench.ask(release(id=successor, token=token), bench.other)

    bench.lose("applied", release_at_once)
    assert is_ambiguous(bench.ask(transfer(token=granted.token)))
    assert bench.holders() == []


@pytest.mark.parametrize("fault", ["applied", "dropped"])
def test_an_abandon_whose_reply_is_lost_keeps_the_attempt_out(bench, fault):
    bench.ask(acquire())
    bench.lose(fault, bench.meddle)
    assert isinstance(bench.ask(abandon()), out.Abandoned)
    assert bench.holders() == []
    assert isinstance(bench.ask(acquire()), out.Gone)


def test_a_pass_over_that_another_writer_may_have_covered_is_answered_as_unknown(bench):
    granted = bench.ask(acquire())
    bench.ask(wait(id="b.1"))
    bench.ask(release(token=granted.token))
    (offer,) = bench.holders()
    bench.lose("applied", bench.meddle)
    assert is_ambiguous(bench.ask(pass_over(id="b.1", token=offer[1])))


FORCE = c.ForceRelease(key="k", by="operator", reason="stuck")


def test_a_forced_release_is_recognised_by_its_entry_in_the_record(bench):
    bench.ask(acquire())
    bench.lose("applied", lambda: bench.ask(acquire(id="b.1"), bench.other))
    forced = bench.ask(FORCE)
    assert isinstance(forced, out.ForceReleased)
    assert [holder.id for holder in forced.holders] == ["a.1"]
    assert [id for id, _ in bench.holders()] == ["b.1"]


def test_a_forced_release_is_not_repeated_on_a_holder_that_came_later(bench):
    granted = bench.ask(acquire())

    def hand_over():
        bench.ask(release(token=granted.token), bench.other)
        bench.ask(acquire(id="b.1"), bench.other)

    bench.lose("dropped", hand_over)
    assert is_ambiguous(bench.ask(FORCE))
    assert [id for id, _ in bench.holders()] == ["b.1"]


@pytest.mark.parametrize("fault", [*APPLIED, *DROPPED])
@pytest.mark.parametrize("meddled", [False, True], ids=["alone", "beside another writer"])
def test_a_swap_whose_reply_is_lost_is_made_once(bench, fault, meddled):
    def write_another():
        seen = bench.ask(read(), bench.other)
        bench.ask(swap("b.1", seen.last, seen.version, "2"), bench.other)

    if fault in DROPPED and meddled:
        bench.lose(fault, write_another)
        assert isinstance(bench.ask(swap("a.1")), out.Outcome)
        assert bench.ask(read()) == SlotSeen(version=1, last="b.1", value="2")
        return
    bench.lose(fault, write_another if meddled and fault != "late" else lambda: None)
    assert bench.ask(swap("a.1")) == Swapped(version=1)
    expected = 2 if meddled and fault != "late" else 1
    assert bench.ask(read()).version == expected


@pytest.mark.parametrize("fault", [*APPLIED, *DROPPED])
def test_a_change_of_a_record_whose_reply_is_lost_is_made_once(bench, fault):
    bench.ask(add("z.1"))
    bench.lose(fault)
    assert bench.ask(add()) == Counted(total=2, woken=("z.1",))
    assert bench.ask(SeeTally(key="k")).tally.total == 2


@pytest.mark.parametrize("fault", ["applied", "dropped"])
def test_a_change_of_a_record_is_never_repeated_on_what_another_client_wrote(bench, fault):
    bench.ask(add("z.1"))
    bench.lose(fault, lambda: bench.ask(add("y.1"), bench.other))
    assert is_ambiguous(bench.ask(add()))
    assert bench.ask(SeeTally(key="k")).tally.total == (3 if fault == "applied" else 2)


def test_a_record_that_is_not_there_may_have_been_made_and_removed(bench):
    bench.lose("dropped")
    assert is_ambiguous(bench.ask(add()))
    assert bench.ask(SeeTally(key="k")).tally is None


def test_the_neighbours_of_a_lost_reply_are_answered(bench):
    bench.ask(add("z.1"))

    def others():
        bench.ask(add("y.1"), bench.other)
        bench.meddle("b")

    bench.lose("applied", others)
    granted, unknown, also = bench.connection.execute([acquire("a"), add(), acquire("b")])
    assert isinstance(granted, out.Granted)
    assert isinstance(also, out.Granted)
    assert is_ambiguous(unknown)


def test_where_the_record_cannot_be_read_back_the_whole_batch_is_unknown(bench):
    def cut():
        raise StoreUnavailable("no connection")

    def cut_off():
        bench.adapter.before_read = cut

    bench.lose("applied", cut_off)
    with pytest.raises(StoreError) as caught:
        bench.ask(acquire())
    assert caught.value.ambiguous
    bench.adapter.before_read = lambda: None
    assert isinstance(bench.ask(acquire()), out.Granted)


def test_a_read_that_fails_is_not_ambiguous(bench):
    def cut():
        raise StoreUnavailable("no connection")

    bench.adapter.before_read = cut
    with pytest.raises(StoreUnavailable) as caught:
        bench.ask(acquire())
    assert not caught.value.ambiguous


# -- lists are hints --------------------------------------------------------------------------------------------------


def outdated(bench, **entries):
    """The index of due locks also has these entries."""
    original = bench.adapter.due

    def due(kind, *, until, limit):
        return sorted([*original(kind, until=until, limit=limit), *((at, key) for key, at in entries.items())])[:limit]

    bench.adapter.due = due


def test_entries_of_the_due_index_that_are_outdated_are_not_settled(bench):
    bench.ask(acquire("living", ttl=60))
    bench.ask(wait("living", "b.1", waiter_ttl=90 * SECOND))
    outdated(bench, living=1, gone=2)
    assert bench.ask(c.SettleDue()) == c.Swept(seen=0, changed=0)
    assert [id for id, _ in bench.holders("living")] == ["a.1"]
    assert (LOCKS, "gone") not in {place[1:] for place in bench.table.rows}


def test_keys_that_were_removed_since_they_were_listed_are_left_out(bench):
    bench.ask(acquire("a"))
    original = bench.adapter.keys
    bench.adapter.keys = lambda kind, **options: ["gone", *original(kind, **options)]
    assert [item.key for item in bench.ask(c.ListLocks()).items] == ["a"]
    assert bench.ask(c.Cleanup()) == c.Swept(seen=2, changed=0)


def test_a_lock_that_was_used_since_the_cleanup_read_it_stays(bench):
    granted = bench.ask(acquire())
    bench.ask(release(token=granted.token))
    bench.clock.pass_by(10)
    original = bench.adapter.write

    def write(writes):
        bench.ask(acquire(id="b.1"), bench.other)
        return original(writes)

    bench.adapter.write = write
    assert bench.ask(c.Cleanup(retention=SECOND)) == c.Swept(seen=1, changed=0)
    assert [id for id, _ in bench.holders()] == ["b.1"]


def test_cleanup_compares_the_stamp_that_it_decided_by(bench):
    granted = bench.ask(acquire())
    bench.ask(release(token=granted.token))
    bench.clock.pass_by(10)
    decided = bench.store.service.observed

    def used_meanwhile(key, record, stamp, now):
        bench.store.service.observed = decided
        bench.ask(acquire(id="b.1"), bench.other)
        return record

    bench.store.service.observed = used_meanwhile
    assert bench.ask(c.Cleanup(retention=SECOND)) == c.Swept(seen=1, changed=0)
    assert [id for id, _ in bench.holders()] == ["b.1"]


# -- services without a clock -----------------------------------------------------------------------------------------


def test_a_service_may_adjust_commands_before_they_are_decided(bench):
    def with_skew(command):
        return replace(command, ttl=command.ttl + 2 * SECOND) if isinstance(command, c.Acquire) else command

    bench.store.service.adjusted = with_skew
    granted = bench.ask(acquire(ttl=10))
    assert granted.expires_at == bench.clock.now + 12 * SECOND


def test_a_service_may_replace_the_expiries_that_it_reads(bench):
    bench.ask(acquire(ttl=10), bench.other)
    bench.clock.pass_by(11)

    def still_alive(key, record, stamp, now):
        longer = tuple(replace(holder, expires_at=now + holder.ttl) for holder in record.holders)
        return replace(record, holders=longer)

    bench.store.service.observed = still_alive
    assert isinstance(bench.ask(acquire(id="b.1")), out.Busy)
    assert [item.record.holders[0].id for item in bench.ask(c.ListLocks()).items] == ["a.1"]


# -- hints ------------------------------------------------------------------------------------------------------------


def test_without_notifications_a_watch_polls_and_the_same_process_is_still_told(bench):
    bench.store.service.watch = lambda notified: None
    heard = []
    watch = bench.store.watch("b", heard.append)
    try:
        assert watch.polls
        granted = bench.ask(acquire())
        bench.ask(wait(id="b.1"))
        bench.ask(release(token=granted.token))
        assert heard == [["b.1"]]
    finally:
        watch.close()


def test_a_write_names_the_attempts_that_it_wakes(bench):
    granted = bench.ask(acquire())
    bench.ask(wait(id="b.1"))
    written = []
    original = bench.adapter.write
    bench.adapter.write = lambda writes: written.extend(writes) or original(writes)
    bench.ask(release(token=granted.token))
    assert [write.woken for write in written][-1] == ("b.1",)
