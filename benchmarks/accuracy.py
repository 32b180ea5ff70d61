"""The excess loss of one pass over that of batch PCA: `python -m benchmarks.accuracy [--data FOLDER]`.

Every figure is the percent by which the compression loss over the whole data set exceeds that of batch PCA, after one
pass with the default settings, centred by the running mean. The exit code is 1 if a bar is missed.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.batch import Batch
from benchmarks.data import NAMES, default_folder, digits, load
from benchmarks.report import Bar, parser, publish
from streampca.pca.arrays import F64
from streampca.pca.axes import principal
from streampca.pca.compilation import compile_kernels
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.merge import merge
from streampca.pca.state import State

Pixels = NDArray[np.uint8]
Indices = NDArray[np.int64]

PART = "accuracy"
BATCH, SMALL_BATCH = 1000, 256  # messages a step for IncrementalPCA; the small one takes as much memory as we do
BARS = {  # percent
    ("mnist", 5, "random order"): 0.002,
    ("mnist", 20, "random order"): 0.01,
    ("cifar10", 5, "random order"): 0.002,
    ("cifar10", 20, "random order"): 0.01,
    ("mnist", 5, "sorted by label"): 0.2,
    ("mnist", 20, "sorted by label"): 1.0,
    ("cifar10", 5, "sorted by label"): 0.01,
    ("cifar10", 20, "sorted by label"): 0.1,
}
MERGE_BARS = {"random": 0.02, "skewed": 0.1}
DIGITS_BAR = 1.0  # of the smallest size
PAPER = {  # batch loss, and percent excess of the paper's update computed from its table 1
    ("mnist", 5): (35.16, 0.03),
    ("mnist", 10): (26.95, 0.07),
    ("mnist", 20): (18.74, 0.16),
    ("cifar10", 5): (86.98, 0.03),
    ("cifar10", 10): (65.70, 0.12),
    ("cifar10", 20): (48.65, 0.18),
}


class Row(NamedTuple):
    """One line of the table."""

    data: str
    k: int
    order: str
    excess: float  # percent
    bar: float
    incremental: float | None  # percent, scikit-learn's IncrementalPCA(k) on the same stream
    same_columns: float | None  # percent, IncrementalPCA(k + oversampling), of which k are kept
    microseconds: float  # of processor time per message, in learning


def one_pass(X: Pixels, order: Indices, k: int) -> tuple[State, float]:
    """The state after one pass with the default settings, and the processor seconds that the learning took."""
    config = LearningConfig(dimensions=X.shape[1], components=k)
    state, start, seconds = State.empty(X.shape[1]), 0, 0.0
    while start < len(order):
        block = X[order[start : start + config.next_block(state)]] / 255
        began = time.process_time()
        state, _ = learn(state, block, np.ones(len(block)), config)
        seconds += time.process_time() - began
        start += len(block)
    return state, seconds


def incremental(X: Pixels, order: Indices, k: int, columns: int, batch: int) -> tuple[F64, F64]:
    """The k leading components and the mean of scikit-learn's IncrementalPCA(columns) after one pass."""
    pca = IncrementalPCA(columns)
    for start in range(0, len(order), batch):
        if len(chosen := order[start : start + batch]) >= columns:
            pca.partial_fit(X[chosen] / 255)
    return pca.components_[:k], pca.mean_


def parts_of(y: Indices, parts: int, how: str) -> Iterable[Indices]:
    """Indices of the parts of a stream: shuffled, or sorted so that a part holds one or two labels."""
    shuffled = np.random.default_rng(1).permutation(len(y))
    if how == "skewed":
        shuffled = shuffled[np.argsort(y[shuffled], kind="stable")]
    return np.array_split(shuffled, parts)


def single_rows(name: str, X: Pixels, y: Indices, batch: Batch) -> Iterator[Row]:
    """One stream, in random order and sorted by label."""
    orders = {
        "random order": np.random.default_rng(0).permutation(len(X)),
        "sorted by label": np.argsort(y, kind="stable"),
    }
    for order, index in orders.items():
        for k in (5, 20):
            state, seconds = one_pass(X, index, k)
            excess = batch.excess(principal(state.C, k)[0], state.mean)
            columns = LearningConfig(X.shape[1], k).columns
            other = batch.excess(*incremental(X, index, k, k, BATCH))
            same_columns = batch.excess(*incremental(X, index, k, columns, SMALL_BATCH))
            bar = BARS.get((name, k, order), DIGITS_BAR)
            yield Row(name, k, order, excess, bar, other, same_columns, 1e6 * seconds / len(X))


def merged_rows(name: str, X: Pixels, y: Indices, batch: Batch) -> Iterator[Row]:
    """Many streams, each with its own fold, merged."""
    k = 20
    for how, bar in MERGE_BARS.items():
        for parts in (10, 100) if name in NAMES else (10,):
            folds = [one_pass(X, part, k) for part in parts_of(y, parts, how)]
            state = merge([fold for fold, _ in folds], LearningConfig(X.shape[1], k).columns)
            seconds = sum(spent for _, spent in folds)
            excess = batch.excess(principal(state.C, k)[0], state.mean)
            yield Row(
                name,
                k,
                f"merged from {parts} parts, {how}",
                excess,
                bar if name in NAMES else DIGITS_BAR,
                None,
                None,
                1e6 * seconds / len(X),
            )


def tables(rows: list[Row], losses: dict[tuple[str, int], float]) -> list[str]:
    """The excess of each stream, and the paper's figures beside the losses of batch PCA."""
    lines = [
        "| data | k | order | excess % | IncrementalPCA(k) | IncrementalPCA(k + 10) | µs/message (CPU) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rivals = " | ".join("–" if e is None else f"{e:.4f}" for e in (row.incremental, row.same_columns))
        lines.append(f"| {row.data} | {row.k} | {row.order} | {row.excess:.5f} | {rivals} | {row.microseconds:.1f} |")
    lines += ["", "Loss of batch PCA (per message), and the paper's figures in random order:", ""]
    lines += ["| data | k | batch here | batch, paper | its update's excess % |", "|---|---|---|---|---|"]
    for (name, k), loss in losses.items():
        paper, excess = PAPER.get((name, k), (np.nan, np.nan))
        lines.append(f"| {name} | {k} | {loss:.2f} | {paper:.2f} | {excess} |")
    return lines


def main() -> int:
    """Run, print, write; the exit code says whether all bars hold."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=default_folder(), help="folder with mnist.npz and cifar10.npz")
    given = options.parse_args()
    rows: list[Row] = []
    losses: dict[tuple[str, int], float] = {}
    with threadpool_limits(1):
        compile_kernels(LearningConfig(3, 2))
        for name in ["digits"] if given.smallest else NAMES:
            X, y = digits() if given.smallest else load(name, given.data)
            batch = Batch.of_images(X)
            losses |= {(name, k): batch.loss(k) for k in (5, 10, 20)}
            for make in (single_rows, merged_rows):
                for row in make(name, X, y, batch):
                    print(row, file=sys.stderr, flush=True)
                    rows.append(row)
    bars = [
        Bar(f"Excess loss over batch PCA, {row.data}, k = {row.k}, {row.order}", row.excess, "≤", row.bar, "%")
        for row in rows
    ]
    publish(PART, given, tables(rows, losses), bars, "Times are processor time of learning alone.")
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
