"""Output of the commands: plain text and tables, and a progress bar on stderr."""

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_UNLIMITED = 10_000  # columns, without a terminal


def console() -> Console:
    """A console on standard output that interprets no markup; only a terminal's width limits tables."""
    width = None if sys.stdout.isatty() else _UNLIMITED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)


def progress() -> Progress:
    """A bar, shown only on a terminal, with the share done, the time left, and each task's fields `rows` and `note`."""
    errors = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )
