"""What was measured against what we ask of ourselves: rows in benchmarks/results/bars.csv, a part for each benchmark.

Every bar is a ratio of two things measured side by side in one run, or a time, or a count of bytes.
"""

import csv
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"
_FILE = RESULTS / "bars.csv"

_KEPT: dict[str, Callable[[float, float], bool]] = {"≥": operator.ge, "≤": operator.le}


class Bar(NamedTuple):
    """One figure and what it should be."""

    part: str  # the benchmark, `python -m benchmarks.<part>`
    what: str
    measured: float
    sign: str  # ≥ or ≤
    bar: float
    unit: str = ""

    @property
    def kept(self) -> bool:
        """Whether the figure is as it should be."""
        return _KEPT[self.sign](self.measured, self.bar)


def record(part: str, bars: Iterable[Bar]) -> None:
    """Replace what the file holds of that part."""
    rows = [bar for bar in recorded() if bar.part != part] + [bar for bar in bars if bar.part == part]
    with _FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Bar._fields)
        writer.writerows(sorted(rows, key=lambda bar: bar.part))  # stable: within a part, the order of measuring


def recorded() -> list[Bar]:
    """All rows there are."""
    if not _FILE.exists():
        return []
    with _FILE.open(newline="", encoding="utf-8") as file:
        return [
            Bar(row["part"], row["what"], float(row["measured"]), row["sign"], float(row["bar"]), row["unit"])
            for row in csv.DictReader(file)
        ]


def table(bars: Sequence[Bar]) -> str:
    """Markdown: what, measured, bar, and by how much it is missed."""
    lines = ["| what | measured | bar | kept |", "|---|---|---|---|"]
    for bar in bars:
        unit = f" {bar.unit}" if bar.unit not in ("", "×") else bar.unit
        lines.append(
            f"| {bar.what} (`{bar.part}`) | {bar.measured:.3g}{unit} | {bar.sign} {bar.bar:g}{unit} | {_verdict(bar)} |"
        )
    return "\n".join(lines)


def _verdict(bar: Bar) -> str:
    return "yes" if bar.kept else f"no: {abs(bar.measured / bar.bar - 1):.0%} {'short' if bar.sign == '≥' else 'over'}"
