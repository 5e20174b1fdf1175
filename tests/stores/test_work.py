"""A batch is split by its work: no script and no transaction is long, whatever a batch contains. The work is
counted."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from providers import PROVIDERS, REDISES
from questioned import MemorySource

from holdfast.commands import runs as r
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import Posted, Started
from holdfast.rules.runs.record import Finish, NewRun, worker_key
from holdfast.stores.batch_cost import AT_ONCE, BYTES, OF_A_RUN, parts_of, work_of
from holdfast.stores.executor import execute
from holdfast.stores.memory.store import _Space
from holdfast.stores.postgresql.session import Session
from holdfast.stores.questions import Range
from holdfast.stores.redis.connection import RedisLink
from holdfast.stores.redis.scripts import FAST, READ, WRITE
from holdfast.testing.builders import acquire
from holdfast.testing.suite.runs import signal, start
from stores.runs_asking import add_worker

AT_MOST = AT_ONCE // OF_A_RUN
"""So many starts are one step."""
ONE = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"),))
EACH = WorkflowLimits(limits=(Limit(name="each", path="x", max=1, on_excess="queue"),))


def sizes(commands):
    return [len(part) for part in parts_of(commands)]


# -- estimates ---------------------------------------------------------------------------------------------------


def test_many_small_commands_are_one_part_and_few_large_ones_are_several():
    assert sizes([acquire(f"k{n}") for n in range(AT_ONCE)]) == [AT_ONCE]
    assert sizes([start(f"r{n}") for n in range(2 * AT_MOST + 1)]) == [AT_MOST, AT_MOST, 1]
    large = NewRun(id="r", type="order", input="x" * (BYTES * AT_ONCE // 2), request="q")
    assert sizes([r.StartRun(new=large)] * 3) == [1, 1, 1]
    assert sizes([r.ClaimRuns(worker="w.1", types=(), limit=100)] * 5) == [2, 2, 1]
    assert sizes([]) == []


def test_a_command_about_any_number_of_runs_is_a_part_of_its_own():
    batch = [start("a"), start("b"), r.UnregisterWorker(worker="w.1"), start("c")]
    assert sizes(batch) == [2, 1, 1]


@pytest.mark.parametrize(
    "command",
    [
        start(None),
        r.StartRun(new=NewRun(id="r", type="order", input=7, request="q")),
        r.StartRun(new=None),
        r.RecordRun(run="r", fence=1, at=1, request="q", entries=(7,), children=(None,)),
        r.RecordRun(run="r", fence=1, at=1, request="q", entries=None),
        r.ClaimRuns(worker="w.1", types=(), limit="many"),
        r.PostEvent(run="r", event=None),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_with_values_of_wrong_types_has_an_estimate_too(command):
    assert work_of(command) == OF_A_RUN


# -- decisions ---------------------------------------------------------------------------------------------------


def test_a_batch_is_split_by_its_estimated_work():
    source = MemorySource(_Space(), 1)
    outcomes = execute(source, [start(f"r{n}") for n in range(3 * AT_MOST)]).outcomes
    assert [type(outcome) for outcome in outcomes] == [Started] * 3 * AT_MOST
    assert (source.reads, source.writes) == (3, 3)
    assert max(map(len, source.asked)) < 2 * AT_MOST


# -- Redis -------------------------------------------------------------------------------------------------------


@pytest.fixture
def scripts(monkeypatch):
    """The scripts that were called, each with its arguments."""
    call, seen = RedisLink.call, []

    def counted(link, script, *arguments):
        seen.append((script, msgspec.msgpack.decode(arguments[0])))
        return call(link, script, *arguments)

    monkeypatch.setattr(RedisLink, "call", counted)
    return seen


@pytest.mark.parametrize("kind", REDISES, ids=lambda provider: provider.name)
class TestRedis:
    @pytest.fixture
    def connection(self, kind, tmp_path, opened):
        connection = opened(kind.url(tmp_path)).connect()
        add_worker(connection)
        connection.execute([start("first")])  # from then on it knows whose leases are read
        return connection

    def test_no_script_gets_more_locks_than_the_limit(self, connection, scripts):
        connection.execute([acquire(f"k{n}") for n in range(2 * AT_ONCE)])
        assert [(script, len(rows)) for script, rows in scripts] == [(FAST, AT_ONCE), (FAST, AT_ONCE)]

    def test_no_script_gets_more_runs_than_the_limit(self, connection, scripts):
        outcomes = connection.execute([start(f"r{n}") for n in range(3 * AT_MOST)])
        assert {type(outcome) for outcome in outcomes} == {Started}
        assert [script for script, _ in scripts] == [READ, WRITE] * 3
        for _, (_, _, writes, _) in scripts[1::2]:
            assert sum(command[0] == "RPUSH" for command in writes) == AT_MOST

    def test_commands_keep_their_order_when_a_batch_is_split(self, connection):
        batch = [start(f"r{n}") for n in range(AT_MOST)]
        outcomes = connection.execute([*batch, signal("r0"), start("s"), signal("r0")])
        assert [outcome.number for outcome in outcomes if isinstance(outcome, Posted)] == [1, 2]
        assert len(connection.moments) == len(outcomes)
        assert connection.moments == sorted(connection.moments)

    def test_ends_of_runs_with_a_queue_are_two_round_trips(self, connection, scripts):
        """What the connection has cached of the runs and of the queue determines what to read."""
        connection.execute([r.PublishLimits(workflow="order", terms=ONE)])
        limited = [start(f"r{n}", worker="w.1", places=(LimitKey("all"),), terms=ONE.digest) for n in range(6)]
        outcomes = connection.execute(limited)
        assert [outcome.run.status for outcome in outcomes] == ["running"] + ["queued"] * 5
        run = outcomes[0].run
        for n in range(4):
            scripts.clear()
            end = r.RecordRun(run=run.id, fence=run.fence, at=1, request=f"q.{n}", then=Finish("completed", "1"))
            assert connection.execute([end])[0].done
            assert [script for script, _ in scripts if n] in ([], [READ, WRITE])
            (claimed,) = connection.execute(
                [r.ClaimRuns(worker="w.1", types=(("order", "order"),), runs=(f"r{n + 1}",))]
            )
            (run,) = (claim.run for claim in claimed.claims)
            assert run.id == f"r{n + 1}"

    def test_what_is_compared_grows_with_a_batch_and_not_with_its_square(self, connection, monkeypatch):
        """Each start has its own limit key, so each reads other lists than the others."""
        connection.execute([r.PublishLimits(workflow="order", terms=EACH)])
        count, stem = Counter(), Range.stem
        monkeypatch.setattr(Range, "stem", property(lambda one: count.update([size]) or stem.fget(one)))
        for size in (60, 120):
            batch = [
                start(f"{size} {n}", places=(LimitKey("each", f"{size} {n}"),), terms=EACH.digest) for n in range(size)
            ]
            assert {type(outcome) for outcome in connection.execute(batch)} == {Started}
        assert 0 < count[120] <= 2 * count[60]


# -- PostgreSQL --------------------------------------------------------------------------------------------------


class TestPostgres:
    @pytest.fixture
    def connection(self, tmp_path, opened):
        connection = opened(PROVIDERS["postgres"].url(tmp_path)).connect()
        connection.execute([acquire(worker_key("w.1"), "w.1", kind="worker")])
        connection.execute([r.RegisterWorker(worker="w.1", name="worker", types=("order",))])
        return connection

    def test_no_transaction_gets_more_runs_than_the_limit(self, connection, monkeypatch):
        trip, runs, commits = Session.trip, [], []

        def counted(session, statements):
            for text, values in statements:
                if text.lstrip().startswith(b"INSERT INTO") and b".runs (" in text:
                    runs.append(len(msgspec.json.decode(values[1])))
                commits.extend([text] if text == b"COMMIT" else [])
            return trip(session, statements)

        monkeypatch.setattr(Session, "trip", counted)
        outcomes = connection.execute([start(f"r{n}") for n in range(3 * AT_MOST)])
        assert {type(outcome) for outcome in outcomes} == {Started}
        assert runs == [AT_MOST] * 3
        assert len(commits) == 3

    def test_no_statement_of_a_native_form_gets_more_runs_than_the_limit(self, connection, monkeypatch):
        ask, sent = Session.ask_rows, []

        def counted(session, statement):
            sent.append(len(msgspec.json.decode(statement.values[1])))
            return ask(session, statement)

        monkeypatch.setattr(Session, "ask_rows", counted)
        outcomes = connection.execute([start(f"r{n}", worker="w.1") for n in range(2 * AT_MOST + 1)])
        assert {type(outcome) for outcome in outcomes} == {Started}
        assert sent == [AT_MOST, AT_MOST, 1]
