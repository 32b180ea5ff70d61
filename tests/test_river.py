"""The adapter for river: river's own checks, the bits of the estimator, a pipeline."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river.checks import yield_checks
from river.compose import Pipeline
from river.linear_model import LinearRegression
from river.preprocessing import StandardScaler

from streampca import StreamingPCA
from streampca.river import RiverPCA
from tests.pca.streams import gaussian

X = pd.DataFrame(gaussian(0, 600, 1 / np.arange(1, 7.0), offset=2.0), columns=list("fbdace"))
ROWS: list[dict[Any, float]] = X.to_dict("records")
SKIPPED = {  # river's models take any row; ours refuses one that lacks too many features to be filled
    "check_emerging_features", "check_radically_disappearing_features", "check_learn_many_matches_learn_one",
}  # fmt: skip
CHECKS = [check for check in yield_checks(RiverPCA(2)) if check.__name__ not in SKIPPED]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_rivers_checks(check: Callable[[RiverPCA], None]) -> None:
    check(RiverPCA(2, missing="impute").clone())


@pytest.mark.parametrize("options", [{}, {"half_life": 50.0, "whiten": True}])
def test_rows_one_by_one_and_tables_give_the_bits_of_the_estimator(options: dict[str, Any]) -> None:
    ones, tables = RiverPCA(2, **options), RiverPCA(2, **options)
    for row in ROWS:
        ones.learn_one(row)
    for start in range(0, len(X), 70):
        tables.learn_many(X[start : start + 70])
    V = X[sorted(X.columns)].to_numpy()
    of_arrays = StreamingPCA(2, **options).fit(V).transform(V)
    for pca in (ones, tables):
        coordinates = pca.transform_many(X[::-1])
        assert coordinates.index.equals(X.index[::-1])
        assert list(coordinates.columns) == list(pca.transform_one(ROWS[0])) == ["streamingpca0", "streamingpca1"]
        assert np.array_equal(coordinates[::-1], of_arrays)
        assert list(pca.transform_one(ROWS[7]).values()) == pytest.approx(of_arrays[7], rel=1e-12)


def test_features_are_those_of_the_first_row() -> None:
    pca = RiverPCA(1, missing="impute")
    assert pca.transform_one(ROWS[0]) == {}
    assert pca.transform_many(X).shape == (600, 0)
    pca.learn_many(X)
    with_others = {"later": 1.0, **dict(reversed(ROWS[0].items()))}
    assert pca.transform_one(with_others) == pca.transform_one(ROWS[0])
    lacking = {name: value for name, value in ROWS[0].items() if name != "f"}
    assert pca.transform_one(lacking) == pca.transform_one({**lacking, "f": np.nan})
    strict = RiverPCA(1)
    strict.learn_many(X)
    with pytest.raises(ValueError, match='missing="impute"'):
        strict.transform_one(lacking)
    assert pca.clone().transform_one(ROWS[0]) == {}  # parameters without what was learned


def test_the_repr_is_the_call_that_makes_it() -> None:
    pca = RiverPCA(2, standardize=True, missing="impute")
    assert repr(pca) == "RiverPCA(n_components=2, standardize=True, missing='impute')"
    assert repr(pca.clone()) == repr(pca)
    assert repr(RiverPCA()) == "RiverPCA(n_components=None)"


@pytest.mark.parametrize("value", ["high", [1.0], {"a": 1}])
def test_the_error_of_a_value_that_is_no_number_names_the_feature(value: Any) -> None:
    pca = RiverPCA(2, missing="impute")
    row = {**ROWS[0], "c": value}
    with pytest.raises(ValueError, match="feature 'c' is not a number"):
        pca.learn_one(row)
    pca.learn_many(X)
    for use in (pca.learn_one, pca.transform_one):
        with pytest.raises(ValueError, match="feature 'c' is not a number"):
            use(row)
    table = pd.DataFrame([ROWS[1], row])
    for use_many in (pca.learn_many, pca.transform_many):
        with pytest.raises(ValueError, match="feature 'c' is not a number"):
            use_many(table)


def test_a_further_feature_may_be_a_text_and_a_value_may_be_none() -> None:
    pca = RiverPCA(2, missing="impute")
    pca.learn_many(X)
    text_beside = {"device": "pump-7", **ROWS[0]}
    assert pca.transform_one(text_beside) == pca.transform_one(ROWS[0])
    pca.learn_one(text_beside)
    assert pca.transform_one({**ROWS[0], "c": None}) == pca.transform_one({**ROWS[0], "c": np.nan})


@pytest.mark.parametrize("package", ["pandas", "river"])
def test_an_import_without_its_packages_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "streampca.river")
    if package == "river":
        monkeypatch.setitem(sys.modules, "river.base", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[river\]'"):
        importlib.import_module("streampca.river")


def test_a_pipeline_predicts_from_the_coordinates() -> None:
    model: Any = Pipeline(StandardScaler(), RiverPCA(6), LinearRegression())
    targets, errors = X["f"] - X["b"], []
    for row, y in zip(ROWS, targets, strict=True):
        errors.append(abs(model.predict_one(row) - y))
        model.learn_one(row, y)
    assert np.mean(errors[-100:]) < 0.2 * np.mean(np.abs(targets - targets.mean()))
    predicted = model.predict_many(X[-100:])
    assert predicted.to_numpy() == pytest.approx([model.predict_one(row) for row in ROWS[-100:]], rel=1e-6)


@pytest.mark.parametrize("null", [None, np.nan, pd.NA, pd.NaT])
def test_any_null_is_missing(null: object) -> None:
    pca = RiverPCA(1, missing="impute")
    pca.learn_many(X)
    row = {**ROWS[0], "f": np.nan}
    assert pca.transform_one({**row, "f": null}) == pca.transform_one(row)
    pca.learn_one({**row, "f": null})
    pca.learn_many(X.astype(object).assign(f=null))
