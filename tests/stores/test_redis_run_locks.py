"""Locks of runs in a Redis: how they are stored, who is notified, and that nothing is half done after damage."""

from __future__ import annotations

import pytest
import redis
from msgspec.structs import replace
from providers import PROVIDERS, REDISES, redis_layout
from waiting import eventually

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable, StoreUnavailable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import decode, encode
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.lock_requests import LockAnswer, LockRequest
from holdfast.rules.runs.outcomes import Claimed, Posted, Recorded, RunSeen
from holdfast.rules.runs.record import Finish, Park
from holdfast.rules.slot import Swap
from holdfast.stores import open_store
from holdfast.stores.redis.record_source import RedisSource
from holdfast.testing.builders import SECOND, SLOT, START, ManualClock, acquire, release, wait
from holdfast.testing.run_histories import RunModel
from holdfast.testing.run_lock_histories import KEYS, RunLockHistoryGenerator
from holdfast.testing.suite.comparison import unversioned
from holdfast.testing.suite.run_locks import give, take
from holdfast.testing.suite.runs import record, signal
from stores.runs_asking import add_worker, ask, by_the_rules, claim, driven, everything
from stores.test_redis_conformance import made_strange

AT_ONCE = START - rule.LONG_AGO
NEWER = '"newer":[1],"fence"'


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


@pytest.fixture
def drives(connection):
    """Runs that are driven by a worker with a valid lease."""
    add_worker(connection)

    def some(*names):
        return [driven(connection, name) for name in names]

    return some


def asking(run, *lock_requests, **more):
    return record(run, lock_requests=lock_requests, **{"request": f"{lock_requests} {more}"} | more)


def wants(connection, run, *lock_requests, **more):
    return ask(connection, asking(run, *lock_requests, **more), Recorded)


def inbox(connection, run):
    events = ask(connection, r.ReadRun(run=run, history=True), RunSeen).claim.events
    return [(event.kind, event.name) for event in events]


def changes(before, after):
    return {name for name in before | after if before.get(name) != after.get(name)}


# ---------------------------------------------------------------- layout


def test_the_layout_of_locks_of_runs_is_this_one(server, base, connection, drives):
    """A stored format: changing it needs a migration."""
    (run,) = drives("r")
    wants(connection, run, take(2, 'é "k"'), take(1, "s", kind="semaphore", permits=3, ttl=SECOND))
    wants(connection, run, stuck=("c", 'ä"'))
    stored = everything(server, base)
    assert stored["run:r"]["locks"] == '[[1,"s"],[2,"é \\"k\\""]]'
    assert stored["run:r"]["stuck"] == '[0,["c","ä\\""]]'
    assert stored['lock:é "k"'] == (
        f'{{"fence":{START},"version":1,"holders":[{{"id":"run:2:r","label":{{"name":"run r"}},"token":{START},'
        f'"since":{START},"ttl":null,"expires_at":null}}]}}'
    )
    wants(connection, run, give(2, 'é "k"'), give(1, "s"))
    stored = everything(server, base)
    assert not {"locks", "stuck"} & stored["run:r"].keys()
    assert stored["keys"] == [("s", 0), ("worker/w.1", 0), ('é "k"', 0)]


def test_a_waiting_run_is_settled_with_due_records(server, base, connection, drives):
    (run,) = drives("r")
    ask(connection, acquire("k", ttl=1), out.Granted)
    wants(connection, run, take(7), then=Park(None))
    assert everything(server, base)["due"] == [("k", START + SECOND)]
    ask(connection, c.ForceRelease(key="k", by="me", reason="why"), out.ForceReleased)
    stored = everything(server, base)
    assert "due" not in stored
    assert stored["inbox:r"] == [f'{{"number":1,"kind":"lock","name":"7","at":{START}}}']
    assert stored["runs:due:order"] == [("r", AT_ONCE)]


def test_a_run_that_ends_or_is_retried_leaves_no_lock_field_behind(server, base, connection, drives):
    a, b = drives("a", "b")
    wants(connection, a, take())
    wants(connection, a, stuck=(), then=Park(None))
    ask(connection, r.ReviveRun(run="a", fence=a.fence, keep=1, request="q"), Posted)
    wants(connection, b, take(2))
    wants(connection, b, stuck=())
    assert ask(connection, record(b, then=Finish("completed", "1")), Recorded).done
    stored = everything(server, base)
    assert not {"locks", "stuck"} & stored["run:a"].keys()
    assert not {"locks", "stuck"} & stored["run:b"].keys()
    assert "holders" not in stored["lock:k"]
    (ended,) = drives("c")
    assert ask(connection, record(ended, then=Finish("completed", "1")), Recorded).done
    assert not {"locks", "stuck"} & everything(server, base)["run:c"].keys()


