"""The command line. It needs the packages of the extra `cli`, and names that extra if they are missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or print what to install."""
    try:
        from .app import app  # noqa: PLC0415  (its libraries are an extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit("holdfast: the command line needs the packages click and rich: pip install 'holdfast[cli]'")
    app(prog_name="holdfast")
