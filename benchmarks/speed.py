"""The processor time to learn one message, beside other algorithms: `python -m benchmarks.speed [--only "784 × 20"]`.

Microseconds a message of one thread in the steady state, after the first blocks: medians of nine rounds (three at
k = 512). The contestants take turns within each round, so a factor is the median of the rounds' ratios. They are

- scikit-learn's IncrementalPCA with as many columns as our state holds (K + ℓ), in batches as large as our blocks,
- the same by Gram matrices (experiments/baselines/incremental_gram.py): what is left is not scikit-learn's SVD,
- the covariance itself, where d ≤ 400, without axes,
- Algorithm 1 message by message in NumPy, with the k columns that are served.

Besides, ours on an autocorrelated stream beside the same rows in random order.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple, Protocol

import numpy as np
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.report import Bar, parser, publish
from benchmarks.stream_suite import held
from experiments.baselines.incremental_gram import GramIncrementalPCA, RunningCovariance
from experiments.report import table
from streampca.pca import algorithm1
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State

PART = "speed"
SIZES = ((64, 8), (256, 20), (784, 20), (3072, 20), (784, 100), (3072, 100), (3072, 512))
SMALLEST = ((64, 8),)
DTYPES = ("float64", "float32")
COVARIANCE = 400  # dimensions up to which the covariance takes part
ROUNDS, LEARNED, MESSAGES, SINGLE = 9, 2560, 4096, 100
WIDE = 200  # components from which three rounds must do
BATCHES = 4  # of each rival, a round
BARS = (  # metric, contestant, sign, bar, size, dtype
    ("Time of a message, 64 × 8", "ours", "≤", 0.5, "64 × 8", "float64"),
    ("Time of a message, 256 × 20", "ours", "≤", 3.0, "256 × 20", "float64"),
    ("Speed-up over IncrementalPCA by Gram, 784 × 20, float64", "gram", "≥", 3.0, "784 × 20", "float64"),
    ("Speed-up over IncrementalPCA by Gram, 784 × 20, float32", "gram", "≥", 4.5, "784 × 20", "float32"),
    ("Speed-up over IncrementalPCA by Gram, 3072 × 20, float64", "gram", "≥", 3.0, "3072 × 20", "float64"),
    ("Speed-up over IncrementalPCA by Gram, 3072 × 20, float32", "gram", "≥", 4.5, "3072 × 20", "float32"),
    ("Speed-up over IncrementalPCA by Gram, 3072 × 100", "gram", "≥", 1.0, "3072 × 100", "float64"),
    ("Speed-up over IncrementalPCA by Gram, 3072 × 512", "gram", "≥", 1.0, "3072 × 512", "float64"),
    ("Time of an autocorrelated stream, of a shuffled one's", "autocorrelated", "≤", 1.2, "784 × 20", "float64"),
)  # fmt: skip

Timed = Callable[[], float]  # seconds a message


class Learner(Protocol):
    """A rival that learns batches."""

    def partial_fit(self, V: Array) -> object:
        """Learn a batch."""


class Row(NamedTuple):
    """One size and dtype: of each contestant the times of all rounds, in µs a message."""

    d: int
    k: int
    dtype: str
    times: dict[str, list[float]]

    @property
    def size(self) -> str:
        """As in the table."""
        return f"{self.d} × {self.k}"

    def us(self, name: str) -> float:
        """The median of a contestant."""
        return median(self.times[name])

    def ratio(self, name: str) -> float:
        """A contestant's time as a multiple of ours."""
        return median(other / ours for other, ours in zip(self.times[name], self.times["ours"], strict=True))

    def cells(self) -> list[str]:
        """One line of the table."""
        rivals = ("sklearn", "gram", "covariance", "algorithm 1")
        found = (f"{_digits(self.us(name))}, {self.ratio(name):.2g}×" if name in self.times else "–" for name in rivals)
        return [self.size, self.dtype, _digits(self.us("ours")), *found]


def _digits(us: float) -> str:
    return f"{us:.0f}" if us >= 100 else f"{us:.2g}"


