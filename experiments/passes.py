"""One pass of one method over one data set: the runs that Table 1 and Figure 1 are made of.

A run's seed fixes the order of the messages and the random orthonormal factor at the start. η₀ is chosen on a tenth
of the data that is held out: one pass over the rest for each value of a grid. The values with the least losses on
that tenth get two passes more, and of these the one with the least mean is chosen.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import Data, Indices
from experiments.methods import BLOCK, TUNED, WARM_UP, Method, method
from experiments.plan import Job, Plan, Results, complete, curve
from experiments.report import average
from streampca.pca.arrays import F64

GRID = tuple(float(f"{m}e{e}") for e in range(-3, 4) for m in (1, 3))  # 0.001, 0.003, … 3000
BEYOND = tuple(float(f"{m}e{e}") for e in range(4, 13) for m in (1, 3))  # … 3e12, for the implicit update
FINALISTS = 3  # values that are tried again
SCALES = (0.1, 1.0, 10.0)


def validations(plan: Plan) -> Results:
    """The runs that η₀ is chosen by."""
    return Results(plan.folder / "validation.csv", ("data", "k", "method", "eta0", "seed"), ("loss",))


def passes(plan: Plan) -> Results:
    """The runs: loss at the end, and percent of excess every so many messages where the scale is 1."""
    keys = ("data", "k", "method", "scale", "seed")
    return Results(plan.folder / "passes.csv", keys, ("eta0", "loss", "excess"))


def choose(plan: Plan, methods: Sequence[str]) -> None:
    """Run the grid, and the best of it again, for those of the methods that have an η₀."""
    cases = [case for case in itertools.product(plan.data, plan.ks, TUNED) if case[-1] in methods]
    _validate(plan, [(*case, eta0, 0) for case in cases for eta0 in grid(case[-1])])
    again = [(*case, eta0, seed) for case in cases for eta0 in finalists(validations(plan), *case) for seed in (1, 2)]
    _validate(plan, again)


def grid(tuned: str) -> tuple[float, ...]:
    """The values of η₀ that are tried for a method."""
    return GRID + BEYOND * (tuned == "implicit")


def _validate(plan: Plan, keys: Sequence[tuple[str, int, str, float, int]]) -> None:
    complete("η₀ by validation", plan, validations(plan), [Job(key, validate, key[0], key[1:]) for key in keys])


def finalists(results: Results, name: str, k: int, tuned: str) -> list[float]:
    """The values of the grid with the least losses in the first pass."""
    rows = results.rows(data=name, k=k, method=tuned, seed=0)
    return [float(row["eta0"]) for row in sorted(rows, key=lambda row: float(row["loss"]))[:FINALISTS]]


def chosen(results: Results, name: str, k: int, tuned: str) -> float:
    """The η₀ with the least mean loss on the held-out tenth."""
    losses = {eta0: results.numbers("loss", data=name, k=k, method=tuned, eta0=eta0)
              for eta0 in finalists(results, name, k, tuned)}  # fmt: skip
    return min(losses, key=lambda eta0: average(losses[eta0]))


def eta0_of(plan: Plan, name: str, k: int, any_method: str) -> float:
    """The η₀ that validation chose for a method; 1 for those without."""
    return chosen(validations(plan), name, k, any_method) if any_method in TUNED else 1.0


def run(plan: Plan, methods: Sequence[str], scales: Sequence[float]) -> None:
    """What is missing of the methods' runs at these scales of η₀, seed by seed; methods without η₀ have scale 1."""
    choose(plan, methods)
    jobs = []
    for seed, name, k, any_method in itertools.product(range(plan.runs), plan.data, plan.ks, methods):
        for scale in scales if any_method in TUNED else (1.0,):
            arguments = (k, any_method, eta0_of(plan, name, k, any_method) * scale, seed, plan.every * (scale == 1))
            jobs.append(Job((name, k, any_method, scale, seed), one_pass, name, arguments))
    complete("passes", plan, passes(plan), jobs)


def beginning(data: Data, k: int, seed: int) -> tuple[Indices, F64]:
    """The order of the messages and the orthonormal factor (d, k) that a seed stands for."""
    rng = np.random.default_rng(seed)
    return rng.permutation(len(data.X)), np.linalg.qr(rng.standard_normal((data.d, k)))[0]


def in_blocks(rows: NDArray[Any], start: int = 0) -> list[NDArray[Any]]:
    """Rows that follow the first `start` ones, in the blocks in which they are learned."""
    cuts = np.arange(0 if start else WARM_UP, len(rows), BLOCK)
    return np.split(rows, cuts[cuts > 0])


def states(way: Method, data: Data, order: Indices, C: F64, every: int = 0, center: bool = True) -> Iterator[Any]:
    """The state each time that another `every` messages are learned, and at the end; centred by the batch mean."""
    state, seen = way.start(C), 0
    for rows in in_blocks(order):
        state, seen = way.learn(state, (data.centred if center else data.pixels)(rows)), seen + len(rows)
        if seen == len(order) or (every and seen % every == 0):
            yield state


def one_pass(data: Data, k: int, name: str, eta0: float, seed: int, every: int) -> tuple[float, float, str]:
    """η₀, the loss at the end, and the curve of the excess."""
    order, C = beginning(data, k, seed)
    way = method(name, k, eta0)
    bases = [way.basis(state) for state in states(way, data, order, C, every)]
    return eta0, round(data.loss(bases[-1]), 6), curve([data.excess(basis) for basis in bases] if every else [])


def validate(data: Data, k: int, name: str, eta0: float, seed: int) -> tuple[float]:
    """The loss on a tenth after a pass over the rest."""
    order, C = beginning(data, k, seed=1000 + seed)
    held = len(order) // 10
    way = method(name, k, eta0)
    *_, last = states(way, data, order[held:], C, 0)
    Y = data.centred(order[:held])
    return (round(float(np.sum(Y**2) - np.sum((Y @ way.basis(last)) ** 2)) / held, 6),)
