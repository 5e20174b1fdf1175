"""DynamoDB has no clock: what its clients' clocks may do, by a stated difference (`skew`) and by observation."""

from __future__ import annotations

import itertools
import random

import pytest
from providers import PROVIDERS, dynamodb_url

from holdfast import Client
from holdfast import commands as c
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import Label
from holdfast.stores.dynamodb import clocks
from holdfast.testing.builders import ME, ManualClock, abandon, acquire, release, renew, swap, transfer, wait

SKEW = 2.0
TTL = 10.0
HOUR = 3_600.0
STEP = 0.001
"""Less than any difference that matters here."""


class OffClock:
    """The clock of a host: wrong by so many seconds, all the time."""

    def __init__(self, truth, ahead):
        self.truth, self.ahead = truth, ahead

    def __call__(self):
        return self.truth() + round(self.ahead * 1_000_000)


@pytest.fixture
def truth():
    """The time that passes for everyone."""
    return ManualClock()


@pytest.fixture
def host(opened, truth):
    """A connection of a client on a host whose clock is wrong."""

    def connecting(url, ahead):
        return opened(url, clock=OffClock(truth, ahead)).connect()

    return connecting


@pytest.fixture
def skewed():
    return dynamodb_url("skew2", f"skew={SKEW}")


@pytest.fixture
def observed():
    return dynamodb_url("observed", "expiry=observed")


def ask(connection, command):
    (outcome,) = connection.execute([command])
    return outcome


def overlap(host, truth, url, offsets, *, settles):
    """Whether a second client is granted the lock while the first one, by its own deadline, still holds it."""
    first, second, third = (host(url, ahead) for ahead in offsets)
    key = str(offsets)
    ask(first, acquire(key, "a.1", ttl=TTL))
    if settles:
        truth.pass_by(STEP)
        ask(third, c.Settle(key=key))
    truth.pass_by(TTL - 2 * STEP)  # the holder's own deadline is a hundredth of the ttl earlier
    early = isinstance(ask(second, acquire(key, "b.1")), out.Granted)
    truth.pass_by(2 * SKEW + 3 * STEP)
    assert early or isinstance(ask(second, acquire(key, "b.1")), out.Granted), "the lock of a dead holder stays held"
    return early


@pytest.mark.parametrize("settles", [False, True], ids=["", "a-third-client-settles-in-between"])
def test_clients_whose_clocks_differ_by_the_skew_never_hold_at_the_same_time(host, truth, skewed, settles):
    for offsets in itertools.product((0.0, SKEW / 2, SKEW), repeat=3):
        assert not overlap(host, truth, skewed, offsets, settles=settles), offsets


def test_at_twice_the_skew_two_clients_hold_at_the_same_time(host, truth, skewed):
    """What the option states is an assumption: this is what happens when it does not hold."""
    assert overlap(host, truth, skewed, (0.0, 2 * SKEW, 0.0), settles=False)
    assert overlap(host, truth, skewed, (SKEW, 2 * SKEW, 0.0), settles=True)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_clients_do_within_the_skew_nobody_is_granted_what_another_still_holds(host, truth, skewed, seed):
    odds = random.Random(seed)
    hosts = [host(skewed, odds.uniform(0, SKEW)) for _ in range(4)]
    deadlines, held, grants = {}, {}, 0
    for step in range(60):
        truth.pass_by(odds.choice((STEP, 0.5, 3.0, 9.0)))
        who = odds.randrange(4)
        id = f"{who}.1"
        now = truth()
        lives = id in held and now < deadlines[id]
        command = odds.choice(
            [
                c.Settle(key="k"),
                renew(id=id, token=held[id], ttl=TTL) if lives else wait(id=id, ttl=TTL),
                release(id=id, token=held[id]) if lives and step % 3 == 0 else wait(id=id, ttl=TTL),
            ]
        )
        outcome = ask(hosts[who], command)
        if isinstance(outcome, out.Released):
            del held[id], deadlines[id]
        elif isinstance(outcome, out.Granted | out.Renewed):
            others = {other: end for other, end in deadlines.items() if other != id and end > now}
            assert not others, f"step {step}: {id} was granted what {others} still hold"
            deadlines[id] = now + round(TTL * 1_000_000)
            if isinstance(outcome, out.Granted):
                grants += id not in held or held[id] != outcome.token
                held[id] = outcome.token
    assert grants > 3, "too little happened"


