"""How fast Algorithm 1 in the unit gauge converges: on Gaussian streams with known gaps, and on the paper's data.

The learner has K columns, η = 1/t and nothing beside C; its k leading ones count. Column i of C is near √λᵢ(uᵢ + ε uⱼ),
with uᵢ the principal axes. A step changes its error ε to ε + (−aε + ξ)/t with Var ξ = νq, q = λⱼ/λᵢ and a = 1 − q. For
directions i ≤ k and j > K, to first order in the angles between them, this predicts

    E angle² = νq [(t₀/t)^2a min(1, 1/(t₀a²)) + (1 − (t₀/t)^(2a−1))/((2a−1)t)]        batch PCA: νq/(a²t)

of which batch PCA's is Anderson's (1963). ν = E yᵢ²yⱼ²/(λᵢλⱼ) is 1 for Gaussian messages. t₀ messages are decomposed
whole at the start.
"""

import itertools
from functools import reduce
from statistics import fmean, median

import numpy as np

from experiments import passes
from experiments.baselines.batch import Batch
from experiments.datasets import Data
from experiments.methods import WARM_UP, method
from experiments.plan import Job, Plan, Results, complete, curve
from experiments.report import spread, table
from streampca.pca.arrays import F64

RUNS, GROUPS, MESSAGES = 100, 10, 102_400
DIMENSIONS, SERVED = 20, 3
RATIOS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)  # λ₄/λ₃, where λ₁ = λ₂ = λ₃ and the others are alike
SKEWED = 0.5  # the ratio above which runs stay near saddles: their means are skewed, so medians are shown
COLUMNS = (20, 32)  # K of the learner on the paper's data, k = 20
PREDICTED = "predicted"
Spectrum = tuple[F64, int]  # variances of independent Gaussian coordinates, and the columns K of the learner


def spectra() -> dict[str, Spectrum]:
    """One without spare columns for each ratio, and two streams that need them."""
    flat = {f"K=3, λ₄={q:g}λ₃": (np.r_[np.ones(3), np.full(DIMENSIONS - 3, q)], 3) for q in RATIOS}
    two_close = np.r_[np.ones(3), 0.9, 0.9, np.full(DIMENSIONS - 5, 0.25)]
    spare = {f"K={K}, λ₄=λ₅=0.9λ₃, λ₆=0.25λ₃": (two_close, K) for K in (3, 5)}
    return flat | spare


def results(plan: Plan) -> Results:
    """Curves of the excess in percent, over the true axes (the paper's data: over batch PCA), and batch PCA's own."""
    return Results(plan.folder / "rate.csv", ("stream", "run"), ("excess", "batch"))


def times(messages: int) -> list[int]:
    """When the excess is taken: after twice the first block, then each time that the stream has doubled."""
    return [WARM_UP * 2**i for i in range(1, 30) if WARM_UP * 2**i <= messages]


def run(plan: Plan) -> None:
    """Every stream, and what is predicted for it."""
    jobs, k = [], plan.ks[-1]
    for run, (name, spectrum) in itertools.product((PREDICTED, *range(RUNS)), spectra().items()):
        function, arguments = (_for_gaussian, spectrum) if run == PREDICTED else (gaussian, (*spectrum, run))
        jobs.append(Job((name, run), function, "", arguments))
    for name, columns in itertools.product(plan.data, COLUMNS):
        stream = f"{name} k={k}, K={columns}"
        jobs += [Job((stream, run), pictures, name, (k, columns, run)) for run in range(plan.runs)]
        jobs.append(Job((stream, PREDICTED), _for_pictures, name, (k, columns)))
    complete("rate", plan, results(plan), jobs)


def gaussian(_: object, variances: F64, columns: int, run: int) -> tuple[str, str]:
    """Both curves of one run."""
    rng, d = np.random.default_rng([run, columns, int(1000 * variances[-1])]), len(variances)
    way, truth, points = method("gauge", columns), Batch(np.diag(variances), np.zeros(d), variances), times(MESSAGES)
    state, moment, start, ours, batch = way.start(np.eye(d, columns)), np.zeros((d, d)), 0, [], []
    for point in points:
        Y = rng.standard_normal((point - start, d)) * np.sqrt(variances)
        moment += Y.T @ Y
        state = reduce(way.learn, passes.in_blocks(Y, start), state)
        ours.append(truth.excess(way.basis(state)[:, :SERVED].T, truth.mean))
        batch.append(truth.excess(np.linalg.eigh(moment)[1][:, : -SERVED - 1 : -1].T, truth.mean))
        start = point
    return curve(ours), curve(batch)


