"""The root of all commands, and the outcome of a command that failed alone."""

from __future__ import annotations

import msgspec

from ..errors import HoldfastError
from ..rules import lock_outcomes as out

PAGE = 100


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The root of everything that a store can be asked."""


class Failed(out.Outcome, frozen=True, kw_only=True):
    """This command alone failed; its neighbours did not. The error is to be raised at the caller's."""

    error: HoldfastError
