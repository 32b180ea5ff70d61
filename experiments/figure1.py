"""Figure 1 of the paper: the excess loss against the time that learning took, every 1000 messages.

The loss comes from the runs of Table 1, and the time from short measurements of what one message costs in d dimensions:
each method in its own message-by-message NumPy form, and in exact blocks. Times need an idle machine; with the rows
deleted first, `python -m experiments.all figure1` measures them again.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import nan
from statistics import median
from typing import Any

import numpy as np

from experiments import charts, passes
from experiments.baselines import explicit, incremental
from experiments.methods import BLOCK, LABELS, SKLEARN_BATCH, method
from experiments.plan import Job, Plan, Results, complete
from experiments.report import Claim, cell, table
from experiments.table1 import METHODS
from streampca.pca import algorithm1
from streampca.pca.arrays import F64
from streampca.pca.learning_config import LONG_BLOCK

DIMENSIONS, KS, SIZES = (100, 784, 3072), (2, 5, 10, 20, 50), (1, 10, BLOCK, 250)  # 1: message by message
REPETITIONS, ROUNDS, MESSAGES = 3, 5, 500
OWN = {"sklearn": SKLEARN_BATCH, "default": 2 * LONG_BLOCK}  # whole batches, and whole blocks, at size `BLOCK`
BEFORE = 6000  # messages before those that are timed: our default has long blocks by then
PAPERS = METHODS[:5]
RIVALS = ("oja", "krasulina", "incremental")
MORE = (2,)  # k beyond Table 1's; the paper's figure has four for each data set and does not name them
SHOWN = (*((name, 1) for name in PAPERS if name != "explicit"), *((m, BLOCK) for m in ("implicit", *OWN)))
D = {"mnist": 784, "cifar10": 3072}
SETTINGS = [(name, k) for name in D for k in (*MORE, 5, 10, 20)]  # the panels


def times(plan: Plan) -> Results:
    """Microseconds per message, in blocks of `size`."""
    return Results(plan.folder / "times.csv", ("d", "k", "size", "method", "repetition"), ("microseconds",))


def run(plan: Plan) -> None:
    """Runs at the chosen η₀, times, and the picture."""
    plan = replace(plan, ks=(*MORE, *plan.ks))
    passes.run(plan, [name for name in METHODS if name != "explicit"], (1.0,))
    complete("times", plan, times(plan), jobs())
    names, ks = list(plan.data), list(plan.ks)
    with charts.picture(plan.folder / "figure1.svg", len(names), len(ks)) as axes:
        for (i, name), (j, k) in itertools.product(enumerate(names), enumerate(ks)):
            _draw(axes[i, j], plan, name, k)
        charts.explain(axes[0, 0], {"-": "solid: message by message", "--": "dashed: in blocks"})
        axes[0, 0].plot([], [], "|-", color="gray", label="bar: least to greatest time of all messages")


def jobs() -> Iterator[Job]:
    """All times, one repetition after the other."""
    for repetition, d, k in itertools.product(range(REPETITIONS), DIMENSIONS, KS):
        for name, size in (*itertools.product(PAPERS, SIZES), *((name, BLOCK) for name in OWN)):
            yield Job((d, k, size, name, repetition), cost, "", (d, k, size, name))


def cost(_: object, d: int, k: int, size: int, name: str) -> tuple[float]:
    """Processor time per message in microseconds: the median of a few rounds, in mid-stream."""
    rng = np.random.default_rng(0)
    C, spectrum = np.linalg.qr(rng.standard_normal((d, k)))[0], np.arange(1.0, d + 1) ** -0.5
    way, messages = method(name, k), OWN.get(name, MESSAGES)
    state = way.start(C)
    for _round in range(BEFORE // BLOCK if name in OWN else 40):
        state = way.learn(state, rng.standard_normal((BLOCK, d)) * spectrum)
    Y = rng.standard_normal((messages, d)) * spectrum
    blocks: Any = Y if size == 1 else [Y[start : start + size] for start in range(0, messages, size)]
    step, state = _plain(name, way.basis(state)) if size == 1 else (way.learn, state)
    step(state, blocks[0])
    return (round(median(_timed(step, state, blocks) for _ in range(ROUNDS)) / messages, 2),)


def _timed(step: Callable[[Any, F64], Any], state: Any, blocks: Iterable[F64]) -> float:
    began = time.process_time()
    for block in blocks:
        state = step(state, block)
    return 1e6 * (time.process_time() - began)


def _plain(name: str, C: F64) -> tuple[Callable[[Any, F64], Any], Any]:
    """The message-by-message step and its first state."""
    steps: dict[str, tuple[Callable[[Any, F64], Any], Any]] = {
        "oja": (partial(explicit.oja, eta=1e-4), C),
        "krasulina": (partial(explicit.krasulina, eta=1e-4), C),
        "explicit": (partial(explicit.without_qr, eta=1e-4), C),
        "implicit": (lambda state, y: algorithm1.meyer(state[0], state[1], y, 1e-2)[:2], (C, np.linalg.pinv(C))),
        "incremental": (incremental.step, incremental.IncrementalState(C, np.ones(C.shape[1]), 1000)),
    }
    return steps[name]


def _draw(panel: Any, plan: Plan, name: str, k: int) -> None:
    """One panel: curves of the excess, and at their ends how much the times vary."""
    for learner, size in SHOWN:
        curves = passes.passes(plan).curves("excess", data=name, k=k, method=learner, scale=1.0)
        costs = times(plan).numbers("microseconds", d=D[name], k=k, size=size, method=learner)
        if not costs:
            continue
        seconds = [t * median(costs) / 1e6 for t in charts.points(len(curves[0]), plan.every, len(plan.data[name].X))]
        label = LABELS[learner] + (", exact blocks" if size > 1 and learner == "implicit" else "")
        charts.spread(panel, seconds, curves, "--" if size > 1 else "-", label=label, **charts.STYLES[learner])
        ends = [len(plan.data[name].X) * end / 1e6 for end in (min(costs), max(costs))]
        panel.plot(ends, [charts.mean_curve(curves)[-1]] * 2, "|-", color=charts.STYLES[learner]["color"])
    panel.set(xscale="log", yscale="log")
    panel.set(title=f"{charts.NAMES[name]}, k = {k}", xlabel="seconds of learning", ylabel="excess loss, %")


def blocks(plan: Plan) -> dict[str, list[str]]:
    """How many times slower other methods are than the implicit update."""
    cases = [(D[name], k) for name, k in SETTINGS]
    sizes = [f"in blocks of {size}" if size > 1 else "message by message" for size in SIZES]
    factors = [
        [LABELS[name], *(_range([_ratio(plan, *case, size, name) for case in cases]) for size in SIZES)]
        for name in PAPERS if name != "implicit"
    ]  # fmt: skip
    return {"factors": table(["time / implicit update's", *sizes], factors, labels=1)}


def _times(plan: Plan, d: int, k: int, size: int, name: str) -> list[float]:
    return times(plan).numbers("microseconds", d=d, k=k, size=size, method=name) or [nan]


def _ratio(plan: Plan, d: int, k: int, size: int, name: str) -> float:
    return median(_times(plan, d, k, size, name)) / median(_times(plan, d, k, size, "implicit"))


def _range(values: list[float]) -> str:
    """From the least to the greatest; a dash where one is missing."""
    return " to ".join(dict.fromkeys(cell(end, ".1f") for end in (np.min(values), np.max(values))))


def claims(plan: Plan) -> list[Claim]:
    """The paper's claims about time, in the settings that were measured."""
    claimed = []
    for words, size in (("“significantly faster”: Algorithm 1 is the quickest, message by message", 1),
                        (f"the same in exact blocks of {BLOCK}", BLOCK)):  # fmt: skip
        others = {(n, k): [_ratio(plan, D[n], k, size, m) for m in RIVALS] for n, k in SETTINGS}
        measured = [case for case, ratios in others.items() if not np.isnan(ratios).any()]
        claimed.append((words, measured, [min(others[case]) > 1 for case in measured]))
    return [claim for claim in claimed if claim[1]]
