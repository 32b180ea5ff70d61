"""How much the settings of our default matter, which has no step size: oversampling, length of a block, warm-up."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments import charts, distributed, passes
from experiments.datasets import Data
from experiments.plan import Job, Plan, command, complete
from experiments.results import Results, Row, average
from streampca.pca import axes
from streampca.pca.learning import BLOCK, LearningConfig, learn
from streampca.pca.state import State

DIGITS = 6  # of the excess in percent, in the CSV file
RESOLUTION = 10.0**-DIGITS
WHAT = {
    "oversampling": "columns beyond k (0 … 2k)",
    "block": "messages in a block",
    "warm-up": "messages in the first block",
}


def standard(k: int) -> dict[str, int]:
    """The default's settings."""
    return {"oversampling": max(10, 3 * k // 5), "block": BLOCK, "warm-up": 200}


def runs(plan: Plan) -> Results:
    """Percent of excess after one pass."""
    return Results(plan.folder / "sensitivity.csv", ("data", "k", "setting", "value", "seed"), ("excess",))


def values(k: int) -> dict[str, list[int]]:
    """What is tried for each setting, the others as they are by default."""
    return {
        "oversampling": sorted({0, k // 2, k, 2 * k, standard(k)["oversampling"]}),
        "block": [4, 16, 64, 256],
        "warm-up": [50, 100, 200, 500, 1000],
    }


def run(plan: Plan) -> None:
    """Each setting by itself."""
    jobs = []
    for seed in range(min(plan.runs, plan.slow_runs)):
        for name in plan.data:
            for k in distributed.ks(plan):
                for setting, tried in values(k).items():
                    for value in tried:
                        jobs.append(Job((name, k, setting, value, seed), one_pass, name, (k, setting, value, seed)))
    complete("sensitivity", plan, runs(plan), jobs)
    draw(plan)


def one_pass(data: Data, k: int, setting: str, value: int, seed: int) -> tuple[float]:
    """Percent of excess after one pass with one setting changed; raw pixels, running mean."""
    chosen = standard(k) | {setting: value}
    config = LearningConfig(data.d, k, oversampling=chosen["oversampling"], warm_up=chosen["warm-up"])
    order, _ = passes.beginning(data, k, seed)
    state = State.empty(data.d)
    for part in np.split(order, np.arange(chosen["warm-up"], len(order), chosen["block"])):
        state, _ = learn(state, data.raw(part), np.ones(len(part)), config)
    return (round(data.batch.excess(axes.principal(state.C, k)[0], state.mean), DIGITS),)


def draw(plan: Plan) -> None:
    """One panel for each setting."""
    rows = runs(plan)
    cases = [(name, k) for name in plan.data for k in distributed.ks(plan)]
    with charts.picture(plan.folder / "sensitivity.svg", 1, len(WHAT)) as panels:
        for panel, (setting, words) in zip(panels[0], WHAT.items(), strict=True):
            for colour, (name, k) in enumerate(cases):
                tried = values(k)[setting]
                runs_of = [rows.numbers("excess", data=name, k=k, setting=setting, value=v) for v in tried]
                curves = [[max(x, RESOLUTION) for x in curve] for curve in zip(*runs_of, strict=True)]  # a log axis
                label = f"{charts.NAMES.get(name, name)}, k = {k}"
                charts.spread(panel, tried, curves, marker=".", label=label, color=f"C{colour}")
            panel.set_yscale("log")
            if setting != "oversampling":
                panel.set_xscale("log")
            panel.set(xlabel=words, ylabel="excess loss, %")
        charts.explain(panels[0, 0], {})


def section(folder: Path) -> list[str]:
    """The picture and how far each setting moves the result."""
    results = runs(Plan({}, folder))
    rows = results.rows()
    lines = ["| data | k | setting | excess % at each value |", "|---|---|---|---|"]
    moved: dict[str, float] = {}
    for name, k, setting in dict.fromkeys((row["data"], row["k"], row["setting"]) for row in rows):
        tried = sorted({int(r["value"]) for r in rows if (r["data"], r["k"], r["setting"]) == (name, k, setting)})
        mean = [average(results.numbers("excess", data=name, k=k, setting=setting, value=v)) for v in tried]
        lines.append(
            f"| {name} | {k} | {setting} | "
            + ", ".join(f"{v}: {m:.4f}" for v, m in zip(tried, mean, strict=True))
            + " |"
        )
        spanned = [m for v, m in zip(tried, mean, strict=True) if setting != "oversampling" or v]
        moved[setting] = max(moved.get(setting, 0.0), max(spanned) - min(spanned))
    seeds = min(Counter((r["data"], r["k"], r["setting"], r["value"]) for r in rows).values(), default=0)
    return [
        "## Sensitivity: our default has no step size",
        "",
        charts.embedded("sensitivity.svg", "Excess loss against oversampling, block and warm-up"),
        "",
        "One setting is changed at a time; the others are the default's: "
        f"{standard(5)['oversampling']} columns of oversampling for k = 5, {standard(20)['oversampling']} for k = 20, "
        f"blocks of {standard(5)['block']}, warm-up {standard(5)['warm-up']}. Five times the warm-up is absorbed. "
        f"Means of {seeds} run{'s' * (seeds > 1)}.",
        "",
        *lines,
        "",
        f"- The length of a block changes the excess by at most {moved.get('block', 0):.4f} points, the warm-up by "
        "at most "
        f"{moved.get('warm-up', 0):.4f}. Oversampling matters most: the excess is {_range(rows, none=True)} "
        f"without any of it, and {_range(rows, none=False)} with the default's.",
    ]


def _range(rows: Sequence[Row], none: bool) -> str:
    """Excess without oversampling, or with the default's."""
    found = [
        float(row["excess"])
        for row in rows
        if row["setting"] == "oversampling"
        and int(row["value"]) == (0 if none else standard(int(row["k"]))["oversampling"])
    ]
    return f"{min(found):.4f} to {max(found):.4f} %" if found else "unknown"


if __name__ == "__main__":
    command(run, __doc__)
