"""The scripts, put together from their files.

`--@include FILE` stands for another file, `--@constants NAME ...` for local variables with the values of opcodes.py.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from . import opcodes

_INCLUDE = re.compile(r"^ *--@include (\S+)$", re.MULTILINE)
_CONSTANTS = re.compile(r"^( *)--@constants (.+)$", re.MULTILINE)


def _read(name: str) -> str:
    text = (files(__package__) / "lua" / name).read_text(encoding="utf-8")
    text = _CONSTANTS.sub(_constants, text)
    return _INCLUDE.sub(lambda found: _read(found[1]), text)


def _constants(found: re.Match[str]) -> str:
    names = found[2].split()
    values = ", ".join(str(getattr(opcodes, name)) for name in names)
    return f"{found[1]}local {', '.join(names)} = {values}"


def read_script(name: str) -> bytes:
    """A script, with the files that it includes."""
    return _read(name).encode()


class Script:
    """A script, and the SHA-1 digest by which a server that has loaded it knows it."""

    def __init__(self, name: str) -> None:
        self.text = read_script(name)
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


FAST, READ, WRITE = Script("locks.lua"), Script("read.lua"), Script("write.lua")
