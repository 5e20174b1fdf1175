"""A reply of MariaDB to each kind of write is lost once, and the command is sent again: it has one effect.

In half of the cases another client writes to the same record between the lost reply and the second sending.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import real_servers
from providers import PROVIDERS, sql_session

from holdfast import commands as c
from holdfast.commands import purging as p
from holdfast.commands import runs as r
from holdfast.errors import StoreUnavailable
from holdfast.rules.runs.record import Finish
from holdfast.stores import open_store
from holdfast.testing.builders import START, ManualClock, abandon, acquire, release, renew, swap, transfer, wait
from holdfast.testing.proxy import Proxy
from holdfast.testing.suite.runs import signal, start
from holdfast.testing.tally import SeeTally, add
from stores.runs_asking import add_worker, claim
from stores.swap_cases import LATER, ONE, TEN, ended, limited, publish


class LostReply(NamedTuple):
    """What is stored, the command whose reply is lost, a write of another client, and what must be true afterwards."""

    before: list[c.Command]
    sent: c.Command
    between: list[c.Command]
    right: Callable[[Callable[[c.Command], Any]], bool]
    after: float = 0
    """Seconds that pass before the command is sent."""


def holders(ask, key="k"):
    record = ask(c.Inspect(key=key)).record
    return [] if record is None else [holder.id for holder in record.holders]


def waiters(ask):
    return [waiter.id for waiter in ask(c.Inspect(key="k")).record.waiters]


def run_of(ask, run="r"):
    return ask(r.ReadRun(run=run, history=True)).claim


def version(ask):
    return ask(c.ReadSlot(address=swap("a.1").address)).version


def total(ask):
    return ask(SeeTally(key="k")).tally.total


def names(ask):
    return [worker.name for worker in ask(r.ListWorkers()).workers]


def keys(ask):
    return [event.key for event in run_of(ask).events]


def record(request, **more):
    return r.RecordRun(run="r", fence=START, at=1, request=request, **more)


CASES = {
    "acquire": LostReply([], acquire(), [wait()], lambda ask: holders(ask) == ["a.1"]),
    "queue": LostReply([acquire()], wait(), [wait(id="b.2")], lambda ask: waiters(ask)[0] == "b.1"),
    "renew": LostReply([acquire()], renew(token=START, ttl=60), [wait()], lambda ask: holders(ask) == ["a.1"]),
    "release": LostReply([acquire()], release(token=START), [acquire(id="b.2")], lambda ask: "a.1" not in holders(ask)),
    "abandon": LostReply([acquire()], abandon(), [acquire(id="b.2")], lambda ask: "a.1" not in holders(ask)),
    "transfer": LostReply([acquire()], transfer(token=START), [wait(id="b.2")], lambda ask: len(holders(ask)) == 1),
    "swap": LostReply(
        [], swap("a.1"), [swap("b.1", "a.1", 1, "2")], lambda ask: version(ask) < 3
    ),
    "record of a type": LostReply([], add(), [add("b.1", by=5)], lambda ask: total(ask) in (1, 6)),
    "start": LostReply([], start("r"), [signal("r")], lambda ask: run_of(ask).run.claims == 0),
    "signal": LostReply(
        [start("r")], signal("r", key="s"), [signal("r")], lambda ask: keys(ask).count("s") == 1
    ),
    "entries": LostReply(
        [start("r", worker="w.1")],
        record("q.1", entries=("x",)),
        [signal("r")],
        lambda ask: len(run_of(ask).entries) == 2,
    ),
    "end": LostReply(
        [start("r", worker="w.1")],
        record("q.1", then=Finish("completed", "1")),
        [],
        lambda ask: run_of(ask).run.status == "completed",
    ),
    "force release": LostReply(
        [acquire()],
        c.ForceRelease(key="k", by="me", reason="test"),
        [acquire(id="b.2")],
        lambda ask: "a.1" not in holders(ask),
    ),
    "pass over": LostReply(
        [acquire(), wait(), release(token=START)],
        c.PassOver(key="k", id="b.1", token=START + 1),
        [abandon("k", "x.1")],
        lambda ask: holders(ask) == [] and waiters(ask) == ["b.1"],
    ),
    "settle": LostReply(
        [acquire(ttl=5), wait()], c.Settle(key="k"), [wait(id="b.2")], lambda ask: holders(ask) == ["b.1"], after=6
    ),
    "settle due": LostReply(
        [acquire(ttl=5), wait()], c.SettleDue(), [wait(id="b.2")], lambda ask: holders(ask) == ["b.1"], after=6
    ),
    "claim": LostReply(
        [start("r")], claim(), [signal("r")], lambda ask: (run_of(ask).run.claims, run_of(ask).run.worker) == (1, "w.1")
    ),
    "register": LostReply(
        [],
        r.RegisterWorker(worker="w.1", name="new", types=("order",)),
        [start("r")],
        lambda ask: names(ask) == ["new"],
    ),
    "unregister": LostReply(
        [start("r", worker="w.1")],
        r.UnregisterWorker(worker="w.1"),
        [signal("r")],
        lambda ask: names(ask) == [] and run_of(ask).run.worker == "",
    ),
    "publish limits": LostReply(
        [publish(ONE), limited("a", ONE, worker="w.1"), limited("r", ONE)],
        publish(TEN),
        [signal("r")],
        lambda ask: run_of(ask).run.status == "pending",
    ),
    "purge": LostReply(
        ended("r"),
        p.PurgeRuns(roots=("r",), before=LATER),
        [start("other")],
        lambda ask: run_of(ask) is None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("between", [False, True], ids=["alone", "another-writer"])
@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_a_command_that_is_sent_again_after_a_lost_reply_has_one_effect(case, between, tmp_path):
    url, clock, server = PROVIDERS["mariadb"].url(tmp_path), ManualClock(), real_servers.shared("mariadb")
    direct = open_store(url, namespace="default", clock=clock)
    connection = direct.connect("commands")
    add_worker(connection, seconds=3600)
    for command in case.before:
        (outcome,) = connection.execute([command])
        assert not isinstance(outcome, c.Failed), outcome
    clock.pass_by(case.after)
    with Proxy(server.host, server.port) as proxy:
        remote = open_store(proxy.url_for(url), namespace="default", clock=clock)
        through = remote.connect("commands")
        through.execute([c.Inspect(key="other")])
        proxy.drop_next_reply(containing=b"START TRANSACTION READ WRITE")
        with pytest.raises(StoreUnavailable) as lost:
            through.execute([case.sent])
        assert lost.value.ambiguous
        through.close()
        remote.close()
    for command in case.between if between else ():
        (outcome,) = connection.execute([command])
        assert not isinstance(outcome, c.Failed), outcome
    (again,) = connection.execute([case.sent])
    assert not isinstance(again, c.Failed), again
    assert case.right(lambda look: connection.execute([look])[0]), again
    connection.close()
    direct.close()


@pytest.mark.parametrize("sent", [acquire(), start("r"), add()], ids=["acquire", "start", "record of a type"])
def test_a_lost_reply_to_the_round_trip_that_reads_is_not_ambiguous_and_nothing_was_done(sent, tmp_path):
    url, server = PROVIDERS["mariadb"].url(tmp_path), real_servers.shared("mariadb")
    with Proxy(server.host, server.port) as proxy:
        store = open_store(proxy.url_for(url), namespace="default")
        connection = store.connect("commands")
        proxy.drop_next_reply(containing=b"CONSISTENT SNAPSHOT")
        with pytest.raises(StoreUnavailable) as lost:
            connection.execute([sent])
        assert not lost.value.ambiguous
        assert proxy.replies_dropped == 1
        connection.close()
        store.close()
    with sql_session(url) as (session, tables):
        for table in (tables.locks, tables.runs, tables.records):
            assert session.read([f"SELECT COUNT(*) FROM {table}"]) == [((0,),)]
