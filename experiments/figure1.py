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
from experiments.plan import Job, Plan, command, complete
from experiments.results import Claim, Results, average
from experiments.table1 import METHODS, by_setting, run_counts
from streampca.pca import algorithm1
from streampca.pca.arrays import F64

ROUNDS, MESSAGES = 5, 400
BEFORE = 3000  # messages before those that are timed: our default has no spare columns left by then
MORE: tuple[int, ...] = (2,)  # k beyond Table 1's; the paper's figure has four for each data set and does not name them
FORMS = (*((name, "messages") for name in METHODS[:4]), *((name, "blocks") for name in METHODS))


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
    Y = data.centred(order[-(SKLEARN_BATCH if name == "sklearn" else MESSAGES) :])
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
    for each, form in FORMS:
        if form == "blocks" and each not in ("implicit", "default", "sklearn"):
            continue
        curves = passes.passes(plan).curves("excess", data=name, k=k, method=each, scale=1.0)
        if not curves:
            continue
        cost = times(plan).numbers("microseconds", data=name, k=k, method=each, form=form)[0]
        seconds = [t * cost / 1e6 for t in charts.points(len(curves[0]), plan.every, len(plan.data[name].X))]
        label = LABELS[each] + (", exact blocks" if form == "blocks" and each == "implicit" else "")
        charts.spread(panel, seconds, curves, "--" if form == "blocks" else "-", label=label, **charts.style(each))
    panel.set(xscale="log", yscale="log")
    panel.set(title=f"{charts.NAMES.get(name, name)}, k = {k}", xlabel="seconds of learning", ylabel="excess loss, %")


def section(folder: Path) -> list[str]:
    """The picture and the times."""
    measured = times(Plan({}, folder))
    head = "| µs/message | " + " | ".join(f"{name} k={k}" for name, k in settings()) + " |"
    rows = [head, "|---" * (len(settings()) + 1) + "|"]
    table = _table(measured)
    for (each, form), values in table.items():
        kind = "batches" if each == "sklearn" else "exact blocks" if form == "blocks" else "message by message"
        label = f"{LABELS[each]}, {kind}"
        rows.append(f"| {label} | " + " | ".join("–" if np.isnan(value) else f"{value:.0f}" for value in values) + " |")
    return [
        "## Figure 1: loss against time",
        "",
        charts.embedded("figure1.svg", f"Excess loss against seconds of learning, {len(settings())} settings"),
        "",
        "Mean over the runs of Table 1 at the chosen η₀, and a band from the least to the greatest of them; a point "
        f"every 1000 messages. {_fourth(folder)}Oja's line is wide and "
        "pale, as Krasulina's lies on it. Time is the number of messages "
        "times the processor time of one, which is measured separately (one BLAS thread, median of five rounds, "
        "without the conversion of pixels). Solid lines: message by message in NumPy, each method in its plain form "
        "(Oja and Krasulina with QR, the incremental update with its eigen-decomposition, Algorithm 1 with Meyer's "
        "update). Dashed lines: this package's exact blocks, and scikit-learn's IncrementalPCA in "
        f"batches of {SKLEARN_BATCH}.",
        "",
        *rows,
        "",
        *_verdict(table),
    ]


def _fourth(folder: Path) -> str:
    """What is behind the panels that Table 1 has not."""
    if not MORE:
        return "The paper's figure has a fourth k for each data set, which it does not name. "
    plan, cases = Plan({}, folder), [(name, k) for name, k in settings() if k in MORE]
    chosen = [
        f"{LABELS[m]} {' and '.join(f'{passes.chosen(passes.validations(plan), *case, m):g}' for case in cases)}"
        for m in TUNED
    ]
    return (
        "The paper's figure has four k for each data set and does not name them; its tables have three, and the fourth "
        f"here is {MORE[0]} (η₀ on MNIST and CIFAR-10: {', '.join(chosen)}; runs of each data set, at least: "
        f"{run_counts(passes.passes(plan), cases)}). "
    )


def _table(measured: Results) -> dict[tuple[str, str], list[float]]:
    return {
        (m, form): [average(measured.numbers("microseconds", data=n, k=k, method=m, form=form)) for n, k in settings()]
        for m, form in FORMS
    }


def claims(folder: Path) -> list[Claim]:
    """The paper's claims about time."""
    table = _table(times(Plan({}, folder)))
    mine = table["implicit", "messages"]
    quicker = [all(mine[i] < table[m, "messages"][i] for m in METHODS[:3]) for i in range(len(mine))]
    return [
        (
            "“significantly faster”: Algorithm 1 is the quickest of the four, message by message",
            by_setting(quicker, settings()),
        )
    ]


def _verdict(table: dict[tuple[str, str], list[float]]) -> list[str]:
    mine = table["implicit", "messages"]
    times = {m: [table[m, "messages"][i] / mine[i] for i in range(len(mine))] for m in METHODS[:3]}
    blocks = [mine[i] / table["implicit", "blocks"][i] for i in range(len(mine))]
    oja_ratio = [table["oja", "blocks"][i] / table["implicit", "blocks"][i] for i in range(len(mine))]
    ratios = "; ".join(f"{LABELS[m]} {min(found):.1f} to {max(found):.1f}" for m, found in times.items())
    return [
        f"- Message by message, time relative to Algorithm 1: {ratios}.",
        f"- Exact blocks speed Algorithm 1 up by a factor of {min(blocks):.1f} to {max(blocks):.1f}. They speed up "
        "Oja, Krasulina and the incremental update too, which the paper does not compare: in blocks Oja takes "
        f"{min(oja_ratio):.1f} to {max(oja_ratio):.1f} times as long as the implicit update.",
    ]


if __name__ == "__main__":
    command(run, __doc__)
