"""`dynamodb://region/table`: conditional writes, strongly consistent reads, and the clocks of the clients.

There is no server clock and there are no notifications: `clocks.py` says how grants expire nevertheless, and waiters
poll. The rules run in this process over the compare-and-swap core; `connection.py` reads and writes the items. Options
in the URL: `endpoint`, `create`, `skew`, `expiry`, `profile`, `connect_timeout`, `read_timeout`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...commands import Command, SwapSlot
from ...errors import StoreUnusable
from ...platform import elapsed, host_clock
from ...rules.lock_record import LockRecord
from ...validation import MICROSECONDS
from ..cas import CasStore
from ..cas_adapter import CasServiceBase
from ..contract import Capabilities, Clock, Finding
from ..urls import redacted
from . import health
from .address import DynamoAddress, address_of_session, address_of_url
from .clocks import Observations, lengthened, written_back
from .connection import DynamoConnection, DynamoRequests, requests_to
from .layout import MAX_RECORD
from .table import TableSettings, settle_settings

if TYPE_CHECKING:
    from ..contract import Store


def open_dynamodb(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the table of the URL. The first request is sent when it is needed."""
    return CasStore(DynamoService(address_of_url(url), namespace, clock, url=redacted(url)), clock=clock)


def adopt_dynamodb(handle: Any, *, namespace: str, clock: Clock, options: Mapping[str, object] | None = None) -> Store:
    """Open a table through a `boto3.Session`. The option `table` names it; the others are those of the URL."""
    address = address_of_session(handle, options or {})
    return CasStore(DynamoService(address, namespace, clock, url=address.name), clock=clock)


class DynamoService(CasServiceBase):
    """One namespace of one table."""

    max_bytes = MAX_RECORD

    def __init__(self, address: DynamoAddress, namespace: str, clock: Clock, *, url: str) -> None:
        self.url = url
        self.identity = f"{address.name}#{namespace}"
        self._address, self._namespace, self._clock = address, namespace, clock
        self._observations = Observations(_steady if clock is host_clock else clock)
        self._lock = threading.Lock()
        self._requests: DynamoRequests | None = None
        self._settings: TableSettings | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<DynamoService {self.identity}>"

    @property
    def capabilities(self) -> Capabilities:
        """The same for every table: what DynamoDB has acknowledged is durable."""
        return Capabilities(durable=True, shared=True, server_clock=False, notifies=False, trips=2)

    def connect(self) -> DynamoConnection:
        """Open a connection; the first one checks the table's settings, and creates the table if the URL says so."""
        requests = self._shared_requests()
        with self._lock:
            if self._settings is None:
                self._settings = settle_settings(requests, self._address, self._clock)
        by_clock = self._settings.expiry == "clock"
        return DynamoConnection(requests, self._namespace, self._clock, trusts_times=by_clock)

    def adjusted(self, command: Command) -> Command:
        """By a stated difference of the clocks: the command with that added to what is stored."""
        if self._settings is None:
            raise StoreUnusable("no connection was opened")
        if self._settings.expiry == "clock":
            return lengthened(command, self._settings.skew) if self._settings.skew else command
        if isinstance(command, SwapSlot) and command.reserve:
            return replace(command, reserve=0)  # a reservation ends by the clock, and is only a courtesy
        return command

    def observed(self, key: str, record: LockRecord, stamp: str, now: int) -> LockRecord:  # noqa: ARG002
        """By observation: the record with the expiries that this process has observed."""
        if self._settings is None or self._settings.expiry == "clock":
            return record
        return self._observations.shown(key, record, now)

    def written_back(self, stored: LockRecord, shown: LockRecord, after: LockRecord) -> LockRecord:
        """By observation: what the rules left unchanged is written as it was stored."""
        return after if stored is shown else written_back(stored, shown, after)

    def diagnose(self) -> tuple[Finding, ...]:
        """Check the table, its settings, its TTL, its protection, and the clock of this host."""
        return health.diagnose(self._address, self._clock)

    def reopen(self) -> DynamoService:
        """The same, for the child of a fork: nothing of botocore is shared with the parent."""
        return DynamoService(self._address, self._namespace, self._clock, url=self.url)

    def close(self) -> None:
        """Close the HTTP connections."""
        self._closed = True
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.client.close()

    def _shared_requests(self) -> DynamoRequests:
        with self._lock:
            if self._closed:
                raise StoreUnusable(f"the store {self.url} is closed. Open a new one.")
            if self._requests is None:
                self._requests = requests_to(self._address)
            return self._requests


def unready(url: str) -> str | None:
    """Why opening this URL would change something; None where it would not."""
    address = address_of_url(url)
    requests = requests_to(address)
    try:
        return health.unready(requests, address)
    finally:
        requests.client.close()


def _steady() -> int:
    return int(elapsed() * MICROSECONDS)
