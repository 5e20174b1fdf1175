"""The statements for SQL Server, which cannot be run here: all of them are compared with files that were reviewed.

Whoever changes a statement reads its T-SQL form in these files, in `tests/stores/sql_server`.
"""

from __future__ import annotations

import pytest

from holdfast import commands as c
from holdfast.commands import purging as p
from holdfast.commands import runs as r
from holdfast.errors import StoreError
from holdfast.rules import lock_record
from holdfast.rules.record_type import StoredRecord
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.record import Run, RunEvent, WorkerRecord
from holdfast.rules.runs.repository import RunFilter
from holdfast.rules.slot import Slot
from holdfast.stores import questions as q
from holdfast.stores.records import Written
from holdfast.stores.repository import BatchRepository
from holdfast.stores.sql.lists import SqlLists
from holdfast.stores.sql.mssql import SqlServerDialect
from holdfast.stores.sql.reading import ALL_WORKERS, Reading
from holdfast.stores.sql.session import SqlSession
from holdfast.stores.sql.store import open_sql
from holdfast.stores.sql.tables import SHAPES, SqlTables
from holdfast.stores.sql.writing import Writing

DIALECT = SqlServerDialect("")
TABLES = SqlTables(DIALECT, "holdfast_")
NOW, OLD = 1_000_000, 7
"""The time of a decision, and the stamp of rows that exist."""
AN_HOUR = Limit(name="pace", max=2, per=3_600_000_000)

QUESTIONS = [
    q.RunById("old"),
    q.RunByKey("order", "key"),
    q.Entries("old", whole=True),
    q.Entries("new", whole=False),
    q.RunEvents("old", 3),
    q.EventByKey("old", "key"),
    q.RegisteredWorkers(),
    q.LockByKey("lamp ä"),
    q.LockByKey("worker/w"),
    q.LimitsOf("order"),
    q.SlotAt(("global", "", "old")),
    q.SlotsOf("old"),
    q.RecordAt("tally", "old"),
    q.GroupSize("group", queued=True),
    q.QueuedLimitKeys("order"),
    q.StartsToCome("group"),
    q.RunsAtOnce(8, "order"),
    q.RunsByTime(8, "order"),
    q.Claimable("order", 8),
    q.RunsOf(None, "w"),
    q.Members(8, "group", queued=True),
    q.LatestArrivals(8, "group", queued=True, rank=-5),
    q.LatestStarts(8, "group"),
    q.DueLocks(8),
    q.LocksAfter(8, "old"),
    q.RecordsAfter(8, "tally", "o", "old"),
    q.DueRecords(8, "tally"),
]
LISTS = [
    c.ListLocks(prefix="a", after="ab", limit=2),
    r.ListRuns(
        wanted=RunFilter(workflow="order", statuses=("failed",), attributes={"a": 1}, prefix="o", since=1, until=9),
        after=(5, "old"),
        limit=2,
    ),
    r.ListRuns(wanted=RunFilter(), limit=2),
    r.CountRuns(),
    p.ListEndedRuns(workflow="order", status="failed", before=9, after=(5, "old"), limit=2),
    p.ListEndedWorkflows(after="a", limit=2),
]


def run_named(name, **more):
    return Run(**{"id": name, "type": "order", "created_at": 1, **more})


def as_pinned(request, name, sections):
    """Compare the sections, a title and statements each, with a file."""
    text = "\n".join(f"-- {title}\n" + "".join(f"{one};\n" for one in statements) for title, statements in sections)
    file = request.path.with_name("sql_server") / name
    assert text == file.read_text(encoding="utf-8"), f"review it, then write it to {file}"


class Session:
    """Notes what is sent, and answers with no rows but the time."""

    def __init__(self):
        self.dialect, self.sent = DIALECT, []

    def read(self, statements):
        self.sent.append(list(statements))
        return [[(NOW,)] if statement == f"SELECT {DIALECT.clock}" else [] for statement in statements]


def test_the_tables_and_transactions_are_those_that_were_reviewed(request):
    sections = [
        ("tables", TABLES.creation()),
        ("the version of the tables", [DIALECT.oldest_client(TABLES.about)]),
        ("a round trip that reads", DIALECT.reading(["SELECT 1"])),
        ("a round trip that writes", DIALECT.writing([DIALECT.insist(f"{DIALECT.clock} - 5 <= 30"), "SELECT 1"])),
        ("after an error", DIALECT.undo),
    ]
    as_pinned(request, "transactions.sql", sections)


