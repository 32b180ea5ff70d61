"""Table 2 and Figure 2 of the paper: ten machines, combined and propagated back every 1000 messages of each.

Beside them our way: each machine keeps its own fold, nothing is sent back, and the folds are merged to be looked at.
"""

import itertools
from collections.abc import Sequence
from functools import reduce
from statistics import fmean
from typing import Any

import numpy as np

from experiments import charts, exact, passes
from experiments.baselines import explicit, incremental
from experiments.datasets import Data
from experiments.methods import LABELS, Method, method, published
from experiments.plan import Job, Plan, Results, complete, curve
from experiments.report import Claim, average, spread, table
from streampca.pca import axes as principal_axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import StateMerger

METHODS = ("oja", "krasulina", "incremental", "implicit", "default")
MACHINES = 10
LAPACK = ", LAPACK's signs"  # of QR: else they are such that R has a positive diagonal
RESIGNED = ("oja" + LAPACK, "krasulina" + LAPACK)
PAPER = {("mnist", 5): ("37.17±0.01", 35.17), ("mnist", 20): ("18.77±0.02", 18.77),
         ("cifar10", 5): ("87.01±0.00", 87.02), ("cifar10", 20): ("48.74±0.04", 48.76)}  # fmt: skip


def runs(plan: Plan) -> Results:
    """Loss of the combined model at the end; curves of its excess, and of the machines' own on average."""
    keys, values = ("data", "k", "method", "seed"), ("eta0", "loss", "combined", "alone")
    return Results(plan.folder / "distributed.csv", keys, values)


def settings(plan: Plan) -> list[tuple[str, int]]:
    """Data and k: the first and the last, as in the paper."""
    return [(name, k) for name in plan.data for k in (plan.ks[0], plan.ks[-1])]


def run(plan: Plan) -> None:
    """All methods."""
    passes.run(plan, ("implicit",), (1.0,))  # a single machine, for Table 2
    jobs = []
    for seed, (name, k), variant in itertools.product(range(plan.runs), settings(plan), (*METHODS, *RESIGNED)):
        eta0 = passes.eta0_of(plan, name, k, variant.removesuffix(LAPACK))
        jobs.append(Job((name, k, variant, seed), parallel, name, (k, variant, eta0, seed, plan.every)))
    complete("ten machines", plan, runs(plan), jobs)
    draw(plan)


def parallel(data: Data, k: int, name: str, eta0: float, seed: int, every: int) -> tuple[float, float, str, str]:
    """η₀, the combined loss at the end, and both curves."""
    order, C = passes.beginning(data, k, seed)
    way, parts = method(name.removesuffix(LAPACK), k, eta0), np.array_split(order, MACHINES)
    states, combined, alone = [way.start(C) for _ in parts], [], []
    for start in range(0, len(parts[0]), every):
        blocks = [map(data.centred, passes.in_blocks(part[start : start + every], start)) for part in parts]
        states = [reduce(way.learn, rows, state) for rows, state in zip(blocks, states, strict=True)]
        losses = data.losses(np.stack([way.basis(state) for state in states]))
        alone.append(100 * (fmean(losses) / data.batch.loss(k) - 1))
        basis, states = _exchanged(way, name, states, k)
        combined.append(data.excess(basis))
    return eta0, round(data.loss(basis), 6), curve(combined), curve(alone)


