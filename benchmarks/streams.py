"""Accuracy on many kinds of stream, beside other one-pass methods: `python -m benchmarks.streams [--data FOLDER]`.

Every figure is the percent by which the loss of the k components that a method has learned in one pass exceeds that of
batch PCA on the same rows. IncrementalPCA is scikit-learn's; with K = k + oversampling columns, of which k are kept, it
has as many as we have, and with batches of 256 rows it takes as much memory. Frequent Directions keeps K rows.

Orders and made-up rows differ in each run; `--seed` repeats one. `--only WORDS` runs the streams whose name or order
contains the words. The table is written into docs/accuracy.md. The exit code is 1 if a bar is missed.
"""

import argparse
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from sklearn.decomposition import IncrementalPCA
from sklearn.utils import gen_batches
from threadpoolctl import threadpool_limits

from benchmarks import real_streams, stream_suite
from benchmarks.batch import Batch
from benchmarks.data import default_folder
from benchmarks.machine import machine
from benchmarks.report import replaced
from benchmarks.stream_suite import Stream
from experiments.baselines.frequent_directions import FrequentDirections
from streampca.estimator.estimator import ImplicitKrasulina
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BATCH, SMALL_BATCH, CHUNK = 1000, 256, 4096  # rows
BAR, IMAGES_BAR = 0.1, 0.01  # percent
RIVAL_BAR = 1.5  # times IncrementalPCA(K) with batches of 256

Components = tuple[F64, F64]  # orthonormal rows (k, d), mean (d,)


@dataclass(frozen=True)
class Row:
    """The excess of each method on one stream, in percent."""

    stream: Stream
    k: int
    ours: float
    rivals: tuple[float | None, ...]  # IncrementalPCA(k), (K) by 256, (K) by 1000, Frequent Directions

    @property
    def bar(self) -> float:
        """The most that our excess may be."""
        if self.stream.name in ("mnist", "cifar10") and self.stream.order == "shuffled":
            return IMAGES_BAR
        return max(BAR, RIVAL_BAR * (self.rivals[1] or 0.0))

    def cells(self) -> str:
        """One line of the table."""
        n, d = self.stream.table.rows.shape
        verdict = "yes" if self.ours <= self.bar else "**no**"
        values = " | ".join(_shown(value) for value in (self.ours, *self.rivals))
        return f"| {self.stream.name} | {self.stream.order} | {n:,} × {d} | {self.k} | {values} | {verdict} |"


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return "0" if abs(value) < 1e-5 else f"{value:.3g}"


def ours(stream: Stream, k: int) -> Components:
    """Our estimator with its default settings."""
    pca = ImplicitKrasulina(k, center=stream.center)
    for piece in _batches(stream, BATCH):
        pca.partial_fit(piece)
    return pca.components_.astype(np.float64), pca.mean_.astype(np.float64)


def incremental(stream: Stream, k: int, columns: int, batch: int) -> Components | None:
    """scikit-learn's IncrementalPCA, which always centres; None for a stream that is not to be centred."""
    if not stream.center:
        return None
    pca = IncrementalPCA(columns)
    for piece in _batches(stream, batch, columns):
        pca.partial_fit(piece)
    return pca.components_[:k], pca.mean_


def frequent_directions(stream: Stream, k: int, columns: int) -> Components:
    """The leading directions of the sketch about the mean of all rows."""
    sketch, total = FrequentDirections(stream.table.rows.shape[1], columns), np.zeros(stream.table.rows.shape[1])
    for piece in _batches(stream, SMALL_BATCH):
        sketch.add(piece)
        total += piece.sum(axis=0)
    mean = total / len(stream.index) * stream.center
    B = sketch.sketch
    covariance = B.T @ B / len(stream.index) - np.outer(mean, mean)
    return np.linalg.eigh(covariance)[1][:, ::-1][:, :k].T, mean


def _batches(stream: Stream, size: int, least: int = 0) -> Iterator[F64]:
    for rows in gen_batches(len(stream.index), max(size, least), min_batch_size=least):
        yield stream.table.read(stream.index[rows])


def measured(stream: Stream) -> Iterator[Row]:
    """One row for each number of components."""
    batch = Batch.of(lambda: _batches(stream, CHUNK), stream.center)
    for k in stream.components:
        K = LearningConfig(stream.table.rows.shape[1], k).columns
        rivals = (
            incremental(stream, k, k, BATCH),
            incremental(stream, k, K, SMALL_BATCH),
            incremental(stream, k, K, BATCH),
            frequent_directions(stream, k, K),
        )
        excess = tuple(None if rival is None else batch.excess(*rival) for rival in rivals)
        yield Row(stream, k, batch.excess(*ours(stream, k)), excess)


def table(rows: list[Row], seed: int) -> str:
    """The block of docs/accuracy.md."""
    met = sum(row.ours <= row.bar for row in rows)
    lines = [
        "| stream | order | rows | k | streampca | IncrementalPCA(k), 1000 | IncrementalPCA(K), 256 "
        "| IncrementalPCA(K), 1000 | Frequent Directions(K) | bar met |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row.cells() for row in rows),
        "",
        f"{met} of {len(rows)} rows meet their bar. Seed {seed}. {machine()}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run, print, write; the exit code says whether all bars hold."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=default_folder(), help="folder with mnist.npz and cifar10.npz")
    options.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="of orders and made-up rows")
    options.add_argument(
        "--only", default="", help="only streams whose name or order contains this; nothing is written"
    )
    options.add_argument("--smallest", action="store_true", help="the smallest size, only printed: does it still run?")
    options.add_argument("--page", type=Path, help="write into this copy of docs/accuracy.md")
    given = options.parse_args()
    rows: list[Row] = []
    with threadpool_limits(1):
        for stream in _streams(given):
            for row in measured(stream):
                print(row.cells(), file=sys.stderr, flush=True)
                rows.append(row)
    found = table(rows, given.seed)
    print(found)
    page = given.page or (None if given.smallest or given.only else PAGE)
    if page:
        page.write_text(replaced(page.read_text(encoding="utf-8"), "streams", found), encoding="utf-8")
    return 0 if given.smallest or all(row.ours <= row.bar for row in rows) else 1


def _streams(given: argparse.Namespace) -> Iterator[Stream]:
    if given.smallest:
        streams = stream_suite.hard(given.seed, 0.02)
    else:
        streams = chain(real_streams.real(given.seed, given.data), stream_suite.hard(given.seed))
    return (each for each in streams if given.only in f"{each.name}, {each.order}")


if __name__ == "__main__":
    sys.exit(main())