def main() -> None:
    """Measure and write."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="only this size; writes nothing")
    given = options.parse_args()
    rows = []
    with threadpool_limits(1):
        for d, k in SMALLEST if given.smallest else SIZES:
            for dtype in DTYPES:
                if given.only in f"{d} × {k}":
                    rows.append(measured(d, k, dtype, 1 if given.smallest else 3 if k > WIDE else ROUNDS))
                    print(rows[-1].cells(), flush=True)
    head = ["d × k", "dtype", "streampca", "IncrementalPCA", "IncrementalPCA by Gram", "covariance", "Algorithm 1"]
    given.smallest = given.smallest or bool(given.only)
    publish(PART, given, table(head, [row.cells() for row in rows]), bars(rows))


def bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Those of the sizes that were measured."""
    by_size = {(row.size, row.dtype): row for row in rows}
    for metric, name, sign, bar, size, dtype in BARS:
        if row := by_size.get((size, dtype)):
            absolute = name == "ours"
            yield Bar(metric, [row.us(name) if absolute else row.ratio(name)], sign, bar, "µs" if absolute else "×")


def measured(d: int, k: int, dtype: str, rounds: int) -> Row:
    """Every contestant's times."""
    rng, config = np.random.default_rng(0), LearningConfig(d, k, dtype=dtype)
    n = LEARNED + MESSAGES
    X = rng.standard_normal((n, k)) @ rng.standard_normal((k, d)) + rng.standard_normal((n, d))
    X = X.astype(dtype, copy=False)
    columns = held(d, k)
    contestants: dict[str, Timed] = {
        "ours": ours(X, config),
        "sklearn": batches(X, IncrementalPCA(columns), config.block),
        "gram": batches(X, GramIncrementalPCA(d, columns, dtype), config.block),
        "algorithm 1": algorithm_1(X, k),
    }
    if d <= COVARIANCE:
        contestants["covariance"] = batches(X, RunningCovariance(d, dtype), config.block)
    if (d, k) == (784, 20):
        contestants["autocorrelated"] = ours(autocorrelated(X), config)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, timed in contestants.items():
            times[name].append(timed() * 1e6)
    return Row(d, k, dtype, times)


def autocorrelated(X: Array) -> Array:
    """Rows of the same covariance, each 99 % of the one before it."""
    Y = X.copy()
    for t in range(1, len(Y)):
        Y[t] = 0.99 * Y[t - 1] + np.sqrt(1 - 0.99**2) * X[t]
    return Y


def ours(X: Array, config: LearningConfig) -> Timed:
    """All blocks in one call, as the worker learns the blocks of a batch."""
    first = config.start + max(LEARNED - config.start, 0) // config.block * config.block
    start = learn(State.empty(X.shape[1], config.dtype), X[:first], np.ones(first), config)[0]
    rows = X[first : first + MESSAGES // config.block * config.block]

    def timed() -> float:
        began = time.process_time()
        learn(start, rows, np.ones(len(rows)), config)
        return (time.process_time() - began) / len(rows)

    return timed


def batches(X: Array, start: Learner, size: int) -> Timed:
    """A rival after its first batch; `partial_fit` replaces its arrays or adds to them, which takes as long."""
    start.partial_fit(X[:size])
    count = min(BATCHES, len(X) // size - 1)

    def timed() -> float:
        learner, began = copy.copy(start), time.process_time()
        for i in range(1, count + 1):
            learner.partial_fit(X[i * size : (i + 1) * size])
        return (time.process_time() - began) / (count * size)

    return timed


def algorithm_1(X: Array, k: int) -> Timed:
    """The paper's algorithm, with S by Sherman–Morrison, one message at a time."""
    C = np.linalg.qr(np.random.default_rng(1).standard_normal((X.shape[1], k)))[0].astype(X.dtype)

    def timed() -> float:
        factor, S, began = C, np.eye(k, dtype=X.dtype), time.process_time()
        for t in range(SINGLE):
            factor, S, _ = algorithm1.sherman_morrison(factor, S, X[t], 1 / (t + 1))
        return (time.process_time() - began) / SINGLE

    return timed


if __name__ == "__main__":
    main()