def test_the_statements_of_each_question_are_those_that_were_reviewed(request):
    kinds = {type(one) for one in QUESTIONS}
    known = set(q.Question.__subclasses__()) | set(q.Range.__subclasses__())
    assert kinds == known - {q.Range}, "a new type of question needs a statement that was reviewed"
    sections = []
    for one in QUESTIONS:
        reading = Reading([one], dialect=DIALECT, tables=TABLES, namespace="n", at=None, passed_over=("busy",))
        sections.append((repr(one), reading.statements[:-1]))
        end = reading.statements[-1:]
    as_pinned(request, "questions.sql", [*sections, ("the time, after all of them", end)])


def changes_by_name():
    """Changes of each kind, and what is asked for them."""
    limits = WorkflowLimits(limits=(AN_HOUR,))
    place = {"status": "queued", "places": (LimitKey("all"),), "arrival": 4, "priority": 5}
    record = lock_record.LockRecord(kind="mutex", permits=1)
    worker = WorkerRecord(id="w", name="w", types=("order",), since=1)
    tail = [q.AppendEntries(0, ("{}", "'ä'")), q.TruncateJournal(1), q.AppendEntries(1, ("{}",))]
    posts = [q.AddEvent(RunEvent(number=2, kind="signal", key="key"))]
    return {
        "a new run": ({"runs": {"new": run_named("new", key="key", attributes={"a": 1}, **place)}}, []),
        "a changed run": (
            {"runs": {"old": run_named("old", status="failed", due_at=5, worker="w", result="1", ended_at=NOW)}},
            [q.RunById("read"), q.LockByKey("worker/w"), q.GroupSize("group", queued=False)],
        ),
        "a run that leaves a queue": ({"runs": {"waiting": run_named("waiting")}}, []),
        "a removed run": (
            {"cleared": {"old": q.ClearedRun(run_named("old", attributes={"a": 1}), None, ("slot",))}},
            [],
        ),
        "a journal": ({"runs": {"old": run_named("old", length=2)}, "journals": {"old": tail}}, []),
        "an inbox": ({"runs": {"old": run_named("old", posted=2)}, "inboxes": {"old": posts}}, []),
        "events that were read": (
            {"runs": {"old": run_named("old")}, "inboxes": {"old": [q.RemoveEvents(frozenset({1, 2}), ())]}},
            [],
        ),
        "an inbox that is removed": ({"runs": {"old": run_named("old")}, "inboxes": {"old": [q.ClearInbox()]}}, []),
        "locks": ({"locks": {"new": record, "old": record, "old too": None}}, []),
        "states": ({"slots": {("global", "", "new"): Slot(1, "1"), ("global", "", "old"): Slot(2, "2")}}, []),
        "records": (
            {
                "records": {
                    ("tally", "new"): Written(None, StoredRecord("{}", 5)),
                    ("tally", "old"): Written(None, StoredRecord("{}", None)),
                    ("tally", "old too"): Written(None, None),
                }
            },
            [],
        ),
        "limits": ({"terms": {"new": limits, "old": limits}}, [q.LimitsOf("old read"), q.QueuedLimitKeys("old")]),
        "workers": ({"workers": {"new": worker, "old": None}}, [q.RunsOf(None, "old"), q.RegisteredWorkers()]),
        "starts that a limit counts": ({"starts": [q.NotedStart("group", NOW, "new", AN_HOUR, NOW)]}, []),
        "an index entry of a run that cannot be read": (
            {"dangling": {q.DanglingItem(q.RunsAtOnce(None, "order"), (-5, "old")): 9}},
            [],
        ),
    }


def test_the_statements_of_each_change_are_those_that_were_reviewed(request):
    named = changes_by_name()
    kinds = {kind for changes, _ in named.values() for kind in changes}
    assert kinds == vars(q.Changes()).keys() - {"keys"}, "a new kind of change needs statements that were reviewed"
    sections = [(name, written(changes, asked)) for name, (changes, asked) in named.items()]
    as_pinned(request, "changes.sql", sections)


