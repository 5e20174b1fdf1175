"""A client of this release or of a simulated later one, as a separate process: `other_release.py URL RELEASE`.

With `sql` as a third argument it prints what `holdfast schema sql` of that release does, as JSON, and ends. Otherwise
it opens the store, prints `{"ready": digest}` or `{"refused": why}`, and then answers each line of its input with a
line of JSON: `work N` takes and releases a lock and drives runs N times, `list` names the locks that it sees.
"""

from __future__ import annotations

import json
import sys

from holdfast.commands import ListLocks
from holdfast.commands import runs as r
from holdfast.errors import StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs.outcomes import Recorded
from holdfast.rules.runs.record import Finish, NewRun
from holdfast.stores import open_store
from holdfast.stores.postgresql import (
    functions as postgres_functions,
)
from holdfast.stores.postgresql import (
    maintenance as postgres_upkeep,
)
from holdfast.stores.postgresql import (
    schema as postgres_schema,
)
from holdfast.testing.builders import acquire, release

CURRENT_TEXT = "another transaction has written first"
LATER_TEXT = "another transaction was faster"
"""What differs in the functions of the later release."""

LATER_TABLES = {
    "functions": None,
    "tables": "ALTER TABLE holdfast.runs ADD COLUMN colour text; UPDATE holdfast.about SET version = 2;",
    "breaking": "ALTER TABLE holdfast.locks ADD COLUMN colour text; "
    "UPDATE holdfast.about SET version = 2, oldest_client = 2;",
}
LATER_TABLES["breaking_tables_alone"] = LATER_TABLES["breaking"]
SAME_FUNCTIONS = ("breaking_tables_alone",)
"""Releases that change the tables and leave the text of the functions as it was."""


def become(kind: str) -> None:
    """Make this process a client of a later release, with other functions, other tables or both."""
    original, change = postgres_functions.source, LATER_TABLES[kind]
    later = CURRENT_TEXT if kind in SAME_FUNCTIONS else LATER_TEXT

    def source(name: str) -> str:
        if name == "later.sql":
            return str(change)
        text = original(name)
        assert name != "functions.sql" or text.count(CURRENT_TEXT) == 1
        return text.replace(CURRENT_TEXT, later)

    postgres_functions.source = postgres_schema.source = source
    if change is not None:
        for module in (postgres_functions, postgres_schema):
            module.TABLES = (*module.TABLES, "later.sql")
            module.VERSION = len(module.TABLES)


def work(connection, name: str, times: int) -> int:
    """Use everything that two releases share: the same lock, and runs in one table."""
    done = 0
    while done < times:
        (granted,) = connection.execute([acquire("shared", f"{name}.{done}", ttl=30)])
        if not isinstance(granted, out.Granted):
            continue
        run = f"{name}-{done}-{granted.token}"
        connection.execute(
            [
                acquire(f"worker/{run}", run, kind="worker", ttl=60),
                r.RegisterWorker(worker=run, name=name, types=("order",)),
            ]
        )
        (started,) = connection.execute(
            [r.StartRun(new=NewRun(id=run, type="order", input="1", request=f"{run}.q"), worker=run)]
        )
        end = {"entries": ("a",), "request": f"{run}.r", "then": Finish("completed", "1")}
        (recorded,) = connection.execute([r.RecordRun(run=run, fence=started.run.fence, at=1, seen=0, **end)])
        assert isinstance(recorded, Recorded)
        (released,) = connection.execute([release("shared", f"{name}.{done}", token=granted.token)])
        assert isinstance(released, out.Released)
        done += 1
    return done


def main(url: str, kind: str, what: str = "client") -> None:
    if kind != "this":
        become(kind)
    if what == "sql":
        report({"sql": postgres_upkeep.statements(url)})
        return
    try:
        store = open_store(url, namespace="default")
        connection = store.connect("commands")
        report({"ready": store._functions.digest})
        for line in sys.stdin:
            asked, _, much = line.strip().partition(" ")
            if asked == "work":
                report({"done": work(connection, kind, int(much))})
            else:
                report({"keys": [item.key for item in connection.execute([ListLocks()])[0].items]})
    except StoreUnusable as error:
        report({"refused": str(error)})


def report(answer: dict) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
