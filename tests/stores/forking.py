"""Run a function in a forked child, and read what it returned."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

CHILD_SECONDS = 30


def in_child(function: Callable[[], object], meanwhile: Callable[[], None] = lambda: None) -> str:
    """What the function returned in a child, as text; `meanwhile` runs here before that is read."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(CHILD_SECONDS)  # a child that hangs must not hang the test
        try:
            answer = str(function())
        except BaseException:
            answer = traceback.format_exc()
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    meanwhile()
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer
