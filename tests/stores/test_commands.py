"""Every answer of every command, on every store."""

from __future__ import annotations

import pytest

from holdfast import commands as c
from holdfast.rules import outcomes as out
from stores.asking import ME, SECOND, abandon, acquire, release, renew, transfer, wait


def ask(connection, command):
    (outcome,) = connection.execute([command])
    return outcome


def test_a_free_key_is_granted_under_a_token_that_follows_the_clock(connection, clock):
    outcome = ask(connection, acquire())
    assert outcome == out.Granted(token=clock.now, floor=clock.now, since=clock.now, expires_at=clock.now + 30 * SECOND)


def test_asking_again_returns_the_same_grant_with_its_full_ttl(connection, clock):
    first = ask(connection, acquire())
    clock.pass_by(5)
    again = ask(connection, acquire())
    assert (again.token, again.since) == (first.token, first.since)
    assert again.expires_at == clock.now + 30 * SECOND


def test_a_held_key_refuses_and_tells_who_holds_and_for_how_long(connection, clock):
    ask(connection, acquire())
    clock.pass_by(1)
    outcome = ask(connection, acquire(id="b.1"))
    assert isinstance(outcome, out.Busy)
    assert [holder.label for holder in outcome.holders] == [ME]
    assert outcome.retry_in == 29 * SECOND


def test_a_waiter_learns_its_place_and_keeps_it(connection):
    ask(connection, acquire())
    assert ask(connection, wait(id="b.1")).position == 0
    assert ask(connection, wait(id="b.2")).position == 1
    assert ask(connection, wait(id="b.1")).position == 0


def test_a_release_offers_the_key_to_the_head_of_the_queue(connection, clock):
    held = ask(connection, acquire())
    ask(connection, wait(id="b.1"))
    ask(connection, wait(id="b.2"))
    assert ask(connection, release(token=held.token)) == out.Released(woken=("b.1",))
    granted = ask(connection, wait(id="b.1"))
    assert isinstance(granted, out.Granted)
    assert granted.token > held.token


def test_an_offer_that_nobody_takes_goes_to_the_next(connection, clock):
    held = ask(connection, acquire())
    ask(connection, wait(id="b.1"))
    ask(connection, release(token=held.token))
    clock.pass_by(5)
    ask(connection, wait(id="b.2"))
    clock.pass_by(5)
    assert ask(connection, c.Settle(key="k")) == out.Settled(woken=("b.2",))


def test_another_kind_on_the_same_key_is_a_mismatch(connection):
    ask(connection, acquire())
    assert ask(connection, acquire(id="b.1", kind="semaphore", permits=3)).found == "item"


def test_a_weight_that_can_never_fit_is_too_heavy(connection):
    outcome = ask(connection, acquire(kind="semaphore", permits=3, weight=4))
    assert outcome == out.TooHeavy(permits=3)


def test_an_abandoned_attempt_is_gone(connection):
    assert ask(connection, abandon()) == out.Abandoned(was="nothing")
    assert ask(connection, acquire()) == out.Gone()


def test_abandoning_tells_what_it_was(connection):
    ask(connection, acquire())
    ask(connection, wait(id="b.1"))
    assert ask(connection, abandon(id="b.1")).was == "waiter"
    assert ask(connection, abandon(id="a.1")).was == "holder"


def test_a_renewal_prolongs_a_living_grant(connection, clock):
    held = ask(connection, acquire())
    clock.pass_by(29)
    outcome = ask(connection, renew(token=held.token))
    assert outcome == out.Renewed(floor=held.token, expires_at=clock.now + 30 * SECOND)


def test_a_renewal_at_the_moment_of_expiry_is_too_late(connection, clock):
    held = ask(connection, acquire())
    clock.pass_by(30)
    assert ask(connection, renew(token=held.token)) == out.NotHeld()


def test_a_renewal_or_release_with_the_wrong_token_changes_nothing(connection, provider, url, clock):
    held = ask(connection, acquire())
    before = provider.dump(url, "default")
    assert ask(connection, renew(token=held.token + 1)) == out.NotHeld()
    assert ask(connection, release(token=held.token + 1)) == out.NotHeld()
    assert ask(connection, release(token=None)) == out.NotHeld()
    assert provider.dump(url, "default") == before


def test_a_lease_may_be_renewed_and_released_by_its_owner_alone(connection):
    ask(connection, acquire(kind="lease"))
    assert isinstance(ask(connection, renew(token=None)), out.Renewed)
    assert ask(connection, release(token=None)) == out.Released()


def test_a_second_release_finds_nothing(connection):
    held = ask(connection, acquire())
    assert ask(connection, release(token=held.token)) == out.Released()
    assert ask(connection, release(token=held.token)) == out.NotHeld()


