"""The documents of a collection: one for each record, under an `_id` that a person can type.

    {_id: "lock:default:invoice:42", record: "{…}", stamp: "9f…", at: 1790000000000000}

The `_id` is the kind, the namespace and the key; a colon or percent sign in the namespace is percent-encoded, so all
names are distinct, and the keys of a namespace are in the order of their code points. `record` is JSON. `stamp` is
new with every write; `at` is the time of the last change in microseconds. A record that time alone changes has `due_at`
and `due_of`, and they are indexed. `woken` are the attempts that the last write notified.
"""

from __future__ import annotations

from typing import Any

from ..cas_adapter import CasName, CasWrite

DATABASE = COLLECTION = "holdfast"
CLOCK_ID = "clock"
"""The document that is read with all others, so that there is always one to read the time with. It never changes."""
DUE_INDEX = "holdfast_due"
DUE_FIELDS = [("due_of", 1), ("due_at", 1), ("_id", 1)]
DUE_ONLY = {"due_of": {"$exists": True}}
"""The documents that the index has."""

Document = dict[str, Any]


class MongoLayout:
    """The names of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace.replace("%", "%25").replace(":", "%3A")

    def head(self, kind: str) -> str:
        """The beginning of the ids of all records of a kind.

        >>> MongoLayout("a:b").head("lock")
        'lock:a%3Ab:'
        """
        return f"{kind}:{self._namespace}:"

    def id(self, name: CasName) -> str:
        """The id of a record."""
        return self.head(name.kind) + name.key

    def document(self, write: CasWrite) -> Document:
        """The document that a write stores."""
        document: Document = {"record": write.text, "stamp": write.stamp, "at": write.now}
        if write.due_at is not None:
            document |= {"due_of": self.head(write.name.kind), "due_at": write.due_at}
        if write.woken:
            document["woken"] = list(write.woken)
        return document

    def condition(self, write: CasWrite) -> Document:
        """The filter that finds the document only if its stamp is the expected one."""
        return {"_id": self.id(write.name), "stamp": write.expected or {"$exists": False}}
