"""Output of the commands: plain text and tables, and a progress bar on stderr."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from streampca.errors import StreampcaError

if TYPE_CHECKING:
    from streampca.files.rows import Rows
    from streampca.formats.seen_names import SeenNames

Confirm = Callable[[str], bool] | None
"""Gets a question and returns whether to go on. None: nobody is asked."""

_UNLIMITED = 10_000  # characters in a line without a terminal: more than any table has


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr. It prints text as it is, and does not wrap tables without a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _UNLIMITED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width, stderr=stderr)


def ask(confirm: Confirm, question: str) -> None:
    """Ask the question. Raises `StreampcaError` if the answer is no."""
    if confirm and not confirm(question):
        raise StreampcaError("nothing was changed")


def print_note(text: str) -> None:
    """Print the text on stderr. Stdout has only the results of a command."""
    console(stderr=True).print(text)


def print_notes(rows: "Rows") -> None:
    """If something about the file was guessed, such as its separator, print the guess."""
    if rows.notes:
        print_note(f"{rows.path}: {rows.notes}")


def print_row_warnings(rows: "Rows", skipped: Counter[str], seen_names: "SeenNames") -> None:
    """Print how many rows were skipped for each reason.

    Also prints a warning if a name had no number in any row, and if the elements of an array changed their order.
    """
    from streampca.files.rows import describe_skipped

    for line in describe_skipped(skipped):
        print_note(line)
    print_warning(seen_names.describe_unseen("the rows"))
    print_warning(rows.describe_moved_array_elements())


def print_warning(text: str) -> None:
    """Print the text of a warning, unless it is empty."""
    if text:
        print_note(f"warning: {text}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right_aligned: Collection[str] = ()) -> Table:
    """Return a table without lines between its cells. `right_aligned` are headings of columns."""
    result = Table(box=None, pad_edge=False, show_header=bool(headings))
    for heading in headings:
        result.add_column(heading, justify="right" if heading in right_aligned else "left")
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


def format_by_partition(numbers: Mapping[int, int]) -> str:
    """Return the number of each partition, such as an offset, as a text like "0: 1200, 1: 1177"."""
    return ", ".join(f"{partition}: {number}" for partition, number in sorted(numbers.items()))


@contextmanager
def progress(task: str, total: float | None = 1.0) -> Iterator[Callable[..., None]]:
    """Show a progress bar if stderr is a terminal, and yield a function that updates it.

    `total` is None if the end is not known.
    """
    stderr = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=stderr,
        disable=not stderr.is_terminal,
    ) as bar:
        task_id = bar.add_task(task, total=total, rows=0, note="")
        yield partial(bar.update, task_id)
