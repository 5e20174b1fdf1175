"""Lists of runs and polls of workers on PostgreSQL: their cost does not grow with runs that they do not concern.

Rows are counted, not seconds: the server tells how many it has visited in each table and index.
"""

from __future__ import annotations

import os
from itertools import count

import psycopg
import pytest
import real_servers

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import RunPage
from holdfast.rules.runs.record import Finish, NewRun
from holdfast.rules.runs.repository import RunFilter
from holdfast.stores import open_store
from holdfast.testing.builders import ME
from holdfast.testing.suite.runs import record
from stores.runs_asking import add_worker, driven

_names = count(1)
FULL = os.environ.get("HOLDFAST_GROWTH") == "full"
FEW, MANY = 1_000, 1_000_000 if FULL else 20_000
MOST = 1_100
"""Rows and entries of indexes that one page may cost."""
START = 1_700_000_000_000_000

OTHERS = {
    "columns": "worker, fence, length, posted, claims, crashes, last, key, parent, watchers, plain, rest",
    "values": """'', 0, 1, 0, 0, 0, '', '', '', '{}', true, '{"request":"q","root":"x"}'""",
}
ENDED = """
INSERT INTO {schema}.runs (namespace, id, type, workflow, status, created_at, {columns}, attributes)
SELECT 'default', 'order-' || lpad(n::text, 8, '0'), 'order', 'order', 'completed', {start} + n * 1000, {values},
       format('{{"customer":"c%s","region":"eu"}}', n % 100)::json
  FROM generate_series({first}, {last}) AS n
"""
PARKED = """
INSERT INTO {schema}.runs (namespace, id, type, workflow, status, created_at, due_at, {columns}, attributes)
SELECT 'default', 'parked-' || n, 'order', 'order', 'suspended', {start} + n,
       CASE WHEN n % 2 = 0 THEN 4000000000000000 + n END, {values}, '{{}}'
  FROM generate_series({first}, {last}) AS n
"""


class Filled:
    """A store in its own schema, whose table of runs is not analysed automatically."""

    def __init__(self, store, admin, schema):
        self.store, self.admin, self.schema = store, admin, schema
        self.connection = store.connect()
        self._there = {ENDED: 0, PARKED: 0}
        admin.execute(f"ALTER TABLE {schema}.runs SET (autovacuum_enabled = off)")

    def fill(self, what, many):
        """Let there be so many such runs."""
        fresh = {"first": self._there[what] + 1, "last": many}
        self.admin.execute(what.format(schema=self.schema, start=START, **OTHERS, **fresh))
        self._there[what] = many

    def visited(self, *commands, table="runs"):
        """How many rows and entries of indexes the commands visit."""
        with self.store.transaction() as mine:
            before = self._count(mine, table)
            outcomes = self.store.join(mine).execute(commands)
            assert not any(isinstance(outcome, c.Failed) for outcome in outcomes)
            return self._count(mine, table) - before

    def _count(self, mine, table):
        """What the transaction has visited so far, with earlier counts of its session that are not reported yet."""
        query = (
            "SELECT sum(pg_stat_get_xact_tuples_returned(x.oid) + pg_stat_get_xact_tuples_fetched(x.oid))::integer "
            "FROM pg_class AS x WHERE x.oid = %(table)s::regclass "
            "OR x.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %(table)s::regclass)"
        )
        return mine.execute(query, {"table": f"{self.schema}.{table}"}).fetchone()[0]


@pytest.fixture
def filled(opened):
    server, schema = real_servers.shared("postgres"), f"lists_{next(_names)}"
    with psycopg.connect(server.url, autocommit=True) as admin:
        yield Filled(opened(f"{server.url}?schema={schema}&timeout=60"), admin, schema)
        admin.execute(f"DROP SCHEMA {schema} CASCADE")


LISTS = {
    "all": RunFilter(),
    "a status that all have": RunFilter(statuses=("completed",)),
    "a workflow that all have": RunFilter(workflow="order"),
    "an attribute that all have": RunFilter(attributes={"region": "eu"}),
    "a prefix that all have": RunFilter(prefix="order-"),
    "a status that none has": RunFilter(statuses=("failed", "timed_out")),
    "a workflow that none has": RunFilter(workflow="mail"),
    "a prefix that none has": RunFilter(prefix="zebra"),
    "an attribute that none has": RunFilter(attributes={"customer": "nobody"}),
    "a workflow and no status": RunFilter(workflow="order", statuses=("failed",)),
    "a status and no workflow": RunFilter(workflow="mail", statuses=("completed",)),
    "a status and no prefix": RunFilter(statuses=("completed",), prefix="zebra"),
    "a status and no attribute": RunFilter(statuses=("completed",), attributes={"customer": "nobody"}),
    "an attribute and no status": RunFilter(statuses=("failed",), attributes={"region": "eu"}),
    "an attribute and no prefix": RunFilter(prefix="zebra", attributes={"region": "eu"}),
    "an attribute and no other one": RunFilter(attributes={"region": "eu", "customer": "nobody"}),
    "a prefix and no attribute": RunFilter(prefix="order-", attributes={"customer": "nobody"}),
    "the oldest by their prefix": RunFilter(prefix="order-000000"),
}


