"""Stores for campaigns about workflows: a SQLite file, and real servers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from support import servers
from support.common import LONGEST_FULL, Report

SizeT = TypeVar("SizeT")
MARIADB = "mariadb"
"""The relational server whose clients poll: campaigns that send no commands of their own wire format run on it, too."""


@dataclass(frozen=True)
class WorkflowStore:
    """One store of a campaign."""

    kind: str
    server: str

    @property
    def transactional(self) -> bool:
        return self.kind in ("sqlite", "postgres")

    def url(self, home: Path) -> str:
        """The address for one case: its own SQLite file, or the shared server."""
        return f"sqlite:///{home}/holdfast.db" if self.kind == "sqlite" else self.server

    def file(self, url: str) -> str:
        return url.removeprefix("sqlite:///")


def main(
    script: str,
    prove: Callable[[SizeT, int, Path, Report, WorkflowStore], None],
    *,
    small: SizeT,
    full: SizeT,
    work: Callable[[dict[str, Any]], None] | None = None,
    parser: argparse.ArgumentParser | None = None,
    longest: float = LONGEST_FULL,
    settings: Mapping[str, dict[str, str]] = MappingProxyType({}),
    mariadb: bool = False,
) -> None:
    """Run the campaign on the selected stores, or one of its workers; with `mariadb`, also on MariaDB, at each size."""
    more = (MARIADB,) if mariadb else ()

    def on_server(size: SizeT, seed: int, folder: Path, report: Report, place: servers.Place) -> None:
        prove(size, seed, folder, report, WorkflowStore(place.kind, place.server.url))

    def here(size: SizeT, seed: int, folder: Path, report: Report) -> None:
        prove(size, seed, folder, report, WorkflowStore("sqlite", ""))

    servers.main(
        script,
        on_server,
        small=small,
        full=full,
        work=work,
        here=here,
        parser=parser,
        longest=longest,
        settings=settings,
        kinds=(*servers.KINDS, *more),
        small_kinds=(*servers.SMALL_KINDS, *more),
    )
