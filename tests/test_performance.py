"""docs/performance.md has a block for every benchmark, and its bars are consistent."""

import re

import pytest

from benchmarks.report import PAGE, PARTS, Bar, block, replaced


def test_the_page_has_one_block_for_each_benchmark() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"<!-- (\w+) -->", text) == ["bars", *PARTS]
    assert all(block(text, part) for part in PARTS)


def test_the_bars_agree_with_their_verdicts() -> None:
    rows = block(PAGE.read_text(encoding="utf-8"), "bars").splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        metric, measured, bar, _, part = (cell.strip() for cell in row.strip("|").split("|"))
        sign, limit = bar.split(" ", 1)
        assert part.strip("`") in PARTS
        assert Bar(metric, _number(measured), sign, _number(limit), _unit(limit)).row(part.strip("`")) == row


def _number(text: str) -> float:
    found = re.match(r"-?[\d.,]+(e[+-]?\d+)?", text)
    assert found
    return float(found[0].replace(",", ""))


def _unit(text: str) -> str:
    return re.sub(r"^-?[\d.,]+(e[+-]?\d+)?", "", text).strip()


def test_a_missed_bar_shows_by_how_much() -> None:
    bars = Bar("a", 16, "≥", 15, "×"), Bar("b", 12, "≥", 15, "×"), Bar("c", 3, "≤", 2, "%")
    assert [bar.row("speed").split("|")[4].strip() for bar in bars] == ["yes", "no: 20% short", "no: 50% over"]


def test_only_the_block_is_replaced() -> None:
    page = "a\n<!-- speed -->\nold\n<!-- /speed -->\nb\n<!-- start -->\nkept\n<!-- /start -->\n"
    assert replaced(page, "speed", "new \\1") == page.replace("old", "new \\1")
    with pytest.raises(ValueError, match="0 blocks"):
        replaced(page, "memory", "new")
