"""How far one pass stays behind batch PCA: `python -m benchmarks.accuracy [--data FOLDER]`.

Every figure is the percent by which the compression loss over the whole data set exceeds that of batch PCA, after one
pass with the default settings, centred by the running mean. It writes benchmarks/results/accuracy.md and ends with
exit code 1 if a bar is missed.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.data import NAMES, default_folder, load
from benchmarks.machine import machine
from streampca.pca.arrays import F64
from streampca.pca.axes import principal
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.merge import merge
from streampca.pca.state import State

Pixels = NDArray[np.uint8]
Indices = NDArray[np.int64]

BATCH = 1000  # messages a step for IncrementalPCA
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
    incremental: float | None  # percent, scikit-learn's IncrementalPCA on the same stream
    microseconds: float  # of processor time per message, in learning


@dataclass(frozen=True, eq=False)
class Batch:
    """What batch PCA knows of a data set."""

    covariance: F64  # (d, d)
    mean: F64  # (d,)
    variances: F64  # (d,), falling

    @classmethod
    def of(cls, X: Pixels) -> "Batch":
        """The batch solution."""
        mean = X.mean(axis=0) / 255
        chunks = (X[i : i + 4096] / 255 - mean for i in range(0, len(X), 4096))
        covariance = sum(chunk.T @ chunk for chunk in chunks) / len(X)
        return cls(covariance, mean, np.linalg.eigvalsh(covariance)[::-1])

    def loss(self, k: int) -> float:
        """Mean squared residual of the best k components."""
        return float(self.variances[k:].sum())

    def excess(self, components: F64, mean: F64) -> float:
        """Percent by which the loss of orthonormal rows (k, d) about `mean` exceeds the best."""
        offset = mean - self.mean
        kept = np.trace(components @ self.covariance @ components.T) + np.sum((components @ offset) ** 2)
        loss = np.trace(self.covariance) + offset @ offset - kept
        return float(100 * (loss / self.loss(len(components)) - 1))


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


def incremental(X: Pixels, order: Indices, k: int) -> tuple[F64, F64]:
    """Components and mean of scikit-learn's IncrementalPCA after one pass."""
    pca = IncrementalPCA(k)
    for start in range(0, len(order), BATCH):
        if len(chosen := order[start : start + BATCH]) >= k:
            pca.partial_fit(X[chosen] / 255)
    return pca.components_, pca.mean_


def parts_of(y: Indices, parts: int, how: str) -> Iterable[Indices]:
    """Indices of the parts of a stream: shuffled, or such that every part holds practically one label only."""
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
            other = batch.excess(*incremental(X, index, k))
            yield Row(name, k, order, excess, BARS[name, k, order], other, 1e6 * seconds / len(X))


def merged_rows(name: str, X: Pixels, y: Indices, batch: Batch) -> Iterator[Row]:
    """Many streams, each with its own fold, merged."""
    k = 20
    for how, bar in MERGE_BARS.items():
        for parts in (10, 100):
            folds = [one_pass(X, part, k) for part in parts_of(y, parts, how)]
            state = merge([fold for fold, _ in folds], LearningConfig(X.shape[1], k).columns)
            seconds = sum(spent for _, spent in folds)
            excess = batch.excess(principal(state.C, k)[0], state.mean)
            yield Row(name, k, f"merged from {parts} parts, {how}", excess, bar, None, 1e6 * seconds / len(X))


def markdown(rows: list[Row], losses: dict[tuple[str, int], float]) -> str:
    """The report."""
    lines = [
        "# Accuracy of one pass",
        "",
        "Percent by which the compression loss exceeds batch PCA's. One pass, default settings, centred by the running",
        f"mean, float64, pixels/255. Beside it scikit-learn's IncrementalPCA (batches of {BATCH}) on the same stream.",
        "Made by `python -m benchmarks.accuracy`.",
        "",
        "| data | k | order | excess % | bar % | within | IncrementalPCA % | µs/message (CPU) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        other = "–" if row.incremental is None else f"{row.incremental:.4f}"
        within = "yes" if row.excess <= row.bar else "**no**"
        lines.append(
            f"| {row.data} | {row.k} | {row.order} | {row.excess:.5f} | {row.bar} | {within} | {other} "
            f"| {row.microseconds:.1f} |"
        )
    lines += ["", "Loss of batch PCA (per message), and the paper's figures in random order:", ""]
    lines += ["| data | k | batch here | batch, paper | its update's excess % |", "|---|---|---|---|---|"]
    for (name, k), loss in losses.items():
        paper, excess = PAPER[name, k]
        lines.append(f"| {name} | {k} | {loss:.2f} | {paper:.2f} | {excess} |")
    note = "Times are processor time of learning alone."
    return "\n".join([*lines, "", f"{machine()} {note}", ""])


def main() -> int:
    """Run, print, write; the exit code says whether all bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder with mnist.npz and cifar10.npz")
    parser.add_argument("--only", choices=NAMES, help="one data set only; nothing is written then")
    options = parser.parse_args()
    rows: list[Row] = []
    losses: dict[tuple[str, int], float] = {}
    with threadpool_limits(1):
        for name in NAMES if options.only is None else [options.only]:
            X, y = load(name, options.data)
            batch = Batch.of(X)
            losses |= {(name, k): batch.loss(k) for k in (5, 10, 20)}
            for make in (single_rows, merged_rows):
                for row in make(name, X, y, batch):
                    print(row, file=sys.stderr, flush=True)
                    rows.append(row)
    report = markdown(rows, losses)
    print(report)
    if options.only is None:
        path = Path(__file__).parent / "results" / "accuracy.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(report, encoding="utf-8")
    return 0 if all(row.excess <= row.bar for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
