"""The pages that show what was measured say what the results say."""

from benchmarks import all as everything
from benchmarks.bars import Bar, table


def test_the_page_is_made_of_the_results() -> None:
    assert everything.PAGE.read_text(encoding="utf-8") == everything.page()


def test_a_bar_that_is_missed_says_by_how_much() -> None:
    kept, short, over = Bar("p", "a", 16, "≥", 15, "×"), Bar("p", "b", 12, "≥", 15, "×"), Bar("p", "c", 3, "≤", 2, "%")
    assert [line.rsplit("|", 2)[1].strip() for line in table([kept, short, over]).splitlines()[2:]] == [
        "yes", "no: 20% short", "no: 50% over",
    ]  # fmt: skip
