"""The scripts, put together from their files."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

_INCLUDE = re.compile(r"^ *--@include (\S+)$", re.MULTILINE)


def _read(name: str) -> str:
    text = (files(__package__) / "lua" / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _read(found[1]), text)


def read_script(name: str) -> bytes:
    """A script, with the files that it includes."""
    return _read(name).encode()


class Script:
    """A script, and the name by which a server that has it knows it."""

    def __init__(self, name: str) -> None:
        self.text = read_script(name)
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


FAST, READ, WRITE = Script("locks.lua"), Script("read.lua"), Script("write.lua")
