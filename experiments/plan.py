"""What to run, on what, how often; and running it: with a progress bar, and only what is missing.

Every row of a CSV file is one run: what it was, then what came out.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import track
from threadpoolctl import threadpool_limits

from experiments.datasets import Data
from experiments.report import RUNS

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True, eq=False)
class Plan:
    """What to run."""

    data: Mapping[str, Data]
    folder: Path = FOLDER
    runs: int = RUNS
    ks: Sequence[int] = (5, 10, 20)
    every: int = 1000  # messages between two points of a curve


class Results:
    """A CSV file with rows under the columns `keys`, which say what was run, and `values`."""

    def __init__(self, path: Path, keys: Sequence[str], values: Sequence[str]) -> None:
        self.path, self.keys, self.values = path, tuple(keys), tuple(values)

    def rows(self, **chosen: Any) -> list[dict[str, str]]:
        """All rows, or those with these values in the columns."""
        if not self.path.exists():
            return []
        status = self.path.stat()
        rows = _read(self.path, status.st_size, status.st_mtime_ns)
        return [row for row in rows if all(row[key] == str(value) for key, value in chosen.items())]

    def append(self, key: Sequence[Any], values: Sequence[Any]) -> None:
        """Write one run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([[*self.keys, *self.values]] * new + [[*key, *values]])

    def numbers(self, column: str, **chosen: Any) -> list[float]:
        """One column of the chosen rows."""
        return [float(row[column]) for row in self.rows(**chosen)]

    def curves(self, column: str, **chosen: Any) -> list[list[float]]:
        """A column of curves of the chosen rows."""
        return [[float(value) for value in row[column].split()] for row in self.rows(**chosen)]


@lru_cache
def _read(path: Path, size: int, changed: int) -> list[dict[str, str]]:
    """The rows of a file of this size, last changed then: tables ask for them hundreds of times."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def curve(values: Sequence[float]) -> str:
    """A curve as a cell."""
    return " ".join(f"{value:.5g}" for value in values)


class Job(NamedTuple):
    """One run: `function(data, *arguments)` gives the values of the row `key`; `data` is "" where none is needed."""

    key: tuple[Any, ...]
    function: Callable[..., Sequence[Any]]
    data: str
    arguments: tuple[Any, ...]


def complete(title: str, plan: Plan, results: Results, jobs: Iterable[Job]) -> None:
    """Run the jobs whose rows are missing, and append each row as soon as it is known."""
    done = {tuple(row[key] for key in results.keys) for row in results.rows()}
    missing = [job for job in jobs if tuple(map(str, job.key)) not in done]
    with threadpool_limits(1):
        for job in track(missing, title, disable=not missing):
            results.append(job.key, job.function(plan.data.get(job.data), *job.arguments))
