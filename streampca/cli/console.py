"""Output of the commands: plain text and tables, and a progress bar on stderr."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from streampca.files.rows import Rows

_UNLIMITED = 10_000  # characters in a line without a terminal: more than any table has


def console() -> Console:
    """Return a console on standard output that interprets no markup and, without a terminal, does not wrap tables."""
    width = None if sys.stdout.isatty() else _UNLIMITED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)


def print_notes(rows: "Rows") -> None:
    """If a file was read by a guess, such as a guessed separator, print what was guessed."""
    if rows.notes:
        console().print(f"{rows.path}: {rows.notes}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> Table:
    """Return a table of texts without lines; columns whose headings are in `right` are aligned right."""
    result = Table(box=None, pad_edge=False, show_header=bool(headings))
    for heading in headings:
        result.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        result.add_row(*row)
    return result


def iso_time(milliseconds: float) -> str | None:
    """Return a time, in milliseconds since 1970, as text in UTC; None if it is negative or beyond the year 9999."""
    if milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return None


@contextmanager
def progress(task: str, total: float | None = 1.0) -> Iterator[Callable[..., None]]:
    """Show a progress bar if stderr is a terminal; yield a function that updates its `completed`, `rows` and `note`."""
    errors = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    ) as bar:
        yield partial(bar.update, bar.add_task(task, total=total, rows=0, note=""))
