"""Our merge beside averaging (eq. 17): many partitions that are learned apart and combined once, at the end."""

from pathlib import Path

import numpy as np

from experiments import passes
from experiments.baselines import combine
from experiments.baselines.orthonormal import orthonormal
from experiments.datasets import Data
from experiments.methods import BLOCK, WARM_UP, Default, method
from experiments.plan import Job, Plan, complete
from experiments.report import DOCS, table
from experiments.results import Results, spread
from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import merge
from streampca.pca.state import State

PAGE = DOCS / "experiments.md"
PARTITIONS = (10, 100)
SPLITS = ("random", "skewed")  # skewed: sorted by label and then cut
WAYS = {"merge": "merged", "average": "averaged", "average, own starts": "averaged, own starts"}


def runs(plan: Plan) -> Results:
    """Percent of excess of all partitions combined at the end."""
    keys = ("data", "k", "partitions", "split", "way", "seed")
    return Results(plan.folder / "partitions.csv", keys, ("eta0", "excess"))


def run(plan: Plan) -> None:
    """Every number of partitions, split and way."""
    passes.choose(plan)
    k, jobs = plan.ks[-1], []
    for seed in range(plan.runs):
        for name in plan.data:
            implicit = passes.chosen(passes.validations(plan), name, k, "implicit")
            for partitions, split, way in ((p, s, w) for p in PARTITIONS for s in SPLITS for w in WAYS):
                arguments = (k, partitions, split, way, 1.0 if way == "merge" else implicit, seed)
                jobs.append(Job((name, k, partitions, split, way, seed), combined, name, arguments))
    complete("partitions", plan, runs(plan), jobs)


def combined(
    data: Data, k: int, partitions: int, split: str, way: str, eta0: float, seed: int
) -> tuple[float, float]:  # fmt: skip
    """η₀ and the percent of excess of all partitions combined; nothing is sent back."""
    order, C = passes.beginning(data, k, seed)
    if split == "skewed":
        order = order[np.argsort(data.y[order], kind="stable")]
    parts = np.array_split(order, partitions)
    if way == "merge":
        state = merge([_learned(Default(k), data.X[part] / 255) for part in parts], LearningConfig(data.d, k).columns)
        return eta0, round(data.batch.excess(axes.principal(state, k)[0], state.mean), 6)
    factors: list[F64] = []
    for i, part in enumerate(parts):
        start = C if way == "average" else passes.beginning(data, k, 10_000 * (seed + 1) + i)[1]
        *_, last = passes.states(method("implicit", k, eta0), data, part, start, 0)
        factors.append(last[0])
    average = combine.average(factors, [len(part) for part in parts])
    return eta0, round(data.excess(np.asarray(orthonormal(average), np.float64)), 6)


def _learned(way: Default, X: F64) -> State:
    """The state of our default after the rows X, centred by its running mean."""
    state = way.start(np.zeros((X.shape[1], way.k)))
    for rows in np.split(X, np.arange(WARM_UP, len(X), BLOCK)):
        state = way.learn(state, rows)
    return way.of_all(state)


def blocks(folder: Path) -> dict[str, list[str]]:
    """The table."""
    results = runs(Plan({}, folder))
    rows = []
    for case in dict.fromkeys((row["data"], row["partitions"], row["split"]) for row in results.rows()):
        chosen = dict(zip(("data", "partitions", "split"), case, strict=True))
        rows.append([*case, *(spread(results.numbers("excess", way=way, **chosen), 4) for way in WAYS)])
    return {"partitions": table(["data", "partitions", "split", *WAYS.values()], rows)}
