"""Writes docs/experiments.md from the CSV files and pictures in experiments/results: `python -m experiments.page`."""

import os
import platform
from pathlib import Path

from benchmarks.machine import machine
from experiments import beyond, distributed, drift, figure1, scale, sensitivity, table1
from experiments.plan import FOLDER

PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"
SECTIONS = (table1, figure1, distributed, beyond, sensitivity, drift, scale)
INTRODUCTION = """# The paper's experiments, and some beyond them

Amid & Warmuth, “An Implicit Form of Krasulina's k-PCA Update without the Orthonormality Constraint”, on the paper's
data. `python -m experiments.page` writes this page from the CSV files in `experiments/results/`, in which every row is
one run. `make experiments` (or one of `python -m experiments.table1`, `.figure1`, `.distributed`, `.beyond`,
`.sensitivity`, `.drift`, `.scale`) runs what is missing there, up to `--runs N` (10) runs of each kind. With
`--data FOLDER` the data are read from `mnist.npz` and `cifar10.npz` in that folder, otherwise from OpenML."""


def page(folder: Path) -> str:
    """The page as Markdown."""
    lines = [INTRODUCTION, "", *_summary(folder), ""]
    for each in SECTIONS:
        lines += [*each.section(folder), ""]
    described = folder / "machine.txt"
    if described.exists():
        lines += ["## The machine", "", described.read_text(encoding="utf-8").strip(), ""]
    return "\n".join(lines)


def _summary(folder: Path) -> list[str]:
    """The number of settings in which the paper's claims, and ours, hold here."""
    said = [claim for each in (table1, figure1, distributed) for claim in each.claims(folder)]
    ours = [claim for each in (table1, distributed) for claim in each.better(folder)]
    lines = ["## Summary", "", "| the paper's claim | settings in which it holds here | |", "|---|---|---|"]
    lines += [_line(*claim) for claim in said]
    lines += ["", "| where our default is better | settings | |", "|---|---|---|"]
    return lines + [_line(*claim) for claim in ours]


def _line(claim: str, settings: dict[str, bool]) -> str:
    exceptions = [setting for setting, holds in settings.items() if not holds]
    if not exceptions:
        word = "holds"
    elif len(exceptions) == len(settings):
        word = "does not hold"
    else:
        word = f"does not hold for {', '.join(exceptions)}"
    return f"| {claim} | {len(settings) - len(exceptions)} of {len(settings)} | {word} |"


def describe(folder: Path) -> None:
    """Record the machine of the runs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{machine()} {platform.system()}, {os.cpu_count()} cores, shared with other work.\n"
    (folder / "machine.txt").write_text(text, encoding="utf-8")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(FOLDER), encoding="utf-8")


if __name__ == "__main__":
    main()
