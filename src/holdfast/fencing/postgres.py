"""The fence within a transaction of the user's PostgreSQL database: its statements, without I/O.

`judge` yields statements and is sent their rows; each driver's own file executes them. The upsert locks the
resource's row until the transaction ends. A concurrent writer waits until then; after that its token is compared with
the committed floor. With REPEATABLE READ and SERIALIZABLE, PostgreSQL itself stops that writer with a serialization
error. This error is raised as the driver raises it, like all errors of the driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from ..errors import StaleToken, StoreUnusable
from .tokens import Offer

TABLE = "holdfast_fences"
PERMANENT = "p"

# A temporary table of the same name would come first in the search_path, whatever its setting, and must not replace the
# fence. So the path is searched here, and the table is named with its schema from then on.
FIND = """
WITH path AS (
    SELECT space.oid, space.nspname, place
    FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) WITH ORDINALITY AS listed (name, place)
    JOIN pg_catalog.pg_namespace AS space ON space.nspname = listed.name
    WHERE space.oid <> pg_catalog.pg_my_temp_schema() AND space.nspname <> 'pg_catalog'
), found AS (
    SELECT path.nspname, fence.relpersistence
    FROM path JOIN pg_catalog.pg_class AS fence ON fence.relnamespace = path.oid
    WHERE fence.relname = 'holdfast_fences' AND fence.relpersistence <> 't'
    ORDER BY path.place LIMIT 1
), home AS (
    SELECT oid, nspname FROM path ORDER BY place LIMIT 1
)
SELECT
    (SELECT pg_catalog.quote_ident(nspname) FROM found),
    (SELECT CAST(relpersistence AS text) FROM found),
    (SELECT pg_catalog.quote_ident(nspname) FROM home),
    (SELECT pg_catalog.has_schema_privilege(oid, 'CREATE') FROM home)
"""
# Two transactions that create a table at the same moment collide even with IF NOT EXISTS, and the error would end the
# user's transaction. The number is the text "holdfast".
LOCK_CREATION = "SELECT 1 FROM pg_catalog.pg_advisory_xact_lock(7525352680829580148)"
REMEMBER = """
INSERT INTO {table} AS fence (resource, floor) VALUES ({resource}, {floor})
ON CONFLICT (resource) DO UPDATE SET floor = greatest(fence.floor, excluded.floor) WHERE fence.floor <= {token}
RETURNING 1
"""
HIGHEST = "SELECT floor FROM {table} WHERE resource = {resource}"


def _creation() -> str:
    """The statement of fences.sql, which users may have executed by hand."""
    text = files(__package__).joinpath("fences.sql").read_text(encoding="utf-8")
    statement = text[text.index("CREATE TABLE") : text.index(";")]
    return statement.replace(TABLE, "{table}")


CREATE = _creation()


class FenceStatement(NamedTuple):
    """One statement, with placeholders in the form of each driver."""

    template: str
    table: str = ""
    values: dict[str, str | int | bytes] = {}  # noqa: RUF012  # never changed
    answers: bool = True  # whether it returns rows, possibly none

    def text(self, place: Callable[[str], str], escape: Callable[[str], str] = str) -> str:
        """The statement with the driver's own placeholders; `escape` is for a schema whose name looks like one."""
        return self.template.format(table=escape(self.table), **{name: place(name) for name in self.values})


Rows = Sequence[Sequence[Any]]
Judge = Generator[FenceStatement, Rows, None]


def judge(resource: str, offer: Offer) -> Judge:
    """Store the floor, or raise `StaleToken` with the highest floor."""
    table = yield from _table()
    if (yield FenceStatement(REMEMBER, table, {"resource": resource, "floor": offer.floor, "token": offer.token})):
        return
    rows = yield FenceStatement(HIGHEST, table, {"resource": resource})
    highest = rows[0][0] if rows else None
    if highest is None or highest <= offer.token:
        raise StoreUnusable(
            f"the fence of {resource!r} in {table} could not be written, although no newer holder has written: a "
            "trigger, a rule or a row security policy prevents it. Nothing was accepted. This role must be able to "
            "write the table."
        )
    raise StaleToken(resource=resource, offered=offer.token, highest=int(highest))


def _table() -> Generator[FenceStatement, Rows, str]:
    """The name of the table, with its schema. It is created if there is none, within the user's transaction."""
    ((found, persistence, home, may_create),) = yield FenceStatement(FIND)
    if found is not None:
        if persistence != PERMANENT:
            raise StoreUnusable(
                f"{found}.{TABLE} is an unlogged table: a crash of the server empties it, and stale writes would be "
                f"accepted. Nothing was written. Execute: ALTER TABLE {found}.{TABLE} SET LOGGED"
            )
        return f"{found}.{TABLE}"
    if home is None:
        raise StoreUnusable(f"the search_path names no schema in which {TABLE} could be. Nothing was written.")
    if not may_create:
        raise StoreUnusable(
            f"there is no table {TABLE} on the search_path, and this role may not create one in {home}. Nothing was "
            "written. Let the owner of the schema execute fences.sql, which is in the package holdfast.fencing."
        )
    yield FenceStatement(LOCK_CREATION)
    yield FenceStatement(CREATE, f"{home}.{TABLE}", answers=False)
    return f"{home}.{TABLE}"


def run(judging: Judge, execute: Callable[[FenceStatement], Rows]) -> None:
    """Execute statements until it is decided."""
    try:
        statement = next(judging)
        while True:
            statement = judging.send(execute(statement))
    except StopIteration:
        return


async def run_async(judging: Judge, execute: Callable[[FenceStatement], Awaitable[Rows]]) -> None:
    """Execute statements until it is decided, on an event loop."""
    try:
        statement = next(judging)
        while True:
            statement = judging.send(await execute(statement))
    except StopIteration:
        return
