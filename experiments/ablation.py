"""What the implicit step is good for: the package's learner with another step in its place.

The step moves C through a block; then Rayleigh–Ritz makes the next [C | F]. In its place: no step, one step C ← ΣC of
subspace iteration at the end of the block, or the explicit step (the display after eq. 11) for each message. Measured
are the excess at the end of a stream, over batch PCA of the same rows with the weights that a half-life leaves them,
and the losses of the messages, each by the C that it met.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import numpy as np

from experiments import charts, passes
from experiments.baselines.batch import Batch
from experiments.datasets import Data, Indices
from experiments.hard_streams import STREAMS, with_factor
from experiments.methods import method
from experiments.plan import Job, Plan, Results, complete, curve
from experiments.report import average, cell, table
from streampca.pca import axes, learning, learning_config
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import block
from streampca.pca.blocked.centring import Weights
from streampca.pca.learning import LearningConfig
from streampca.pca.state import State

SHOWN_LEARNERS = ("none", "explicit")  # in the table of losses, beside the implicit step
MESSAGES = 20_000  # of a hard stream
HALF_LIVES = ("none", "1000", "100")  # the shortest only where the regime changes
ORDERS = {"random": "random order", "sorted": "sorted by label"}
REGIMES = {"Gaussian": 0, "heavy-tailed": 3}  # degrees of freedom of the messages' lengths
BEFORE, AFTER = 6000, 3000  # messages before a change of regime and after it
COLUMNS = {"mnist": (12, 32, 52, 92), "cifar10": (60, 100, 140)}  # ℓ, of F
WIDE = 100  # k on CIFAR-10, there
GAUGE = "gauge alone"
PARTS = {  # as docs/mathematics.md calls them
    "implicit": "the whole step",
    "none": "without Algorithm 1: C is not moved",
    "subspace step": "a step C ← ΣC instead of Algorithm 1",
    GAUGE: "Algorithm 1 and the gauge alone",
}
_ROWS = 4096  # read at a time: whole blocks of a stream that is not young
_EDGES = np.unique(np.geomspace(1, AFTER, 25).astype(int))  # of the bins in which losses after a change are averaged
_learn = block.learn  # before it is patched

Read = Callable[[Indices], F64]
Moved = tuple[Array, F64]  # C after a block, and the ‖y‖² − ‖r‖² of its messages by the k leading columns they met
Values = tuple[str, str, str]  # of a row


def _stay(Y: F64, C: Array, k: int, weights: Weights) -> Moved:
    U = C[:, :k] / np.linalg.norm(C[:, :k], axis=0)
    return C, np.square(Y @ U).sum(axis=1)


def _subspace(Y: F64, C: Array, k: int, weights: Weights) -> Moved:
    of_block = (Y * weights.c[:, None]).T @ (Y @ C)
    return weights.past * C @ (C.T @ C) + of_block, _stay(Y, C, k, weights)[1]


def _explicit(Y: F64, C: Array, k: int, weights: Weights) -> Moved:
    C, N, explained = C.copy(), C.T @ C, np.zeros(len(Y))
    for s, (y, eta) in enumerate(zip(Y, weights.eta, strict=True)):
        p = C.T @ y
        x = np.linalg.solve(N, p)
        explained[s] = p[:k] @ np.linalg.solve(N[:k, :k], p[:k])
        C += eta * np.outer(y - C @ x, x)
        N += eta**2 * max(y @ y - x @ p, 0.0) * np.outer(x, x)
    return C, explained


LEARNERS: dict[str, Callable[[F64, Array, int, Weights], Moved] | None] = {
    "none": _stay, "subspace step": _subspace, "explicit": _explicit, "implicit": None,
}  # fmt: skip


def _with_step(move: Callable[[F64, Array, int, Weights], Moved]) -> Callable[..., block.BlockResult]:
    """A block's pass with another step; centring and bounded influence stay."""

    def learn(V: Array, *, C: Array, weights: Weights, **others: Any) -> block.BlockResult:
        learned = _learn(V, C=C, weights=weights, **others)
        if not C.shape[1]:
            return learned
        after, explained = move(learned.Y / np.sqrt(weights.c)[:, None], C, C.shape[1], weights)
        return learned._replace(C=after, explained_square=explained)

    return learn


def results(plan: Plan) -> Results:
    """Percent of excess; mean loss as a share of the total variance; after a change, losses in bins by batch PCA's."""
    keys = ("stream", "order", "half-life", "learner", "seed")
    return Results(plan.folder / "ablation.csv", keys, ("excess", "loss", "after"))


