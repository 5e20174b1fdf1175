"""The check-up of a PostgreSQL store: what `holdfast doctor` can say of it. Looks, and changes nothing."""

from __future__ import annotations

from ...errors import StoreError
from ..contract import Finding
from .functions import VERSION, KnownSet, functions_for, known_sets
from .schema import tables_of
from .session import Connect, Session

OLD_TRANSACTION_SECONDS = 60
UNUSED_SECONDS = 7 * 24 * 3_600.0
"""After this long a set of functions counts as unused."""

_SETTINGS = "SELECT current_setting('server_version'), current_setting('fsync')"
_DATABASE = b"SELECT current_database() || ' ' || pg_postmaster_start_time()"
_IDLE = """
SELECT count(*), min(pid) FROM pg_stat_activity
 WHERE state LIKE 'idle in transaction%%' AND datname = current_database()
   AND state_change < now() - make_interval(secs => %s)
"""


def diagnose(connect: Connect, listen: Connect, schema: str, *, timeout: float, advisory: bool) -> tuple[Finding, ...]:
    """Everything that can be found out without a right to write."""
    try:
        session = Session(connect, timeout=timeout)
    except StoreError as error:
        return (
            Finding(check="connection", level="problem", detail=str(error), advice="Look at the URL and the server."),
        )
    try:
        findings = [*_server(session), *_schema(session, schema), _open_transactions(session)]
        here = session.ask(_DATABASE)
    finally:
        session.close()
    return (*findings, *_listening(listen, here, timeout, advisory=advisory))


def _server(session: Session) -> list[Finding]:
    row = session.connection.execute(_SETTINGS).fetchone()
    assert row is not None  # noqa: S101  (it always gives one)
    version, fsync = str(row[0]), str(row[1])
    findings = [Finding(check="server", level="ok", detail=f"PostgreSQL {version}")]
    if fsync == "on":
        findings.append(Finding(check="durability", level="ok", detail="fsync is on; commits are waited for"))
    else:
        findings.append(
            Finding(
                check="durability",
                level="problem",
                detail="fsync is off: what was answered may be gone after the loss of power, and the database with it",
                advice="Set fsync = on in postgresql.conf.",
            )
        )
    return findings


def _schema(session: Session, schema: str) -> list[Finding]:
    try:
        tables = tables_of(session, schema)
        known = known_sets(session, schema) if tables.version else []
    except Exception as error:  # whatever the server says of it is what there is to tell
        return [Finding(check="schema", level="problem", detail=str(error), advice="Look at the rights of this role.")]
    detail = f"the schema {schema!r} has version {tables.version}"
    if tables.usable:
        return [Finding(check="schema", level="ok", detail=detail), _functions(schema, known)]
    if tables.version == 0:
        found = Finding(
            check="schema",
            level="warning",
            detail=f"there is no schema {schema!r} yet",
            advice="The first client that opens the store makes it, if its role may.",
        )
    elif tables.oldest_client > VERSION:
        found = Finding(
            check="schema",
            level="problem",
            detail=f"{detail}, for clients that know {tables.oldest_client} at least; this Holdfast knows {VERSION}",
            advice="Upgrade Holdfast here.",
        )
    else:
        found = Finding(
            check="schema",
            level="warning",
            detail=f"{detail}, and this Holdfast knows {VERSION}",
            advice="The next client that opens the store updates it.",
        )
    return [found]


def _functions(schema: str, known: list[KnownSet]) -> Finding:
    own = functions_for(schema).digest
    named = "; ".join(f"{one}{', used here' if one.digest == own else ''}" for one in known)
    if any(one.digest != own and one.idle > UNUSED_SECONDS for one in known):
        return Finding(
            check="functions",
            level="warning",
            detail=f"{len(known)} sets: {named}",
            advice="'holdfast schema prune' removes those that no client has used for a week.",
        )
    return Finding(check="functions", level="ok", detail=f"{len(known)} sets: {named}")


def _open_transactions(session: Session) -> Finding:
    row = session.connection.execute(_IDLE, (OLD_TRANSACTION_SECONDS,)).fetchone()
    count, pid = (int(str(row[0])), row[1]) if row else (0, None)
    if not count:
        return Finding(check="transactions", level="ok", detail="none has been open and idle for more than a minute")
    return Finding(
        check="transactions",
        level="warning",
        detail=f"{count} transaction(s) are open and idle for more than a minute (process {pid} and others)",
        advice="Where one of them has a lock's row, that key waits for it. End it: SELECT pg_terminate_backend(pid).",
    )


def _listening(listen: Connect, here: bytes | None, timeout: float, *, advisory: bool) -> list[Finding]:
    try:
        session = Session(listen, timeout=timeout)
    except StoreError as error:
        return [Finding(check="wake-ups", level="warning", detail=str(error), advice="Look at ?listen= in the URL.")]
    try:
        pooled, there = session.pooled, session.ask(_DATABASE)
    finally:
        session.close()
    findings = []
    if pooled:
        findings.append(
            Finding(
                check="wake-ups",
                level="warning",
                detail="a pooler is in between: waiters cannot be told and look once a second instead",
                advice="Give the server's own address: ?listen=postgresql%3A//host:5432/db",
            )
        )
    elif there != here:
        findings.append(
            Finding(
                check="wake-ups",
                level="problem",
                detail="?listen= leads to another database than the rest: nobody is ever told there",
                advice="Give the same database of the same server in both.",
            )
        )
    else:
        findings.append(Finding(check="wake-ups", level="ok", detail="LISTEN/NOTIFY reaches this process"))
    if advisory and (pooled or there != here):
        findings.append(
            Finding(
                check="advisory",
                level="problem",
                detail="advisory=true needs a session of its own in the same database: locks are refused",
                advice="Give the server's own address as ?listen=, or do without advisory=true.",
            )
        )
    return findings
