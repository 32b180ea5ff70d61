"""The figures of messages with gaps run at their smallest size, and the page has those of the whole run."""

from experiments import gaps
from experiments.gaps import PAGE
from experiments.plan import FOLDER, Plan


def test_runs_and_resumes(plan, monkeypatch):
    monkeypatch.setattr(gaps, "COMPONENTS", (2,))
    gaps.main(plan)
    before = gaps.results(plan).path.read_bytes()
    gaps.main(plan)
    assert gaps.results(plan).path.read_bytes() == before
    assert len(gaps.results(plan).rows()) == 2 * len(gaps.GAPS)
    assert len(gaps.section(plan)) == 2 + len(gaps.GAPS)


def test_the_page_is_up_to_date():
    assert "\n".join(gaps.section(Plan({}, FOLDER))) in PAGE.read_text(encoding="utf-8")


def test_gaps_at_random_cost_little():
    def excess(gaps_, k, filled="impute"):
        return gaps.results(Plan({})).numbers("excess", gaps=gaps_, k=k, filled=filled)[0]

    assert excess("30 % at random", 20) <= 0.05
    assert excess("30 % at random", 5) <= 0.01
    for k in gaps.COMPONENTS:
        assert excess("30 % at random", k) < 0.7 * excess("30 % at random", k, "mean")
