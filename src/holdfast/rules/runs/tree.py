"""Which runs belong to one tree: a record for each child, by which all descendants of a first run are found.

The first run of a tree is the `root` of all its descendants. The key of a record begins with a digest of the root, so
the members of a tree are the records with that prefix.
"""

from __future__ import annotations

import hashlib

from ..record_type import RecordStruct, RecordType
from .record import Run
from .repository import RunRepository

DIGEST_BYTES = 16


class TreeMember(RecordStruct, frozen=True):
    """A run that another run has started."""

    id: str
    parent: str
    root: str


TREE_MEMBER = RecordType("tree-member", TreeMember)


def tree_prefix(root: str) -> str:
    """The beginning of the keys of a tree's records.

    >>> tree_prefix("order-7") == tree_prefix("order-7"), len(tree_prefix("order-7"))
    (True, 33)
    """
    return f"{digest(root)}/"


def tree_key(root: str, run: str) -> str:
    """The key of the record of a run in the tree of this root."""
    return tree_prefix(root) + digest(run)


def joined(repo: RunRepository, run: Run, root: str) -> None:
    """Note that a run was started in the tree of this root; a run without a parent is a root itself.

    A run that its parent has abandoned is noted there too, so that the parent finds it.
    """
    if run.parent and root != run.id:
        key = tree_key(root, run.id)
        if repo.record(TREE_MEMBER, key) is None:
            repo.put_record(TREE_MEMBER, key, TreeMember(id=run.id, parent=run.parent, root=root))


def left(repo: RunRepository, run: Run) -> None:
    """Note that this id does not belong to the tree of its root any more."""
    if run.parent:
        repo.put_record(TREE_MEMBER, tree_key(run.root, run.id), None)


def digest(name: str) -> str:
    """A name of any length as a part of a key."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).hexdigest()