@pytest.mark.parametrize("name", ["", '"', "\\", "a:b", ":", "é😀", "\n", "\x00", "%d", "run:1:x", "7"])
def test_any_text_may_be_the_name_of_a_run_and_of_its_lock(connection, drives, name):
    first, second = drives(f"r{name}", f"s{name}")
    wants(connection, first, take(3, name))
    wants(connection, second, take(4, name), then=Park(None))
    assert wants(connection, first, give(3, name), at=1).woken == (f"run:4:s{name}", f"w.run/s{name}")
    (claimed,) = ask(connection, claim(), Claimed).claims
    assert (claimed.run.locks, [event.name for event in claimed.events]) == (((4, name),), ["4"])
    assert wants(connection, claimed.run, take(4, name), seen=1).answers[0].what == "granted"


def test_tokens_of_one_moment_are_distinct_to_the_last_digit(connection, clock, drives):
    clock.now += 123_457
    a, b = drives("a", "b")
    first = wants(connection, a, take()).answers[0].token
    wants(connection, b, take())
    wants(connection, a, give())
    second = wants(connection, b, take(), seen=1, request="again").answers[0]
    assert (first, second.token, second.floor) == (clock.now, clock.now + 1, clock.now + 1)
    assert ask(connection, claim(runs=("b",)), Claimed).claims[0].held == ((1, clock.now + 1),)


def test_numbers_that_are_too_large_or_not_whole_are_refused(server, base, connection, drives):
    (run,) = drives("r")
    before = everything(server, base)
    bad = [
        take(2**53), take(1.5), take(None), take(key=None), take(ttl=2**53), take(ttl=0.5), take(permits=2**53),
        take(weight="1"), take(kind="dance"), LockRequest(number=1, key=7, give=True),
    ]  # fmt: skip
    for one in bad:
        (outcome,) = connection.execute([asking(run, take(7, "good"), one)])
        assert isinstance(outcome, c.Failed), one
    assert everything(server, base) == before


# ---------------------------------------------------------------- hints and events


def test_only_the_worker_of_a_run_is_notified_of_an_offer_to_the_run(opened, url):
    store = opened(url)
    connection, received = store.connect("commands"), {"w": [], "x": [], "run:1:r": []}
    watches = [store.watch(channel, notified.append) for channel, notified in received.items()]
    try:
        eventually(lambda: all(received.values()))  # the subscriptions have begun
        add_worker(connection)
        run = driven(connection)
        held = ask(connection, acquire("k", "y.1"), out.Granted)
        wants(connection, run, take())
        ask(connection, wait("k", "x.1"), out.Queued)
        assert ask(connection, release("k", "y.1", token=held.token), out.Released).woken == ("run:1:r",)
        eventually(lambda: received["w"][1:] == [["w.run/r"]])
        wants(connection, run, take(), seen=1, request="2")
        wants(connection, run, give(), seen=1, request="3")
        eventually(lambda: received["x"][1:] == [["x.1"]])
        assert received["run:1:r"][1:] == []
    finally:
        for watch in watches:
            watch.close()


def test_a_run_that_waits_like_a_client_gets_an_event_too(connection, drives):
    drives("r")
    held = ask(connection, acquire("k"), out.Granted)
    ask(connection, wait("k", "run:3:r"), out.Queued)
    assert ask(connection, release("k", token=held.token), out.Released).woken == ("run:3:r",)
    assert inbox(connection, "r") == [("lock", "3")]


def test_lock_events_of_a_run_are_in_the_order_of_the_batch(server, base, connection, drives):
    (run,) = drives("r")
    held = connection.execute([acquire("newer"), acquire("plain")])
    wants(connection, run, take(1, "newer"), take(2, "plain"))
    make_newer(server, base, "newer")
    freed = [release(key, token=one.token) for key, one in zip(("newer", "plain"), held, strict=True)]
    assert [outcome.woken for outcome in connection.execute(freed)] == [("run:1:r",), ("run:2:r",)]
    assert inbox(connection, "r") == [("lock", "1"), ("lock", "2")]