def test_a_list_costs_the_same_however_many_runs_have_ended(filled):
    """Also for a table without statistics, and also after ANALYZE."""

    def costs():
        return {name: filled.visited(r.ListRuns(wanted=wanted, limit=50)) for name, wanted in LISTS.items()}

    filled.fill(ENDED, FEW)
    few = costs()
    filled.fill(ENDED, MANY)
    many = costs()
    filled.admin.execute(f"ANALYZE {filled.schema}.runs")
    known = costs()
    assert few == many
    assert few == known
    assert max(few.values()) < MOST, few


def model(filled):
    (page,) = filled.connection.execute([r.ListRuns(limit=10_000)])
    assert isinstance(page, RunPage), page
    assert page.next is None
    return page.runs


def pages(filled, wanted, limit):
    """Everything that a list has, page by page."""
    found, after = [], None
    while True:
        (page,) = filled.connection.execute([r.ListRuns(wanted=wanted, after=after, limit=limit)])
        assert isinstance(page, RunPage)
        assert len(page.runs) <= limit
        found += [run.id for run in page.runs]
        if page.next is None:
            return found
        after = page.next


VARIED = """
INSERT INTO {schema}.runs (namespace, id, type, workflow, status, created_at, {columns}, attributes)
SELECT CASE WHEN n % 11 = 0 THEN 'other' ELSE 'default' END, 'run-' || n % 10 || '/' || n, 'w' || n % 3, 'w' || n % 3,
       (ARRAY['completed', 'failed', 'suspended', 'cancelled'])[1 + n % 4], {start} + n / 5, {values},
       (ARRAY['{{}}', '{{"a":1}}', '{{"a":"1","b":true}}', '{{"a":"x\\"y:z,\\\\","b":-15}}',
              '{{"é":"\\u0000"}}'])[1 + n % 5]::json
  FROM generate_series(1, 3000) AS n
"""


@pytest.mark.parametrize(
    "wanted",
    [
        RunFilter(),
        RunFilter(statuses=("failed", "failed", "completed")),
        RunFilter(statuses=("queued",)),
        RunFilter(workflow="w1"),
        RunFilter(workflow="w1", statuses=("suspended",)),
        RunFilter(prefix="run-7/"),
        RunFilter(prefix="run-7/1", workflow="w2"),
        RunFilter(prefix="run-\U0010ffff"),
        RunFilter(attributes={"a": 1}),
        RunFilter(attributes={"a": "1"}),
        RunFilter(attributes={"a": "1", "b": True}, statuses=("failed", "cancelled")),
        RunFilter(attributes={"a": 'x"y:z,\\'}),
        RunFilter(attributes={"é": "\0"}),
        RunFilter(attributes={"b": -15}, prefix="run-8", since=START + 100, until=START + 400),
        RunFilter(since=START + 7, until=START + 8),
        RunFilter(attributes={"a": 1}, prefix="run-8"),
    ],
    ids=(f"filter{n}" for n in count(1)),
)
def test_a_list_contains_exactly_the_filtered_runs_in_pages_of_any_size(varied, wanted):
    everything, filled = varied
    for limit in (40, 700):
        assert pages(filled, wanted, limit) == [run.id for run in everything if wanted.fits(run)]


@pytest.fixture(scope="module")
def varied():
    """3,000 runs of all kinds, of two namespaces, several at the same moment; and what they are."""
    server, schema = real_servers.shared("postgres"), f"lists_{next(_names)}"
    with psycopg.connect(server.url, autocommit=True) as admin:
        store = open_store(f"{server.url}?schema={schema}", namespace="default")
        connection = store.connect("commands")
        filled = Filled.__new__(Filled)
        filled.connection = connection
        admin.execute(VARIED.format(schema=schema, start=START, **OTHERS))
        everything = model(filled)
        assert len(everything) == 3_000 - 3_000 // 11
        assert [(run.created_at, run.id) for run in everything] == sorted(
            ((run.created_at, run.id) for run in everything), reverse=True
        )
        yield everything, filled
        connection.close()
        store.close()
        admin.execute(f"DROP SCHEMA {schema} CASCADE")


# -- what workers look at all the time -------------------------------------------------------------------------


def test_polls_of_workers_cost_the_same_however_many_runs_have_ended_or_sleep(filled):
    lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=600_000_000)
    filled.connection.execute([lease, r.RegisterWorker(worker="w.1", name="w", types=("order",))])
    looks = (
        r.ListOwnedRuns(worker="w.1"),
        r.ReadNextDue(types=("order", "mail")),
        r.ClaimRuns(worker="w.1", types=(("order", "order"), ("mail", "mail")), limit=10),
        r.ListWorkers(),
    )

    def costs():
        return {type(look).__name__: filled.visited(look) for look in looks}

    for what in (ENDED, PARKED):
        filled.fill(what, FEW)
    few, run_counts = costs(), filled.visited(r.CountRuns())
    filled.fill(ENDED, MANY)
    assert filled.visited(r.CountRuns()) == run_counts, "it counts those that live"
    filled.fill(PARKED, MANY)
    many = costs()
    filled.admin.execute(f"ANALYZE {filled.schema}.runs")
    assert few == many == costs()
    assert max(few.values()) < 50, few


