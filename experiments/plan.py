"""What to run, on what, how often; and running it: with a progress bar, and only what is missing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from experiments.datasets import Data
from experiments.results import RUNS, Results

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True, eq=False)
class Plan:
    """What to run."""

    data: Mapping[str, Data]
    folder: Path = FOLDER
    runs: int = RUNS
    slow_runs: int = RUNS  # of IncrementalPCA, which takes long
    ks: Sequence[int] = (5, 10, 20)
    every: int = 1000  # messages between two points of a curve


class Job(NamedTuple):
    """One run: `function(data, *arguments)` gives the values of the row `key`; `data` is "" where none is needed."""

    key: tuple[Any, ...]
    function: Callable[..., Sequence[Any]]
    data: str
    arguments: tuple[Any, ...]


def complete(title: str, plan: Plan, results: Results, jobs: Iterable[Job]) -> None:
    """Run the jobs whose rows are missing, and append each row as soon as it is known."""
    done = results.done()
    missing = [job for job in jobs if tuple(map(str, job.key)) not in done]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with threadpool_limits(1), Progress(*columns, disable=not missing) as progress:
        for job in progress.track(missing, description=title):
            results.append(job.key, job.function(plan.data.get(job.data), *job.arguments))
