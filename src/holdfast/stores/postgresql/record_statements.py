"""The statements about records of any type. `$1` is the namespace; `$2`, where rows are many, a JSON list of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records import RecordName, Written

LOCK = """
SELECT x.kind, x.key FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.kind, o.key FROM holdfast.records AS o
                      WHERE o.namespace = $1 AND o.kind = k.a->>0 AND o.key = k.a->>1 {how}) AS x
"""
READ = """
SELECT x.kind, x.key, x.record FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.kind, o.key, o.record FROM holdfast.records AS o
                      WHERE o.namespace = $1 AND o.kind = k.a->>0 AND o.key = k.a->>1 LIMIT 1) AS x
"""
AFTER = """
SELECT o.key, o.record FROM holdfast.records AS o
 WHERE o.namespace = $1 AND o.kind = $2 AND o.key >= $3 AND o.key > $4
 ORDER BY o.key LIMIT $5::bigint
"""
# The same with an end, in a statement of its own: so the end is a bound of the index, also in a generic plan.
BETWEEN = AFTER.replace("o.key > $4", "o.key > $4 AND o.key < $6")
DUE = """
SELECT o.due_at, o.key, o.record FROM holdfast.records AS o
 WHERE o.namespace = $1 AND o.kind = $2 AND o.due_at <= current_setting('holdfast_step.now')::bigint
 ORDER BY o.due_at, o.key LIMIT $3::bigint
"""
INSERT = """
INSERT INTO holdfast.records SELECT $1, n.kind, n.key, n.record, n.due_at
  FROM jsonb_to_recordset($2::jsonb) AS n(kind text, key text, record text, due_at bigint)
"""
_SPOT = """
 CROSS JOIN LATERAL (SELECT r.ctid AS spot FROM holdfast.records AS r
                      WHERE r.namespace = $1 AND r.kind = n.kind AND r.key = n.key LIMIT 1) AS x
"""
UPDATE = f"""
UPDATE holdfast.records AS o SET record = n.record, due_at = n.due_at
  FROM jsonb_to_recordset($2::jsonb) AS n(kind text, key text, record text, due_at bigint) {_SPOT}
 WHERE o.ctid = x.spot
"""
DELETE = f"""
DELETE FROM holdfast.records AS o USING jsonb_to_recordset($2::jsonb) AS n(kind text, key text) {_SPOT}
 WHERE o.ctid = x.spot
"""


def rows_of(changes: Mapping[RecordName, Written]) -> list[tuple[RecordName, dict[str, Any] | None]]:
    """The rows of changed records, in the order of their keys; None: the row is removed."""
    found: list[tuple[RecordName, dict[str, Any] | None]] = []
    for (kind, key), (_, stored) in sorted(changes.items(), key=lambda item: item[0]):
        row = None if stored is None else {"kind": kind, "key": key, "record": stored.text, "due_at": stored.due_at}
        found.append(((kind, key), row))
    return found