def test_the_skew_is_part_of_every_stored_length_and_expiry(host, truth, skewed):
    connection, extra = host(skewed, 0), round(SKEW * 1_000_000)
    granted = ask(connection, acquire(ttl=TTL, delay=1_000_000))
    ask(connection, wait(waiter_ttl=7_000_000))
    ask(connection, abandon(id="gone.1", ttl=5))
    record = PROVIDERS["dynamodb"].dump(skewed, "default")["k"]
    (holder,), (waiter,), (stone,) = record.holders, record.waiters, record.tombstones
    assert (holder.ttl, holder.expires_at) == (10_000_000 + extra, truth() + 10_000_000 + extra)
    assert (waiter.ttl, waiter.expires_at) == (7_000_000 + extra, truth() + 7_000_000 + extra)
    assert (stone.ttl, stone.expires_at) == (5_000_000 + extra, truth() + 5_000_000 + extra)
    assert holder.delay == 1_000_000 + extra
    truth.pass_by(1)
    renewed = ask(connection, renew(token=granted.token, ttl=TTL))
    assert renewed.expires_at == truth() + 10_000_000 + extra
    assert ask(connection, transfer(token=granted.token)).expires_at == truth() + 30_000_000 + extra


def test_what_has_no_end_gets_none_and_other_commands_stay_as_they_are():
    endless = c.Acquire(key="k", id="a.1", label=ME, ttl=None)
    for command in (endless, release(token=1), c.Inspect(key="k"), c.Cleanup(), swap("a.1"), abandon(ttl=0)):
        assert clocks.lengthened(command, 5) is command
    for command, wanted in ((acquire(), {"ttl": 30_000_005, "waiter_ttl": 10_000_005, "delay": 0}),):
        longer = clocks.lengthened(command, 5)
        assert {name: getattr(longer, name) for name in wanted} == wanted


def test_every_command_with_a_length_is_lengthened():
    """A new command that stores a length under another name must be added."""
    named = {
        name
        for kind in c.__dict__.values()
        if isinstance(kind, type) and issubclass(kind, c.LockCommand)
        for name in kind.__struct_fields__
    }
    assert named & {"ttl", "waiter_ttl", "delay"} == set(clocks.LENGTHS)
    assert named - set(clocks.LENGTHS) == {
        "by", "id", "key", "kind", "label", "leaving", "listens", "permits", "queue", "reason", "to_id", "to_label",
        "token", "weight",
    }  # fmt: skip


def test_a_holder_does_not_count_the_skew_as_its_own_time(skewed):
    with Client(skewed) as client, client.lock("k", ttl=5) as lease:
        assert 0 < lease.remaining() < 5
        (holder,) = PROVIDERS["dynamodb"].dump(skewed, "default")["k"].holders
        assert holder.ttl == 7_000_000
        lease.renew()
        assert 0 < lease.remaining() < 5
        assert client.locks.inspect("k").holders[0].time_left > 5


def test_a_holder_that_ended_is_replaced(skewed, opened):
    """With the clocks of this machine: the waiter is granted the lock after its ttl and the skew, by polling."""
    (dead,) = opened(skewed).connect().execute([acquire(ttl=0.2)])
    with Client(skewed) as client, client.lock("k", wait=30) as lease:
        assert lease.token > dead.token


# ---------------------------------------------------------------- by observation


