"""Write llms.txt and llms-full.txt (https://llmstxt.org) into a built site, and the Markdown of every page.

`llms.txt` is an index: the pages in the order of the navigation, each with one sentence. `llms-full.txt` is the text
of all these pages. API pages, whose Markdown consists of directives, are written out from the docstrings.
Usage: `python scripts/llms_txt.py SITE`.
"""

# ruff: noqa: INP001  (a script)

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import yaml
from docstring_examples import fenced

ROOT = Path(__file__).parents[1]
DIRECTIVE = re.compile(r"^::: (\S+)\n(?:(?: {4}.*)?\n)*", re.MULTILINE)
INTERNAL = {"label", "runtime"}
"""Members of clients for the objects that are built on them."""
LONGEST = 200
"""How many characters a description may have."""


def pages(entries: list[Any], section: str = "") -> Iterator[tuple[str, str, str]]:
    """The pages of a navigation: the section at the top level, the title (empty: that of the page), the path.

    >>> list(pages([{"Start": "index.md"}, {"Guide": [{"More": [{"A": "a.md"}, "b.md"]}]}]))
    [('', 'Start', 'index.md'), ('Guide', 'A', 'a.md'), ('Guide', '', 'b.md')]
    """
    for entry in entries:
        for title, target in entry.items() if isinstance(entry, dict) else [("", entry)]:
            if isinstance(target, str):
                yield section, title, target
            else:
                yield from pages(target, section or title)


def description(text: str) -> str:
    r"""The first sentence of a page that is prose, without markup.

    >>> description("# Locks\n\nA [lock](a.md) is **held**. It is more.")
    'A lock is held.'
    """
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", prose):
        if not paragraph.strip() or re.match(r"\s*(#|\||<|!|- |:::|\{)", paragraph):
            continue
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split())).replace("**", "")
        plain = plain.removeprefix("Context. ")  # of a decision
        sentence = re.match(r".+?[.?!](?=\s|$)", plain)
        found = sentence[0] if sentence else plain
        return found if len(found) <= LONGEST else found[: LONGEST - 1].rsplit(" ", 1)[0] + "…"
    return ""


@cache
def package() -> griffe.Object:
    """The package, read from its source."""
    return griffe.load("holdfast", search_paths=[ROOT / "src"], resolve_aliases=True)  # type: ignore[return-value]


def documented(name: str) -> str:
    """What the API reference shows of an object: its signature, its docstring, and those of its public members."""
    found = package()[name.removeprefix("holdfast.")]
    return "\n\n".join(_parts(found, level=2))


def _parts(thing: Any, level: int) -> Iterator[str]:
    if thing.is_module:
        for member in thing.members.values():
            if not member.is_alias and member.is_class and _public(member):
                yield from _parts(member, level)
        return
    yield f"{'#' * level} {_signature(thing)}"
    if thing.docstring is not None:
        yield fenced(thing.docstring.value)
    if thing.is_class:
        fields = [member for member in thing.members.values() if _is_field(member)]
        if fields:
            yield "Fields: " + ", ".join(f"`{field.name}: {field.annotation}`" for field in fields) + "."
        for member in thing.all_members.values():
            if _public(member):
                yield from _parts(member, level + 1)


def _is_field(thing: Any) -> bool:
    plain = thing.is_attribute and thing.annotation is not None and thing.docstring is None
    return plain and not thing.name.startswith("_") and "instance-attribute" in thing.labels


def _public(thing: Any) -> bool:
    return thing.docstring is not None and not thing.name.startswith("_") and thing.name not in INTERNAL


def _signature(thing: Any) -> str:
    if thing.is_class:
        return f"class {thing.path}"
    if not thing.is_function:
        return str(thing.name)
    text = thing.signature().replace("(self, ", "(", 1).replace("(self)", "()", 1)
    return f"{'async ' if 'async' in thing.labels else ''}{text}"


def text_of(path: str) -> str:
    """The Markdown of a page, with its directives written out."""
    return DIRECTIVE.sub(lambda found: documented(found[1]) + "\n\n", (ROOT / "docs" / path).read_text())


def main(site: Path) -> None:
    """Write everything."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    index = [f"# {config['site_name']}", "", f"> {config['site_description']}: locks, state and workflows.", ""]
    index += ["All pages in one file: [llms-full.txt](llms-full.txt)"]
    full, last = [], ""
    for section, title, path in pages(config["nav"]):
        if section != last:
            index += ["", f"## {section}", ""]
            last = section
        text = text_of(path)
        heading = text.partition("\n")[0].lstrip("# ")
        index.append(f"- [{title or heading}]({path}): {description(text)}")
        full.append(f"<!-- {path} -->\n\n{text.strip()}\n")
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (site / "llms.txt").write_text("\n".join(index) + "\n")
    (site / "llms-full.txt").write_text("\n".join(full))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
