"""docs/performance.md has a block for every benchmark, and its bars are consistent."""

import csv
import re
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import report, streams
from benchmarks.report import PAGE, PARTS, Bar
from experiments.report import block, replaced


def test_the_page_has_one_block_for_each_benchmark() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"<!-- (\w+) -->", text) == ["machine", "bars", *PARTS]
    assert all(block(text, part) for part in PARTS)


def test_a_missed_bar_shows_by_how_much() -> None:
    bars = Bar("a", [17, 16], "≥", 15, "×"), Bar("b", [16, 12], "≥", 15, "×"), Bar("c", [3, 1], "≤", 2, "%")
    assert [bar.row("speed").split("|")[4].strip() for bar in bars] == ["yes", "no: 20% short", "no: 50% over"]


def test_a_table_names_its_machine_if_it_is_not_that_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- machine -->\nA\n<!-- /machine -->\n<!-- bars -->\n<!-- /bars -->\n<!-- start -->\n<!-- /start -->\n"
    )
    for name, expected in (("A", "| 1 |"), ("B", "| 1 |\n\nB")):
        monkeypatch.setattr(report, "machine", lambda name=name: name)
        report.publish("start", Namespace(page=page, smallest=True), ["| 1 |"], [Bar("a", [1], "≤", 2, "s")])
        assert block(page.read_text(), "start") == expected
        assert block(page.read_text(), "bars").splitlines()[2:] == ["| a | 1 s | ≤ 2 s | yes | `start` |"]


def test_the_accuracy_page_has_rows_of_the_csv_file() -> None:
    with streams.PAGE.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert tuple(head) == streams.HEAD
    shown, met = streams.on_page(rows), sum(row[-1] == "yes" for row in rows)
    assert len(shown) == len(streams.SHOWN) + 2
    found = block(streams.PAGE.read_text(encoding="utf-8"), "streams")
    assert found.startswith("\n".join([*shown, "", f"{met} of {len(rows)} rows meet their bar."]))


def test_only_the_block_is_replaced() -> None:
    page = "a\n<!-- speed -->\nold\n<!-- /speed -->\nb\n<!-- start -->\nkept\n<!-- /start -->\n"
    assert replaced(page, "speed", "new \\1") == page.replace("old", "new \\1")
    with pytest.raises(ValueError, match="0 blocks"):
        replaced(page, "memory", "new")
