"""Drift: the digits 0 to 4, then 5 to 9. The excess over the best subspace of the recent past, against time."""

from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA

from benchmarks.batch import Batch
from experiments import charts, passes
from experiments.datasets import Data
from experiments.plan import Job, Plan, command, complete
from experiments.results import Results, average, curve
from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import BLOCK, LearningConfig, learn
from streampca.pca.state import State

HALF_LIVES = (1000, 5000, 20_000)
PAST = 5  # the recent past: the last five chunks of `every` messages
K = 20
WAYS = {
    "default": "streampca",
    "exact": "exact weighted covariance",
    "never": "streampca, never forgets",
    "sklearn": "IncrementalPCA(K)",
}

Shown = Iterator[tuple[F64, F64]]  # components and mean after each chunk


def runs(plan: Plan) -> Results:
    """Curves of the percent of excess."""
    return Results(plan.folder / "drift.csv", ("way", "half_life", "seed"), ("excess",))


def run(plan: Plan) -> None:
    """On MNIST."""
    name = next(iter(plan.data))
    kinds = [("default", h) for h in HALF_LIVES] + [("exact", h) for h in HALF_LIVES] + [("never", 0), ("sklearn", 0)]
    k = min(K, plan.ks[-1])
    jobs = [
        Job((way, half_life, seed), one_pass, name, (k, way, half_life, seed, plan.every))
        for seed in range(min(plan.runs, plan.slow_runs)) for way, half_life in kinds
    ]  # fmt: skip
    complete("drift", plan, runs(plan), jobs)
    draw(plan)


def one_pass(data: Data, k: int, way: str, half_life: int, seed: int, every: int) -> tuple[str]:
    """The curve: each point is the excess over the best k components of the last chunks."""
    order, _ = passes.beginning(data, k, seed)
    order = np.concatenate([order[data.y[order] < 5], order[data.y[order] >= 5]])
    chunks = [data.raw(order[i : i + every]) for i in range(0, len(order) - every + 1, every)]
    decay = 2.0 ** (-1 / half_life) if half_life else 1.0
    recent: deque[tuple[int, F64, F64]] = deque(maxlen=PAST)
    excess = []
    for chunk, (components, mean) in zip(chunks, _shown(way, chunks, k, decay), strict=True):
        recent.append((len(chunk), chunk.sum(axis=0), chunk.T @ chunk))
        excess.append(_best(recent).excess(components, mean))
    return (curve(excess),)


def _best(recent: deque[tuple[int, F64, F64]]) -> Batch:
    n = sum(count for count, _, _ in recent)
    mean: F64 = np.sum([total for _, total, _ in recent], axis=0) / n
    covariance: F64 = np.sum([moment for _, _, moment in recent], axis=0) / n - np.outer(mean, mean)
    return Batch(covariance, mean, np.asarray(np.linalg.eigvalsh(covariance)[::-1], np.float64))


def _shown(way: str, chunks: list[F64], k: int, decay: float) -> Shown:
    if way == "sklearn":
        pca = IncrementalPCA(LearningConfig(chunks[0].shape[1], k).columns)
        for chunk in chunks:
            pca.partial_fit(chunk)
            yield pca.components_[:k], pca.mean_
    elif way == "exact":
        yield from _exact(chunks, k, decay)
    else:
        yield from _folded(chunks, k, decay)


def _folded(chunks: list[F64], k: int, decay: float) -> Shown:
    config = LearningConfig(chunks[0].shape[1], k)
    state = State.empty(config.dimensions)
    for chunk in chunks:
        first = config.next_block(state)
        for block in np.split(chunk, np.arange(first, len(chunk), BLOCK)):
            state, _ = learn(state, block, np.full(len(block), decay), config)
        yield axes.principal(state.C, k)[0], state.mean


