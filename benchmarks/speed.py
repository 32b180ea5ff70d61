"""The processor time to learn one message, beside other algorithms: `python -m benchmarks.speed [--only "784 × 20"]`.

Microseconds a message of one thread in the steady state, after the young blocks: medians of nine rounds (three at
k = 512). The contestants take turns within each round, so a factor is the median of the rounds' ratios. They are

- our estimator, which also scores every row for its p-values, in a process where BLAS has a thread for each processor,
- scikit-learn's IncrementalPCA with as many columns as a factor of ours holds (K + ℓ), in batches of 256,
- the same by Gram matrices instead of SVDs (experiments/baselines/incremental_gram.py), in batches of 256 or as
  large as our blocks, 1,024 at least, whichever is quicker, and in double precision, as a Gram matrix in single
  precision would leave it three digits; printed with k + 40 columns as well,
- the covariance itself, where d ≤ 768, without axes, in batches of 1,024,
- Algorithm 1 message by message in NumPy, with the k columns that are served.

Besides, ours on an autocorrelated stream beside the same rows in random order.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import numpy as np
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.report import Bar, in_turn, parser, publish
from experiments.baselines.incremental_gram import GramIncrementalPCA, RunningCovariance, held
from experiments.report import table
from streampca.estimator.estimator import StreamingPCA
from streampca.pca import algorithm1, learning_config
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.learning_config import LARGEST_COVARIANCE, LONG_BLOCK, YOUNG_WEIGHT
from streampca.pca.state import State

PART = "speed"
SIZES = ((64, 8), (256, 20), (512, 20), (768, 20), (784, 20), (3072, 20), (784, 100), (3072, 100), (3072, 512))
SMALLEST = ((64, 8),)
DTYPES = ("float64", "float32")
ROUNDS, MESSAGES, SINGLE = 9, 4096, 100
WIDE = 200  # components from which three rounds must do
BATCH, BATCHES = 256, 4  # rows of a rival's batch, and batches a round
BARS: tuple[tuple[str, str, str, float, str, tuple[str, ...]], ...] = (  # metric, contestant, bar, dtype, sizes
    ("Estimator's time, as a multiple of a covariance, 64 × 8", "estimator", "≤", 8.0, "float64", ("64 × 8",)),
    ("Speed-up over Gram, 512 × 20, float64", "gram", "≥", 3.0, "float64", ("512 × 20",)),
    ("Speed-up over Gram, 512 × 20, float32", "gram", "≥", 4.5, "float32", ("512 × 20",)),
    ("Speed-up over Gram, 784 × 20, float64", "gram", "≥", 2.9, "float64", ("784 × 20",)),
    ("Speed-up over Gram, 784 × 20, float32", "gram", "≥", 4.5, "float32", ("784 × 20",)),
    ("Speed-up over Gram, d = 3072", "gram", "≥", 1.0, "float64", ("3072 × 20", "3072 × 100")),
    ("Speed-up over Gram, 3072 × 512", "gram", "≥", 0.85, "float64", ("3072 × 512",)),
    ("Autocorrelated, as a multiple of shuffled", "autocorrelated", "≤", 1.2, "float64", ("784 × 20",)),
)

T = TypeVar("T")
Timed = Callable[[], float]  # microseconds a message


class Row(NamedTuple):
    """One size and dtype: of each contestant the times of all rounds, in µs a message."""

    size: str
    dtype: str
    times: dict[str, list[float]]

    def us(self, name: str) -> float:
        """The median of a contestant."""
        return median(self.times[name])

    def ratio(self, name: str, beside: str = "ours") -> float:
        """A contestant's time as a multiple of another's."""
        return median(time / other for time, other in zip(self.times[name], self.times[beside], strict=True))


def cells(pair: Sequence[Row]) -> list[str]:
    """One line of the table: a size, in each dtype."""
    rivals = ("estimator", "sklearn", "gram", "covariance", "algorithm 1")
    ours = "/".join(_digits(row.us("ours")) for row in pair)
    factors = ("/".join(f"{row.ratio(name):.2g}×" if name in row.times else "–" for row in pair) for name in rivals)
    return [pair[0].size, ours, *factors]


def _digits(us: float) -> str:
    return f"{us:.0f}" if us >= 100 else f"{us:.2g}"


def main() -> None:
    """Measure and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="only this size; writes nothing")
    options = arguments.parse_args()
    rows = []
    # The longest blocks follow right on the young ones.
    with threadpool_limits(1), patch.object(learning_config, "OLD_WEIGHT", 0):
        for d, k in SMALLEST if options.smallest else SIZES:
            if options.only in f"{d} × {k}":
                rounds = 1 if options.smallest else ROUNDS if k <= WIDE else 3
                rows.append([measured(d, k, dtype, rounds) for dtype in DTYPES])
                print({row.dtype: {name: _digits(row.us(name)) for name in row.times} for row in rows[-1]}, flush=True)
    head = ["d × k", "streampca, µs", "estimator", "IncrementalPCA", "by Gram", "covariance", "Algorithm 1"]
    options.smallest = options.smallest or bool(options.only)
    publish(PART, options, table(head, [cells(pair) for pair in rows]), bars([row for pair in rows for row in pair]))


def bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """The bars of the sizes that were measured."""
    for metric, name, sign, bar, dtype, sizes in BARS:
        if asked := [row for row in rows if row.dtype == dtype and row.size in sizes]:
            beside = "covariance" if name == "estimator" else "ours"
            yield Bar(metric, [row.ratio(name, beside) for row in asked], sign, bar, "×")


def measured(d: int, k: int, dtype: str, rounds: int) -> Row:
    """Every contestant's times."""
    rng, config = np.random.default_rng(0), LearningConfig(d, k, dtype=dtype)
    first = config.next_block_size(0)
    while first < config.first_block_size + YOUNG_WEIGHT:
        first += config.next_block_size(first)
    n = first + MESSAGES
    X = rng.standard_normal((n, k)) @ rng.standard_normal((k, d)) + rng.standard_normal((n, d))
    X = X.astype(dtype, copy=False)
    columns, double = held(d, k), X.astype(np.float64)

    def gram(columns: int) -> Timed:
        rows = max(LONG_BLOCK, config.next_block_size(first) * X.itemsize // double.itemsize)
        sizes = [batches(double, GramIncrementalPCA(d, columns), size) for size in (BATCH, rows)]
        return lambda: min(of_size() for of_size in sizes)

    contestants: dict[str, Timed] = {
        "ours": ours(X, config, first),
        "estimator": estimator(X, k, first),
        "sklearn": batches(X, IncrementalPCA(columns), max(BATCH, columns)),
        "gram": gram(columns),
        "gram, k + 40": gram(min(k + 40, d)),
        "algorithm 1": algorithm_1(X, k),
    }
    if d <= LARGEST_COVARIANCE:
        contestants["covariance"] = batches(X, RunningCovariance(d, dtype), LONG_BLOCK)
    if (d, k) == (784, 20):
        contestants["autocorrelated"] = ours(autocorrelated(X), config, first)
    return Row(f"{d} × {k}", dtype, dict(zip(contestants, in_turn(rounds, *contestants.values()), strict=True)))


def autocorrelated(X: Array) -> Array:
    """Rows of the same covariance, each 99 % of the one before it."""
    Y = X.copy()
    for t in range(1, len(Y)):
        Y[t] = 0.99 * Y[t - 1] + np.sqrt(1 - 0.99**2) * X[t]
    return Y


def timed(start: Callable[[], T], act: Callable[[T], object], messages: int, threads: int = 1) -> Timed:
    """Microseconds a message that `act` takes, from a start that is made each time and does not count."""

    def measure() -> float:
        with threadpool_limits(threads):
            learner, began = start(), time.process_time()
            act(learner)
            return (time.process_time() - began) * 1e6 / messages

    return measure


def ours(X: Array, config: LearningConfig, first: int) -> Timed:
    """All blocks after the first messages in one call, as the worker learns the blocks of a batch."""
    state = learn(State.empty(X.shape[1], config.dtype), X[:first], np.ones(first), config)[0]
    rows = X[first : len(X) - (len(X) - first) % config.next_block_size(first)]
    return timed(lambda: state, lambda start: learn(start, rows, np.ones(len(rows)), config), len(rows))


def estimator(X: Array, k: int, first: int) -> Timed:
    """As `ours`, by batches of 1,024 rows, as a user runs it, who limits no threads."""
    pca = StreamingPCA(k).partial_fit(X[:first])
    return timed(lambda: copy.deepcopy(pca), *_batches(X[first:], LONG_BLOCK), os.cpu_count() or 1)


def batches(X: Array, rival: Any, size: int) -> Timed:
    """A rival after its first batch; `partial_fit` replaces its arrays or adds to them, which takes as long."""
    rival.partial_fit(X[:size])
    return timed(lambda: copy.copy(rival), *_batches(X[size : (BATCHES + 1) * size], size))


def _batches(X: Array, size: int) -> tuple[Callable[[Any], None], int]:
    """Learning the whole batches of rows, and how many rows these are."""
    count = len(X) // size

    def act(learner: Any) -> None:
        for i in range(count):
            learner.partial_fit(X[i * size : (i + 1) * size])

    return act, count * size


def algorithm_1(X: Array, k: int) -> Timed:
    """The paper's algorithm, with S by Sherman–Morrison, one message at a time."""
    C = np.linalg.qr(np.random.default_rng(1).standard_normal((X.shape[1], k)))[0].astype(X.dtype)

    def act(state: tuple[Array, Array]) -> None:
        factor, S = state
        for t in range(SINGLE):
            factor, S, _ = algorithm1.sherman_morrison(factor, S, X[t], 1 / (t + 1))

    return timed(lambda: (C, np.eye(k, dtype=X.dtype)), act, SINGLE)


if __name__ == "__main__":
    main()
