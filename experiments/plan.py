"""What to run, on what, how often; and running it: with a progress bar, and only what is missing."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    workers: int = 1
    ks: Sequence[int] = (5, 10, 20)
    every: int = 1000  # messages between two points of a curve


@dataclass(frozen=True)
class Job:
    """One run: `function(data, *arguments)` gives the values of the row `key`; `data` is "" where none is needed."""

    key: tuple[Any, ...]
    function: Callable[..., Sequence[Any]]
    data: str
    arguments: tuple[Any, ...]


Outcome = tuple[tuple[Any, ...], Sequence[Any]]  # key and values of a row

_shared: Mapping[str, Data] = {}  # what the processes of a pool inherit: pictures are too large to send


def complete(title: str, plan: Plan, results: Results, jobs: Iterable[Job]) -> None:
    """Run the jobs whose rows are missing, and append each row as soon as it is known."""
    done = results.done()
    missing = [job for job in jobs if tuple(map(str, job.key)) not in done]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _outcomes(plan, missing) as outcomes, Progress(*columns, disable=not missing) as progress:
        bar = progress.add_task(title, total=len(missing))
        for key, values in outcomes:
            results.append(key, values)
            progress.advance(bar)


@contextmanager
def _outcomes(plan: Plan, jobs: Sequence[Job]) -> Iterator[Iterable[Outcome]]:
    """The rows as they become known. The processes are forked here, before the progress bar has its thread."""
    global _shared
    _shared = plan.data
    if plan.workers == 1 or not jobs:
        with threadpool_limits(1):
            yield map(_outcome, jobs)
        return
    fork = multiprocessing.get_context("fork")
    with threadpool_limits(1), ProcessPoolExecutor(plan.workers, fork) as pool:
        futures = [pool.submit(_outcome, job) for job in jobs]
        yield (future.result() for future in as_completed(futures))


def _outcome(job: Job) -> Outcome:
    with threadpool_limits(1):
        return job.key, job.function(_shared.get(job.data), *job.arguments)
