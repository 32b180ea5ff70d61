"""The pages are up to date with the committed CSV files, and these with the step sizes that were chosen."""

import re
from functools import cache

import pytest

from experiments import distributed, figure1, partitions, passes
from experiments.all import blocks, page_with
from experiments.methods import TUNED
from experiments.plan import FOLDER, Plan
from experiments.report import DOCS, block

PLAN = Plan({})


def test_pages_are_up_to_date():
    for name, lines in blocks(PLAN).items():
        page = page_with(name).read_text(encoding="utf-8")
        assert block(page, name) == "\n".join(lines), f"{name}: run python -m experiments.all"


def test_pictures_exist_and_are_small():
    names = re.findall(
        r"\]\(\.\./experiments/results/([^)]+\.svg)\)", (DOCS / "experiments.md").read_text(encoding="utf-8")
    )
    assert names
    for name in names:
        assert 0 < (FOLDER / name).stat().st_size < 300_000, name


TUNED_RUNS = [
    (passes.passes, lambda row: row["method"] in TUNED),
    (distributed.runs, lambda row: row["method"].removesuffix(distributed.LAPACK) in TUNED),
    (partitions.runs, lambda row: row["way"].startswith("average")),
]


@pytest.mark.parametrize(("results", "tuned"), TUNED_RUNS, ids=["table 1", "ten machines", "partitions"])
def test_runs_have_the_step_size_that_validation_chose(results, tuned):
    rows = [row for row in results(PLAN).rows() if tuned(row)]
    assert rows
    for row in rows:
        method = row.get("method", "implicit").removesuffix(distributed.LAPACK)
        expected = chosen(row["data"], row["k"], method) * float(row.get("scale", 1))
        assert float(row["eta0"]) == pytest.approx(expected), row


VALIDATED = sorted({(row["data"], row["k"], row["method"]) for row in passes.validations(PLAN).rows()})


def test_every_method_of_the_paper_is_validated_in_every_setting():
    methods = [method for method in TUNED if method != "explicit"]  # not in the paper's table or figure
    assert {(data, str(k), method) for data, k in figure1.SETTINGS for method in methods} <= set(VALIDATED)


@pytest.mark.parametrize(("data", "k", "method"), VALIDATED)
def test_the_chosen_step_size_lies_inside_the_grid(data, k, method):
    grid = passes.grid(method)
    assert grid[0] < chosen(data, k, method) < grid[-1]


@cache
def chosen(data, k, method):
    return passes.chosen(passes.validations(PLAN), data, k, method)
