"""The time to learn one message, beside other algorithms: `python -m benchmarks.speed`.

Microseconds a message, medians of five rounds, the contestants in turn within each round, one BLAS thread:

- scikit-learn's IncrementalPCA after its first batch, at equal columns and memory: as many columns as streampca tracks
  (K), in batches of 256,
- the same with k columns, which is less accurate, by the best of its batch sizes from k + 1 to 5000 (each is tried,
  and the best three take part), which need up to twenty times the memory,
- Algorithm 1 message by message in NumPy, with k columns,
- the machine's limit: the three products of size d that a block needs, alone, by NumPy's BLAS.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.report import Bar, parser, publish
from experiments.report import table
from streampca.pca import algorithm1
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State

PART = "speed"
SIZES = ((64, 8), (784, 20), (3072, 20), (1536, 64), (3072, 100))
SMALLEST = ((64, 8),)
DTYPES = ("float64", "float32")
ROUNDS, MESSAGES, SINGLE = 5, 2560, 200
SINGLE_PRECISION = DTYPES[1:]
BARS = (  # metric, contestant, bar, sizes and dtypes of which it is asked; docs/performance.md says why of no others
    ("Speed-up over IncrementalPCA, same columns", "equal", 10.0, {"784 × 20": DTYPES, "3072 × 20": DTYPES}),
    ("Speed-up over IncrementalPCA, fewer columns, 784 × 20", "batch", 15.0, {"784 × 20": SINGLE_PRECISION}),
    ("Speed-up over IncrementalPCA, fewer columns, larger", "batch", 6.0,
     {"3072 × 20": DTYPES, "1536 × 64": SINGLE_PRECISION, "3072 × 100": SINGLE_PRECISION}),
    ("Speed-up over Algorithm 1 in NumPy", "single", 8.0, {"64 × 8": DTYPES, "3072 × 20": SINGLE_PRECISION}),
    ("Share of the matrix products' speed", "limit", 0.6,
     {"784 × 20": DTYPES, "3072 × 20": DTYPES, "1536 × 64": DTYPES[:1], "3072 × 100": DTYPES[:1]}),
)  # fmt: skip

Timed = Callable[[], float]  # seconds a message


class Row(NamedTuple):
    """The medians of one size and dtype, in µs a message."""

    d: int
    k: int
    dtype: str
    found: dict[str, float]  # contestant → µs

    def best(self, kind: str) -> tuple[str, float]:
        """The quickest of a kind: its parameter and µs."""
        of_kind = ((name.removeprefix(kind).strip(), us) for name, us in self.found.items() if name.startswith(kind))
        return min(of_kind, key=lambda pair: pair[1])

    def ratio(self, kind: str) -> float:
        """The time of the best of a kind, as a multiple of ours."""
        return self.best(kind)[1] / self.found["ours"]

    def cells(self) -> list[str]:
        """One line of the table."""
        size, incremental = self.best("batch")
        return [
            f"{self.d} × {self.k}", self.dtype, f"{self.found['ours']:.1f}",
            f"{self.found['equal']:.1f}, {self.ratio('equal'):.1f}×",
            f"{incremental:.1f} ({size}), {self.ratio('batch'):.1f}×",
            f"{self.found['single']:.0f}, {self.ratio('single'):.1f}×",
        ]  # fmt: skip


def main() -> None:
    """Measure and write."""
    given = parser(__doc__).parse_args()
    rows = []
    with threadpool_limits(1):
        for d, k in SMALLEST if given.smallest else SIZES:
            for dtype in DTYPES:
                rows.append(measured(d, k, dtype, 1 if given.smallest else ROUNDS))
                print(rows[-1].cells(), flush=True)
    head = ["d × k", "dtype", "streampca", "IncrementalPCA(K), 256", "IncrementalPCA(k)", "Algorithm 1"]
    publish(PART, given, table(head, [row.cells() for row in rows]), bars(rows))


def bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Those of the sizes that were measured."""
    for metric, kind, bar, asked in BARS:
        if ratios := [row.ratio(kind) for row in rows if row.dtype in asked.get(f"{row.d} × {row.k}", ())]:
            yield Bar(metric, ratios, "≥", bar, "×")


def measured(d: int, k: int, dtype: str, rounds: int) -> Row:
    """Every contestant's median."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10_000, k)) @ rng.standard_normal((k, d)) + rng.standard_normal((10_000, d))
    X = X.astype(dtype, copy=False)
    batches = {size: incremental(X, k, size) for size in (k + 1, 2 * k, 3 * k, 5 * k, 10 * k, 1000, 2000, 5000)}
    contestants: dict[str, Timed] = {
        "ours": ours(X, k), "limit": products(X, k), "single": algorithm_1(X, k),
        "equal": incremental(X, LearningConfig(d, k).columns, 256),
        **{f"batch {size}": batches[size] for size in sorted(batches, key=lambda size: batches[size]())[:3]},
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, timed in contestants.items():
            times[name].append(timed() * 1e6)
    return Row(d, k, dtype, {name: median(values) for name, values in times.items()})


def ours(X: Array, k: int) -> Timed:
    """All blocks in one call, as the worker learns the blocks of a batch; past the start, which is slower."""
    config = LearningConfig(X.shape[1], k, dtype=X.dtype.name)
    start = learn(State.empty(X.shape[1], config.dtype), X[: config.settled], np.ones(config.settled), config)[0]
    B = config.block
    learn(start, X[:B], np.ones(B), config)  # the first time it is compiled

    def timed() -> float:
        began = time.perf_counter()
        learn(start, X[:MESSAGES], np.ones(MESSAGES), config)
        return (time.perf_counter() - began) / MESSAGES

    return timed


def products(X: Array, k: int) -> Timed:
    """P = YC, G = YYᵀ and CΠ + YᵀZ of the same blocks, and nothing else."""
    config, rng = LearningConfig(X.shape[1], k), np.random.default_rng(1)
    B, K = config.stretch, config.columns
    C, Pi, Z = (rng.standard_normal(shape).astype(X.dtype) for shape in ((X.shape[1], K), (K, K), (B, K)))

    def timed() -> float:
        began = time.perf_counter()
        for i in range(0, MESSAGES, B):
            Y = X[i : i + B]
            _ = Y @ C, Y @ Y.T, C @ Pi + Y.T @ Z
        return (time.perf_counter() - began) / MESSAGES

    return timed


def algorithm_1(X: Array, k: int) -> Timed:
    """The paper's algorithm, with S by Sherman–Morrison, one message at a time."""
    C = np.linalg.qr(np.random.default_rng(1).standard_normal((X.shape[1], k)))[0].astype(X.dtype)

    def timed() -> float:
        factor, S, began = C, np.eye(k, dtype=X.dtype), time.perf_counter()
        for t in range(SINGLE):
            factor, S, _ = algorithm1.sherman_morrison(factor, S, X[t], 1 / (t + 1))
        return (time.perf_counter() - began) / SINGLE

    return timed


def incremental(X: Array, k: int, size: int) -> Timed:
    """scikit-learn's IncrementalPCA after its first batch."""
    batches = max(1, min(5, 2000 // size))
    start = IncrementalPCA(n_components=k).partial_fit(X[:size])  # partial_fit replaces its arrays

    def timed() -> float:
        pca, began = copy.copy(start), time.perf_counter()
        for i in range(1, batches + 1):
            pca.partial_fit(X[i * size : (i + 1) * size])
        return (time.perf_counter() - began) / (batches * size)

    return timed


if __name__ == "__main__":
    main()
