"""Our merge beside averaging (eq. 17): many partitions that are learned apart and combined once, at the end.

Factors are averaged as they are, and each rotated to be nearest to the first one (Procrustes). Eq. 17 in the unit gauge
averages the factors U diag(√λ) of the partitions' covariances, with the signs of published models.
"""

import itertools

import numpy as np

from experiments import exact, passes
from experiments.baselines import explicit
from experiments.datasets import NAMES, Data, Indices
from experiments.methods import method, published
from experiments.plan import Job, Plan, Results, complete
from experiments.report import spread, table
from streampca.pca import axes
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import StateMerger

PARTITIONS = (10, 100, 1000)
SPLITS = ("random", "skewed")  # skewed: sorted by label and then cut
OWN, ALIGNED = ", own starts", ", aligned"
WAYS = ("merge", "average", "average" + ALIGNED, "average" + OWN, "average" + OWN + ALIGNED, "gauge", "gauge" + ALIGNED)
SHOWN_WAYS = ("merge", "average", "average" + ALIGNED, "average" + OWN + ALIGNED)  # in the table; the results have all
UNSHOWN_PARTITIONS = "100"  # between those that the table shows, in partitions and in excess


def runs(plan: Plan) -> Results:
    """Percent of excess of all partitions combined at the end."""
    keys = ("data", "k", "partitions", "split", "way", "seed")
    return Results(plan.folder / "partitions.csv", keys, ("eta0", "excess"))


def run(plan: Plan) -> None:
    """Every number of partitions, split and way."""
    passes.choose(plan, ("implicit",))
    k, jobs = plan.ks[-1], []
    for seed in range(plan.runs):
        for name in plan.data:
            implicit = passes.eta0_of(plan, name, k, "implicit")
            for case in itertools.product(PARTITIONS, SPLITS, WAYS):
                eta0 = implicit if case[-1].startswith("average") else 1.0
                jobs.append(Job((name, k, *case, seed), combined, name, (k, *case, eta0, seed)))
    complete("partitions", plan, runs(plan), jobs)


def combined(data: Data, k: int, count: int, split: str, way: str, eta0: float, seed: int) -> tuple[float, float]:
    """η₀ and the percent of excess of all partitions combined; nothing is sent back."""
    order, C = passes.beginning(data, k, seed)
    if split == "skewed":
        order = order[np.argsort(data.y[order], kind="stable")]
    parts = np.array_split(order, count)
    if way == "merge":
        return eta0, round(_merged(data, k, parts), 6)
    learner = method("gauge" if way.startswith("gauge") else "implicit", k, eta0)
    total, reference = np.zeros((data.d, k)), C
    for i, part in enumerate(parts):
        start = passes.beginning(data, k, 10_000 * (seed + 1) + i)[1] if OWN in way else C
        *_, (factor, _) = passes.states(learner, data, part, start, 0)
        if way.startswith("gauge"):
            factor *= np.where(factor[np.abs(factor).argmax(axis=0), np.arange(k)] < 0, -1, 1)
        reference = factor if i == 0 else reference
        total += len(part) * (explicit.aligned(factor, reference) if ALIGNED in way else factor)
    return eta0, round(data.excess(exact.orthonormal(total)), 6)


def _merged(data: Data, k: int, parts: list[Indices]) -> float:
    """The excess of the merged folds."""
    config = LearningConfig(data.d, k)
    merger = StateMerger(config.columns)
    for part in parts:
        *_, state = passes.states(method("default", k), data, part, np.zeros((data.d, k)), 0, center=False)
        merger.add(published(state, k))
    merged = merger.state(config.columns, np.float64)
    return data.batch.excess(axes.find_principal_axes(merged, k)[0], merged.mean)


def blocks(plan: Plan) -> dict[str, list[str]]:
    """The table of excesses, of the ways and numbers of partitions that the page shows."""
    results, rows = runs(plan), []
    cases = dict.fromkeys((row["data"], row["partitions"], row["split"]) for row in results.rows())
    for case in sorted(cases, key=lambda case: NAMES.index(case[0])):
        if case[1] == UNSHOWN_PARTITIONS:
            continue
        chosen = dict(zip(("data", "partitions", "split"), case, strict=True))
        losses = [results.numbers("excess", way=way, **chosen) for way in SHOWN_WAYS]
        rows.append([*case, spread(losses[0], 4), *(spread(values, 1) for values in losses[1:])])
    return {"partitions": table(["data", "partitions", "split", *SHOWN_WAYS], rows, labels=3)}
