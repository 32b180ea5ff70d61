"""Beyond the paper: other one-pass methods, hard orders, many partitions, and merging instead of averaging."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import charts, distributed, passes, rivals
from experiments.baselines import combine, incremental_pca
from experiments.baselines.orthonormal import orthonormal
from experiments.datasets import Data, Indices
from experiments.methods import BLOCK, LABELS, SKLEARN_BATCH, WARM_UP, Default, method
from experiments.plan import Job, Plan, command, complete
from experiments.results import Results, spread
from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import merge

ORDERS = ("random order", "sorted by label")
METHODS = {
    "implicit": LABELS["implicit"],
    **rivals.LABELS,
    "sklearn": "IncrementalPCA(k)",
    "sklearn, K": "IncrementalPCA(K)",
    "default": LABELS["default"],
}
SLOW = (*rivals.LABELS, "sklearn", "sklearn, K")
SOURCES = (
    "AdaOja (Henriksen & Ward 2019): [ada_oja.py](../experiments/baselines/ada_oja.py), ten messages per step.",
    "CCIPCA (Weng, Zhang & Hwang 2003): [ccipca.py](../experiments/baselines/ccipca.py), amnesic parameter 2.",
    "History PCA (Yang, Hsieh & Wang 2018): [history_pca.py](../experiments/baselines/history_pca.py), ten messages "
    "and one power iteration per step.",
    "Frequent Directions (Liberty 2013): [frequent_directions.py](../experiments/baselines/frequent_directions.py).",
    "IncrementalPCA(K): [incremental_pca.py](../experiments/baselines/incremental_pca.py).",
)
PARTITIONS = (10, 100)
SPLITS = ("random", "skewed")
WAYS = {
    "merge": "our folds, merged",
    "average": "averaged (eq. 17), one start",
    "average, own starts": "averaged (eq. 17), own starts",
}


def single(plan: Plan) -> Results:
    """One stream: percent of excess at the end."""
    return Results(plan.folder / "orders.csv", ("data", "k", "order", "method", "seed"), ("eta0", "excess"))


def many(plan: Plan) -> Results:
    """Many streams: percent of excess of all of them combined at the end."""
    keys = ("data", "k", "partitions", "split", "way", "seed")
    return Results(plan.folder / "partitions.csv", keys, ("eta0", "excess"))


def run(plan: Plan) -> None:
    """Both."""
    passes.choose(plan)
    complete("orders", plan, single(plan), list(_single_jobs(plan)))
    complete("partitions", plan, many(plan), list(_many_jobs(plan)))
    draw(plan)


def _eta0(plan: Plan, name: str, k: int) -> float:
    return passes.chosen(passes.validations(plan), name, k, "implicit")


def _single_jobs(plan: Plan) -> Any:
    for seed in range(plan.runs):
        methods = [each for each in METHODS if each not in SLOW or seed < plan.slow_runs]
        for name in plan.data:
            for k in distributed.ks(plan):
                for order in ORDERS:
                    for each in methods:
                        eta0 = _eta0(plan, name, k) if each == "implicit" else 1.0
                        yield Job((name, k, order, each, seed), one_stream, name, (k, order, each, eta0, seed))


def _many_jobs(plan: Plan) -> Any:
    for seed in range(plan.runs):
        for name in plan.data:
            k = plan.ks[-1]
            for partitions in PARTITIONS:
                for split in SPLITS:
                    for way in WAYS:
                        eta0 = 1.0 if way == "merge" else _eta0(plan, name, k)
                        arguments = (k, partitions, split, way, eta0, seed)
                        yield Job((name, k, partitions, split, way, seed), many_streams, name, arguments)


def ordered(data: Data, order: Indices, how: str) -> Indices:
    """The order itself, or sorted by label and in that order within each label."""
    return order if how in ("random order", "random") else order[np.argsort(data.y[order], kind="stable")]


def one_stream(data: Data, k: int, how: str, name: str, eta0: float, seed: int) -> tuple[float, float]:
    """η₀ and the percent of excess after one pass; our default and IncrementalPCA get raw pixels, others centred."""
    order, C = passes.beginning(data, k, seed)
    order = ordered(data, order, how)
    if name.startswith("sklearn"):
        columns = k if name == "sklearn" else LearningConfig(data.d, k).columns
        batches = (data.raw(order[i : i + SKLEARN_BATCH]) for i in range(0, len(order), SKLEARN_BATCH))
        return eta0, round(data.batch.excess(*incremental_pca.components(batches, k, columns)), 6)
    if name == "default":
        state = fold(data, order, k)
        return eta0, round(data.batch.excess(axes.principal(state.C, k)[0], state.mean), 6)
    way = rivals.rival(name, k) if name in rivals.LABELS else method(name, k, eta0)
    *_, last = passes.states(way, data, order, C, 0)
    return eta0, round(data.excess(way.basis(last)), 6)


def fold(data: Data, order: Indices, k: int) -> Any:
    """The state of our default after a stream, centred by its running mean."""
    way = Default(k)
    state = way.start(np.zeros((data.d, k)))
    for part in np.split(order, np.arange(WARM_UP, len(order), BLOCK)):
        state = way.learn(state, data.raw(part))
    return state


def many_streams(
    data: Data, k: int, partitions: int, split: str, how: str, eta0: float, seed: int
) -> tuple[float, float]:  # fmt: skip
    """η₀ and the percent of excess of all partitions combined, each learned by itself; nothing is sent back."""
    order, C = passes.beginning(data, k, seed)
    parts = np.array_split(ordered(data, order, split), partitions)
    if how == "merge":
        state = merge([fold(data, part, k) for part in parts], LearningConfig(data.d, k).columns)
        return eta0, round(data.batch.excess(axes.principal(state.C, k)[0], state.mean), 6)
    starts = [
        C if how == "average" else passes.beginning(data, k, 10_000 * (seed + 1) + i)[1] for i in range(partitions)
    ]
    factors = [_factor(data, part, start, eta0) for part, start in zip(parts, starts, strict=True)]
    combined = combine.average(factors, [len(part) for part in parts])
    return eta0, round(data.excess(np.asarray(orthonormal(combined), np.float64)), 6)


def _factor(data: Data, part: Indices, C: F64, eta0: float) -> F64:
    *_, last = passes.states(method("implicit", C.shape[1], eta0), data, part, C, 0)
    factor: F64 = last.state.C
    return factor


def draw(plan: Plan) -> None:
    """Excess of orders and partitions as points."""
    with charts.picture(plan.folder / "beyond.svg", 1, len(plan.data)) as panels:
        for panel, name in zip(panels[0], plan.data, strict=True):
            k = plan.ks[-1]
            for way, colour in zip(WAYS, ("black", "tab:red", "tab:pink"), strict=True):
                for split, line in zip(SPLITS, ("-", "--"), strict=True):
                    runs_of = [many(plan).numbers("excess", data=name, k=k, partitions=p, split=split, way=way)
                               for p in PARTITIONS]  # fmt: skip
                    curves = list(zip(*runs_of, strict=True))
                    label = f"{WAYS[way]}; {split}"
                    charts.spread(panel, PARTITIONS, curves, line, marker="o", color=colour, label=label)
            title = f"{charts.NAMES.get(name, name)}, k = {k}"
            panel.set(title=title, xlabel="partitions", ylabel="excess loss, %", xscale="log", yscale="log")
        charts.explain(panels[0, 0], {})


def section(folder: Path) -> list[str]:
    """Tables and picture."""
    plan = Plan({}, folder)
    lines = ["## Beyond the paper: hard orders and partitions", ""]
    lines += [
        "Excess loss over batch PCA in percent, after one pass; the number of runs in brackets. Our default and "
        f"scikit-learn's IncrementalPCA ({SKLEARN_BATCH} messages per step) get raw pixels and keep a running mean; "
        "the paper's update and the others, which assume a mean of zero, get data centred by the batch mean. "
        f"K is the number of columns that our default tracks ({_columns()}); k of them are compared. "
        "None but the paper's update has a step size to choose.",
        "",
        *_orders(single(plan).rows()),
        "",
        *(f"- {line}" for line in SOURCES),
    ]
    lines += ["", *_partitions(many(plan).rows()), ""]
    lines += [charts.embedded("beyond.svg", "Excess loss against the number of partitions"), ""]
    lines += [
        "Skewed: sorted by label and then cut, so a partition contains almost only one label. Averaging (eq. 17) is "
        "done once at the end, as for streams that do not communicate, each at the η₀ that validation chose for a "
        "single machine. Differently rotated factors cancel out, so separate starts are worst; merging pools "
        "covariances, which do not depend on rotations.",
        "",
        *_verdict(many(plan)),
    ]
    return lines


def _verdict(results: Results) -> list[str]:
    ranges = []
    for way, label in WAYS.items():
        found = results.numbers("excess", way=way)
        ranges.append(f"{label}: {min(found):.2g} to {max(found):.2g} %" if found else f"{label}: not run")
    return [f"- Over all of these runs: {'; '.join(ranges)}."]


def _columns() -> str:
    return ", ".join(f"{LearningConfig(784, k).columns} for k = {k}" for k in (5, 20))


def _cell(rows: Sequence[dict[str, str]], **chosen: Any) -> str:
    values = [float(row["excess"]) for row in rows if all(row[key] == str(v) for key, v in chosen.items())]
    return f"{spread(values, 4)} ({len(values)})" if values else "–"


def _orders(rows: Sequence[dict[str, str]]) -> list[str]:
    found = dict.fromkeys((row["data"], row["k"], row["order"]) for row in rows)
    settings = sorted(found, key=lambda each: (list(charts.NAMES).index(each[0]), int(each[1]), each[2]))
    head = "| method | " + " | ".join(f"{name} k={k}, {order}" for name, k, order in settings) + " |"
    lines = [head, "|---" * (len(settings) + 1) + "|"]
    for each, label in METHODS.items():
        cells = [_cell(rows, data=name, k=k, order=order, method=each) for name, k, order in settings]
        if set(cells) != {"–"}:
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def _partitions(rows: Sequence[dict[str, str]]) -> list[str]:
    lines = ["| data | k | partitions | split | " + " | ".join(WAYS.values()) + " |", "|---" * 7 + "|"]
    for name, k, partitions, split in dict.fromkeys((r["data"], r["k"], r["partitions"], r["split"]) for r in rows):
        cells = [_cell(rows, data=name, k=k, partitions=partitions, split=split, way=way) for way in WAYS]
        lines.append(f"| {name} | {k} | {partitions} | {split} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    command(run, __doc__)
