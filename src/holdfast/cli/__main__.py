"""`python -m holdfast.cli`."""

from . import main

main()
