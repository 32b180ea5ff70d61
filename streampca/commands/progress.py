"""Progress for people: a live bar on a terminal, nothing elsewhere. On stderr, so that output can be piped."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


def progress() -> Progress:
    """A bar with its share, the time left, and the fields `rows` and `note` of each task."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