def _exact(chunks: list[F64], k: int, decay: float) -> Shown:
    weight, total, moment = 0.0, np.zeros(chunks[0].shape[1]), np.zeros((chunks[0].shape[1],) * 2)
    for chunk in chunks:
        kept, w = decay ** len(chunk), decay ** np.arange(len(chunk))[::-1]
        weight, total = kept * weight + w.sum(), kept * total + w @ chunk
        moment = kept * moment + (w[:, None] * chunk).T @ chunk
        mean = total / weight
        yield np.linalg.eigh(moment / weight - np.outer(mean, mean))[1][:, ::-1][:, :k].T, mean


def draw(plan: Plan) -> None:
    """One panel for each half-life."""
    with charts.picture(plan.folder / "drift.svg", 1, len(HALF_LIVES)) as panels:
        for panel, half_life in zip(panels[0], HALF_LIVES, strict=True):
            for way, label in WAYS.items():
                own = half_life if way in ("default", "exact") else 0
                curves = runs(plan).curves("excess", way=way, half_life=own)
                t = [plan.every * (i + 1) for i in range(len(curves[0]))]
                style = {"default": ("-", "black"), "exact": (":", "tab:red"), "never": ("-", "tab:gray")}
                line, colour = style.get(way, ("-", charts.COLOURS["sklearn"]))
                charts.spread(panel, t, curves, line, color=colour, label=label)
            panel.set_yscale("log")
            panel.set_ylim(bottom=0.1)  # the very first point of IncrementalPCA is batch PCA itself
            panel.set(title=f"half-life {half_life:,} messages", xlabel="messages", ylabel="excess loss, %")
        charts.explain(panels[0, 0], {})


def section(folder: Path) -> list[str]:
    """The picture and a table of where it stands just after the change, and at the end."""
    results = runs(Plan({}, folder))
    lines = ["| | half-life | before the change | 5,000 after | at the end |", "|---|---|---|---|---|"]
    kinds = {(row["way"], row["half_life"]) for row in results.rows()}
    for way, half_life in sorted(kinds, key=lambda kind: (list(WAYS).index(kind[0]), int(kind[1]))):
        curves = results.curves("excess", way=way, half_life=half_life)
        cells = " | ".join(f"{value:.3f}" for value in _three(charts.mean_curve(curves)))
        lines.append(f"| {WAYS[way]} | {half_life if half_life != '0' else '–'} | {cells} |")
    seeds = min(Counter((row["way"], row["half_life"]) for row in results.rows()).values(), default=0)
    ours = [_last(results, "default", h) for h in HALF_LIVES]
    exact = [_last(results, "exact", h) for h in HALF_LIVES]
    pairs = ", ".join(
        f"{a:.2f} against {b:.2f} % (half-life {h:,})" for h, a, b in zip(HALF_LIVES, ours, exact, strict=True)
    )
    return [
        "## Drift",
        "",
        charts.embedded("drift.svg", "Excess loss against time while the digits change"),
        "",
        "MNIST, k = 20: first the digits 0 to 4 (35,735 messages) in random order, then 5 to 9. The excess in percent "
        "is relative to the best subspace of the last 5,000 messages. That subspace is fitted to "
        "these messages alone, so "
        "a longer memory always has some excess. IncrementalPCA(K) has as many columns as streampca, of which k are "
        f"compared. The bands are from the least to the greatest of the runs. Means of {seeds} run{'s' * (seeds > 1)}.",
        "",
        *lines,
        "",
        f"- At the end, the fold against the exact exponentially weighted covariance: {pairs}. The latter stores d² "
        "numbers, the fold d·K. A fold that forgets slowly pays for the directions that it dropped before the change.",
        f"- IncrementalPCA(K) cannot forget and ends at {_last(results, 'sklearn', 0):.1f} %, our fold without "
        "forgetting at "
        f"{_last(results, 'never', 0):.1f} %.",
    ]


def _three(mean: list[float]) -> tuple[float, float, float]:
    """Points of the full MNIST stream; of a shorter one, the last."""
    return mean[min(34, len(mean) - 1)], mean[min(40, len(mean) - 1)], mean[-1]


def _last(results: Results, way: str, half_life: Any) -> float:
    return average([c[-1] for c in results.curves("excess", way=way, half_life=half_life)])


if __name__ == "__main__":
    command(run, __doc__)
