"""Every experiment runs, resumes after an interruption, and makes its tables, which are those of the pages."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from experiments import ablation, all as experiments, anomalies, methods, passes, rate
from experiments.plan import FOLDER, Plan
from experiments.report import block
from tests.test_imports import names_imported


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of all experiments: several need the same runs."""
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("name", experiments.EXPERIMENTS)
def test_runs_and_resumes(name, plan, folder, monkeypatch):
    experiment, plan = experiments.EXPERIMENTS[name], replace(plan, folder=folder)
    monkeypatch.setattr("matplotlib.figure.Figure.tight_layout", lambda *_, **__: None)  # takes longer than the runs
    experiment.run(plan)
    before = {path.name: path.read_bytes() for path in plan.folder.iterdir()}
    experiment.run(plan)
    assert {path.name: path.read_bytes() for path in plan.folder.iterdir()} == before, "nothing was left to run"
    assert all(b"<svg" in content for name, content in before.items() if name.endswith(".svg"))
    for lines in experiment.blocks(plan).values():
        assert any(line.startswith("|---") for line in lines)
        assert "nan" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("folder", "forbidden"), [("experiments", ("benchmarks",)), ("streampca", ("benchmarks", "experiments"))]
)
def test_nothing_imports_benchmarks_nor_the_package_experiments(folder, forbidden):
    for path in (FOLDER.parents[1] / folder).rglob("*.py"):
        names = names_imported(path.read_text(encoding="utf-8"))
        assert [name for name in names if name.split(".")[0] in forbidden] == [], path


def test_foreign_pictures_have_small_p_values(plan, folder):
    plan = replace(plan, folder=folder)
    anomalies.run(plan)
    rows = anomalies.results(plan).rows(stream="clean", statistic="score")
    assert {row["kind"]: float(row["auc"]) > 0.9 for row in rows} == {
        "digits": False, "upside down": True, "two white lines": True, "photographs": True,
    }  # fmt: skip
    chance = np.random.default_rng(0)
    foreign, ordinary = chance.integers(0, 20, 300) / 20, chance.integers(5, 30, 200) / 20
    expected = roc_auc_score(np.repeat([1, 0], [300, 200]), -np.concatenate([foreign, ordinary]))
    assert anomalies.auc(foreign, ordinary) == pytest.approx(expected)


def test_chosen_has_the_least_mean_loss_of_the_finalists(tmp_path):
    results = passes.validations(Plan({}, tmp_path))
    for eta0, seed, loss in [(0.1, 0, 5), (1.0, 0, 1), (3.0, 0, 2), (10.0, 0, 3), (1.0, 1, 9), (3.0, 1, 2.1)]:
        results.append(("mnist", 5, "oja", eta0, seed), (loss,))
    assert passes.finalists(results, "mnist", 5, "oja") == [1.0, 3.0, 10.0]
    assert passes.chosen(results, "mnist", 5, "oja") == 3.0


@pytest.mark.parametrize("q", [0.1, 0.5, 0.8])
def test_the_predicted_rate_solves_its_recursion(q):
    """E ε² ← (1 − a/t)² E ε² + q/t², from batch PCA of the first block on."""
    a, t0, end = 1 - q, methods.WARM_UP, 20_000
    error = q / (t0 * a**2)
    for t in range(t0 + 1, end + 1):
        error = (1 - a / t) ** 2 * error + q / t**2
    ours, batch = rate.predicted(np.array([1, q]), 1, 1, end)
    assert ours == pytest.approx(100 * a * error / q, rel=0.01)
    assert batch == pytest.approx(100 / (a * end))
    assert rate.predicted(np.array([1, 0.9, q]), 1, 2, end)[0] > batch, "a spare column changes the pair that counts"


def test_the_unit_gauge_with_all_columns_is_the_second_moment():
    Y, way = np.random.default_rng(0).standard_normal((300, 6)), methods.method("gauge", 6)
    state = way.start(np.eye(6))
    for part in passes.in_blocks(Y):
        state = way.learn(state, part)
    assert np.allclose(state[0] @ state[0].T, Y.T @ Y / len(Y), rtol=1e-9, atol=1e-12)


def test_batch_pca_with_a_half_life_weights_the_rows():
    X = np.random.default_rng(0).standard_normal((90, 4))
    batch, weights = ablation.weighted(X.__getitem__, np.arange(90), "10"), 0.5 ** (np.arange(90)[::-1] / 10)
    assert np.allclose(batch.covariance, np.cov(X.T, aweights=weights, bias=True))
    assert np.allclose(batch.mean, np.average(X, axis=0, weights=weights))


def test_loss_from_the_covariance_is_the_mean_squared_residual(plan):
    data = plan.data["mnist"]
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((data.d, 5)))[0]
    Y = data.centred(np.arange(len(data.X)))
    assert data.loss(basis) == pytest.approx(np.mean(np.sum((Y - Y @ basis @ basis.T) ** 2, axis=1)))
    best = np.linalg.eigh(data.batch.covariance)[1][:, -5:]
    assert data.excess(best) == pytest.approx(0, abs=1e-9)


def test_pages_are_up_to_date():
    for name, lines in experiments.blocks(Plan({})).items():
        page = experiments.page_with(name).read_text(encoding="utf-8")
        assert block(page, name) == "\n".join(lines), f"{name}: run python -m experiments.all"


def test_pictures_exist_and_are_small():
    names = re.findall(r"\]\(results/([^)]+\.svg)\)", (FOLDER.parent / "README.md").read_text(encoding="utf-8"))
    assert names
    for name in names:
        assert 0 < (FOLDER / name).stat().st_size < 300_000, name
