"""Figure 1 of the paper: the excess loss against the time that learning took, every 1000 messages.

The loss comes from the runs of Table 1, and the time from short measurements of what one message costs: each method in
its own message-by-message NumPy form, and those that this package has in blocks.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments import charts, passes
from experiments.baselines import incremental, krasulina_qr, oja
from experiments.datasets import Data
from experiments.methods import BLOCK, LABELS, SKLEARN_BATCH, TUNED, method
from experiments.plan import Job, Plan, complete
from experiments.report import DOCS, table
from experiments.results import Claim, Results, average
from experiments.table1 import METHODS, by_setting
from streampca.pca import algorithm1
from streampca.pca.arrays import F64
from streampca.pca.learning import LONG_BLOCK

PAGE = DOCS / "experiments.md"
ROUNDS, MESSAGES = 5, 400
TIMED = {"sklearn": SKLEARN_BATCH, "default": 2 * LONG_BLOCK}  # whole batches, and whole blocks
BEFORE = 6000  # messages before those that are timed: our default has long blocks by then
MORE: tuple[int, ...] = (2,)  # k beyond Table 1's; the paper's figure has four for each data set and does not name them
FORMS = (*((name, "messages") for name in METHODS[:4]), *((name, "blocks") for name in METHODS))
SHOWN = (*FORMS[:4], *((name, "blocks") for name in ("implicit", "default", "sklearn")))


def times(plan: Plan) -> Results:
    """Microseconds per message."""
    return Results(plan.folder / "times.csv", ("data", "k", "method", "form"), ("microseconds",))


def settings() -> list[tuple[str, int]]:
    """The panels."""
    return [(name, k) for name in ("mnist", "cifar10") for k in (*MORE, 5, 10, 20)]


def run(plan: Plan) -> None:
    """Runs at the chosen η₀, times, and the picture."""
    plan = replace(plan, ks=(*MORE, *plan.ks))
    passes.run(plan, METHODS, (1.0,))
    jobs = [Job((n, k, m, form), cost, n, (k, m, form)) for n in plan.data for k in plan.ks for m, form in FORMS]
    complete("times", plan, times(plan), jobs)
    draw(plan)


def cost(data: Data, k: int, name: str, form: str) -> tuple[float]:
    """Processor time per message in microseconds: the median of a few rounds, in mid-stream."""
    order, C = passes.beginning(data, k, 0)
    way = method(name, k)
    *_, state = passes.states(way, data, order[:BEFORE], C, 0)
    Y = data.centred(order[-TIMED.get(name, MESSAGES) :])
    learn = partial(_blocks, way, state) if form == "blocks" else partial(_messages, name, way.basis(state))
    learn(Y[:BLOCK])
    return (round(median(_timed(learn, Y) for _ in range(ROUNDS)), 2),)


def _timed(learn: Callable[[F64], None], Y: F64) -> float:
    began = time.process_time()
    learn(Y)
    return 1e6 * (time.process_time() - began) / len(Y)


def _blocks(way: Any, state: Any, Y: F64) -> None:
    for start in range(0, len(Y), BLOCK):
        state = way.learn(state, Y[start : start + BLOCK])


def _messages(name: str, C: F64, Y: F64) -> None:
    step, state = {
        "oja": (partial(oja.step, eta=1e-4), C),
        "krasulina": (partial(krasulina_qr.step, eta=1e-4), C),
        "implicit": (lambda factor, y: algorithm1.meyer(factor, y, 1e-2)[0], algorithm1.Factor.of(C)),
        "incremental": (incremental.step, incremental.IncrementalState(C, np.ones(C.shape[1]), 1000)),
    }[name]
    for y in Y:
        state = step(state, y)  # type: ignore[operator]


def draw(plan: Plan) -> None:
    """One panel for each setting."""
    names, ks = list(plan.data), list(plan.ks)
    with charts.picture(plan.folder / "figure1.svg", len(names), len(ks)) as axes:
        for i, name in enumerate(names):
            for j, k in enumerate(ks):
                _panel(axes[i, j], plan, name, k)
        charts.explain(axes[0, 0], {"-": "solid: message by message", "--": "dashed: in blocks"})


def _panel(panel: Any, plan: Plan, name: str, k: int) -> None:
    for each, form in SHOWN:
        curves = passes.passes(plan).curves("excess", data=name, k=k, method=each, scale=1.0)
        if not curves:
            continue
        cost = times(plan).numbers("microseconds", data=name, k=k, method=each, form=form)[0]
        seconds = [t * cost / 1e6 for t in charts.points(len(curves[0]), plan.every, len(plan.data[name].X))]
        label = LABELS[each] + (", exact blocks" if form == "blocks" and each == "implicit" else "")
        charts.spread(panel, seconds, curves, "--" if form == "blocks" else "-", label=label, **charts.style(each))
    panel.set(xscale="log", yscale="log")
    panel.set(title=f"{charts.NAMES.get(name, name)}, k = {k}", xlabel="seconds of learning", ylabel="excess loss, %")


def blocks(folder: Path) -> dict[str, list[str]]:
    """The step sizes that were chosen, and the times of what the picture shows."""
    plan, head = Plan({}, folder), [f"{name} k={k}" for name, k in settings()]
    chosen = [
        [LABELS[m], *(f"{passes.chosen(passes.validations(plan), *case, m):g}" for case in settings())] for m in TUNED
    ]
    rows, of = [], _times(folder)
    for each, form in SHOWN:
        kind = "plain" if form == "messages" else "batches" if each == "sklearn" else "blocks"
        rows.append([f"{LABELS[each]}, {kind}", *(f"{value:.0f}" for value in of[each, form])])
    return {"rates": table(["η₀", *head], chosen), "times": table(["µs/message", *head], rows)}


def _times(folder: Path) -> dict[tuple[str, str], list[float]]:
    measured = times(Plan({}, folder))
    return {
        (m, form): [average(measured.numbers("microseconds", data=n, k=k, method=m, form=form)) for n, k in settings()]
        for m, form in FORMS
    }


def claims(folder: Path) -> list[Claim]:
    """The paper's claims about time."""
    of = _times(folder)
    quicker = [
        implicit < min(others)
        for implicit, *others in zip(of["implicit", "messages"], *(of[m, "messages"] for m in METHODS[:3]), strict=True)
    ]
    words = "“significantly faster”: Algorithm 1 is the quickest, message by message"
    return [(words, by_setting(quicker, settings()))]
