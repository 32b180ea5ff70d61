"""The example of docs/anomalies.md runs at its smallest size."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from experiments import anomalies


def test_runs_and_resumes(plan):
    small = replace(plan, sizes={"every": 40})
    anomalies.main(small)
    path = small.folder / "anomalies.csv"
    before = path.read_bytes()
    anomalies.main(small)
    assert path.read_bytes() == before
    assert b"<svg" in (small.folder / "anomalies.svg").read_bytes()
    rows = anomalies.results(small).rows(stream="clean", statistic="score")
    assert {row["kind"]: float(row["auc"]) > 0.9 for row in rows} == {
        "digits": False, "upside down": True, "two white lines": True, "photographs": True,
    }  # fmt: skip
    text = "\n".join(anomalies.section(small.folder))
    assert text.count("| digits |") == 6
    assert "nan" not in text


def test_area_under_the_curve():
    chance = np.random.default_rng(0)
    foreign, ordinary = chance.integers(0, 20, 300) / 20, chance.integers(5, 30, 200) / 20
    labels = np.repeat([1, 0], [300, 200])
    expected = roc_auc_score(labels, -np.concatenate([foreign, ordinary]))
    assert anomalies.auc(foreign, ordinary) == pytest.approx(expected)


def test_the_page_is_up_to_date():
    assert "\n".join(anomalies.section(anomalies.FOLDER)) in anomalies.PAGE.read_text(encoding="utf-8")
