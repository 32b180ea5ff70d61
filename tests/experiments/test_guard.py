"""The example of the guard in docs/anomalies.md runs at its smallest size."""

from experiments import guard
from experiments.anomalies import PAGE
from experiments.plan import FOLDER, Plan


def test_runs_and_resumes(plan, monkeypatch):
    monkeypatch.setattr(guard, "LEVELS", (0.0, 0.005))
    guard.main(plan)
    before = guard.results(plan).path.read_bytes()
    guard.main(plan)
    assert guard.results(plan).path.read_bytes() == before
    assert [(row["stream"], row["outlier_p"]) for row in guard.results(plan).rows()] == [
        ("clean", "0.0"), ("clean", "0.005"), ("1 % foreign", "0.0"), ("1 % foreign", "0.005")
    ]  # fmt: skip
    assert {int(row["foreign"]) <= int(row["of"]) <= 10 for row in guard.results(plan).rows()} == {True}
    assert len(guard.section(plan)) == 6


def test_the_page_is_up_to_date():
    assert "\n".join(guard.section(Plan({}, FOLDER))) in PAGE.read_text(encoding="utf-8")


def test_the_guard_takes_most_of_the_excess_away():
    excess = {(row["stream"], row["outlier_p"]): float(row["excess"]) for row in guard.results(Plan({})).rows()}
    assert excess["1 % foreign", "0.001"] < 0.4 * excess["1 % foreign", "0.0"]
    assert excess["1 % foreign", "0.005"] < 0.15 * excess["1 % foreign", "0.0"]
