"""Error messages about rows, limits and tables that another PostgreSQL transaction has locked, with its process.

No decision is made here. Where the server does not report which process has the lock, the message omits it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ...commands import Command
from ...commands.runs import StartRun
from ...errors import StoreContended, StoreUnavailable
from ..questions import GroupSize, LimitsOf, LockByKey, Question, RecordAt, RunById
from . import statements as sql
from .reading import number_of
from .session import Contended, Rows, Statement

Look = Callable[[Statement], Rows]
"""Sends a statement that reads."""

_PROCESS = """
SELECT format('process %s of the server (%s, user %s, %s since %s)', a.pid, coalesce(nullif(a.application_name, ''),
              'unnamed'), a.usename, coalesce(a.state, 'busy'), to_char(a.state_change, 'HH24:MI:SS'))
"""
_OF_A_ROW = """
  FROM holdfast.{table} AS o
  JOIN pg_locks AS p ON p.locktype = 'transactionid' AND p.granted AND p.transactionid = o.xmax
  JOIN pg_stat_activity AS a ON a.pid = p.pid
 WHERE o.namespace = $1 AND {columns} LIMIT 1
"""
_OF_A_NUMBER = """
  FROM pg_locks AS p JOIN pg_stat_activity AS a ON a.pid = p.pid
 WHERE p.locktype = 'advisory' AND p.granted AND p.objsubid = 1 AND p.pid <> pg_backend_pid()
   AND p.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
   AND (p.classid::bigint << 32 | p.objid::bigint) = $1::bigint LIMIT 1
"""
_OF_A_TABLE = """, c.relname
  FROM pg_locks AS p JOIN pg_stat_activity AS a ON a.pid = p.pid
  JOIN pg_class AS c ON c.oid = p.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE p.locktype = 'relation' AND p.granted AND p.pid <> pg_backend_pid() AND n.nspname = $1 AND c.relkind = 'r'
   AND p.mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock') LIMIT 1
"""
_WHERE: dict[type[Question], tuple[str, str]] = {
    RunById: ("runs", "o.id = $2"),
    LockByKey: ("locks", "o.key = $2"),
    RecordAt: ("records", "o.kind = $2 AND o.key = $3"),
}


def kept_locked(
    command: Command, busy: Sequence[Question], look: Look | None, *, schema: str, namespace: str
) -> StoreContended:
    """The error of a command that needs one of these rows, which another transaction has locked.

    `look` sends the statement that finds the process of that transaction.
    """
    by = "" if look is None or len(busy) != 1 else _process(look, busy[0], schema, namespace.encode())
    return StoreContended(
        f"{_what(command, busy)} locked{by}. Nothing was done for this command; it can be sent again. Other commands "
        "are not affected. If the lock stays, look in pg_stat_activity for a transaction that was left open (state "
        "'idle in transaction'), and end it."
    )


def table_locked(look: Look, schema: str) -> StoreContended:
    """The error of a command that needs a table which another transaction has locked as a whole."""
    found = _rows(look, Statement(sql.placed(_PROCESS + _OF_A_TABLE, schema), (schema.encode(),)))
    name, by = "a table of Holdfast", ""
    if found:
        name, by = f"the table {(found[0][1] or b'').decode()!r}", f" by {(found[0][0] or b'').decode()}"
    return StoreContended(
        f"{name} is locked as a whole{by}. Nothing was done for this command; it can be sent again. ALTER TABLE, "
        "VACUUM FULL, CLUSTER and LOCK TABLE lock a table until their transaction ends."
    )


def _process(look: Look, busy: Question, schema: str, namespace: bytes) -> str:
    if isinstance(busy, GroupSize | LimitsOf):
        values: tuple[bytes, ...] = (str(number_of(namespace, busy)).encode(),)
        statement = Statement(sql.placed(_PROCESS + _OF_A_NUMBER, schema), values)
    elif isinstance(busy, RunById | LockByKey | RecordAt):
        table, columns = _WHERE[type(busy)]
        values = (namespace, *(part.encode() for part in msgspec.structs.astuple(busy)))
        statement = Statement(sql.placed(_PROCESS + _OF_A_ROW.format(table=table, columns=columns), schema), values)
    else:
        return ""
    found = _rows(look, statement)
    return f" by {(found[0][0] or b'').decode()}" if found else ""


def _rows(look: Look, statement: Statement) -> Rows:
    try:
        return look(statement)
    except (Contended, StoreUnavailable):
        return []


def _what(command: Command, busy: Sequence[Question]) -> str:
    """A description of what is locked, with its verb."""
    if len(busy) > 1:
        return f"one of the rows of {', '.join(repr(_name(command, one)) for one in busy)} is"
    (one,) = busy or (None,)
    if isinstance(one, LimitsOf):
        return f"the limits of the workflow {one.workflow!r} are"
    if isinstance(one, GroupSize):
        workflow, _, rest = one.group.partition("/")
        if workflow == "#lock":
            return f"the queue of the lock {rest!r} is"
        limit, _, key = rest.partition("/")
        return f"the limit {limit!r}{f' for {key}' if key else ''} of the workflow {workflow!r} is"
    name = _name(command, one)
    return f"the row of {name!r} is" if name else "a row is"


def _name(command: Command, busy: Question | None) -> str:
    if isinstance(busy, RunById | LockByKey | RecordAt):
        return busy.id if isinstance(busy, RunById) else busy.key
    address: tuple[str, str, str] | None = getattr(busy, "address", None) or getattr(command, "address", None)
    if address is None and isinstance(command, StartRun):
        return command.new.id
    found: str = address[2] if address else getattr(command, "worker", "") or getattr(command, "workflow", "")
    return found