def test_an_attempt_id_that_only_resembles_that_of_a_run_has_no_effect_on_runs(connection):
    held = ask(connection, acquire("k"), out.Granted)
    for name in ("run:7:nobody", "run:", "run:x:y"):
        ask(connection, wait("k", name), out.Queued)
        assert ask(connection, release("k", token=held.token), out.Released).woken == (name,)
        held = ask(connection, wait("k", name), out.Granted)
        connection.execute([release("k", name, token=held.token)])
        held = ask(connection, acquire("k"), out.Granted)


def test_commands_of_one_batch_see_each_other_in_order(connection, drives):
    (run,) = drives("r")
    held = ask(connection, acquire("k"), out.Granted)
    outcomes = connection.execute(
        [
            asking(run, take()),
            acquire("before"),
            release("k", token=held.token),
            r.ReadRun(run="r", history=True),
            asking(run, take(), seen=1, request="2"),
            c.Inspect(key="k"),
            asking(run, give(), seen=1, request="3"),
            acquire("k", "b.1"),
            c.ListLocks(),
        ]
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Recorded", "Granted", "Released", "RunSeen", "Recorded", "LockSeen", "Recorded", "Granted", "LockPage",
    ]  # fmt: skip
    assert [event.kind for event in outcomes[3].claim.events] == ["lock"]
    assert outcomes[5].record.holders[0].id == "run:1:r"


def test_an_offer_of_a_retried_run_to_itself_is_released(server, base, connection, drives):
    """Of two requests for one lock the first is released first, which offers it to the second."""
    (run,) = drives("r")
    wants(connection, run, take(1), take(2), then=Park(None))
    ask(connection, r.ReviveRun(run="r", fence=run.fence, keep=1, forget=(1,), request="q"), Posted)
    assert inbox(connection, "r") == []
    assert server.lrange(base + "inbox:r", 0, -1) == [""]


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize("bad", ["{", "7", b"\xff", '{"fence":1,"version":1.0}', None])
def test_a_request_for_an_unreadable_lock_changes_nothing(server, base, connection, drives, bad):
    run, other = drives("r", "o")
    wants(connection, run, take(5, "mine"))
    if bad is None:
        server.lpush(base + "lock:bad", "x")
    else:
        server.set(base + "lock:bad", bad)
    before = server.dump(base + "lock:bad"), server.hgetall(base + "run:r"), server.get(base + "lock:mine")
    failed, fine, kept = connection.execute(
        [
            asking(run, give(5, "mine"), take(1, "good"), take(2, "bad"), swap=Swap(SLOT, "", 0, "1")),
            acquire("mine", "b.1", queue=True),
            record(other, "kept"),
        ]
    )
    assert isinstance(failed.error, RecordUnreadable)
    assert "lock 'bad'" in str(failed.error)
    assert isinstance(fine, out.Queued)
    assert kept.done
    after = server.dump(base + "lock:bad"), server.hgetall(base + "run:r"), server.get(base + "lock:mine")
    assert after[:2] == before[:2]
    assert decode("mine", after[2]).holders == decode("mine", before[2]).holders
    assert server.exists(base + "lock:good", base + "slot:global::k") == 0


def test_an_unreadable_run_does_not_prevent_a_release(server, base, connection, drives):
    a, b, d = drives("a", "b", "d")
    wants(connection, a, take(kind="semaphore", permits=2, weight=2))
    wants(connection, b, take(kind="semaphore", permits=2), then=Park(None))
    wants(connection, d, take(kind="semaphore", permits=2), then=Park(None))
    server.hset(base + "run:b", "fence", "many")
    before = everything(server, base)
    assert wants(connection, a, give(), request="2").woken == ("run:1:b", "run:1:d", "w.run/d")
    after = everything(server, base)
    assert changes(before, after) == {"lock:k", "run:a", "run:d", "inbox:d", "runs:due:order"}


def test_an_unreadable_worker_does_not_prevent_an_offer(server, base, connection, drives):
    (run,) = drives("r")
    held = ask(connection, acquire("k"), out.Granted)
    wants(connection, run, take(), then=Park(None))
    server.hset(base + "workers", "v.1", "{")
    assert ask(connection, release("k", token=held.token), out.Released).woken == ("run:1:r",)
    server.hdel(base + "workers", "v.1")
    assert [one.run.id for one in ask(connection, claim(), Claimed).claims] == ["r"]
    assert inbox(connection, "r") == [("lock", "1")]


