"""A CSV file in which every row is one run: what it was, then what came out."""

import csv
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import isnan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

RUNS = 10  # of each kind
Row = dict[str, str]
Claim = tuple[str, dict[str, bool]]  # a sentence, and whether it holds in each setting


class Results:
    """Rows under the columns `keys`, which say what was run, and `values`."""

    def __init__(self, path: Path, keys: Sequence[str], values: Sequence[str]) -> None:
        self.path, self.keys, self.values = path, tuple(keys), tuple(values)

    def rows(self, **chosen: Any) -> list[Row]:
        """All rows, or those whose columns are as given."""
        if not self.path.exists():
            return []
        about = self.path.stat()
        rows = _read(self.path, about.st_size, about.st_mtime_ns)
        return [row for row in rows if all(row[key] == str(value) for key, value in chosen.items())]

    def done(self) -> set[tuple[str, ...]]:
        """The keys of the runs that are there."""
        return {tuple(row[key] for key in self.keys) for row in self.rows()}

    def append(self, key: Sequence[Any], values: Sequence[Any]) -> None:
        """One run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow([*self.keys, *self.values])
            writer.writerow([*key, *values])

    def numbers(self, column: str, **chosen: Any) -> list[float]:
        """One column of the chosen rows."""
        return [float(row[column]) for row in self.rows(**chosen)]

    def curves(self, column: str, **chosen: Any) -> list[list[float]]:
        """The same where each cell is a curve."""
        return [[float(value) for value in row[column].split()] for row in self.rows(**chosen)]


@lru_cache
def _read(path: Path, size: int, changed: int) -> list[Row]:
    """The rows of a file of this size, last changed then: tables ask for them hundreds of times."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def curve(values: Sequence[float]) -> str:
    """A curve as a cell."""
    return " ".join(f"{value:.5g}" for value in values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean±standard deviation, with the number of runs if they are not ten; a dash for nothing."""
    if not values:
        return "–"
    deviation = f"±{stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}" + ("" if len(values) == RUNS else f" [{len(values)}]")


def cell(value: float, form: str) -> str:
    """A number in this format; a dash for one that is missing."""
    return "–" if isnan(value) else format(value, form)


def average(values: Sequence[float]) -> float:
    """The mean; not a number for nothing."""
    return fmean(values) if values else float("nan")


def by_setting(holds: Iterable[bool], settings: Sequence[tuple[str, int]]) -> dict[str, bool]:
    """Whether a claim holds, by the names of the settings (data, k)."""
    return {f"{name} k={k}": holds_here for (name, k), holds_here in zip(settings, holds, strict=True)}