def pictures(data: Data, k: int, columns: int, run: int) -> tuple[str, str]:
    """The curve of one pass over pictures, after every point and at the end; there are no true axes."""
    order, C = passes.beginning(data, columns, run)
    way = method("gauge", columns)
    *_, last = passes.states(way, data, order, C, 0)
    return curve([data.excess(way.basis(last)[:, :k])]), ""


def predicted(variances: F64, k: int, columns: int, t: int, kurtosis: F64 | float = 1.0) -> tuple[float, float]:
    """Percent of excess over the true axes after t messages: the learner's, batch PCA's. `kurtosis`: ν (k, d − k)."""
    above, below, t0 = variances[:k, None], variances[None, k:], WARM_UP
    q = np.minimum(below / above, 1 - 1e-6)
    a, noise = 1 - q, q * kurtosis
    beyond = 2 * a - 1 + 1e-9  # not 0
    start = np.minimum(noise / (t0 * a**2), 1.0) * (t0 / t) ** (2 * a)
    batch = np.minimum(noise / (t * a**2), 1.0)
    ours = np.where(
        np.arange(k, len(variances)) < columns, batch, start + noise * (1 - (t0 / t) ** beyond) / (beyond * t)
    )
    share = 100 * (above - below) / variances[k:].sum()
    return float((share * ours).sum()), float((share * batch).sum())


def _for_gaussian(_: object, variances: F64, columns: int) -> tuple[str, str]:
    ours, batch = zip(*(predicted(variances, SERVED, columns, t) for t in times(MESSAGES)), strict=True)
    return curve(ours), curve(batch)


def _for_pictures(data: Data, k: int, columns: int) -> tuple[str, str]:
    """Over batch PCA of the same rows: errors of the learner are those of batch PCA and independent ones."""
    variances, U = np.linalg.eigh(data.batch.covariance)
    variances, U = np.maximum(variances[::-1], 1e-12 * variances[-1]), U[:, ::-1]
    fourth = np.zeros((k, data.d))
    for start in range(0, len(data.X), 4096):
        squares = (data.centred(np.arange(start, min(start + 4096, len(data.X)))) @ U) ** 2
        fourth += squares[:, :k].T @ squares
    kurtosis = fourth[:, k:] / len(data.X) / (variances[:k, None] * variances[None, k:])
    ours, batch = predicted(variances, k, columns, len(data.X), kurtosis)
    return curve([ours - batch]), ""


def slope(excess: list[float]) -> float:
    """The power of t, fitted to the later two thirds of the points of a curve."""
    late = slice(len(excess) // 3, None)
    return float(np.polyfit(np.log(times(MESSAGES)[late]), np.log(excess[late]), 1)[0])


def blocks(plan: Plan) -> dict[str, list[str]]:
    """Slopes, and the excess at the end: means, or medians where runs are skewed."""
    curves: dict[tuple[str, bool], list[dict[str, list[float]]]] = {}
    for row in results(plan).rows():
        values = {column: [float(value) for value in row[column].split()] for column in ("excess", "batch")}
        curves.setdefault((row["stream"], row["run"] == PREDICTED), []).append(values)
    rows = []
    for name, (variances, columns) in spectra().items():
        runs, theories = curves.pop((name, False), []), curves.pop((name, True), [])
        if not runs:
            continue
        (theory,) = theories
        ratio = variances[columns] / variances[SERVED - 1]
        centre = fmean if ratio <= SKEWED else median
        groups = [runs[i::GROUPS] for i in range(min(GROUPS, len(runs)))]
        slopes = [slope([centre(values) for values in zip(*(r["excess"] for r in g), strict=True)]) for g in groups]
        cells = [f"{-min(1.0, 2 * (1 - ratio)):.2f}", f"{slope(theory['excess']):.2f}", spread(slopes)]
        cells += [f"{centre(r['excess'][-1] for r in runs):.3g}", f"{theory['excess'][-1]:.3g}"]
        rows.append([name, *cells])
    heads = ["power of t: limit", "predicted", "measured", "excess, %", "predicted"]
    return {"rate": table(["stream", *heads], rows)}
