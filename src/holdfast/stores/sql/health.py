"""`holdfast doctor` for relational stores: the server, its tables, and whether a commit is durable."""

from __future__ import annotations

from ...errors import HoldfastError
from ..contract import Finding
from .address import Address
from .schema import version_of
from .session import SqlSession
from .tables import VERSION, SqlTables

DURABLE = "1"


def diagnose(address: Address) -> tuple[Finding, ...]:
    """Check what only the server can know. Changes nothing."""
    try:
        session = SqlSession(address.dialect, timeout=address.timeout)
    except HoldfastError as error:
        advice = "Check the address, the user and the server."
        return (Finding(check="server", level="problem", detail=str(error), advice=advice),)
    try:
        return (*_server(session), _tables(session, address))
    finally:
        session.close()


def _server(session: SqlSession) -> list[Finding]:
    if session.dialect.name != "MySQL or MariaDB":
        return [Finding(check="server", level="ok", detail=f"{session.dialect.name} answers")]
    try:
        (rows,) = session.read(
            ["SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@read_only, @@max_allowed_packet, @@sync_binlog"]
        )
    except HoldfastError as error:
        return [Finding(check="server", level="problem", detail=str(error), advice="Check the server's log.")]
    version, flush, read_only, packet, _ = map(str, rows[0])
    found = [Finding(check="server", level="ok", detail=f"{version}, max_allowed_packet {packet} bytes")]
    if flush == DURABLE:
        found.append(Finding(check="durability", level="ok", detail="innodb_flush_log_at_trx_commit = 1"))
    else:
        found.append(
            Finding(
                check="durability",
                level="warning",
                detail=f"innodb_flush_log_at_trx_commit = {flush}: a power failure may lose the last commits",
                advice="Set innodb_flush_log_at_trx_commit = 1.",
            )
        )
    if read_only != "0":
        found.append(
            Finding(
                check="role",
                level="problem",
                detail="the server is read-only: it may be a replica, whose records may be outdated",
                advice="Configure the address of the primary.",
            )
        )
    return found


def _tables(session: SqlSession, address: Address) -> Finding:
    try:
        version = version_of(session, SqlTables(address.dialect, address.prefix))
    except HoldfastError as error:
        advice = "Check the privileges of the user: SELECT, INSERT, UPDATE and DELETE on the tables."
        return Finding(check="tables", level="problem", detail=str(error), advice=advice)
    if version == 0:
        advice = "The first client creates them; its user needs the privileges CREATE and INDEX."
        return Finding(check="tables", level="warning", detail="the tables do not exist yet", advice=advice)
    if version > VERSION:
        detail = f"the tables need a newer Holdfast (version {version})"
        return Finding(check="tables", level="problem", detail=detail, advice="Upgrade Holdfast here.")
    return Finding(check="tables", level="ok", detail=f"version {version}")