# -- histories ---------------------------------------------------------------------------------------------------------

LENGTHS = (10_000, 100_000) if FULL else (2_000, 10_000)
VISITED = """
SELECT sum(pg_stat_get_tuples_returned(x.oid) + pg_stat_get_tuples_fetched(x.oid))::bigint
  FROM pg_class AS x JOIN pg_namespace AS n ON n.oid = x.relnamespace WHERE n.nspname = %s AND x.relkind IN ('r', 'i')
"""


def test_appending_an_entry_costs_the_same_rows_for_every_length_of_history(filled):
    """By the native form of a record; counted in all tables of the schema."""
    session, schema = filled.connection._session, filled.schema

    def visited(command):
        counts = []
        for commands in ([], [command]):
            outcomes = filled.connection.execute(commands) if commands else []
            session.ask(b"SELECT pg_stat_force_next_flush()")
            session.ask(b"SELECT 1")  # earlier counts are reported with the end of this one
            counts.append(filled.admin.execute(VISITED, [schema]).fetchone()[0])
        assert not any(isinstance(outcome, c.Failed) for outcome in outcomes)
        return counts[1] - counts[0]

    add_worker(filled.connection, seconds=600)
    run, length, costs = driven(filled.connection), 1, {}
    for most in (100, *LENGTHS):
        while length < most:
            count = min(1_000, most - length)
            filled.connection.execute([record(run, *["{}"] * count, at=length, request=f"q{length}")])
            length += count
        costs[most] = {
            "an entry": visited(record(run, "{}", at=length, request="one more")),
            "a look": visited(r.ReadRun(run="r")),
        }
        history = visited(r.ReadRun(run="r", history=True))
        length += 1
        assert length <= history <= 3 * length, "each entry once: in the table and in its index"
    assert costs[LENGTHS[0]] == costs[LENGTHS[1]]
    assert max(costs[LENGTHS[1]].values()) < 30


def test_a_list_of_locks_reads_no_key_beyond_its_prefix(filled):
    filled.admin.execute(
        f"INSERT INTO {filled.schema}.locks SELECT 'default', CASE WHEN n <= 5 THEN 'a:' || n ELSE 'm:' || n END, "
        """'{"fence": 1, "version": 1}', NULL FROM generate_series(1, 5000) AS n"""
    )
    for prefix, after, most in (("a:", "", 30), ("a:", "a:4", 30), ("zz", "", 30), ("", "", 300)):
        assert filled.visited(c.ListLocks(prefix=prefix, after=after, limit=50), table="locks") < most
    (page,) = filled.connection.execute([c.ListLocks(prefix="a:", after="a:2", limit=2)])
    assert ([item.key for item in page.items], page.next) == (["a:3", "a:4"], "a:4")
    (page,) = filled.connection.execute([c.ListLocks(limit=6)])
    assert [item.key for item in page.items] == [f"a:{n}" for n in range(1, 6)] + ["m:10"]


ONE_OF_EACH = WorkflowLimits(
    limits=(Limit(name="all", max=3, on_excess="queue"), Limit(name="tenant", max=1, path="t", on_excess="queue")),
    version=1,
)


def start_of(run, tenant, terms, worker=""):
    places = tuple(LimitKey(limit.name, tenant if limit.path else "") for limit in terms.limits)
    new = NewRun(id=run, type="order", input="1", request=run, places=places, terms=terms.digest)
    return r.StartRun(new=new, worker=worker)


def test_a_start_costs_the_same_for_every_length_of_the_queue(filled):
    terms = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"),), version=1)
    filled.connection.execute([r.PublishLimits(workflow="order", terms=terms)])
    costs = []
    for many in (50, 500):
        filled.connection.execute([start_of(f"{many} {n}", "", terms) for n in range(many)])
        costs.append(filled.visited(start_of(f"last of {many}", "", terms), table="places"))
    assert costs[1] <= costs[0] + 10


def test_the_end_of_a_run_reads_no_more_of_a_queue_than_necessary(filled):
    """Many runs of one tenant wait for their own limit; behind the first of them is a run that can be admitted."""
    connection = filled.connection
    add_worker(connection)
    connection.execute([r.PublishLimits(workflow="order", terms=ONE_OF_EACH)])
    starts = [start_of(name, name, ONE_OF_EACH, "w.1") for name in ("a", "b", "c")]
    first = connection.execute(starts)[1].run
    connection.execute([start_of(f"a{n}", "a", ONE_OF_EACH) for n in range(20)])
    connection.execute([start_of("y", "y", ONE_OF_EACH)])
    connection.execute([start_of(f"a{n}", "a", ONE_OF_EACH) for n in range(20, 1_000)])
    assert filled.visited(record(first, then=Finish("completed", "1"))) < 1_000
    (seen,) = connection.execute([r.ReadRun(run="y", history=False)])
    assert seen.claim.run.status == "pending"
