"""A Griffe extension: the examples of docstrings (`>>> ...`) become code blocks.

In Markdown `>>>` begins a quotation. Docstrings are written for `help()` and for doctest, so the fences are added here,
for the API reference and for llms-full.txt.
"""

# ruff: noqa: INP001  (a script)

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|\n)((?:>>> .*)(?:\n(?!\s*$).+)*)")


def fenced(text: str) -> str:
    r"""Put every doctest example of a docstring into a code block.

    >>> fenced("Add.\n\n>>> 1 + 1\n2\n\nMore.")
    'Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    if "```pycon" in text:
        return text
    return EXAMPLE.sub(lambda found: found[0].replace(found[1], f"```pycon\n{found[1]}\n```"), text)


class DocstringExamples(griffe.Extension):
    """Fences the examples of each docstring that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
