"""`mongodb://`, `mongodb+srv://`: one document a record, the server's clock, wake-up by change streams or polling.

Commands are decided in Python by the compare-and-swap core (`stores/cas.py`); this package is its adapter. The database
is in the path of the URL, the collection in `?collection=`; all other options are those of pymongo. There is no TTL
index: a document that the server deletes by itself could be a fence that is still needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import StoreError, StoreUnusable
from ..cas import CasStore
from ..cas_adapter import CasAdapter, CasServiceBase, CasSubscription
from ..contract import Capabilities, Clock, Finding
from . import health
from .adapter import STEP, MongoAdapter, add_clock
from .address import MongoAddress, address_of_client, address_of_url
from .client import SharedClient
from .layout import CLOCK_ID, DUE_FIELDS, DUE_INDEX, DUE_ONLY, MongoLayout
from .watch import MongoSubscription

if TYPE_CHECKING:
    from ..cas_adapter import CasService
    from ..contract import Store

MAX_BYTES = 15_000_000
"""The largest record: the server holds documents of up to 16 MiB."""


def open_mongodb(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the collection of the URL. The first connection is made when it is needed."""
    return CasStore(MongoService(address_of_url(url), namespace), clock=clock)


def adopt_mongodb(handle: Any, *, namespace: str, clock: Clock, options: Mapping[str, object] | None = None) -> Store:
    """Open a collection with the settings of a `pymongo.MongoClient`, with separate connections."""
    return CasStore(MongoService(address_of_client(handle, options or {}), namespace), clock=clock)


def unready(url: str) -> str | None:
    """Why opening this URL would change the database; None where it would not."""
    shared = SharedClient(address_of_url(url))
    try:
        with shared.request(writing=False) as collection:
            if DUE_INDEX in collection.index_information() and collection.find_one({"_id": CLOCK_ID}):
                return None
            name = collection.full_name
    finally:
        shared.close()
    return (
        f"the collection {name} is not prepared: no client has used it yet. Check the URL, its database and its "
        "?collection=. The first client that opens the store prepares it."
    )


class MongoService(CasServiceBase):
    """One namespace of a collection."""

    max_bytes = MAX_BYTES

    def __init__(self, address: MongoAddress, namespace: str) -> None:
        self.url = address.url
        self.identity = f"{address.name}#{namespace}"
        self._address, self._namespace = address, namespace
        self._layout = MongoLayout(namespace)
        self._shared = SharedClient(address)
        self._preparing = threading.Lock()
        self._deployment: health.Deployment | None = None
        self._asked = False

    def __repr__(self) -> str:
        return f"<MongoService {self.identity}>"

    @property
    def capabilities(self) -> Capabilities:
        """What this store can promise. Whether there are change streams is known after the first connection."""
        if self._deployment is None and not self._asked:
            self._asked = True  # a server that does not answer delays no second caller
            with suppress(StoreError):
                self._prepare()
        notifies = self._deployment is not None and self._deployment.has_change_streams
        return Capabilities(durable=True, shared=True, server_clock=True, notifies=notifies, clock_step=STEP)

    def connect(self) -> CasAdapter:
        """Open a connection; the first one creates the index."""
        self._prepare()
        return MongoAdapter(self._shared, self._layout)

    def watch(self, notified: Callable[[Collection[str] | None], None]) -> CasSubscription | None:
        """Open a change stream, where the deployment has them."""
        return MongoSubscription(self._shared, notified) if self._prepare().has_change_streams else None

    def diagnose(self) -> tuple[Finding, ...]:
        """Check the server, the collection and its index."""
        return health.diagnose(self._address)

    def reopen(self) -> CasService:
        """The same, with connections of its own."""
        return MongoService(self._address, self._namespace)

    def close(self) -> None:
        """Close all connections."""
        self._shared.close()

    def _prepare(self) -> health.Deployment:
        """Create what is missing, once. A user that may not create an index can use a collection that has it."""
        with self._preparing:
            if self._deployment is None:
                deployment = health.deployment_of(self._shared)
                with self._shared.request(writing=False) as collection:
                    indexes = collection.index_information()
                    if locale := health.collation_of(collection, indexes):
                        reason = health.wrong_collation(collection.full_name, locale)
                        raise StoreUnusable(f"{reason}. Nothing was changed. {health.OTHER_COLLECTION}")
                    if DUE_INDEX not in indexes:
                        collection.create_index(DUE_FIELDS, name=DUE_INDEX, partialFilterExpression=DUE_ONLY)
                    clock = collection.find_one({"_id": CLOCK_ID})
                if clock is None:
                    add_clock(self._shared)
                self._deployment = deployment
            return self._deployment
