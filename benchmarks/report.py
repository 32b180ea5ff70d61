"""docs/performance.md: each benchmark writes its tables between its own markers, and its bars into one table of bars.

    <!-- speed -->
    …
    <!-- /speed -->

A bar is what we ask of a figure. Every bar is a ratio of two things measured side by side in one run, or a time, or a
count of bytes.
"""

import argparse
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import machine

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PARTS = (
    "merging",
    "speed",
    "decoding",
    "throughput",
    "transform",
    "comparison",
    "stages",
    "checkpoints",
    "publishing",
    "memory",
    "serving",
    "start",
    "restart",
    "scaling",
    "cost",
)
_HEAD = ["| metric | measured | bar | met | benchmark |", "|---|---|---|---|---|"]
_MET: dict[str, Callable[[float, float], bool]] = {"≥": operator.ge, "≤": operator.le}


class Bar(NamedTuple):
    """One figure and what it should be."""

    metric: str
    measured: float
    sign: str  # ≥ or ≤
    bar: float
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure, as it is shown, is as it should be."""
        return _MET[self.sign](self._shown, self.bar)

    @property
    def _shown(self) -> float:
        return round(self.measured) if abs(self.measured) >= 1000 else float(f"{self.measured:.3g}")

    def row(self, part: str) -> str:
        """One line of the table of bars."""
        unit = f" {self.unit}" if self.unit not in ("", "×") else self.unit
        cells = self.metric, f"{self._shown:,g}{unit}", f"{self.sign} {self.bar:g}{unit}", self._verdict(), f"`{part}`"
        return f"| {' | '.join(cells)} |"

    def _verdict(self) -> str:
        if self.met:
            return "yes"
        return f"no: {abs(self._shown / self.bar - 1):.0%} {'short' if self.sign == '≥' else 'over'}"


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--smallest", action="store_true", help="the smallest size, only printed: does it still run?")
    options.add_argument("--page", type=Path, help="write into this copy of docs/performance.md")
    return options


def page_of(given: argparse.Namespace) -> Path | None:
    """Where the results go; nowhere when the size was the smallest and no page is named."""
    page: Path | None = given.page or (None if given.smallest else PAGE)
    return page


def publish(
    part: str, given: argparse.Namespace, lines: Sequence[str], bars: Iterable[Bar] = (), note: str = ""
) -> None:
    """Print the tables and bars of one benchmark, and write them into the page."""
    rows = [bar.row(part) for bar in bars]
    print("\n".join([*lines, *(["", *_HEAD, *rows] if rows else [])]), flush=True)
    if page := page_of(given):
        text = page.read_text(encoding="utf-8")
        text = replaced(text, part, "\n".join([*lines, "", f"{machine()} {note}".strip()]))
        page.write_text(replaced(text, "bars", _bars(text, part, rows)), encoding="utf-8")


def block(text: str, part: str) -> str:
    """What the page holds between the markers of one part."""
    found = _markers(part).findall(text)
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} blocks <!-- {part} -->, and must have one")
    return str(found[0]).strip()


def write_part(page: Path, part: str, lines: Sequence[str]) -> None:
    """Replace the block of one part of a page."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), part, "\n".join(lines)), encoding="utf-8")


def replaced(text: str, part: str, new: str) -> str:
    """The page with another block for one part."""
    block(text, part)
    return _markers(part).sub(lambda _: f"<!-- {part} -->\n{new}\n<!-- /{part} -->", text)


def _bars(text: str, part: str, rows: list[str]) -> str:
    """The table of bars with other rows for one part."""
    others = [row for row in block(text, "bars").splitlines()[len(_HEAD) :] if _part_of(row) != part]
    return "\n".join([*_HEAD, *sorted([*others, *rows], key=lambda row: PARTS.index(_part_of(row)))])


def _part_of(row: str) -> str:
    return row.rsplit("`", 2)[1]


def _markers(part: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {part} -->\n(.*?)<!-- /{part} -->", re.DOTALL)
