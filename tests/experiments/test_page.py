"""The page that is committed is the one that the committed CSV files make."""

import re

from experiments import page
from experiments.plan import FOLDER


def test_page_follows_the_results():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(FOLDER), "run python -m experiments.page"


def test_pictures_are_there_and_small():
    names = re.findall(r"\]\(\.\./experiments/results/([^)]+)\)", page.PAGE.read_text(encoding="utf-8"))
    assert names
    for name in names:
        assert 0 < (FOLDER / name).stat().st_size < 300_000, name
