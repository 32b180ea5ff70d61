"""How much the settings of our default matter, which has no step size: oversampling, length of a block, warm-up."""

from collections import Counter
from pathlib import Path

import numpy as np

from experiments import charts, distributed, passes
from experiments.datasets import Data
from experiments.plan import Job, Plan, command, complete
from experiments.results import Results, average
from streampca.pca import axes
from streampca.pca.learning import BLOCK, LearningConfig, learn
from streampca.pca.state import State

STANDARD = {"oversampling": 10, "block": BLOCK, "warm-up": 200}  # the package's own oversampling is max(10, 3k/5)
DIGITS = 6  # of the excess in percent, in the CSV file
RESOLUTION = 10.0**-DIGITS
WHAT = {
    "oversampling": "columns beyond k (0 … 2k)",
    "block": "messages in a block",
    "warm-up": "messages in the first block",
}


def runs(plan: Plan) -> Results:
    """Percent of excess after one pass."""
    return Results(plan.folder / "sensitivity.csv", ("data", "k", "setting", "value", "seed"), ("excess",))


def values(k: int) -> dict[str, list[int]]:
    """What is tried for each setting, the others as they are by default."""
    return {
        "oversampling": sorted({0, k // 2, k, 2 * k, 10}),
        "block": [1, 4, 16, 64, 256],
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
    chosen = STANDARD | {setting: value}
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
        f"One setting is changed at a time; the others are {STANDARD['oversampling']} columns of oversampling (the "
        f"default is 10 for k = 5 and 12 for k = 20), blocks of {STANDARD['block']}, warm-up {STANDARD['warm-up']}. "
        "Only the first block was absorbed in these runs; now the first five blocks' length is. "
        f"Means of {seeds} run{'s' * (seeds > 1)}.",
        "",
        *lines,
        "",
        f"- The length of a block changes the excess by at most {moved.get('block', 0):.4f} points, the warm-up by "
        "at most "
        f"{moved.get('warm-up', 0):.4f}. Oversampling matters most: the excess is {_range(results, '0')} "
        "without any of "
        f"it, and {_range(results, '10')} with 10 columns.",
    ]


def _range(results: Results, value: str) -> str:
    found = results.numbers("excess", setting="oversampling", value=value)
    return f"{min(found):.4f} to {max(found):.4f} %" if found else "unknown"


if __name__ == "__main__":
    command(run, __doc__)
