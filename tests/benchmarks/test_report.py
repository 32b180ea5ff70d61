"""docs/performance.md has a block for every benchmark; the bars are in benchmarks/README.md."""

import re
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.report import BARS, PAGE, PARTS, Bar
from experiments.report import block, replaced


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


def test_a_table_names_its_machine_if_the_page_names_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, bars = tmp_path / PAGE.name, tmp_path / BARS.name
    page.write_text("<!-- machine -->\nA\n<!-- /machine -->\n<!-- start -->\n<!-- /start -->\n")
    bars.write_text("<!-- bars -->\n<!-- /bars -->\n")
    for name, expected in (("A", "| 1 |"), ("B", "| 1 |\n\nB")):
        monkeypatch.setattr(report, "machine", lambda name=name: name)
        report.publish("start", Namespace(folder=tmp_path, smallest=True), ["| 1 |"], [Bar("a", [1], "≤", 2, "s")])
        assert block(page.read_text(), "start") == expected
        assert block(bars.read_text(), "bars").splitlines()[2:] == ["| a | 1 s | ≤ 2 s | yes | `start` |"]


def test_only_the_block_is_replaced() -> None:
    page = "a\n<!-- speed -->\nold\n<!-- /speed -->\nb\n<!-- start -->\nkept\n<!-- /start -->\n"
    assert replaced(page, "speed", "new \\1") == page.replace("old", "new \\1")
    with pytest.raises(ValueError, match="0 blocks"):
        replaced(page, "memory", "new")