def run(plan: Plan) -> None:
    """Every stream, order, half-life and learner; the picture."""
    k, jobs = plan.ks[-1], []
    for case in itertools.product(HALF_LIVES, LEARNERS):
        jobs += [Job((r, "change", *case, i), changed, "", (r, *case, i)) for r in REGIMES for i in range(plan.runs)]
    for case in itertools.product(HALF_LIVES[:2], LEARNERS):
        jobs += [Job((stream, "", *case, 0), hard, "", (stream, *case)) for stream in STREAMS]
        jobs += [Job((n, o, *case, 0), pictures, n, (k, o, *case)) for n in plan.data for o in ORDERS]
    for order in ORDERS:
        kind = (order, "none", "implicit")
        jobs.append(Job(("mnist", *kind[:2], GAUGE, 0), gauge, "mnist", (k, order)))
        for name, components in (("mnist", k), ("cifar10", WIDE)):
            jobs += [
                Job((name, *kind[:2], f"ℓ = {n}", 0), pictures, name, (components, *kind, n)) for n in COLUMNS[name]
            ]
    complete("ablation", plan, results(plan), jobs)
    _draw(plan)


def hard(_: object, stream: str, half_life: str, learner: str) -> Values:
    """One of the hard streams, always with a factor, though they are narrow enough for a covariance."""
    X, k = STREAMS[stream](np.random.default_rng([0, list(STREAMS).index(stream)]), MESSAGES)
    rows = np.arange(len(X))
    state, losses = learned(X.__getitem__, rows, with_factor(X.shape[1], k), half_life, learner)
    return _row(weighted(X.__getitem__, rows, half_life), state, k, losses)


def pictures(data: Data, k: int, order: str, half_life: str, learner: str, columns: int | None = None) -> Values:
    """One pass over the pictures; F has this number of columns if given."""
    rows = _in_order(data, order)
    state, losses = learned(data.pixels, rows, LearningConfig(data.d, k, columns), half_life, learner)
    return _row(data.batch if half_life == "none" else weighted(data.pixels, rows, half_life), state, k, losses)


def gauge(data: Data, k: int, order: str) -> Values:
    """Algorithm 1 in the unit gauge with as many columns, and nothing else."""
    way = method("gauge", LearningConfig(data.d, k).columns)
    *_, last = passes.states(way, data, _in_order(data, order), np.zeros((data.d, 0)), 0)
    return f"{data.excess(way.basis(last)[:, :k]):.5g}", "", ""


def _in_order(data: Data, order: str) -> Indices:
    return np.argsort(data.y, kind="stable") if order == "sorted" else np.random.default_rng(0).permutation(len(data.X))


def changed(_: object, regime: str, half_life: str, learner: str, seed: int) -> Values:
    """A stream whose 20 strong directions of 200 are replaced by others, all at once: its loss is that afterwards."""
    rng, d, k, n = np.random.default_rng([seed, len(regime)]), 200, 10, BEFORE + AFTER
    B = np.linalg.qr(rng.standard_normal((d, 40)))[0]
    coordinates = rng.standard_normal((n, 20)) * np.linspace(3, 1, 20)
    X = np.where(np.arange(n)[:, None] < BEFORE, coordinates @ B[:, :20].T, coordinates @ B[:, 20:].T)
    X += 0.3 * rng.standard_normal((n, d))
    if degrees := REGIMES[regime]:
        X *= np.sqrt((degrees - 2) / rng.chisquare(degrees, (n, 1)))
    state, losses = learned(X.__getitem__, np.arange(n), with_factor(d, k), half_life, learner)
    best, after = Batch.of(lambda: [X[BEFORE:]]), losses[-AFTER:]
    bins = [after[i:j].mean() / best.loss(k) for i, j in itertools.pairwise(_EDGES - 1)]
    return (*_row(best, state, k, after)[:2], curve(bins))


def learned(read: Read, order: Indices, config: LearningConfig, half_life: str, learner: str) -> tuple[State, F64]:
    """The state after one pass over rows that are read in this order, and the losses of all but the first block."""
    state, start, losses, move = State.empty(config.dimensions), 0, [], LEARNERS[learner]
    with patch.object(block, "learn", _with_step(move) if move else _learn):
        while start < len(order):
            old = state.count >= config.first_block_size + learning_config.YOUNG_WEIGHT
            V = read(order[start : start + (_ROWS if old else config.next_block_size(state.weight))])
            state, of_rows = learning.learn(state, V, np.full(len(V), _retention(half_life)), config)
            losses.append(of_rows.residual)
            start += len(V)
    return state, np.concatenate(losses)


