"""A dimension with more than 90 % of the total variance is named, and no other."""

from dataclasses import replace

import numpy as np
import pytest

from streampca.fold.dominance import describe_dominant_dimension, describe_dominant_variance
from streampca.fold.merging import MergedFold
from streampca.fold.model_file import PublishedModel
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from tests.example_models import numbered
from tests.fold.streams import fold_config, make_fold

NAMES = ["serial", "temp", "hum"]


def publish(variances: list[float], k: int = 1, **changes: object) -> PublishedModel:
    """A model of uncorrelated dimensions, largest variance first, with `k` components."""
    d = len(variances)
    model = Model(
        components=np.eye(d)[:k],
        explained_variance=np.array(variances[:k]),
        mean=np.zeros(d),
        total_variance=sum(variances),
        weight=100.0,
    )
    return replace(numbered(7), model=replace(model, **changes), names=NAMES if d == 3 else None)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_dimension_is_named_whatever_the_number_of_components(k: int) -> None:
    text = describe_dominant_dimension(publish([95.0, 3.0, 2.0], k))
    assert text.startswith("dimension serial has 95.00% of the total variance")
    assert "standardize" in text


def test_a_dimension_without_a_name_is_named_by_its_number() -> None:
    variances = np.array([1.0, 1.0, 98.0, 0.0])
    assert "dimension 2 (counted from 0) has 98.00%" in describe_dominant_variance(variances, 100.0, 100, None)


@pytest.mark.parametrize(
    "variances",
    [[5.0], [1.0, 1.0], [1.0, 1.0, 1.0], [9.0, 0.5, 0.5], [90.0, 10.0], [0.0, 0.0, 0.0], [np.inf, 1.0, 1.0]],
)
def test_nothing_is_said_where_no_dimension_has_more(variances: list[float]) -> None:
    """One dimension alone, equal ones, exactly 90 %, no variance, and variances that overflow."""
    total = float(sum(variances))
    assert describe_dominant_variance(np.array(variances), total, 100, None) == ""


def test_just_more_than_90_percent_is_enough() -> None:
    assert describe_dominant_variance(np.array([9.0, 0.999]), 9.999, 100, None)


def test_few_vectors_say_nothing() -> None:
    variances = np.array([99.0, 1.0])
    assert describe_dominant_variance(variances, 100.0, 29, None) == ""
    assert describe_dominant_variance(variances, 100.0, 30, None)
    assert describe_dominant_dimension(publish([99.0, 1.0], weight=29.0)) == ""


def test_a_standardised_model_is_never_warned_of() -> None:
    """Even if all other dimensions are constant, so that one has the whole variance."""
    assert describe_dominant_dimension(publish([1.0, 0.0, 0.0]))
    assert describe_dominant_dimension(publish([1.0, 0.0, 0.0], scale=np.ones(3))) == ""


@pytest.mark.parametrize("impute", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
def test_what_is_learned_of_ids_beside_measurements_is_named(impute: bool, standardize: bool) -> None:
    random = np.random.default_rng(0)
    V = random.standard_normal((500, 3)) * [1e6, 2.0, 1.0]
    if impute:
        V[random.random(V.shape) < 0.2] = np.nan
        V = V[np.isfinite(V).any(axis=1)]
    config = fold_config(dimensions=3, components=1, impute=impute, standardize=standardize)
    merged = MergedFold.from_fold(make_fold(V, config), config)
    published = merged.make_published_model(config, PastScores.empty(), 0.0)
    assert ("dimension 0 (counted from 0) has 100.00%" in describe_dominant_dimension(published)) == (not standardize)