def test_with_clocks_an_hour_apart_a_holder_is_replaced_only_when_it_was_seen_unchanged_for_its_ttl(
    host, truth, observed
):
    for n, (mine, theirs) in enumerate(itertools.permutations((0, HOUR, -HOUR), 2)):
        first, second, key = host(observed, mine), host(observed, theirs), f"k{n}"
        granted = ask(first, acquire(key, ttl=TTL))
        assert isinstance(ask(second, acquire(key, "b.1")), out.Busy)  # it is seen for the first time
        truth.pass_by(8)
        assert isinstance(ask(first, renew(key, token=granted.token, ttl=TTL)), out.Renewed)
        truth.pass_by(8)
        assert isinstance(ask(second, acquire(key, "b.1")), out.Busy)  # it is seen renewed
        truth.pass_by(TTL - STEP)
        assert isinstance(ask(second, acquire(key, "b.1")), out.Busy)
        truth.pass_by(STEP)
        taken = ask(second, acquire(key, "b.1"))
        assert isinstance(taken, out.Granted)
        assert taken.token > granted.token
        assert isinstance(ask(first, renew(key, token=granted.token, ttl=TTL)), out.NotHolder)


@pytest.mark.parametrize("again", [False, True], ids=["from-memory", "after-a-read"])
def test_a_renewal_is_written_also_at_the_moment_at_which_the_entry_is_seen_first(host, truth, observed, again):
    first, second = host(observed, HOUR), host(observed, 0)
    granted = ask(first, acquire(ttl=TTL))
    before = PROVIDERS["dynamodb"].dump(observed, "default")["k"]
    truth.pass_by(1)
    renewing = host(observed, HOUR) if again else first
    assert isinstance(ask(renewing, renew(token=granted.token, ttl=TTL)), out.Renewed)
    after = PROVIDERS["dynamodb"].dump(observed, "default")["k"]
    assert after.holders[0].expires_at == before.holders[0].expires_at + 1_000_000
    assert isinstance(ask(second, acquire(id="b.1")), out.Busy)


def test_one_who_comes_late_observes_from_then_on(host, truth, observed):
    first, late = host(observed, HOUR), host(observed, 0)
    ask(first, acquire(ttl=TTL))
    truth.pass_by(100 * TTL)
    assert isinstance(ask(late, acquire(id="b.1")), out.Busy)
    truth.pass_by(TTL)
    assert isinstance(ask(late, acquire(id="b.1")), out.Granted)


def test_the_writes_of_observers_do_not_look_like_renewals(host, truth, observed):
    """Two waiters that write signs of life would otherwise keep a dead holder alive for each other."""
    dead, one, two = host(observed, HOUR), host(observed, 0), host(observed, -HOUR)
    ask(dead, acquire(ttl=TTL))
    first_seen = truth()
    while truth() < first_seen + round((TTL + 6) * 1_000_000):
        answers = [ask(one, wait(id="b.1", waiter_ttl=5_000_000)), ask(two, wait(id="c.1", waiter_ttl=5_000_000))]
        if any(isinstance(answer, out.Granted) for answer in answers):
            break
        assert all(isinstance(answer, out.Queued) for answer in answers)
        truth.pass_by(1)
    else:
        pytest.fail("the lock of a dead holder was never granted to a waiter")
    assert truth() >= first_seen + round(TTL * 1_000_000)


def test_waiters_keep_their_positions_although_their_clocks_differ(host, truth, observed):
    holder, *waiters = (host(observed, ahead) for ahead in (0, HOUR, -HOUR, 2 * HOUR))
    granted = ask(holder, acquire(ttl=TTL))
    for n, waiter in enumerate(waiters):
        assert ask(waiter, wait(id=f"w{n}.1")).position == n
    truth.pass_by(1)
    for n, waiter in enumerate(waiters):
        assert ask(waiter, wait(id=f"w{n}.1")).position == n
    ask(holder, release(token=granted.token))
    assert isinstance(ask(waiters[0], wait(id="w0.1")), out.Granted)
    assert ask(waiters[1], wait(id="w1.1")).position == 0


