"""Every mutant is caught: one test per mutant, and tests of the mutants themselves and of their runner."""

import ast
import functools
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from .blocking import BLOCKING
from .cas import CAS_CORE
from .children import CHILDREN, STARTS
from .clients import ABOVE
from .dynamodb import DYNAMODB
from .executor import EXECUTOR
from .forking import FORKING
from .generations import CONTINUING
from .guards import GUARDS
from .heartbeats import HELD
from .limits import LIMITS
from .local_queue import LOCAL_QUEUE
from .mongodb import MONGODB
from .offers import OF_CLIENTS, OF_SQLITE, OF_THE_RULES
from .postgres import POSTGRES
from .postgres_runs import POSTGRES_RUNS
from .purging import PURGING
from .records import OF_RECORDS, OF_TYPES
from .redis import REDIS
from .replacing import REPLACING, WAITERS_OF_REPLACED
from .requests import REQUESTS
from .run_locks import LOCKS_OF_RUNS, OF_THE_ENGINE
from .run_queues import OF_THE_WORKER, RUN_QUEUES
from .runner import NOT_THE_COPY, PACKAGE, ROOT, Mutant, Useless, caught, copy_package, end_servers, run_tests
from .servers import SERVERS
from .sql import SQL
from .sqlite import SQLITE
from .step_heartbeats import HEARTBEAT_RULES, HEARTBEATS_OF_STEPS
from .streams import STREAM_RULES, STREAMING
from .table import MUTANTS as RULES
from .workflows import WORKFLOWS

CHEAP = [
    *RULES,
    *OF_THE_RULES,
    *LIMITS,
    *LOCKS_OF_RUNS,
    *RUN_QUEUES,
    *REPLACING,
    *OF_TYPES,
    *CAS_CORE,
    *STREAM_RULES,
    *HEARTBEAT_RULES,
]
"""Mutants of the rules and of the compare-and-swap core. The others need a client, an engine or a server, and are run
by `make test-mutants`."""
MUTANTS = [
    *CHEAP,
    *ABOVE,
    *HELD,
    *LOCAL_QUEUE,
    *SQLITE,
    *OF_SQLITE,
    *OF_CLIENTS,
    *WORKFLOWS,
    *BLOCKING,
    *WAITERS_OF_REPLACED,
    *CONTINUING,
    *FORKING,
    *STREAMING,
    *HEARTBEATS_OF_STEPS,
    *REQUESTS,
    *CHILDREN,
    *STARTS,
    *PURGING,
    *OF_THE_ENGINE,
    *OF_THE_WORKER,
    *POSTGRES,
    *POSTGRES_RUNS,
    *REDIS,
    *MONGODB,
    *EXECUTOR,
    *OF_RECORDS,
    *GUARDS,
    *DYNAMODB,
    *SERVERS,
    *SQL,
]
TRIED = MUTANTS if os.environ.get("HOLDFAST_MUTANTS") == "all" else CHEAP

SUITE = PACKAGE / "testing/suite"
SOUND = "tests/rules/test_acquire.py::test_the_first_attempt_to_acquire_a_free_lock_gets_it"


@pytest.fixture(scope="module", autouse=True)
def _end_servers_after_the_module():
    yield
    end_servers()


@pytest.fixture(scope="module")
def tried(request, tmp_path_factory):
    """All selected mutants, several at once: each is tested in its own process."""
    wanted = [item.callspec.params["mutant"] for item in request.session.items if "tried" in item.fixturenames]
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:  # many of them wait for an event that never comes
        yield {mutant.name: pool.submit(caught, mutant, tmp_path_factory.mktemp("mutant")) for mutant in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutant", TRIED, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_mutant_is_caught(mutant, tried):
    assert tried[mutant.name].result(), f"not detected: {mutant.name}"


def test_every_mutant_has_a_unique_name_and_can_be_applied():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    stale = [one.name for one in MUTANTS if (PACKAGE / one.file).read_text().count(one.old) != 1]
    assert stale == []
    assert [one.name for one in MUTANTS if one.old == one.new or not one.caught_by] == []


def test_every_test_that_a_mutant_names_exists():
    shared = set().union(*map(names_in, [*SUITE.glob("*.py"), ROOT / "tests/fencing/suite.py"]))
    missing = []
    for node in sorted({node for one in MUTANTS for node in one.caught_by}):
        file, _, test = node.partition("[")[0].partition("::")
        if not (ROOT / file).is_file() or (test and test.split("::")[-1] not in names_in(ROOT / file) | shared):
            missing.append(node)
    assert missing == []


@functools.cache
def names_in(file):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(one.name for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, kinds))


def test_an_unchanged_copy_of_the_package_passes(tmp_path):
    code, printed = run_tests(copy_package(tmp_path), (SOUND,))
    assert code == 0, printed


def test_a_harmless_mutant_is_not_reported_as_caught(tmp_path):
    harmless = Mutant("harmless", "rules/working_record.py", "MAX_TOMBSTONES = 64", "MAX_TOMBSTONES = 65", (SOUND,))
    assert not caught(harmless, tmp_path)


@pytest.mark.parametrize(
    ("why", "old", "new", "nodes"),
    [
        ("occurs 0 times", "no such text", "", (SOUND,)),
        ("occurs [0-9]+ times", "record", "", (SOUND,)),
        ("something else did", "RETENTION = 7 *", "RETENTION = (7 *", (SOUND,)),
        ("something else did", "RETENTION = 7 *", "RETENTION = nonsense *", (SOUND,)),
        ("does not run far enough", "return max(fence + 1, now)", "return nonsense", (SOUND,)),
        ("something else did", "MAX_TOMBSTONES = 64", "MAX_TOMBSTONES = 65", ("tests/rules/test_acquire.py::no_such",)),
    ],
    ids=["not found", "found often", "syntax", "import", "stumble", "no test"],
)
def test_a_mutant_that_proves_nothing_is_an_error(why, old, new, nodes, tmp_path):
    with pytest.raises(Useless, match=why):
        caught(Mutant("useless", "rules/working_record.py", old, new, nodes), tmp_path)


def test_tests_that_import_the_original_package_are_detected(tmp_path):
    """With an empty folder on the path the installed package is imported, which is reported."""
    code, _ = run_tests(tmp_path, (SOUND,))
    assert code == NOT_THE_COPY
