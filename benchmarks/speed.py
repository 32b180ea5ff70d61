"""What learning one message costs, beside others: `python -m benchmarks.speed`.

Microseconds a message (medians of five rounds, the competitors in turn within each round, one BLAS thread), and how
many times longer the others take. Writes benchmarks/results/speed.md.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.accuracy import machine
from streampca.pca import krasulina
from streampca.pca.learning import BLOCK, Recipe, learn
from streampca.pca.state import State

RESULT = Path(__file__).parent / "results" / "speed.md"
SIZES = ((64, 8), (784, 20), (3072, 20), (3072, 100))
ROUNDS, BLOCKS, SINGLE = 5, 40, 200

F64 = NDArray[np.float64]
Timed = Callable[[], float]  # seconds a message


def main() -> None:
    """Measure and write."""
    lines = [
        "| d × k | streampca, float64 | float32 | Algorithm 1 in NumPy | IncrementalPCA, its best batch |",
        "|---|---|---|---|---|",
    ]
    with threadpool_limits(1):
        for d, k in SIZES:
            lines.append(row(d, k))
            print(lines[-1], flush=True)
    RESULT.write_text(
        "# Learning one message\n\nMicroseconds a message, and in brackets how many times as long as streampca at "
        "float64. Made by `python -m benchmarks.speed`.\n\n" + "\n".join(lines) + f"\n\n{machine()}\n"
    )


def row(d: int, k: int) -> str:
    """One line of the table."""
    rng = np.random.default_rng(0)
    count = max(BLOCKS * BLOCK, 2 * 5 * k + 2000)
    X = rng.standard_normal((count, k)) @ rng.standard_normal((k, d)) + rng.standard_normal((count, d))
    contenders: dict[str, Timed] = {
        "float64": ours(X, k, "float64"), "float32": ours(X, k, "float32"), "single": algorithm_1(X, k),
        **{f"batch {size}": incremental(X, k, size) for size in (2 * k, 5 * k, 1000)},
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, timed in contenders.items():
            times[name].append(timed() * 1e6)
    found = {name: median(values) for name, values in times.items()}
    best = min(value for name, value in found.items() if name.startswith("batch"))
    ours64 = found["float64"]
    others = " | ".join(f"{value:.0f} ({value / ours64:.0f}×)" for value in (found["single"], best))
    return f"| {d} × {k} | {ours64:.1f} | {found['float32']:.1f} | {others} |"


def ours(X: F64, k: int, dtype: str) -> Timed:
    """Blocks in full swing, as the worker learns them."""
    recipe = Recipe(X.shape[1], k, dtype=dtype)
    V = X.astype(dtype)
    start = learn(State.empty(X.shape[1], dtype), V[: recipe.start], np.ones(recipe.start), recipe)[0]

    def timed() -> float:
        state, began = start, time.perf_counter()
        for i in range(BLOCKS):
            state, _ = learn(state, V[i * BLOCK : (i + 1) * BLOCK], np.ones(BLOCK), recipe)
        return (time.perf_counter() - began) / (BLOCKS * BLOCK)

    return timed


def algorithm_1(X: F64, k: int) -> Timed:
    """The paper's algorithm, with S by Sherman–Morrison, one message at a time."""
    C = np.linalg.qr(np.random.default_rng(1).standard_normal((X.shape[1], k)))[0]

    def timed() -> float:
        factor, S, began = C, np.eye(k), time.perf_counter()
        for t in range(SINGLE):
            factor, S, _ = krasulina.sherman_morrison(factor, S, X[t], 1 / (t + 1))
        return (time.perf_counter() - began) / SINGLE

    return timed


def incremental(X: F64, k: int, size: int) -> Timed:
    """scikit-learn's IncrementalPCA after its first batch."""
    batches = max(1, min(5, len(X) // size - 1))

    def timed() -> float:
        pca = IncrementalPCA(n_components=k).partial_fit(X[:size])
        began = time.perf_counter()
        for i in range(1, batches + 1):
            pca.partial_fit(X[i * size : (i + 1) * size])
        return (time.perf_counter() - began) / (batches * size)

    return timed


if __name__ == "__main__":
    main()
