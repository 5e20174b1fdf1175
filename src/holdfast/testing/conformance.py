"""`StoreConformance`: everything that a store must satisfy, as one class of tests.

Subclass it in a test module, return the address of the store, and run pytest:

    from holdfast.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def url(self, folder):
            return f"mystore://localhost/{folder.name}"

The hooks and options are those of `suite.base.SuiteBase`. The environment variable `HOLDFAST_HISTORIES` sets the
number of random histories.
"""

from __future__ import annotations

from .suite.clients import ClientTests
from .suite.commands import CommandTests
from .suite.delays import DelayTests
from .suite.heartbeats import HeartbeatTests
from .suite.histories import HistoryTests
from .suite.paging import PagingTests
from .suite.purging import PurgeTests
from .suite.records import RecordTests
from .suite.resends import ResendTests
from .suite.slots import SlotTests
from .suite.streams import StreamTests


class StoreConformance(
    CommandTests,
    ResendTests,
    SlotTests,
    RecordTests,
    PurgeTests,
    StreamTests,
    DelayTests,
    HeartbeatTests,
    PagingTests,
    HistoryTests,
    ClientTests,
):
    """The suite that every store must pass. Only `url` must be overridden."""
