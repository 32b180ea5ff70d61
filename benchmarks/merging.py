"""What is lost when partitions are learned apart and merged: `python -m benchmarks.merging [--data FOLDER]`.

Every figure is the percent by which the compression loss over the whole data set exceeds that of batch PCA, after one
pass with the default settings, centred by the running means. The exit code is 1 if a bar is missed.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.batch import Batch
from benchmarks.data import NAMES, default_folder, digits, load
from benchmarks.report import Bar, parser, publish
from streampca.pca.axes import principal
from streampca.pca.compilation import compile_kernels
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.merge import merge
from streampca.pca.state import State

Pixels = NDArray[np.uint8]
Indices = NDArray[np.int64]

PART, COMPONENTS = "merging", 20
SPLITS = (("random", 1), ("random", 10), ("random", 100), ("by label", 10), ("by label", 100))
BARS = {"random": 0.02, "by label": 0.1}  # percent
DIGITS_BAR = 1.0  # of the smallest size


class Row(NamedTuple):
    """One line of the table."""

    data: str
    split: str
    parts: int
    excess: float  # percent
    microseconds: float  # of processor time per message, in learning

    def line(self) -> str:
        """As the table shows it."""
        return f"| {self.data} | {self.split} | {self.parts} | {self.excess:.5f} | {self.microseconds:.1f} |"

    def bar(self) -> Bar:
        """What the excess may be."""
        name = f"Excess loss over batch PCA, {self.data}, k = {COMPONENTS}, {self.parts} merged, {self.split}"
        return Bar(name, self.excess, "≤", BARS[self.split] if self.data in NAMES else DIGITS_BAR, "%")


def main() -> int:
    """Run, print, write; the exit code says whether all bars hold."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=default_folder(), help="folder with mnist.npz and cifar10.npz")
    given = options.parse_args()
    rows: list[Row] = []
    lines = ["| data | split | partitions | excess % | µs/message (CPU) |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    with threadpool_limits(1):
        compile_kernels(LearningConfig(3, 2))
        for name in ["digits"] if given.smallest else NAMES:
            X, y = digits() if given.smallest else load(name, given.data)
            for row in merged(name, X, y, SPLITS[:2] if given.smallest else SPLITS):
                print(row.line(), flush=True)
                rows.append(row)
    bars = [row.bar() for row in rows]
    publish(PART, given, [*lines, *(row.line() for row in rows)], bars, "Times are processor time of learning alone.")
    return 0 if all(bar.met for bar in bars) else 1


def merged(name: str, X: Pixels, y: Indices, splits: Iterable[tuple[str, int]]) -> Iterator[Row]:
    """A data set, split into partitions that are folded apart."""
    batch = Batch.of_images(X)
    for split, parts in splits:
        folds = [one_pass(X, part) for part in parts_of(y, parts, split)]
        state = merge([fold for fold, _ in folds], LearningConfig(X.shape[1], COMPONENTS).columns)
        seconds = sum(spent for _, spent in folds)
        excess = batch.excess(principal(state.C, COMPONENTS)[0], state.mean)
        yield Row(name, split, parts, excess, 1e6 * seconds / len(X))


def parts_of(y: Indices, parts: int, split: str) -> list[Indices]:
    """Indices of the parts of a stream: shuffled, or sorted so that a part holds one or two labels."""
    shuffled = np.random.default_rng(1).permutation(len(y))
    if split == "by label":
        shuffled = shuffled[np.argsort(y[shuffled], kind="stable")]
    return np.array_split(shuffled, parts)


def one_pass(X: Pixels, order: Indices) -> tuple[State, float]:
    """The state after one pass with the default settings, and the processor seconds that the learning took."""
    config = LearningConfig(dimensions=X.shape[1], components=COMPONENTS)
    state, start, seconds = State.empty(X.shape[1]), 0, 0.0
    while start < len(order):
        block = X[order[start : start + config.next_block(state)]] / 255
        began = time.process_time()
        state, _ = learn(state, block, np.ones(len(block)), config)
        seconds += time.process_time() - began
        start += len(block)
    return state, seconds


if __name__ == "__main__":
    sys.exit(main())
