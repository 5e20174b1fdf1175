"""The root of all commands, and the outcome of a command that failed alone."""

from __future__ import annotations

import msgspec

from ..errors import HoldfastError
from ..rules import lock_outcomes as out

PAGE = 100


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of all commands."""


class Failed(out.Outcome, frozen=True, kw_only=True):
    """This command failed; the others of its batch did not. The error is raised in the caller."""

    error: HoldfastError
