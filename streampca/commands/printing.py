"""How commands print: plain text as it is; tables that are cut to a terminal's width, and nowhere else."""

import sys

from rich.console import Console

_ENDLESS = 10_000  # columns, where there is no terminal


def console() -> Console:
    """A console on standard output that takes no character of a text as markup."""
    width = None if sys.stdout.isatty() else _ENDLESS
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)