def test_a_waiter_that_ended_loses_its_position_and_an_abandoned_attempt_stays_out(host, truth, observed):
    holder, dead, other = host(observed, 0), host(observed, HOUR), host(observed, -HOUR)
    ask(holder, acquire(ttl=None))
    ask(dead, wait(id="dead.1", waiter_ttl=5_000_000))
    ask(dead, abandon(id="gone.1", ttl=5))
    assert ask(other, wait(id="b.1", waiter_ttl=50_000_000)).position == 1
    assert isinstance(ask(other, wait(id="gone.1")), out.Gone)
    truth.pass_by(5)
    assert ask(other, wait(id="b.1", waiter_ttl=50_000_000)).position == 0
    assert isinstance(ask(other, wait(id="gone.1")), out.Queued)


def test_a_lock_delay_is_observed_too(host, truth, observed):
    first, second = host(observed, HOUR), host(observed, 0)
    ask(first, acquire(ttl=TTL, delay=4_000_000))
    ask(second, acquire(id="b.1"))
    truth.pass_by(TTL)
    assert isinstance(ask(second, acquire(id="b.1")), out.Busy)
    ask(second, c.Settle(key="k"))
    truth.pass_by(4 - STEP)
    assert isinstance(ask(second, acquire(id="b.1")), out.Busy)
    truth.pass_by(4)
    assert isinstance(ask(second, acquire(id="b.1")), out.Granted)


def test_the_table_of_observations_is_bounded(host, truth, observed, monkeypatch):
    monkeypatch.setattr(clocks, "MOST_OBSERVED", 10)
    first, second = host(observed, HOUR), host(observed, 0)
    keys = [f"k{n}" for n in range(20)]
    first.execute([acquire(key, ttl=TTL) for key in keys])
    second.execute([acquire(key, "b.1") for key in keys])
    truth.pass_by(TTL)
    kept = second.execute([acquire(key, "b.1") for key in keys[10:]])
    assert all(isinstance(one, out.Granted) for one in kept)
    assert all(isinstance(one, out.Busy) for one in second.execute([acquire(key, "b.1") for key in keys[:10]]))


def test_lists_and_what_is_due_are_shown_as_they_are_observed(host, truth, observed):
    first, second = host(observed, HOUR), host(observed, 0)
    ask(first, acquire(ttl=TTL))
    ask(first, wait())
    (listed,) = ask(second, c.ListLocks()).items
    assert listed.record.holders[0].expires_at == truth() + round(TTL * 1_000_000) - 1
    assert ask(second, c.SettleDue()).changed == 0
    truth.pass_by(TTL)
    assert ask(second, c.SettleDue()).changed == 1


def test_a_writer_whose_clock_is_ahead_reserves_nothing_in_a_state(host, observed):
    """A reservation ends by the clock: one of an hour ahead would shut out all others for that hour."""
    ahead, behind = host(observed, HOUR), host(observed, 0)
    ask(ahead, swap("a.1"))
    lost = ask(ahead, swap("a.2", "other", reserve=1_000_000))
    assert type(lost).__name__ == "Conflict"
    assert type(ask(behind, swap("b.1", "a.1", 1, "2"))).__name__ == "Swapped"


def test_with_the_clocks_of_this_machine_a_holder_that_ended_is_replaced(observed, opened):
    (dead,) = opened(observed).connect().execute([acquire(ttl=0.5)])
    with Client(observed) as client, client.lock("k", wait=30) as lease:
        assert lease.token > dead.token
        assert lease.remaining() > 0


def test_label_and_weight_of_a_holder_survive_observation(host, observed):
    first, second = host(observed, HOUR), host(observed, 0)
    ask(
        first, c.Acquire(key="k", id="a.1", label=Label(name="x"), kind="semaphore", permits=3, weight=2, ttl=1_000_000)
    )
    ask(second, c.Acquire(key="k", id="b.1", label=Label(name="y"), kind="semaphore", permits=3, ttl=1_000_000))
    record = PROVIDERS["dynamodb"].dump(observed, "default")["k"]
    assert [(one.label.name, one.weight) for one in record.holders] == [("x", 2), ("y", 1)]
