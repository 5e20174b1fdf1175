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

from pymongo import MongoClient
from pymongo.collection import Collection as MongoCollection

from ...errors import StoreError, StoreUnusable
from ..cas import CasStore
from ..cas_adapter import CasAdapter, CasServiceBase, CasSubscription
from ..contract import Capabilities, Clock, Finding
from . import health
from .adapter import STEP, MongoAdapter, add_clock, mapped
from .address import MongoAddress, address_of_client, address_of_url
from .layout import CLOCK_ID, DUE_FIELDS, DUE_INDEX, DUE_ONLY, Document, MongoLayout
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
    address = address_of_url(url)
    with address.open_client() as client, mapped(address.name, writing=False):
        collection = address.collection_of(client)
        if DUE_INDEX in collection.index_information() and collection.find_one({"_id": CLOCK_ID}):
            return None
    return (
        f"the collection {address.database}.{address.collection} is not prepared: no client has used it yet. Check the "
        "URL, its database and its ?collection=. The first client that opens the store prepares it."
    )


class MongoService(CasServiceBase):
    """One namespace of a collection."""

    max_bytes = MAX_BYTES

    def __init__(self, address: MongoAddress, namespace: str) -> None:
        self.url = address.url
        self.identity = f"{address.name}#{namespace}"
        self._address, self._namespace = address, namespace
        self._layout = MongoLayout(namespace)
        self._lock = threading.Lock()
        self._client: MongoClient[Document] | None = None
        self._deployment: health.Deployment | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<MongoService {self.identity}>"

    @property
    def capabilities(self) -> Capabilities:
        """What this store can promise. Whether there are change streams is known after the first connection."""
        if self._deployment is None and not self._closed:
            with suppress(StoreError):
                self._prepared()
        notifies = self._deployment is not None and self._deployment.has_change_streams
        return Capabilities(durable=True, shared=True, server_clock=True, notifies=notifies, clock_step=STEP)

    def connect(self) -> CasAdapter:
        """Open a connection; the first one creates the index."""
        return MongoAdapter(self._prepared(), self._layout, self._address.name)

    def watch(self, notified: Callable[[Collection[str] | None], None]) -> CasSubscription | None:
        """Open a change stream, where the deployment has them."""
        collection = self._prepared()
        if self._deployment is None or not self._deployment.has_change_streams:
            return None
        return MongoSubscription(collection, notified)

    def diagnose(self) -> tuple[Finding, ...]:
        """Check the server, the collection and its index."""
        return health.diagnose(self._address)

    def reopen(self) -> CasService:
        """The same, with connections of its own."""
        return MongoService(self._address, self._namespace)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _prepared(self) -> MongoCollection[Document]:
        """The collection, with its index and its clock."""
        with self._lock:
            if self._closed:
                raise StoreUnusable(f"the store {self.url} is closed. Open a new one.")
            if self._client is None:
                with mapped(self._address.name, writing=False):
                    self._client = self._address.open_client()
            collection = self._address.collection_of(self._client)
            if self._deployment is None:
                deployment = health.deployment_of(self._client, self._address.name)
                _prepare(collection, self._address.name)
                self._deployment = deployment
            return collection


def _prepare(collection: MongoCollection[Document], place: str) -> None:
    """Create what is missing. A user that may not create an index can use a collection that has it."""
    with mapped(place, writing=False):
        if DUE_INDEX not in collection.index_information():
            collection.create_index(DUE_FIELDS, name=DUE_INDEX, partialFilterExpression=DUE_ONLY)
        if collection.find_one({"_id": CLOCK_ID}) is None:
            add_clock(collection, place)
