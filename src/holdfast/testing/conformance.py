"""`StoreConformance`: everything that a store must satisfy, as one class of tests.

Subclass it in a test module, say where the store is, and let pytest run it:

    from holdfast.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def url(self, folder):
            return f"mystore://localhost/{folder.name}"

The hooks and options are those of `suite.base.Suite`. `HOLDFAST_HISTORIES` is how many random histories are told.
"""

from __future__ import annotations

from .suite.clients import Callers
from .suite.commands import Commands
from .suite.histories import Histories
from .suite.paging import Paging
from .suite.records import Records
from .suite.resends import Again
from .suite.run_queues import RunQueues
from .suite.slots import Slots


class StoreConformance(Commands, Again, Slots, Records, RunQueues, Paging, Histories, Callers):
    """The suite that every store must pass. Only `url` has to be given."""
