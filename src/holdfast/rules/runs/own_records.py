"""Records that belong to one run besides its row, its journal and its inbox: their keys begin with a digest of the run.

A run notes the kinds of such records that it has, so that a purge looks only for these. The digest is that of the run
itself, not of its id, so a run that is replaced keeps its records, and its successor begins without any.
"""

from __future__ import annotations

from msgspec.structs import replace

from .record import Run, identity_of
from .tree import digest


def own_prefix(run: Run) -> str:
    """The beginning of the keys of all records that belong to a run."""
    return f"{digest(identity_of(run))}/"


def own_key(run: Run, name: str) -> str:
    """The key of the record with this name, of any length."""
    return own_prefix(run) + digest(name)


def with_records(run: Run, kind: str) -> Run:
    """The run, which notes that it has records of this kind."""
    return run if kind in run.record_kinds else replace(run, record_kinds=(*run.record_kinds, kind))
