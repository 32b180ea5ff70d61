"""Run experiments and write their tables: `python -m experiments.all [name …]` (`make experiments`).

Without names all of them. Only runs that are missing in experiments/results are made.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

from experiments import ablation, anomalies, distributed, figure1, gaps, partitions, rate, table1
from experiments.datasets import NAMES, Data, default_folder
from experiments.plan import FOLDER, Plan
from experiments.report import DOCS, machine, table, write_block

EXPERIMENTS = {"table1": table1, "figure1": figure1, "distributed": distributed, "partitions": partitions,
               "ablation": ablation, "rate": rate, "gaps": gaps, "anomalies": anomalies}  # fmt: skip


def main() -> None:
    """Run the experiments, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*EXPERIMENTS, []], metavar="name", help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", type=Path, default=default_folder(), help="folder with mnist.npz and cifar10.npz")
    parser.add_argument("--only", choices=NAMES, help="one data set only")
    parser.add_argument("--runs", type=int, default=10, help="of each kind; those there are already count (10)")
    options = parser.parse_args()
    with threadpool_limits(1):
        data = {name: Data.cached(name, options.data) for name in NAMES if options.only in (None, name)}
    plan = Plan(data, runs=options.runs)
    for name in options.names or EXPERIMENTS:
        EXPERIMENTS[name].run(plan)
    (FOLDER / "machine.txt").write_text(f"{machine()}\n", encoding="utf-8")
    for name, lines in blocks(plan).items():
        write_block(page_with(name), name, lines)


def page_with(name: str) -> Path:
    """The page that has a block of this name."""
    pages = [Path(__file__).with_name("README.md"), *sorted(DOCS.glob("*.md"))]
    return next(page for page in pages if f"<!-- {name} -->" in page.read_text(encoding="utf-8"))


def blocks(plan: Plan) -> dict[str, list[str]]:
    """All blocks of pages, from the results in the plan's folder."""
    claims = [claim for experiment in (table1, figure1, distributed) for claim in experiment.claims(plan)]
    lines = table(["claim", "settings in which it holds", "except"], [_row(*claim) for claim in claims])
    of_all = {"claims": [*lines, "", (plan.folder / "machine.txt").read_text(encoding="utf-8").strip()]}
    for experiment in EXPERIMENTS.values():
        of_all |= experiment.blocks(plan)
    return {name: lines if len(lines) > 2 else [*lines, "", "No runs yet."] for name, lines in of_all.items()}


def _row(claim: str, settings: Sequence[tuple[str, int]], holds: Sequence[bool]) -> list[str]:
    exceptions = [f"{name} k={k}" for (name, k), holds_here in zip(settings, holds, strict=True) if not holds_here]
    return [claim, f"{sum(holds)} of {len(settings)}", ", ".join(exceptions) or "–"]


if __name__ == "__main__":
    main()
