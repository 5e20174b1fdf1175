"""The command line. It needs the extra `cli`; without it, it says so."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        from .app import app  # noqa: PLC0415  (its libraries are an extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit("The command line needs two more packages: pip install 'holdfast[cli]'")
    app(prog_name="holdfast")
