"""Output of the commands: plain text and tables; only a terminal's width limits tables."""

import sys

from rich.console import Console

_UNLIMITED = 10_000  # columns, without a terminal


def console() -> Console:
    """A console on standard output that interprets no markup."""
    width = None if sys.stdout.isatty() else _UNLIMITED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)