def written(changes, asked):
    """The statements that compare and write; what has "old" in its name exists."""
    snapshot = q.Snapshot(NOW)
    snapshot.put(q.RunById("old"), run_named("old"))
    queued = {"status": "queued", "places": (LimitKey("all"),), "arrival": 4}
    snapshot.put(q.RunById("waiting"), run_named("waiting", **queued))
    snapshot.put(q.RunById("new"), None)
    repository = BatchRepository(snapshot)
    for kind, values in changes.items():
        setattr(repository.changes, kind, values)
    repository.asked.update(asked)
    reading = Reading([], dialect=DIALECT, tables=TABLES, namespace="n", at=None)
    reading.stamps.update({one: OLD for one in asked if isinstance(one, q.RunById | q.LockByKey | q.LimitsOf)})
    reading.counted.update({one: 3 for one in asked if isinstance(one, q.QueuedLimitKeys | q.RunsOf)})
    while True:
        writing = Writing(repository, reading, dialect=DIALECT, tables=TABLES, namespace="n", stamp=8, check_age=True)
        if not writing.missing:
            return writing.statements
        for one in writing.missing:
            if isinstance(one, q.GroupSize):
                reading.guards[one.group] = OLD
            elif isinstance(one, q.RegisteredWorkers):
                reading.guards[ALL_WORKERS] = None
            else:
                reading.stamps[one] = OLD if "old" in repr(one) or "waiting" in repr(one) else None


def test_the_statements_of_each_list_are_those_that_were_reviewed(request):
    sections = []
    for command in LISTS:
        session = Session()
        SqlLists(session, TABLES, "n", None).answer(command)
        sections.append((type(command).__name__, [statement for sent in session.sent for statement in sent]))
    as_pinned(request, "lists.sql", sections)


class Driver:
    """Notes what is sent, and answers with one name."""

    max_bytes = None

    def __init__(self):
        self.sent = []

    def send(self, text):
        self.sent.append(text)
        return [[(b"name",)]]


def test_the_statements_about_locked_rows_and_unused_guards_are_those_that_were_reviewed(request):
    driver = Driver()
    dialect = SqlServerDialect("")
    dialect.connect = lambda timeout: driver
    session = SqlSession(dialect, timeout=5)
    session.lockable(TABLES.runs, "id", "n", ["a", "b"])
    session.remove_guards(TABLES, "n")
    titles = ("rows that nobody has locked", "guards of groups that are empty", "their removal")
    as_pinned(request, "guards.sql", [(title, [text]) for title, text in zip(titles, driver.sent, strict=True)])


def test_the_queries_of_the_documentation_are_those_that_were_reviewed(request):
    page = (request.config.rootpath / "docs/stores/sqlserver.md").read_text(encoding="utf-8")
    queries = [query.strip() for block in page.split("```sql")[1:] for query in block.partition("```")[0].split(";")]
    for query in filter(None, queries):
        (table,) = [name for name in SHAPES if f"FROM holdfast_{name} " in query]
        columns = {column for column, _ in SHAPES[table].columns}
        assert "WHERE ns = CONVERT(VARBINARY(512), 'default')" in query
        named = {word for word in query.replace("(", " ").replace(")", " ").replace(",", " ").split() if word.islower()}
        named = {word for word in named if not word.startswith(("'", "holdfast_"))}
        assert named <= columns | {"lock_key", "held_by", "waiting", "run", "error"}, named - columns
    as_pinned(request, "queries.sql", [("docs/stores/sqlserver.md", list(filter(None, queries)))])


def test_no_representation_and_no_message_contains_the_password(monkeypatch):
    monkeypatch.setattr("holdfast.stores.sql.address.find_spec", lambda name: name)
    monkeypatch.setattr(SqlServerDialect, "connect", refuse)
    store = open_sql("mssql://sa:hunter2@host:1433/db?PWD=hunter2", namespace="default", clock=lambda: NOW)
    with pytest.raises(StoreError) as refused:
        store.connect("commands")
    finding = store.diagnose()[0].detail
    for text in (repr(store), store.url, store.identity, repr(store.address.dialect), str(refused.value), finding):
        assert "hunter2" not in text
    assert "hunter2" in store.address.dialect._connection_string


def refuse(dialect, timeout):
    raise OSError("the network is down")
