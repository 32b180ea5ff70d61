"""What learning a message costs against d, k, partitions and the length of a stretch: `python -m benchmarks.curves`.

Writes docs/images/cost.png and benchmarks/results/curves.md, which has the exponent p of a fit cost ∝ xᵖ over the upper
half of each curve. One BLAS thread; medians of five rounds, all points of a curve in turn within each.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.bars import RESULTS
from benchmarks.machine import machine
from streampca.pca import learning
from streampca.pca.learning import LearningConfig
from streampca.stream.fold import Fold, FoldConfig

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "cost.png"
ROUNDS, MESSAGES = 5, 2048
D, K = 784, 20

Cost = Callable[[], float]  # seconds a message


def main() -> None:
    """Measure, draw, write."""
    mpl.use("Agg")
    curves = {
        "d": ("dimensions d (k = 20)", [64, 128, 256, 512, 1024, 2048, 4096], lambda d: cost(d, K)),
        "k": ("components k (d = 3072)", [2, 5, 10, 20, 50, 100, 200], lambda k: cost(3072, k)),
        "partitions": ("partitions, in turn (784 × 20)", [1, 2, 4, 8, 16, 32, 64], lambda p: cost(D, K, partitions=p)),
        "stretch": ("messages a stretch (784 × 20)", [8, 16, 32, 64, 128, 256], lambda size: cost(D, K, stretch=size)),
    }
    figure, axes = plt.subplots(1, len(curves), figsize=(15, 3.4), sharey=True, layout="constrained")
    lines = ["| against | " + "µs a message | exponent |", "|---|---|---|"]
    with threadpool_limits(1):
        for axis, (label, points, make) in zip(axes, curves.values(), strict=True):
            found = medians([make(point) for point in points])
            axis.loglog(points, found, "o-", base=2)
            axis.set_xlabel(label)
            axis.grid(visible=True, alpha=0.3)
            shown = ", ".join(f"{point}: {micro:.1f}" for point, micro in zip(points, found, strict=True))
            lines.append(f"| {label} | {shown} | {exponent(points, found):.2f} |")
            print(lines[-1], flush=True)
    axes[0].set_ylabel("µs a message")
    figure.savefig(PICTURE, dpi=110)
    head = "# Cost of a message\n\nfloat64. Made by `python -m benchmarks.curves`.\n\n"
    (RESULTS / "curves.md").write_text(head + "\n".join(lines) + f"\n\n{machine()}\n")


def cost(d: int, k: int, *, partitions: int = 1, stretch: int | None = None) -> Cost:
    """Learning of folds that are past their start, each in turn a poll's worth."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((MESSAGES, k)) @ rng.standard_normal((k, d)) + rng.standard_normal((MESSAGES, d))
    fold_config = FoldConfig(LearningConfig(d, k), format="float64")
    begun, _ = Fold.empty(fold_config.learning).learn(X, [0] * MESSAGES, MESSAGES, fold_config)
    folds = [begun] * partitions
    poll = max(MESSAGES // partitions, learning.BLOCK)

    def timed() -> float:
        usual, learning.STRETCH = learning.STRETCH, stretch or learning.STRETCH
        try:
            started = time.perf_counter()
            for i in range(partitions):
                folds[i], _ = folds[i].learn(X[:poll], [0] * poll, folds[i].position + poll, fold_config)
            return (time.perf_counter() - started) / (partitions * poll)
        finally:
            learning.STRETCH = usual

    timed()
    return timed


def medians(contenders: Sequence[Cost]) -> list[float]:
    """Microseconds."""
    rounds = [[timed() for timed in contenders] for _ in range(ROUNDS)]
    return [1e6 * median(times) for times in zip(*rounds, strict=True)]


def exponent(points: Sequence[int], found: Sequence[float]) -> float:
    """Slope of the upper half in logarithms."""
    half = len(points) // 2
    return float(np.polyfit(np.log(points[half:]), np.log(found[half:]), 1)[0])


if __name__ == "__main__":
    main()