def test_an_unreadable_lock_is_unchanged_when_its_run_ends(server, base, connection, drives):
    run, parked = drives("r", "p")
    wants(connection, run, take(1, "bad"))
    wants(connection, parked, take(1, "good"), take(2, "bad"), then=Park(0))
    server.set(base + "lock:bad", "{")
    assert ask(connection, record(run, "x", then=Finish("completed", "1")), Recorded).done
    ask(connection, r.FailRun(run="p", fence=parked.fence, reason="{}", request="f"), Posted)
    assert server.hget(base + "run:p", "status") == "failed"
    assert decode("good", server.get(base + "lock:good")).holders == ()
    assert server.get(base + "lock:bad") == "{"


@pytest.mark.parametrize("bad", ["7", "[7]", '[["a","k"]]', '[[1.5,"k"]]', "[[1]]", "{"])
def test_malformed_lock_fields_of_a_run_are_refused(server, base, connection, drives, bad):
    (run,) = drives("r")
    server.hset(base + "run:r", "locks", bad)
    before = everything(server, base)
    for command in (record(run, then=Finish("completed", "1")), asking(run, take()), claim(runs=("r",))):
        (outcome,) = connection.execute([command])
        assert isinstance(outcome.error, RecordUnreadable)
        assert "'r'" in str(outcome.error)
    assert everything(server, base) == before


# ---------------------------------------------------------------- records of a newer version


def make_newer(server, base, *keys):
    for key in keys:
        text = server.get(base + f"lock:{key}")
        server.set(base + f"lock:{key}", text.replace('"fence"', NEWER, 1))


def test_locks_of_a_newer_version_are_acquired_and_released_and_keep_their_fields(server, base, connection, drives):
    a, b = drives("a", "b")
    wants(connection, a, take(1, "j"), take(2, "k"))
    ask(connection, acquire("free"), out.Granted)
    ask(connection, release("free", token=START), out.Released)
    make_newer(server, base, "j", "k", "free")
    outcomes = connection.execute(
        [
            asking(b, take(1, "j"), take(2, "free"), take(3, "plain")),
            asking(b, take(1, "j"), take(2, "free"), take(3, "plain")),
            claim(runs=("b", "a")),
            record(a, "x", then=Finish("completed", "1")),
            asking(b, take(1, "j"), give(2, "free"), seen=1, request="2"),
            record(b, at=1, seen=1, then=Finish("completed", "1"), request="3"),
        ]
    )
    names = [type(outcome).__name__ for outcome in outcomes]
    assert names == ["Recorded", "Recorded", "Claimed", "Recorded", "Recorded", "Recorded"]
    answers = outcomes[0].answers
    assert [one.what for one in answers] == ["queued", "granted", "granted"]
    assert outcomes[1].answers == answers
    held = [one.held for one in outcomes[2].claims]
    assert held == [((2, answers[1].token), (3, answers[2].token)), ((1, START), (2, START))]
    assert outcomes[3].woken == ("run:1:b", "w.run/b")
    assert [one.what for one in outcomes[4].answers] == ["granted", "given"]
    assert outcomes[5].done
    for key in ("j", "k", "free"):
        text = server.get(base + f"lock:{key}")
        assert '"newer":[1]' in text
        assert decode(key, text).holders == ()


def test_a_newer_lock_that_changes_during_a_decision_is_decided_again(server, base, connection, drives, monkeypatch):
    (run,) = drives("r")
    held = ask(connection, acquire("k"), out.Granted)
    make_newer(server, base, "k")
    text, write, asked = server.get(base + "lock:k"), RedisSource.write, []

    def slow(source, *decided):
        asked.append(decided)
        if len(asked) == 1:
            freed = replace(decode("k", text), holders=(), version=9)
            server.set(base + "lock:k", encode(freed))
        return write(source, *decided)

    monkeypatch.setattr(RedisSource, "write", slow)
    (answers,) = wants(connection, run, take()).answers
    assert (answers.what, len(asked)) == ("granted", 2)
    assert answers.token > held.token
    assert [holder.id for holder in decode("k", server.get(base + "lock:k")).holders] == ["run:1:r"]


