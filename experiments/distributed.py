"""Table 2 and Figure 2 of the paper: ten machines, combined and propagated back every 1000 messages of each.

Beside them our way: each machine keeps its own fold, nothing is sent back, and the folds are merged to be looked at.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from experiments import charts, passes
from experiments.baselines import combine, incremental
from experiments.datasets import Data
from experiments.methods import BLOCK, LABELS, TUNED, WARM_UP, Method, method
from experiments.plan import Job, Plan, command, complete
from experiments.results import Claim, Results, average, curve, spread
from streampca.pca import axes as principal_axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import merge

METHODS = ("oja", "krasulina", "incremental", "implicit", "default")
MACHINES = 10
LAPACK = ", LAPACK's signs"  # of QR: else they are such that R has a positive diagonal
RESIGNED = ("oja" + LAPACK, "krasulina" + LAPACK)
PAPER = {("mnist", 5): ("37.17 ± 0.01", 35.17), ("mnist", 20): ("18.77 ± 0.02", 18.77),
         ("cifar10", 5): ("87.01 ± 0.00", 87.02), ("cifar10", 20): ("48.74 ± 0.04", 48.76)}  # fmt: skip


def runs(plan: Plan) -> Results:
    """Loss of the combined model at the end; curves of its excess, and of the machines' own on average."""
    keys, values = ("data", "k", "method", "seed"), ("eta0", "loss", "combined", "alone")
    return Results(plan.folder / "distributed.csv", keys, values)


def ks(plan: Plan) -> list[int]:
    """The first and the last: as in the paper."""
    return [plan.ks[0], plan.ks[-1]]


def run(plan: Plan) -> None:
    """All methods."""
    passes.run(plan, ("implicit",), (1.0,))  # a single machine, for Table 2
    jobs = []
    for seed in range(plan.runs):
        for name in plan.data:
            for k in ks(plan):
                for each in (*METHODS, *RESIGNED):
                    plain = each.removesuffix(LAPACK)
                    eta0 = passes.chosen(passes.validations(plan), name, k, plain) if plain in TUNED else 1.0
                    jobs.append(Job((name, k, each, seed), parallel, name, (k, each, eta0, seed, plan.every)))
    complete("ten machines", plan, runs(plan), jobs)
    draw(plan)


def parallel(data: Data, k: int, name: str, eta0: float, seed: int, every: int) -> tuple[float, float, str, str]:
    """η₀, the combined loss at the end, and both curves."""
    order, C = passes.beginning(data, k, seed)
    way, parts = method(name.removesuffix(LAPACK), k, eta0), np.array_split(order, MACHINES)
    states, combined, alone, start = [way.start(C) for _ in parts], [], [], 0
    while start < len(parts[0]):
        stop = start + every
        states = [_learn(way, s, data, part[start:stop], start) for s, part in zip(states, parts, strict=True)]
        losses = data.losses(np.stack([way.basis(state) for state in states]))
        alone.append(100 * (fmean(losses) / data.batch.loss(k) - 1))
        basis, states = _exchanged(way, name, states, k)
        combined.append(data.excess(basis))
        start = stop
    return eta0, round(data.loss(basis), 6), curve(combined), curve(alone)


def _learn(way: Method, state: Any, data: Data, index: Any, start: int) -> Any:
    cuts = np.arange(0 if start else WARM_UP, len(index), BLOCK)
    for part in np.split(index, cuts[cuts > 0]):
        state = way.learn(state, data.centred(part))
    return state


def _exchanged(way: Method, name: str, states: Sequence[Any], k: int) -> tuple[F64, list[Any]]:
    """The basis of the combined model, and the machines' states after it has been sent back to them."""
    if name == "default":
        d = len(states[0].C)
        merged = merge(states, LearningConfig(d, k).columns)
        return principal_axes.principal(merged.C, k)[0].T, list(states)
    back = _sent_back(name, states)
    return way.basis(back[0]), back


def _sent_back(name: str, states: Sequence[Any]) -> list[Any]:
    if name == "implicit":
        C = combine.average([state.state.C for state in states])
        return [replace(s, state=replace(s.state, C=C, N=C.T @ C)) for s in states]
    if name == "incremental":
        U = np.asarray(combine.average_orthonormal([state.U for state in states]), np.float64)
        s = np.asarray(np.mean([state.s for state in states], axis=0), np.float64)
        return [incremental.IncrementalState(U, s, state.count) for state in states]
    # LAPACK's signs depend on the spans of the columns alone, not on the signs that came in, so that one
    # QR at the end gives those of a QR after every message.
    signed = [np.linalg.qr(C)[0] if name in RESIGNED else C for C, _ in states]
    C = combine.average_orthonormal(signed)
    return [(C, t) for _, t in states]


