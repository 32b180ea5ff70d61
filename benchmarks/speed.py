"""The time to learn one message, beside other algorithms: `python -m benchmarks.speed`.

Microseconds a message, medians of five rounds, the contestants in turn within each round, one BLAS thread:

- scikit-learn's IncrementalPCA after its first batch, at equal columns and memory: as many columns as streampca tracks
  (K), in batches of 256,
- the same with k columns, which is less accurate, by the best of its batch sizes from k + 1 to 5000 (each is tried,
  and the best three take part), which need up to twenty times the memory,
- Algorithm 1 message by message in NumPy, with k columns,
- the machine's limit: the three products of size d that a block needs, alone, by NumPy's BLAS,
- proSVD by its best window, where it is installed (as `make bench` does; river has no PCA).
"""

import copy
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.report import Bar, parser, publish
from streampca.pca import algorithm1
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State

try:
    from proSVD import proSVD
except ImportError:
    proSVD = None  # noqa: N816 - its own name

PART = "speed"
SIZES = ((64, 8), (784, 20), (3072, 20), (1536, 64), (3072, 100))
SMALLEST = ((64, 8),)
DTYPES = ("float64", "float32")
ROUNDS, MESSAGES, SINGLE = 5, 2560, 200
EQUAL = 10.0  # speed-up over IncrementalPCA at equal columns and memory
INCREMENTAL = {(784, 20): 15.0}  # over the best of its batch sizes, with k columns; elsewhere 6
ALGORITHM_1, LIMIT = 8.0, 0.6

Timed = Callable[[], float]  # seconds a message

_COLUMNS = """\
| d × k | dtype | streampca | IncrementalPCA(K), 256 | IncrementalPCA(k) | Algorithm 1 in NumPy | limit | proSVD |
|---|---|---|---|---|---|---|---|"""


class Row(NamedTuple):
    """The medians of one size and dtype, in µs a message."""

    d: int
    k: int
    dtype: str
    found: dict[str, float]  # contestant → µs

    def best(self, kind: str) -> tuple[str, float]:
        """The quickest of a kind: its parameter and µs."""
        of_kind = ((name.removeprefix(kind).strip(), us) for name, us in self.found.items() if name.startswith(kind))
        return min(of_kind, key=lambda pair: pair[1], default=("", float("nan")))

    def ratio(self, kind: str) -> float:
        """The time of the best of a kind, as a multiple of ours."""
        return self.best(kind)[1] / self.found["ours"]

    def line(self) -> str:
        """One line of the table."""
        batch, incremental = self.best("batch")
        window, other = self.best("proSVD")
        others = "–" if np.isnan(other) else f"{other:.0f} ({window}), {self.ratio('proSVD'):.1f}×"
        return (
            f"| {self.d} × {self.k} | {self.dtype} | {self.found['ours']:.1f} "
            f"| {self.found['equal']:.1f}, {self.ratio('equal'):.1f}× "
            f"| {incremental:.1f} ({batch}), {self.ratio('batch'):.1f}× "
            f"| {self.found['single']:.0f}, {self.ratio('single'):.1f}× | {self.ratio('limit'):.2f} | {others} |"
        )

    def bars(self) -> list[Bar]:
        """The ratios that have a bar."""
        wanted = (("equal", EQUAL, "Speed-up over IncrementalPCA at equal columns and memory"),
                  ("batch", INCREMENTAL.get((self.d, self.k), 6.0), "Speed-up over IncrementalPCA with fewer columns"),
                  ("single", ALGORITHM_1, "Speed-up over Algorithm 1 in NumPy"),
                  ("limit", LIMIT, "Share of the matrix products' speed"))  # fmt: skip
        return [
            Bar(f"{metric}, {self.d} × {self.k}, {self.dtype}", self.ratio(kind), "≥", bar, "×")
            for kind, bar, metric in wanted
        ]


def main() -> None:
    """Measure and write."""
    given = parser(__doc__).parse_args()
    rows = []
    print(_COLUMNS, flush=True)
    with threadpool_limits(1):
        for d, k in SMALLEST if given.smallest else SIZES:
            for dtype in DTYPES:
                rows.append(measured(d, k, dtype, 1 if given.smallest else ROUNDS))
                print(rows[-1].line(), flush=True)
    lines = [*_COLUMNS.splitlines(), *(row.line() for row in rows)]
    publish(PART, given, lines, [bar for row in rows for bar in row.bars()])


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
    if proSVD is not None:
        contestants |= {f"proSVD {size}": windows(X, k, size) for size in (k // 2, k, 2 * k)}
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


def windows(X: Array, k: int, size: int) -> Timed:
    """proSVD, which takes columns and does not centre them."""
    start = proSVD(k, w_len=size, history=0, track_prev=False)
    start.initialize(X[: 2 * k].T)

    def timed() -> float:
        pro, began = copy.copy(start), time.perf_counter()
        for i in range(2 * k, 2 * k + 5 * size, size):
            pro.updateSVD(X[i : i + size].T)
        return (time.perf_counter() - began) / (5 * size)

    return timed


if __name__ == "__main__":
    main()
