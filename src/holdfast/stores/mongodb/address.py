"""Addresses of MongoDB deployments, and the clients of pymongo that are opened for them.

A client is opened for each store, never borrowed from the program: a full pool must not cost a holder its lease. The
driver's own retries are off, because only the core knows what a lost reply means. Reads are from the primary and of
what a majority has; a write is answered when a majority has it in its journal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
import pymongo.errors
import pymongo.uri_parser
from pymongo import MongoClient, ReadPreference
from pymongo.collection import Collection
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from ...errors import InvalidOption
from ..urls import redacted
from .layout import COLLECTION, DATABASE, Document

DEFAULT_PORT = 27017
SETTINGS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 10_000,
    "appname": "holdfast",
}
"""Options that the URL may set otherwise."""
FIXED: dict[str, Any] = {"retryWrites": False, "retryReads": False, "tz_aware": False, "connect": False}
"""Options that hold whatever the URL says."""
_URL = re.compile(r"(mongodb(?:\+srv)?)://([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.IGNORECASE | re.DOTALL)
_NOT_IN_NAMES = {"database": re.compile(r'[/\\. "$*<>:|?\0]'), "collection": re.compile(r"[$\0]|^system\.|\.\.|\.$")}


class MongoAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of a deployment, and how clients for it are opened."""

    hosts: str
    """The hosts of the URL, in order, without user and password."""
    url: str
    database: str = DATABASE
    collection: str = COLLECTION
    open_client: Callable[[], MongoClient[Document]]

    def __repr__(self) -> str:
        """Omits the function, which may contain a password."""
        return f"<MongoAddress {self.name}>"

    @property
    def name(self) -> str:
        """The address without secrets; equal for equivalent URLs."""
        return f"mongodb://{self.hosts}/{self.database}.{self.collection}"

    def collection_of(self, client: MongoClient[Document]) -> Collection[Document]:
        """The collection, with the guarantees that Holdfast needs."""
        return client[self.database].get_collection(
            self.collection,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern("majority", j=True),
        )


def address_of_url(url: str) -> MongoAddress:
    """The address of a URL of pymongo, which may also have the option `collection`."""
    match = _URL.fullmatch(url)
    if match is None:
        raise InvalidOption("the URL of a MongoDB store is mongodb://host:27017/database?collection=name")
    scheme, authority, path, query = match[1].lower(), match[2], match[3] or "", match[4] or ""
    ours, rest = _split(query)
    driver_url = f"{scheme}://{authority}/{path}" + (f"?{rest}" if rest else "")
    hosts = authority.rpartition("@")[2].lower()

    def open_client() -> MongoClient[Document]:
        named = {part.partition("=")[0].lower() for part in rest.split("&")}
        settings = {name: value for name, value in SETTINGS.items() if name.lower() not in named}
        return MongoClient(driver_url, **settings, **FIXED)

    if rest:
        _check_options(rest)
    if not scheme.endswith("srv"):  # whose hosts are looked up only when they are needed
        _check(open_client, secret="@" in authority)
    return MongoAddress(
        hosts=_in_order(hosts, srv=scheme.endswith("srv")),
        url=redacted(url),
        database=_name(unquote(path) or DATABASE, "database"),
        collection=_name(unquote(ours.get("collection", COLLECTION)), "collection"),
        open_client=open_client,
    )


def address_of_client(handle: Any, options: Mapping[str, object]) -> MongoAddress:
    """The address of a `MongoClient`: its settings are used, its connections are not."""
    if type(handle).__name__.startswith("Async"):
        raise InvalidOption(
            "a store cannot be opened from an AsyncMongoClient: Holdfast uses its connections from a thread of its "
            "own, for AsyncClient too. Pass the URL, or a pymongo.MongoClient with the same settings."
        )
    unknown = set(options) - {"database", "collection"}
    if unknown:
        raise InvalidOption(
            f"with a MongoClient the only options are database and collection; set {sorted(unknown)} on the client"
        )
    servers = handle.topology_description.server_descriptions()
    hosts = ",".join(sorted(f"{host}:{port or DEFAULT_PORT}" for host, port in servers))
    database = str(options.get("database") or handle.get_default_database(DATABASE).name)

    def open_client() -> MongoClient[Document]:
        # The only way that the driver has to copy a client with its credentials and certificates.
        opened: MongoClient[Document] = handle._duplicate(**FIXED)  # noqa: SLF001
        return opened

    return MongoAddress(
        hosts=hosts,
        url=f"mongodb://{hosts}/{database}",
        database=_name(database, "database"),
        collection=_name(str(options.get("collection", COLLECTION)), "collection"),
        open_client=open_client,
    )


def _split(query: str) -> tuple[dict[str, str], str]:
    """Our options, and the query without them."""
    ours: dict[str, str] = {}
    rest: list[str] = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name == "collection":
            ours[name] = value
        else:
            rest.append(part)
    return ours, "&".join(rest)


def _check_options(options: str) -> None:
    """Raise for an option that is unknown or has a bad value: pymongo itself would only warn, and ignore it."""
    try:
        pymongo.uri_parser.parse_uri(f"mongodb://localhost/?{options}", warn=False)
    except (pymongo.errors.PyMongoError, ValueError, TypeError) as error:
        raise InvalidOption(
            f"an option of this mongodb:// URL cannot be used ({error}). The options are those of pymongo, and "
            "collection."
        ) from None


def _check(open_client: Callable[[], MongoClient[Document]], *, secret: bool) -> None:
    """Raise for a URL that the driver does not accept. Its text may repeat a part of a password."""
    try:
        open_client().close()
    except (pymongo.errors.PyMongoError, ValueError, TypeError) as error:
        detail = "" if secret else f": {error}"
        raise InvalidOption(
            f"pymongo does not accept this URL ({type(error).__name__}{detail}). User name and password must be "
            "percent-encoded, and the options are those of pymongo and collection."
        ) from None


def _in_order(hosts: str, *, srv: bool) -> str:
    if srv:
        return hosts
    return ",".join(
        sorted(host if re.search(r":\d+$", host) else f"{host}:{DEFAULT_PORT}" for host in hosts.split(","))
    )


def _name(name: str, what: str) -> str:
    if not name or _NOT_IN_NAMES[what].search(name):
        raise InvalidOption(f"{name!r} cannot be the name of a {what} of MongoDB")
    return name