def test_a_transfer_gives_the_grant_on_under_a_higher_token(connection):
    held = ask(connection, acquire())
    given = ask(connection, transfer(token=held.token))
    assert given.token > held.token
    assert ask(connection, transfer(token=held.token)).token == given.token
    assert ask(connection, transfer(id="x.1", token=1)) == out.NotHeld()


def test_a_transfer_to_a_holder_is_refused(connection):
    first = ask(connection, acquire(kind="semaphore", permits=2))
    ask(connection, acquire(id="c.1", kind="semaphore", permits=2))
    assert ask(connection, transfer(token=first.token)) == out.TargetHolds()


def test_a_forced_release_puts_everyone_out_and_keeps_the_reason_and_the_fence(connection):
    held = ask(connection, acquire())
    outcome = ask(connection, c.ForceRelease(key="k", by="operator", reason="stuck"))
    assert [holder.id for holder in outcome.holders] == ["a.1"]
    seen = ask(connection, c.Inspect(key="k")).record
    assert (seen.forced.by, seen.forced.reason, seen.fence) == ("operator", "stuck", held.token)
    assert ask(connection, c.ForceRelease(key="k", by="operator", reason="again")).holders == ()


def test_looking_at_a_key_that_was_never_used_sees_nothing_and_writes_nothing(connection, provider, url, clock):
    assert ask(connection, c.Inspect(key="k")) == out.Seen(record=None, now=clock.now)
    assert provider.dump(url, "default") == {}


def test_looking_settles_for_the_eye_only(connection, provider, url, clock):
    ask(connection, acquire())
    stored = provider.dump(url, "default")
    clock.pass_by(31)
    assert ask(connection, c.Inspect(key="k")).record.holders == ()
    assert provider.dump(url, "default") == stored


def test_commands_of_one_batch_on_one_key_see_each_other_in_order(connection):
    outcomes = connection.execute([acquire(), acquire(id="b.1"), abandon(), acquire(id="b.1")])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Granted", "Busy", "Abandoned", "Granted"]


def test_a_look_in_the_middle_of_a_batch_sees_what_came_before_it(connection):
    _, page, _, later = connection.execute([acquire("a"), c.ListLocks(), acquire("b"), c.ListLocks()])
    assert [item.key for item in page.items] == ["a"]
    assert [item.key for item in later.items] == ["a", "b"]


def test_an_empty_batch_has_no_answers(connection):
    assert connection.execute([]) == []


def test_namespaces_do_not_see_each_other(connection, url, clock, opened):
    other = opened(url, namespace="other", clock=clock).connect("commands")
    assert isinstance(ask(connection, acquire()), out.Granted)
    assert isinstance(ask(other, acquire(id="b.1")), out.Granted)
    assert len(ask(other, c.ListLocks()).items) == 1


def test_two_connections_see_the_same_records(store, connection):
    ask(connection, acquire())
    assert isinstance(ask(store.connect("heartbeats"), acquire(id="b.1")), out.Busy)
    assert ask(store.connect("queries"), c.Inspect(key="k")).record.holders[0].id == "a.1"


def test_one_bad_command_fails_alone(connection, provider, url):
    bad = [
        acquire("bad-number", "a.2", permits="three"),
        renew("bad-ttl", token=1, ttl=None),
        c.Acquire(key="bad-time", id="a.3", label=ME, ttl=2**70),
        c.Command(),
        c.ListLocks(limit="many"),
        acquire("bad-\ud800-key"),
        acquire("bad-id", "a.\ud800"),
        acquire(["no text"]),
    ]
    outcomes = connection.execute([acquire("good"), *bad, acquire("fine")])
    assert isinstance(outcomes[0], out.Granted)
    assert isinstance(outcomes[-1], out.Granted)
    assert {type(outcomes[place]) for place in (1, 4, 5)} == {c.Failed}
    assert "Acquire on 'bad-number' could not be carried out" in str(outcomes[1].error)
    assert "good" in provider.dump(url, "default")
    assert "bad-number" not in provider.dump(url, "default")


@pytest.mark.parametrize(
    "command",
    [acquire("\ud800"), acquire("k", "a.\ud800"), acquire(["no text"]), acquire(permits="three"), c.Command()],
)
def test_a_bad_command_that_is_alone_fails_as_well_or_does_no_harm(connection, command):
    (outcome,) = connection.execute([command])
    assert isinstance(outcome, c.Failed | out.Granted)
    assert isinstance(ask(connection, acquire("fine")), out.Granted)


def test_a_bad_command_spares_its_neighbours_on_the_same_key(connection):
    outcomes = connection.execute([acquire(), acquire(id="b.1", permits="three"), acquire(id="c.1")])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Granted", "Failed", "Busy"]


def test_a_closed_connection_says_so(store):
    connection = store.connect("commands")
    connection.close()
    connection.close()
    try:
        connection.execute([acquire()])
    except Exception as error:
        assert "closed" in str(error)  # noqa: PT017
    else:
        raise AssertionError("it worked")
