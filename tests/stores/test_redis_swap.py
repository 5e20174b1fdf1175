"""A decision is written to a Redis only if everything that it depends on is unchanged since it was read. In each case
another client changes one thing between the read and the write. Then the decision is repeated: the outcome is the one
of the rules with the other change first.
"""

from __future__ import annotations

import pytest
from providers import REDISES

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs.outcomes import (
    Posted,
    Recorded,
    RunSeen,
    Started,
)
from holdfast.stores.redis.record_source import RedisSource
from holdfast.testing.builders import SECOND, START, acquire, release, renew, transfer
from holdfast.testing.suite.run_locks import take
from holdfast.testing.suite.runs import record, signal, start
from stores.runs_asking import add_worker, ask
from stores.swap_cases import CASES


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_a_decision_is_repeated_when_another_client_changed_its_data(opened, url, clock, monkeypatch, case):
    store = opened(url, clock=clock)
    connection, other = store.connect("commands"), store.connect("commands")
    add_worker(connection, seconds=3600)
    for command in case.before:
        (outcome,) = connection.execute([command])
        assert not isinstance(outcome, c.Failed), outcome
    write, tries = RedisSource.write, []

    def interrupted(source, *decided):
        tries.append(source)
        if len(tries) == 1:
            for command in case.meanwhile:
                (outcome,) = other.execute([command])
                assert not isinstance(outcome, c.Failed), outcome
        return write(source, *decided)

    monkeypatch.setattr(RedisSource, "write", interrupted)
    (answer,) = connection.execute([case.asked])
    assert case.right(answer, lambda look: other.execute([look])[0]), answer


def test_a_decision_that_is_half_a_minute_old_is_repeated(opened, url, monkeypatch):
    """It is outdated: leases may have expired, and other records may be due."""
    connection = opened(url).connect("commands")
    write, moments = RedisSource.write, []

    def late(source, repository, *rest):
        if not moments:
            repository.now -= 31 * SECOND
        moments.append(repository.now)
        return write(source, repository, *rest)

    monkeypatch.setattr(RedisSource, "write", late)
    ask(connection, start("r"), Started)
    assert len(moments) == 2
    assert ask(connection, r.ReadRun(run="r"), RunSeen).claim.run.created_at == moments[1]


def test_the_order_of_a_runs_fields_does_not_matter(opened, url, server, base, monkeypatch):
    """A server may return the fields of a hash in any order."""
    connection = opened(url).connect("commands")
    add_worker(connection)
    ask(connection, start("r", worker="w.1"), Started)
    write, tries = RedisSource.write, []

    def turned_round(source, *decided):
        tries.append(list(server.hgetall(base + "run:r")))
        name, value = "type", server.hget(base + "run:r", "type")
        server.hdel(base + "run:r", name)
        server.hset(base + "run:r", name, value if len(tries) < 3 else "other")
        return write(source, *decided)

    monkeypatch.setattr(RedisSource, "write", turned_round)
    for n in range(2):
        ask(connection, signal("r"), Posted)
        assert len(tries) == n + 1
    ask(connection, signal("r"), Posted)
    assert len(tries) == 4, "another value is another run"
    assert tries[0] != tries[1]


def test_data_that_is_read_for_hints_only_may_change_meanwhile(opened, url, clock, monkeypatch):
    """A worker that registers while an event is posted causes no second decision."""
    store = opened(url, clock=clock)
    connection, other = store.connect("commands"), store.connect("commands")
    ask(connection, start("r"), Started)
    write, tries = RedisSource.write, []

    def interrupted(source, *decided):
        tries.append(source)
        if len(tries) == 1:
            add_worker(other, "v.1")
        return write(source, *decided)

    monkeypatch.setattr(RedisSource, "write", interrupted)
    connection.execute([signal("r")])
    assert sum(source is connection._source for source in tries) == 1


def test_commands_that_the_fast_path_declines_keep_their_order(connection):
    """After a declined command about a lock, later ones about the same lock wait for it; after one about a run, all
    do."""
    add_worker(connection)
    run = ask(connection, start("r", worker="w.1"), Started).run
    outcomes = connection.execute([acquire(), acquire(id="b.1", queue=True), acquire("j"), release(token=START)])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Granted", "Queued", "Granted", "Released"]
    outcomes = connection.execute([acquire("j", "x.1"), release("j", token=START)])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Busy", "Released"]
    outcomes = connection.execute(
        [record(run, "x"), signal("r"), record(run, "y", at=2, request="q.2"), acquire("j", "x.2")]
    )
    assert [type(outcome).__name__ for outcome in outcomes] == ["Recorded", "Posted", "Recorded", "Granted"]
    assert [event.kind for event in outcomes[2].events] == ["signal"]


def test_commands_of_the_fast_path_wait_for_earlier_commands_of_the_rules(connection):
    (held,) = connection.execute([acquire()])
    moved, renewed = connection.execute([transfer(token=held.token), renew(token=held.token)])
    assert (type(moved), type(renewed)) == (out.Transferred, out.NotHolder)


def test_entries_after_an_offer_to_their_run_return_its_event(connection):
    add_worker(connection)
    run = ask(connection, start("r", worker="w.1"), Started).run
    (held,) = connection.execute([acquire()])
    ask(connection, record(run, lock_requests=(take(1),), request="q.1"), Recorded)
    _, recorded = connection.execute([release(token=held.token), record(run, "x", request="q.2")])
    assert [event.kind for event in recorded.events] == ["lock"]
