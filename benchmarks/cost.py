"""The time to learn a message against d, k, partitions and the length of a stretch: `python -m benchmarks.cost`.

Draws images/cost.png beside the page, and adds the exponent p of a fit cost ∝ xᵖ over the upper half of each curve.
One BLAS thread; medians of five rounds, all points of a curve in turn within each.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.report import page_of, parser, publish
from streampca.pca import learning
from streampca.pca.learning import LearningConfig
from streampca.stream.fold import Fold, FoldConfig

PART = "cost"
ROUNDS, MESSAGES = 5, 2048
D, K = 784, 20

Cost = Callable[[], float]  # seconds a message


def main() -> None:
    """Measure, draw, write."""
    given = parser(__doc__).parse_args()
    mpl.use("Agg")
    curves: list[tuple[str, list[int], Callable[[int], Cost]]] = [
        ("dimensions d (k = 20)", [64, 128, 256, 512, 1024, 2048, 4096], lambda d: cost(d, K)),
        ("components k (d = 3072)", [2, 5, 10, 20, 50, 100, 200], lambda k: cost(3072, k)),
        ("partitions, in turn (784 × 20)", [1, 2, 4, 8, 16, 32, 64], lambda p: cost(D, K, partitions=p)),
        ("messages a stretch (784 × 20)", [8, 16, 32, 64, 128, 256], lambda size: cost(D, K, stretch=size)),
    ]
    figure, axes = plt.subplots(1, len(curves), figsize=(15, 3.4), sharey=True, layout="constrained")
    lines = ["| against | µs a message | exponent |", "|---|---|---|"]
    with threadpool_limits(1):
        for axis, (label, all_points, make) in zip(axes, curves, strict=True):
            points = all_points[:3] if given.smallest else all_points
            found = medians([make(point) for point in points], 1 if given.smallest else ROUNDS)
            axis.loglog(points, found, "o-", base=2)
            axis.set_xlabel(label)
            axis.grid(visible=True, alpha=0.3)
            shown = ", ".join(f"{point}: {micro:.1f}" for point, micro in zip(points, found, strict=True))
            lines.append(f"| {label} | {shown} | {exponent(points, found):.2f} |")
            print(lines[-1], flush=True)
    axes[0].set_ylabel("µs a message")
    if page := page_of(given):
        figure.savefig(page.parent / "images" / "cost.png", dpi=110)
    publish(PART, given, lines)


def cost(d: int, k: int, *, partitions: int = 1, stretch: int | None = None) -> Cost:
    """Folds that are past their start learn a poll of messages each, in turn."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((MESSAGES, k)) @ rng.standard_normal((k, d)) + rng.standard_normal((MESSAGES, d))
    fold_config, begun = FoldConfig(LearningConfig(d, k), format="float64"), Fold.empty(LearningConfig(d, k))
    while begun.state.count < fold_config.learning.settled:
        begun, _ = begun.learn(X, [0] * MESSAGES, begun.position + MESSAGES, fold_config)
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


def medians(contenders: Sequence[Cost], rounds: int) -> list[float]:
    """Microseconds."""
    found = [[timed() for timed in contenders] for _ in range(rounds)]
    return [1e6 * median(times) for times in zip(*found, strict=True)]


def exponent(points: Sequence[int], found: Sequence[float]) -> float:
    """Slope of the upper half in logarithms."""
    half = len(points) // 2
    return float(np.polyfit(np.log(points[half:]), np.log(found[half:]), 1)[0])


if __name__ == "__main__":
    main()
