"""Each benchmark writes its table into docs/performance.md, for users, and its bars into benchmarks/README.md.

A bar is the least or the most that we accept of a figure: a ratio of two things measured side by side in one run, a
time, or a size. The page names the machine once; a table that was measured on another machine names it as well.
"""

import argparse
import csv
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from experiments.report import DOCS, block, machine, table, write_block

PAGE = DOCS / "performance.md"
BARS = Path(__file__).with_name("README.md")
PARTS = (
    "speed", "threads", "decoding", "throughput", "transform", "memory", "serving", "start", "restart", "scaling",
    "backfill",
)  # fmt: skip
_HEAD = table(["metric", "measured", "bar", "met", "benchmark"], [])
_MET: dict[str, Callable[[float, float], bool]] = {"≥": operator.ge, "≤": operator.le}


class Bar(NamedTuple):
    """Figures of one kind, and the limit for each of them."""

    metric: str
    figures: Sequence[float]
    sign: str  # ≥ or ≤
    bar: float
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the worst figure, as it is shown, is within the limit."""
        return _MET[self.sign](self._worst, self.bar)

    @property
    def _worst(self) -> float:
        worst = min(self.figures) if self.sign == "≥" else max(self.figures)
        return round(worst) if abs(worst) >= 1000 else float(f"{worst:.3g}")

    def row(self, part: str) -> str:
        """One line of the table of bars."""
        unit = f" {self.unit}" if self.unit not in ("", "×") else self.unit
        missed = f"no: {abs(self._worst / self.bar - 1):.0%} {'short' if self.sign == '≥' else 'over'}"
        cells = self.metric, f"{self._worst:,g}{unit}", f"{self.sign} {self.bar:g}{unit}", "yes" if self.met else missed
        return f"| {' | '.join(cells)} | `{part}` |"


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--smallest", action="store_true", help="the smallest size, only printed: does it still run?")
    options.add_argument("--folder", type=Path, help="write into the copies of the pages in this folder")
    return options


def page_of(options: argparse.Namespace, page: Path = PAGE) -> Path | None:
    """The page to write into: with a folder its copy there, otherwise none if the size is the smallest."""
    if options.folder:
        return Path(options.folder / page.name)
    return None if options.smallest else page


def publish(part: str, options: argparse.Namespace, lines: Sequence[str], bars: Iterable[Bar] = ()) -> None:
    """Print the table and the bars of one benchmark, and write them into their pages."""
    rows = [bar.row(part) for bar in bars]
    print("\n".join([*lines, *(["", *_HEAD, *rows] if rows else [])]), flush=True)
    if page := page_of(options):
        other_machine = [] if machine() == block(page.read_text(encoding="utf-8"), "machine") else ["", machine()]
        write_block(page, part, [*lines, *other_machine])
    if page := page_of(options, BARS):
        before = block(page.read_text(encoding="utf-8"), "bars").splitlines()[len(_HEAD) :]
        others = [row for row in before if _part_of(row) != part]
        rows = sorted([*others, *rows], key=lambda row: PARTS.index(_part_of(row)))
        write_block(page, "bars", [*_HEAD, *rows])


def in_turn(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """The figures of each measure, one a round; the measures take turns."""
    return [list(figures) for figures in zip(*([act() for act in measures] for _ in range(rounds)), strict=True)]


def beside(bare: Callable[[], float], ours: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """Our rate, the bare one, and our share of it: medians of rounds in which they take turns."""
    rates = in_turn(rounds, bare, ours)
    return median(rates[1]), median(rates[0]), median(own / other for other, own in zip(*rates, strict=True))


def printed(rows: Iterable[Any]) -> list[Any]:
    """All rows, measured in one thread; the cells of each are printed at once."""
    measured = []
    with threadpool_limits(1):
        for row in rows:
            print(" | ".join(row.cells()), flush=True)
            measured.append(row)
    return measured


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def _part_of(row: str) -> str:
    return row.rsplit("`", 2)[1]
