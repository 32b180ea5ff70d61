"""docs/performance.md has a block for every benchmark; the bars are in benchmarks/README.md."""

import re

from benchmarks.report import BARS, PAGE, PARTS, Bar
from experiments.report import block


def test_the_page_has_a_command_and_a_block_for_each_benchmark() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"<!-- (\w+) -->", text) == ["machine", *PARTS]
    assert re.findall(r"make bench ARGS=(\w+)", text) == [*PARTS]
    assert all(block(text, part) for part in PARTS)


def test_a_bar_in_the_readme_belongs_to_a_benchmark() -> None:
    rows = block(BARS.read_text(encoding="utf-8"), "bars").splitlines()[2:]
    assert {row.split("`")[-2] for row in rows} <= {*PARTS}


def test_a_missed_bar_shows_by_how_much() -> None:
    bars = Bar("a", [17, 16], "≥", 15, "×"), Bar("b", [16, 12], "≥", 15, "×"), Bar("c", [3, 1], "≤", 2, "%")
    assert [bar.row("speed").split("|")[4].strip() for bar in bars] == ["yes", "no: 20% short", "no: 50% over"]
