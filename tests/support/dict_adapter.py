"""The adapter of docs/stores/adapter.md as a module, and one whose writes lose their replies.

A lost reply is simulated at the adapter: the write is really applied, or really not, and the answer is None or an
ambiguous error. The write may also be applied later, as one that was delayed on its way.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from holdfast.errors import StoreUnavailable
from holdfast.platform import host_clock
from holdfast.stores.cas import CasConnection, CasStore

PAGE = Path(__file__).parents[2] / "docs" / "stores" / "adapter.md"
FILES = dict(re.findall(r"^```python title=\"([a-z_]+\.py)\"\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def loaded(name):
    """A module with the text of the page, importable under its name."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        exec(compile(FILES[f"{name}.py"], f"{PAGE.name}:{name}.py", "exec"), module.__dict__)
        sys.modules[name] = module
    return sys.modules[name]


dict_store = loaded("dict_store")

Fault = Literal["applied", "dropped", "late", "applied, error", "dropped, error"]
"""What becomes of a write whose reply is lost."""


class FaultyAdapter(dict_store.DictAdapter):
    """Counts its requests. The next write suffers `fault`, and then `between` is called; `before_read` by each read."""

    def __init__(self, table, namespace):
        super().__init__(table, namespace)
        self.requests = []
        self.fault: Fault | None = None
        self.between: Callable[[], object] = lambda: None
        self.before_read: Callable[[], object] = lambda: None
        self._late = []

    def read(self, names):
        self.requests.append("read")
        self.before_read()
        return super().read(names)

    def write(self, writes):
        self.requests.append("write")
        late, self._late = self._late, []
        if late:
            super().write(late)
        fault, self.fault = self.fault, None
        if fault is None:
            return super().write(writes)
        if fault.startswith("applied"):
            super().write(writes)
        elif fault == "late":
            self._late = writes
        between, self.between = self.between, lambda: None
        between()
        if fault.endswith("error"):
            raise StoreUnavailable("the connection was lost", ambiguous=True)
        return [None] * len(writes)

    def keys(self, kind, **options):
        self.requests.append("keys")
        return super().keys(kind, **options)

    def due(self, kind, **options):
        self.requests.append("due")
        return super().due(kind, **options)


class FaultyService(dict_store.DictService):
    """A table whose connections are faulty."""

    def connect(self):
        return FaultyAdapter(self.table, self.namespace)

    def reopen(self):
        return FaultyService(self.table, self.namespace)


def faulty_store(clock=host_clock) -> CasStore:
    """A new, empty store."""
    return CasStore(FaultyService(dict_store.Table(), "default"), clock=clock)


def adapter_of(connection: CasConnection) -> FaultyAdapter:
    """The adapter of a connection, to plan its faults."""
    return connection._adapter