def _retention(half_life: str) -> float:
    return 1.0 if half_life == "none" else 2 ** (-1 / float(half_life))


def weighted(read: Read, order: Indices, half_life: str) -> Batch:
    """Batch PCA of rows with the weights that a half-life leaves them at the end."""
    if half_life == "none":
        return Batch.of(lambda: (read(part) for part in np.array_split(order, 1 + len(order) // _ROWS)))
    X = read(order[-16 * int(half_life) :])
    weights = _retention(half_life) ** np.arange(len(X) - 1, -1, -1.0)
    weights /= weights.sum()
    mean = weights @ X
    covariance = (X - mean).T @ ((X - mean) * weights[:, None])
    return Batch(covariance, mean, np.linalg.eigvalsh(covariance)[::-1].astype(np.float64))


def _row(batch: Batch, state: State, k: int, losses: F64) -> Values:
    excess = batch.excess(axes.find_principal_axes(state, k)[0], state.mean)
    return f"{excess:.5g}", f"{losses.mean() / np.trace(batch.covariance):.6g}", ""


def _draw(plan: Plan) -> None:
    """Losses after a change of regime: a row for each kind of messages, a column for each half-life."""
    colours = dict(zip(LEARNERS, ("tab:gray", "tab:green", "tab:orange", "tab:red"), strict=True))
    with charts.picture(plan.folder / "ablation.svg", len(REGIMES), len(HALF_LIVES)) as panels:
        for panel, (regime, half_life) in zip(panels.flat, itertools.product(REGIMES, HALF_LIVES), strict=True):
            for learner, colour in colours.items():
                curves = results(plan).curves("after", stream=regime, learner=learner, **{"half-life": half_life})
                means = charts.mean_curve(curves)
                panel.plot(np.sqrt(_EDGES[:-1] * _EDGES[1:])[: len(means)], means, label=learner, color=colour)
            panel.set(xscale="log", yscale="log", title=f"{regime}, half-life {half_life}")
            panel.set(xlabel="messages after the change", ylabel="loss / batch PCA's")


def blocks(plan: Plan) -> dict[str, list[str]]:
    """The table of all steps, and the tables of docs/mathematics.md, which keeps its own until all runs are there."""

    def mean(column: str, learner: str, half_life: str, stream: str, order: str = "") -> float:
        case = {"stream": stream, "order": order, "half-life": half_life, "learner": learner}
        return average(results(plan).numbers(column, **case))

    def more(learner: str, *case: str) -> float:
        return 100 * (mean("loss", learner, *case) / mean("loss", "implicit", *case) - 1)

    def both(words: str, learner: str, name: str) -> list[str]:
        return [words, *(cell(mean("excess", learner, "none", name, order), ".2g") for order in ORDERS)]

    def pair(number: Callable[..., float], form: str, learner: str, half_life: str, cases: Iterable[Any]) -> str:
        return "/".join(cell(number(learner, half_life, *case), form) for case in cases)

    rows = []
    orders = {name: [(name, order) for order in ORDERS] for name in charts.NAMES}
    changes = [(r, "change") for r in REGIMES]
    for half_life, learner in itertools.product(HALF_LIVES, SHOWN_LEARNERS):
        losses = [more(learner, half_life, stream) for stream in STREAMS]
        ends = [cell(of(losses), "+.1f") for of in (min, max)]
        cells = [" to ".join(dict.fromkeys(ends))]  # one dash where no hard stream was learned
        cells += [pair(more, "+.2f", learner, half_life, cases) for cases in (*orders.values(), changes)]
        rows.append([learner, half_life, *cells])
    columns = [both(f"{charts.NAMES[name]}, ℓ = {n}", f"ℓ = {n}", name) for name, of in COLUMNS.items() for n in of]
    picture = ["", "![Losses after a change of regime](results/ablation.svg)"]
    learners = table(["step", "half-life", "hard", *charts.NAMES, "change"], rows)
    tables = {
        "ablation": table(["", *ORDERS.values()], [both(words, part, "mnist") for part, words in PARTS.items()]),
        "columns": table(["", *ORDERS.values()], columns),
    }
    complete_ones = {name: lines for name, lines in tables.items() if "–" not in "".join(lines)}
    return {"learner": learners + picture * (plan.folder / "ablation.svg").exists()} | complete_ones
