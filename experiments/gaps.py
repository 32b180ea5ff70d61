"""Accuracy with gaps, on MNIST with pixels removed.

The same pictures, with different gaps, are learned with missing=impute and, for comparison, with the gaps filled by the
mean of all pictures. Each model is compared with batch PCA of the complete pictures.
"""

import itertools
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import Data
from experiments.plan import Job, Plan, Results, complete
from experiments.report import table
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.record import batch_of_rows
from streampca.pca.arrays import F64
from streampca.pca.axes import make_model
from streampca.pca.learning import LearningConfig

COMPONENTS = (5, 20)
SHOWN = 20  # in the table; the CSV file has both
_BATCH = 2048

Entries = NDArray[np.bool_]
Remove = Callable[[F64, np.random.Generator], Entries]


def _at_random(share: float) -> Remove:
    return lambda X, random: np.asarray(random.random(X.shape) < share)


def _runs(X: F64, random: np.random.Generator) -> Entries:
    d = X.shape[1]
    index = (np.arange(d) - random.integers(0, d, len(X))[:, None]) % d
    return np.asarray(index < 3 * d // 10)


GAPS: dict[str, Remove] = {
    "none": lambda X, random: np.zeros(X.shape, np.bool_),
    "10 % at random": _at_random(0.1),
    "30 % at random": _at_random(0.3),
    "60 % at random": _at_random(0.6),
    "30 % in one run of pixels": _runs,
    "the brighter, the likelier": lambda X, random: np.asarray(random.random(X.shape) < 0.6 * X),
}


def results(plan: Plan) -> Results:
    """A row for each kind of gaps, k and way to fill them."""
    return Results(plan.folder / "gaps.csv", ("gaps", "k", "filled"), ("excess", "variance", "seconds"))


def run(plan: Plan) -> None:
    """All rows that are missing."""
    cases = itertools.product(GAPS, COMPONENTS, ("impute", "mean"))
    complete("gaps", plan, results(plan), [Job(case, one_pass, "mnist", case) for case in cases])


def one_pass(data: Data, gaps: str, k: int, filled: str) -> tuple[str, str, str]:
    """The values of a row."""
    X = data.pixels(np.random.default_rng(0).permutation(len(data.X)))
    learned(X[:2048], 5, impute=True)  # compiles
    V = np.where(GAPS[gaps](X, np.random.default_rng(1)), np.nan, X)
    if filled == "mean":
        V = np.where(np.isnan(V), np.nanmean(V, axis=0), V)
    started = time.process_time()
    fold = learned(V, k, impute=filled == "impute")
    seconds = time.process_time() - started
    model = make_model(fold.provisional(LearningConfig(data.d, k, impute=True)), k)
    excess = data.batch.excess(model.components.astype(np.float64), model.mean.astype(np.float64))
    return f"{excess:.4f}", f"{model.total_variance / float(X.var(axis=0).sum()):.4f}", f"{seconds:.4f}"


def learned(V: F64, k: int, *, impute: bool) -> Fold:
    """The fold of the messages V (n, d)."""
    config = FoldConfig(LearningConfig(V.shape[1], k, impute=impute))
    fold = Fold.empty(config.learning)
    for start in range(0, len(V), _BATCH):
        batch = V[start : start + _BATCH]
        fold, _ = fold.take(batch_of_rows(batch, start + len(batch)), config)
    return fold


def blocks(plan: Plan) -> dict[str, list[str]]:
    """The table of one number of components."""
    rows = []
    for gaps in GAPS:
        ours, mean, without = (
            results(plan).rows(gaps=kind, k=SHOWN, filled=filled)[0]
            for kind, filled in ((gaps, "impute"), (gaps, "mean"), ("none", "impute"))
        )
        ratio = float(ours["seconds"]) / float(without["seconds"])
        rows.append([gaps, f"{ours['excess']} %", f"{mean['excess']} %", ours["variance"], f"{ratio:.1f}×"])
    return {"gaps": table(["gaps", "excess", "mean instead", "variance", "time"], rows)}