def test_a_newer_lock_that_changes_all_the_time_is_given_up(server, base, connection, drives, monkeypatch):
    (run,) = drives("r")
    ask(connection, acquire("k"), out.Granted)
    make_newer(server, base, "k")
    before, write = decode("k", server.get(base + "lock:k")), RedisSource.write
    versions = iter(range(10, 1_000))

    def too_slow(source, *decided):
        server.set(base + "lock:k", encode(replace(before, version=next(versions))))
        return write(source, *decided)

    monkeypatch.setattr(RedisSource, "write", too_slow)
    (failed,) = connection.execute([asking(run, take())])
    assert isinstance(failed.error, StoreUnavailable)
    assert "times in a row" in str(failed.error)
    assert "locks" not in server.hgetall(base + "run:r")


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_random_history_with_locks_of_a_newer_version_has_the_outcomes_of_the_rules(kind, tmp_path):
    url, clock, strange = PROVIDERS[kind].url(tmp_path), ManualClock(), 0
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        for seed in range(25):
            clock.now = START
            model, generator, sent, namespace = RunModel(), RunLockHistoryGenerator(seed), 0, f"n{seed}"
            store = open_store(url, namespace=namespace, clock=clock)
            connection, layout = store.connect("commands"), redis_layout(url, namespace)
            while sent < 150:
                clock.pass_by(generator.time_passes())
                commands = generator.batch()
                outcomes, expected = connection.execute(commands), model.execute(commands, clock.now)
                assert list(map(unversioned, outcomes)) == list(map(unversioned, expected)), (
                    f"seed {seed}, after {sent}"
                )
                generator.observe(commands, expected)
                sent += len(commands)
                for key, _, _ in KEYS:
                    if key in model.records and generator.random.random() < 0.5:
                        model.records[key] = made_strange(model.records[key])
                        client.set(layout.lock(key), encode(model.records[key]))
                        strange += 1
            for key, _, _ in KEYS:
                if key in model.records:
                    assert decode(key, client.get(layout.lock(key))) == model.records[key], f"seed {seed}, {key}"
            connection.close()
            store.close()
    assert strange > 500


# ---------------------------------------------------------------- what it costs


def test_entries_of_a_run_that_holds_a_lock_use_the_fast_path(url, server, opened, clock, monkeypatch):
    connection = opened(url, clock=clock).connect("commands")
    add_worker(connection)
    run = driven(connection)
    wants(connection, run, take())
    with monkeypatch.context() as patch:
        patch.setattr(RedisSource, "read", by_the_rules)
        assert ask(connection, record(run, "x", "", request="q.1"), Recorded).done
    assert wants(connection, run, at=3, stuck=()).done
    assert ask(connection, record(run, "y", at=3, request="q.2"), Recorded).done
    seen = ask(connection, r.ReadRun(run="r"), RunSeen).claim.run
    assert (seen.stuck, seen.locks) == (None, ((1, "k"),))


def test_lock_requests_of_a_refused_driver_are_not_executed(server, base, connection, drives):
    (run,) = drives("r")
    before = everything(server, base)
    stale = replace(run, fence=run.fence - 1)
    commands = [
        asking(stale, take()),
        asking(run, take(), at=7),
        asking(run, take(), swap=Swap(SLOT, "other", 7, "1")),
    ]
    names = [type(outcome).__name__ for outcome in connection.execute(commands)]
    assert names == ["RunRefused", "RunRefused", "Conflict"]
    assert everything(server, base) == before


def test_a_repeated_lock_request_returns_the_same_outcome(connection, clock, drives):
    (run,) = drives("r")
    ask(connection, acquire("held"), out.Granted)
    lock_requests = take(1, "a", ttl=SECOND), take(2, "held"), give(3, "c"), take(4, "d")
    first = wants(connection, run, *lock_requests, request="q")
    ask(connection, c.ForceRelease(key="d", by="me", reason="why"), out.ForceReleased)
    again = wants(connection, run, *lock_requests, request="q")
    assert again.answers == (*first.answers[:3], LockAnswer(number=4, what="unknown"))
    ask(connection, release("held", token=START), out.Released)
    clock.pass_by(2)
    again = wants(connection, run, *lock_requests, request="q")
    assert [answers.what for answers in again.answers] == ["unknown", "queued", "given", "unknown"]


def test_a_run_that_has_ended_gets_no_lock_event(connection, drives):
    (run,) = drives("r")
    held = ask(connection, acquire("k"), out.Granted)
    wants(connection, run, take())
    ask(connection, signal(), Posted)
    assert ask(connection, record(run, seen=1, then=Finish("failed", "1")), Recorded).done
    assert ask(connection, release("k", token=held.token), out.Released).woken == ()
    assert inbox(connection, "r") == [("signal", "paid")]
