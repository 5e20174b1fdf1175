"""Health checks of a PostgreSQL store, for `holdfast doctor`. The checks change nothing."""

from __future__ import annotations

from ...errors import StoreError
from ..contract import Finding
from .functions import VERSION, KnownSet, functions_for, known_sets
from .schema import tables_of
from .session import Connect, Session

OLD_TRANSACTION_SECONDS = 60
UNUSED_SECONDS = 7 * 24 * 3_600.0
"""A set of functions that no client has used for this long counts as unused."""

_SETTINGS = "SELECT current_setting('server_version'), current_setting('fsync')"
_DATABASE = b"SELECT current_database() || ' ' || pg_postmaster_start_time()"
_IDLE = """
SELECT count(*), min(pid) FROM pg_stat_activity
 WHERE state LIKE 'idle in transaction%%' AND datname = current_database()
   AND state_change < now() - make_interval(secs => %s)
"""


def diagnose(connect: Connect, listen: Connect, schema: str, *, timeout: float, advisory: bool) -> tuple[Finding, ...]:
    """All findings that need no permission to write."""
    try:
        session = Session(connect, timeout=timeout)
    except StoreError as error:
        return (
            Finding(check="connection", level="problem", detail=str(error), advice="Check the URL and the server."),
        )
    try:
        findings = [*_server(session), *_schema(session, schema), _open_transactions(session)]
        here = session.ask(_DATABASE)
    finally:
        session.close()
    return (*findings, *_listening(listen, here, timeout, advisory=advisory))


def _server(session: Session) -> list[Finding]:
    row = session.connection.execute(_SETTINGS).fetchone()
    assert row is not None  # noqa: S101  (the statement always returns one row)
    version, fsync = str(row[0]), str(row[1])
    findings = [Finding(check="server", level="ok", detail=f"PostgreSQL {version}")]
    if fsync == "on":
        findings.append(
            Finding(
                check="durability", level="ok", detail="fsync is on: every command is on disk before it is answered"
            )
        )
    else:
        findings.append(
            Finding(
                check="durability",
                level="problem",
                detail="fsync is off: answered commands may be lost in a power failure, and the database may be "
                "damaged",
                advice="Set fsync = on in postgresql.conf.",
            )
        )
    return findings


def _schema(session: Session, schema: str) -> list[Finding]:
    try:
        tables = tables_of(session, schema)
        known = known_sets(session, schema) if tables.version else []
    except Exception as error:  # the error of the server is the finding
        return [
            Finding(check="schema", level="problem", detail=str(error), advice="Check the privileges of this role.")
        ]
    detail = f"the schema {schema!r} has version {tables.version}"
    if tables.usable:
        return [Finding(check="schema", level="ok", detail=detail), _functions(schema, known)]
    if tables.version == 0:
        found = Finding(
            check="schema",
            level="warning",
            detail=f"there is no schema {schema!r} yet",
            advice="The first client that opens the store creates it, if its role is allowed to.",
        )
    elif tables.oldest_client > VERSION:
        found = Finding(
            check="schema",
            level="problem",
            detail=f"{detail} and requires clients of version {tables.oldest_client} at least; this is version "
            f"{VERSION}",
            advice="Upgrade Holdfast here.",
        )
    else:
        found = Finding(
            check="schema",
            level="warning",
            detail=f"{detail}; this Holdfast uses version {VERSION}",
            advice="The next client that opens the store upgrades it.",
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
            advice="'holdfast schema prune' removes the sets that no client has used for a week.",
        )
    return Finding(check="functions", level="ok", detail=f"{len(known)} sets: {named}")


def _open_transactions(session: Session) -> Finding:
    row = session.connection.execute(_IDLE, (OLD_TRANSACTION_SECONDS,)).fetchone()
    count, pid = (int(str(row[0])), row[1]) if row else (0, None)
    if not count:
        return Finding(
            check="transactions", level="ok", detail="no transaction has been open and idle for more than a minute"
        )
    return Finding(
        check="transactions",
        level="warning",
        detail=f"{count} transaction(s) have been open and idle for more than a minute (server process {pid} first)",
        advice="While one of them has locked the row of a key, commands on that key fail. End it: "
        "SELECT pg_terminate_backend(pid).",
    )


def _listening(listen: Connect, here: bytes | None, timeout: float, *, advisory: bool) -> list[Finding]:
    try:
        session = Session(listen, timeout=timeout)
    except StoreError as error:
        return [Finding(check="wake-ups", level="warning", detail=str(error), advice="Check ?listen= in the URL.")]
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
                detail="the connection goes through a pooler, so notifications do not arrive: waiters poll once a "
                "second",
                advice="Add the address of the server itself to the URL: ?listen=postgresql%3A//host:5432/db",
            )
        )
    elif there != here:
        findings.append(
            Finding(
                check="wake-ups",
                level="problem",
                detail="?listen= is the address of another database, so notifications never arrive",
                advice="Use the same database of the same server in both addresses.",
            )
        )
    else:
        findings.append(Finding(check="wake-ups", level="ok", detail="LISTEN/NOTIFY reaches this process"))
    if advisory and (pooled or there != here):
        findings.append(
            Finding(
                check="advisory",
                level="problem",
                detail="advisory=true needs a direct session to the same database: locks are refused",
                advice="Set ?listen= to the address of the server itself, or remove advisory=true.",
            )
        )
    return findings
