"""The committed page is up to date with the committed CSV files."""

import re

from experiments import page
from experiments.plan import FOLDER


def test_page_is_up_to_date():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(FOLDER), "run python -m experiments.page"


def test_pictures_exist_and_are_small():
    names = re.findall(r"\]\(\.\./experiments/results/([^)]+)\)", page.PAGE.read_text(encoding="utf-8"))
    assert names
    for name in names:
        assert 0 < (FOLDER / name).stat().st_size < 300_000, name
