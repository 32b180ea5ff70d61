"""A stream of `benchmarks.streams`: a table of rows, the order in which they come, and numbers of components."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from experiments.baselines.incremental_gram import GramIncrementalPCA
from streampca.pca import learning
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig

Rows = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows, kept as they are and scaled when they are read: (rows[index] − shift) · factor."""

    rows: Rows  # (n, d)
    shift: F64 | float = 0.0
    factor: F64 | float = 1.0

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: Indices) -> F64:
        """Some rows (n, d)."""
        return (self.rows[index] - self.shift) * self.factor

    def standardised(self) -> "Table":
        """Columns with mean 0 and variance 1; constant columns stay 0."""
        mean, deviation = self.rows.mean(axis=0, dtype=np.float64), self.rows.std(axis=0, dtype=np.float64)
        return Table(self.rows, mean, 1 / np.where(deviation > 0, deviation, 1.0))


@dataclass(frozen=True, eq=False)
class Stream:
    """One stream and the numbers of components to learn from it."""

    name: str
    order: str
    table: Table
    index: Indices  # the rows in the order in which they come
    components: tuple[int, ...]


def held(d: int, k: int) -> int:
    """Columns that our state holds where it keeps a factor, K + ℓ, and so those of rivals."""
    return min(k + LearningConfig(d, k).beyond + learning.SPARE, d)


def incremental(batches: Iterable[F64], d: int, columns: int, k: int) -> tuple[F64, F64]:
    """Components (k, d) and mean of IncrementalPCA with so many columns."""
    pca = GramIncrementalPCA(d, columns)
    for batch in batches:
        pca.partial_fit(batch)
    return pca.components(k), pca.mean


def printed(rows: Iterable[Any]) -> list[Any]:
    """All rows, measured in one thread; the cells of each are printed at once."""
    measured = []
    with threadpool_limits(1):
        for row in rows:
            print(" | ".join(row.cells()), flush=True)
            measured.append(row)
    return measured


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