def draw(plan: Plan) -> None:
    """One panel for each setting: solid combined, dashed the machines by themselves."""
    settings = [(name, k) for name in plan.data for k in ks(plan)]
    with charts.picture(plan.folder / "figure2.svg", 1, len(settings)) as axes:
        for panel, (name, k) in zip(axes[0], settings, strict=True):
            for each in METHODS:
                label = f"{LABELS[each]}{', folds merged' if each == 'default' else ''}"
                combined, alone = (runs(plan).curves(c, data=name, k=k, method=each) for c in ("combined", "alone"))
                t = charts.points(len(combined[0]), plan.every, len(plan.data[name].X) // MACHINES)
                charts.spread(panel, t, combined, label=label, **charts.style(each))
                panel.plot(t, charts.mean_curve(alone), "--", **charts.style(each))
            panel.set_yscale("log")
            title = f"{charts.NAMES.get(name, name)}, k = {k}"
            panel.set(title=title, xlabel="messages of each machine", ylabel="excess loss, %")
        charts.explain(axes[0, 0], {"-": "solid: the ten combined", "--": "dashed: one machine alone, on average"})


def section(folder: Path) -> list[str]:
    """The table and the picture."""
    plan = Plan({}, folder)
    single, several = passes.passes(plan), runs(plan)
    settings = list(PAPER)
    rows = ["| | " + " | ".join(f"{name} k={k}" for name, k in settings) + " |", "|---" * 5 + "|"]
    cells = [f"{spread(single.numbers('loss', data=n, k=k, method='implicit', scale=1.0))} ({PAPER[n, k][0]})"
             for n, k in settings]  # fmt: skip
    rows.append("| Imp. Krasulina, single (paper) | " + " | ".join(cells) + " |")
    for each in ("implicit", "oja", RESIGNED[0], "krasulina", RESIGNED[1], "incremental", "default"):
        label = "folds merged" if each == "default" else "averaged" + (LAPACK if each in RESIGNED else "")
        cells = [spread(several.numbers("loss", data=n, k=k, method=each)) for n, k in settings]
        if each == "implicit":
            cells = [f"{cell} ({PAPER[n, k][1]:.2f})" for cell, (n, k) in zip(cells, settings, strict=True)]
        note = " (paper)" if each == "implicit" else ""
        rows.append(f"| {LABELS[each.removesuffix(LAPACK)]}, ten machines, {label}{note} | " + " | ".join(cells) + " |")
    return [
        "## Table 2 and Figure 2: ten machines",
        "",
        charts.embedded("figure2.svg", "Excess loss of ten machines, combined and alone"),
        "",
        "The data are split at random. All machines start from the same factor. After every 1000 messages per machine "
        "the factors are averaged (eq. 17; followed by a QR for Oja, Krasulina and the incremental "
        "update) and sent back. "
        "t in η₀/t^γ counts a machine's own messages; η₀ is the one chosen for a single machine. Solid: the combined "
        "model, with a band from the least to the greatest of the runs. Dashed: mean of the machines before they are "
        "combined. Oja's line is wide and pale, as Krasulina's lies on it. With our default nothing is sent back: the "
        f"folds stay independent and are merged only to be evaluated. Runs: {_least_runs(several)}.",
        "",
        *rows,
        "",
        "The paper's 37.17 for a single machine on MNIST with k = 5 contradicts its own Table 1, which has 35.17 for "
        "the same; no run here comes near 37, so it is probably a slip.",
        "",
        *_verdict(folder),
    ]


def _least_runs(results: Results) -> int:
    """Of any method in any setting."""
    return min(Counter((row["data"], row["k"], row["method"]) for row in results.rows()).values(), default=0)


def _losses(folder: Path) -> dict[str, list[float]]:
    several = runs(Plan({}, folder))
    return {
        m: [average(several.numbers("loss", data=n, k=k, method=m)) for n, k in PAPER] for m in (*METHODS, *RESIGNED)
    }


def _by_setting(holds: list[bool]) -> dict[str, bool]:
    return {f"{name} k={k}": each for (name, k), each in zip(PAPER, holds, strict=True)}


def claims(folder: Path) -> list[Claim]:
    """The paper's claims about ten machines."""
    loss = _losses(folder)
    near = [abs(mine - paper) <= 0.05 for mine, (_, paper) in zip(loss["implicit"], PAPER.values(), strict=True)]
    best = [loss["implicit"][i] <= min(loss[m][i] for m in (*METHODS[:3], *RESIGNED)) for i in range(len(PAPER))]
    return [
        ("Table 2's losses of ten machines, to 0.05", _by_setting(near)),
        ("“excellent performance” by averaging: least loss of the four averaged methods", _by_setting(best)),
    ]


def better(folder: Path) -> list[Claim]:
    """Where merging folds is better."""
    loss = _losses(folder)
    ours = [loss["default"][i] < min(loss[m][i] for m in (*METHODS[:4], *RESIGNED)) for i in range(len(PAPER))]
    return [
        ("ten machines that never talk, merged: less loss than all that are averaged and sent back", _by_setting(ours))
    ]


def _verdict(folder: Path) -> list[str]:
    single = passes.passes(Plan({}, folder))
    alone = [average(single.numbers("loss", data=n, k=k, method="implicit", scale=1.0)) for n, k in PAPER]
    costs = [100 * (a / b - 1) for a, b in zip(_losses(folder)["implicit"], alone, strict=True)]
    return [
        f"- Ten machines instead of one change the implicit update's loss by {min(costs):+.2f} to {max(costs):+.2f} %.",
        "- The incremental update fails under averaging, as in the paper. Oja's and Krasulina's results depend on the "
        "signs that QR gives the columns, which the paper does not mention. The table has both conventions: a positive "
        "diagonal of R, with which a column may flip on one machine and not on another, and LAPACK's signs, which "
        "depend on the span alone. The picture shows the former.",
    ]


if __name__ == "__main__":
    command(run, __doc__)
