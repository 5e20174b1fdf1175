"""The client of pymongo that the connections of a store share: opened when needed, replaced when it may be damaged.

An interrupt within the driver can leave a client that never finds its servers again, and so can a change of all
addresses. Such a client is closed, and the next request opens another one. Errors of the driver leave this module as
errors of Holdfast.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pymongo.errors
from pymongo import MongoClient
from pymongo.collection import Collection

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from .address import MongoAddress
from .errors import store_error
from .layout import Document


class SharedClient:
    """One client at a time, for any number of threads. Not used across a fork."""

    def __init__(self, address: MongoAddress) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._client: MongoClient[Document] | None = None
        self._closed = False

    @contextmanager
    def request(self, *, writing: bool) -> Iterator[Collection[Document]]:
        """The collection, for one request. `writing`: the request may change something."""
        client = self._current()
        try:
            yield self.address.collection_of(client)
        except StoreError:
            raise
        except pymongo.errors.ServerSelectionTimeoutError as error:
            self._discard(client)
            raise store_error(error, self.address.name, writing=writing) from error
        except (pymongo.errors.PyMongoError, OSError) as error:
            if isinstance(error, pymongo.errors.InvalidOperation) and self._client is not client:
                raise StoreUnavailable(
                    f"the connection to {self.address.name} was closed, because another request on it was interrupted",
                    ambiguous=writing,
                ) from error
            raise store_error(error, self.address.name, writing=writing) from error
        except BaseException:
            self._discard(client)
            raise

    def close(self) -> None:
        """Close the client, and open no other."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _current(self) -> MongoClient[Document]:
        with self._lock:
            if self._closed:
                raise StoreUnusable(f"the store {self.address.url} is closed. Open a new one.")
            if self._client is None:
                try:
                    self._client = self.address.open_client()
                except pymongo.errors.PyMongoError as error:
                    raise store_error(error, self.address.name, writing=False) from error
            return self._client

    def _discard(self, client: MongoClient[Document]) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
        with suppress(Exception):
            client.close()