def _exchanged(way: Method, name: str, states: Sequence[Any], k: int) -> tuple[F64, list[Any]]:
    """The basis of the combined model, and the machines' states after it has been sent back to them."""
    if name == "default":
        columns = LearningConfig(len(states[0][0].C), k).columns
        merger = StateMerger(columns)
        for state in states:
            merger.add(published(state, k))
        return principal_axes.find_principal_axes(merger.state(columns, np.float64), k)[0].T, list(states)
    if name == "incremental":
        U = exact.orthonormal(explicit.average([state.U for state in states]))
        s = np.asarray(np.mean([state.s for state in states], axis=0), np.float64)
        back: list[Any] = [incremental.IncrementalState(U, s, state.count) for state in states]
    else:
        # LAPACK's signs depend on the spans of the columns alone: one QR gives those of a QR after every message.
        factors = [np.linalg.qr(C)[0] if name in RESIGNED else C for C, _ in states]
        combined = explicit.average(factors)
        back = [(combined if name == "implicit" else exact.orthonormal(combined), t) for _, t in states]
    return way.basis(back[0]), back


def draw(plan: Plan) -> None:
    """One panel for each setting: solid combined, dashed the machines by themselves."""
    with charts.picture(plan.folder / "figure2.svg", 1, len(settings(plan))) as axes:
        for panel, (name, k) in zip(axes[0], settings(plan), strict=True):
            for method_name in METHODS:
                chosen, style = {"data": name, "k": k, "method": method_name}, charts.STYLES[method_name]
                combined, alone = (runs(plan).curves(column, **chosen) for column in ("combined", "alone"))
                t = charts.points(len(combined[0]), plan.every, len(plan.data[name].X) // MACHINES)
                label = LABELS[method_name] + ", folds merged" * (method_name == "default")
                charts.spread(panel, t, combined, label=label, **style)
                panel.plot(t, charts.mean_curve(alone), "--", **style)
            panel.set(title=f"{charts.NAMES[name]}, k = {k}", yscale="log")
            panel.set(xlabel="messages of each machine", ylabel="excess loss, %")
        charts.explain(axes[0, 0], {"-": "solid: the ten combined", "--": "dashed: one machine alone, on average"})


def blocks(plan: Plan) -> dict[str, list[str]]:
    """The table."""
    alone = [spread(passes.passes(plan).numbers("loss", data=n, k=k, method="implicit", scale=1.0)) for n, k in PAPER]
    rows = [["Imp. Krasulina, single", *(f"{c} ({p})" for c, (p, _) in zip(alone, PAPER.values(), strict=True))]]
    for variant in ("implicit", *METHODS[:2], *RESIGNED, "incremental", "default"):
        cells = [spread(losses) for losses in _losses(plan, variant)]
        if variant == "implicit":
            cells = [f"{cell} ({paper:.2f})" for cell, (_, paper) in zip(cells, PAPER.values(), strict=True)]
        label = "merged" if variant == "default" else "averaged" + (LAPACK if variant in RESIGNED else "")
        rows.append([f"{LABELS[variant.removesuffix(LAPACK)]}, {label}", *cells])
    return {"table2": table(["", *(f"{name} k={k}" for name, k in PAPER)], rows)}


def _losses(plan: Plan, variant: str) -> list[list[float]]:
    """The combined losses of all runs, in the order of PAPER."""
    return [runs(plan).numbers("loss", data=name, k=k, method=variant) for name, k in PAPER]


def claims(plan: Plan) -> list[Claim]:
    """The paper's claims about ten machines and ours, and the settings in which they hold here."""
    loss = {variant: [average(losses) for losses in _losses(plan, variant)] for variant in (*METHODS, *RESIGNED)}
    every = range(len(PAPER))
    others = [min(loss[m][i] for m in (*METHODS[:3], *RESIGNED)) for i in every]
    paper = [combined for _, combined in PAPER.values()]
    implicit, ours, cases = loss["implicit"], loss["default"], list(PAPER)
    return [
        ("Table 2's losses of ten machines, to 0.05", cases, [abs(implicit[i] - paper[i]) <= 0.05 for i in every]),
        ("“excellent performance”: least loss of all that are averaged", cases,
         [implicit[i] <= others[i] for i in every]),
        ("ours: merged once, less loss than all that are averaged", cases,
         [ours[i] < min(others[i], implicit[i]) for i in every]),
    ]  # fmt: skip
