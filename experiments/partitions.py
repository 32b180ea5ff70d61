"""Our merge beside averaging (eq. 17): many partitions that are learned apart and combined once, at the end.

Factors are averaged as they are, and each rotated to be nearest to the first one (Procrustes). Eq. 17 in the unit gauge
averages the factors U diag(√λ) of the partitions' covariances, with the signs of published models.
"""

from pathlib import Path

import numpy as np

from experiments import exact, passes
from experiments.baselines import combine
from experiments.datasets import Data, Indices
from experiments.methods import method, published
from experiments.plan import Job, Plan, complete
from experiments.report import table
from experiments.results import Results, average, spread
from streampca.pca import axes
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import Merger, pooled

PARTITIONS = (10, 100, 1000)
SPLITS = ("random", "skewed")  # skewed: sorted by label and then cut
OWN = ", own starts"
WAYS = ("default", "implicit", "implicit" + OWN, "gauge")


def runs(plan: Plan) -> Results:
    """Percent of excess of all partitions combined at the end, and what each sends, in bytes."""
    keys = ("data", "k", "partitions", "split", "way", "seed")
    return Results(plan.folder / "partitions.csv", keys, ("eta0", "excess", "aligned", "bytes"))


def run(plan: Plan) -> None:
    """Every number of partitions, split and way."""
    passes.choose(plan, ("implicit",))
    k, jobs = plan.ks[-1], []
    for seed in range(plan.runs):
        for name in plan.data:
            implicit = passes.chosen(passes.validations(plan), name, k, "implicit")
            for partitions, split, way in ((p, s, w) for p in PARTITIONS for s in SPLITS for w in WAYS):
                arguments = (k, partitions, split, way, implicit if way.startswith("implicit") else 1.0, seed)
                jobs.append(Job((name, k, partitions, split, way, seed), combined, name, arguments))
    complete("partitions", plan, runs(plan), jobs)


def combined(
    data: Data, k: int, partitions: int, split: str, way: str, eta0: float, seed: int
) -> tuple[float, float, float | str, int]:  # fmt: skip
    """The values of a row; nothing is sent back to the partitions."""
    order, C = passes.beginning(data, k, seed)
    if split == "skewed":
        order = order[np.argsort(data.y[order], kind="stable")]
    parts = np.array_split(order, partitions)
    if way == "default":
        excess, size = _merged(data, k, parts)
        return eta0, round(excess, 6), "", size
    sums, reference = np.zeros((2, data.d, k)), C
    for i, part in enumerate(parts):
        start = passes.beginning(data, k, 10_000 * (seed + 1) + i)[1] if way.endswith(OWN) else C
        *_, (factor, _) = passes.states(method(way.removesuffix(OWN), k, eta0), data, part, start, 0)
        if way == "gauge":
            factor *= np.where(factor[np.abs(factor).argmax(axis=0), np.arange(k)] < 0, -1, 1)
        reference = factor if i == 0 else reference
        sums += len(part) * np.stack([factor, combine.aligned(factor, reference)])
    plain, aligned = (round(data.excess(exact.orthonormal(total)), 6) for total in sums)
    return eta0, plain, aligned, factor.nbytes


def _merged(data: Data, k: int, parts: list[Indices]) -> tuple[float, int]:
    """The excess of the merged folds, and the largest state's bytes."""
    config, way, size = LearningConfig(data.d, k), method("default", k), 0
    merger = Merger(config.columns)
    for part in parts:
        *_, state = passes.states(way, data, part, np.zeros((data.d, k)), 0, center=False)
        fold = published(state, k)
        kept = fold.C if fold.covariance is None else fold.covariance
        size = max(size, kept.nbytes + fold.mean.nbytes)
        merger.add(fold)
    merged = pooled(merger.groups(), config.columns, config.columns, np.float64)
    return data.batch.excess(axes.principal(merged, k)[0], merged.mean), size


def blocks(folder: Path) -> dict[str, list[str]]:
    """The table."""
    results, rows = runs(Plan({}, folder)), []
    for case in dict.fromkeys((row["data"], row["partitions"], row["split"]) for row in results.rows()):
        chosen, cells = dict(zip(("data", "partitions", "split"), case, strict=True)), list(case)
        for way in WAYS:
            for column in ("excess",) if way == "default" else ("excess", "aligned"):
                cells.append(spread(results.numbers(column, way=way, **chosen), 4 if way == "default" else 1))
        sizes = (average(results.numbers("bytes", way=way, **chosen)) / 1024 for way in ("default", "implicit"))
        rows.append([*cells, " / ".join(f"{size:.0f}" for size in sizes)])
    heads = [f"{words}, {kind}" for words in ("averaged", "own starts", "unit gauge") for kind in ("plain", "aligned")]
    return {"partitions": table(["data", "partitions", "split", "merged", *heads, "KiB sent"], rows)}
