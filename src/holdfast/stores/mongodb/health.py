"""What a MongoDB deployment reports about itself, and whether that suits locks. The checks change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from ...errors import StoreError
from ..contract import Finding
from .address import MongoAddress
from .client import SharedClient
from .layout import CLOCK_ID, DUE_INDEX, Document

MIN_VERSION = (4, 2)
SIMPLE = "simple"
"""The collation that compares bytes."""
OTHER_COLLECTION = "Name another one by ?collection=, which Holdfast creates, or drop it if it is empty."


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says about its topology."""

    set_name: str
    sharded: bool
    writable: bool

    @property
    def has_change_streams(self) -> bool:
        """Whether waiters can be notified: a replica set or a sharded cluster is needed."""
        return bool(self.set_name) or self.sharded


def deployment_of(shared: SharedClient) -> Deployment:
    """Ask the server."""
    with shared.request(writing=False) as collection:
        hello: dict[str, Any] = collection.database.command("hello")
    return Deployment(
        set_name=str(hello.get("setName", "")),
        sharded=hello.get("msg") == "isdbgrid",
        writable=bool(hello.get("isWritablePrimary", hello.get("ismaster", False))),
    )


def collation_of(collection: Collection[Document], indexes: Mapping[str, Any]) -> str:
    """The locale by which a collection compares text that was made with a collation; empty: it compares bytes."""
    found: Mapping[str, Any] = next((index["collation"] for index in indexes.values() if "collation" in index), {})
    with suppress(OperationFailure):  # the user may not list collections; MongoDB shows the collation of indexes, too
        found = collection.options().get("collation", found)
    locale = str(found.get("locale", SIMPLE))
    return "" if locale == SIMPLE else locale


def wrong_collation(name: str, locale: str) -> str:
    """Why such a collection cannot be used."""
    return (
        f"the collection {name} has the collation {locale!r}: it may take two keys that differ, such as a and A, for "
        "the same one"
    )


def diagnose(address: MongoAddress) -> tuple[Finding, ...]:
    """All findings about the deployment, in a fixed order."""
    shared = SharedClient(address)
    try:
        return tuple(_findings(address, shared))
    except StoreError as error:
        return (
            Finding(
                check="server",
                level="problem",
                detail=str(error),
                advice="The other checks need the server: fix this first.",
            ),
        )
    finally:
        shared.close()


def _findings(address: MongoAddress, shared: SharedClient) -> Iterator[Finding]:
    deployment = deployment_of(shared)
    with shared.request(writing=False) as collection:
        build: dict[str, Any] = collection.database.command("buildInfo")
        indexes = collection.index_information()
        prepared = collection.find_one({"_id": CLOCK_ID}) is not None
        locale = collation_of(collection, indexes)
    yield _server(build)
    yield _topology(deployment)
    yield _durability(deployment)
    yield _wake_up(deployment)
    yield _collection(address, indexes, prepared=prepared, locale=locale)


def _server(build: Mapping[str, Any]) -> Finding:
    version = str(build.get("version", ""))
    name = f"{other} with the protocol of MongoDB" if (other := _stand_in(build)) else "MongoDB"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not numbers:
        return Finding(
            check="server",
            level="warning",
            detail="the server does not report its version",
            advice="Make sure that it is MongoDB 4.2 or newer.",
        )
    if numbers < MIN_VERSION:
        return Finding(
            check="server",
            level="problem",
            detail=f"{name} {version} is too old",
            advice="Use MongoDB 4.2 or newer.",
        )
    return Finding(check="server", level="ok", detail=f"{name} {version}")


def _stand_in(build: Mapping[str, Any]) -> str:
    """The name and version of a server that is not MongoDB; empty for MongoDB.

    Such servers report the version of MongoDB whose protocol they speak, and their own beside it: `secantusVersion`,
    `ferretdbVersion`, or `ferretdb: {"version": ...}`.
    """
    for name, value in build.items():
        if name.endswith("Version") and name != "gitVersion":
            return f"{name.removesuffix('Version')} {value}"
        if isinstance(value, Mapping) and "version" in value:
            return f"{name} {value['version']}"
    return ""


def _topology(deployment: Deployment) -> Finding:
    if not deployment.writable:
        return Finding(
            check="topology",
            level="problem",
            detail="the server is not the primary of its replica set",
            advice="Name all members in the URL, without directConnection=true: the driver then finds the primary.",
        )
    if deployment.sharded:
        return Finding(check="topology", level="ok", detail="a sharded cluster")
    if deployment.set_name:
        return Finding(check="topology", level="ok", detail=f"the primary of the replica set {deployment.set_name!r}")
    return Finding(
        check="topology",
        level="warning",
        detail="a standalone server: while it is down no lock can be acquired or renewed, and waiters poll",
        advice="Use a replica set of three members where that matters.",
    )


def _durability(deployment: Deployment) -> Finding:
    written = "a majority of the members has" if deployment.has_change_streams else "the server has"
    return Finding(
        check="durability",
        level="ok",
        detail=f"a write is answered when {written} it in the journal (w: majority, j: true), whatever the URL says",
    )


def _wake_up(deployment: Deployment) -> Finding:
    if deployment.has_change_streams:
        return Finding(check="wake-ups", level="ok", detail="waiters are notified by a change stream")
    return Finding(
        check="wake-ups",
        level="warning",
        detail="there are no change streams without a replica set: waiters poll",
        advice="Make it a replica set, also of one member: rs.initiate().",
    )


def _collection(address: MongoAddress, indexes: Any, *, prepared: bool, locale: str) -> Finding:
    name = f"{address.database}.{address.collection}"
    if locale:
        return Finding(
            check="collection", level="problem", detail=wrong_collation(name, locale), advice=OTHER_COLLECTION
        )
    ttl = [one for one, index in indexes.items() if "expireAfterSeconds" in index]
    if ttl:
        return Finding(
            check="collection",
            level="problem",
            detail=f"{name} has a TTL index ({', '.join(ttl)}): the server deletes records by itself, and with them "
            "locks that are held, and fences",
            advice=f"Drop it: db.{address.collection}.dropIndex({ttl[0]!r}).",
        )
    if DUE_INDEX not in indexes or not prepared:
        return Finding(
            check="collection",
            level="warning",
            detail=f"{name} lacks the index {DUE_INDEX}, or the document with which the time is read",
            advice="The next client that opens the store creates both; its user needs the role readWrite.",
        )
    return Finding(check="collection", level="ok", detail=f"{name} has its index")
