"""Whatever has been learned or merged can be saved, published, read again and learned from.

A check that refuses such a state ends the worker at its save, and again at each of its starts.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.fold import checkpoint as checkpoints, model_file as models
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger, MergedFold
from streampca.formats.judge import Judge
from streampca.pca.arrays import F64, Array
from streampca.pca.past_scores import PastScores
from tests.fold.streams import bits, fold_config, learn

Random = np.random.Generator
N = 500

STREAMS: dict[str, Callable[[Random, int], F64]] = {
    "pairs": lambda random, d: np.repeat(random.standard_normal((N, d)), 2, axis=1)[:, :d],
    "triples with heavy tails": lambda random, d: (
        np.repeat(random.standard_t(3, (N, d)), 3, axis=1)[:, :d] + 0.1 * random.standard_normal((N, d))
    ),
    "exact linear relations": lambda random, d: random.standard_normal((N, 2)) @ random.standard_normal((2, d)),
    "constant entries": lambda random, d: 1e3 + random.standard_normal((N, d)) * (np.arange(d) % 2),
    "a constant": lambda random, d: np.tile(1e3 * random.standard_normal(d), (N, 1)),
    "unequal scales": lambda random, d: random.standard_normal((N, d)) * np.logspace(-9, 9, d),
    "without moments": lambda random, d: random.standard_cauchy((N, d)),
    "mostly zeros": lambda random, d: random.standard_normal((N, d)) * (random.random((N, d)) < 0.02),
}
GAPS: dict[str, Callable[[Random, F64], F64]] = {
    "none": lambda random, V: V,
    "5 %": lambda random, V: np.where(random.random(V.shape) < 0.05, np.nan, V),
    "50 %": lambda random, V: np.where(random.random(V.shape) < 0.5, np.nan, V),
    "late": lambda random, V: np.where(_of_first_entries(V) & (_rows(V) < N // 3), np.nan, V),
    "dying": lambda random, V: np.where(_of_first_entries(V) & (_rows(V) > N // 3), np.nan, V),
    "never": lambda random, V: np.where(_of_first_entries(V), np.nan, V),
    "once": lambda random, V: np.where(_of_first_entries(V) & (_rows(V) != N // 2), np.nan, V),
    "never together": lambda random, V: np.where(_of_first_entries(V) == (_rows(V) % 2 == 0), np.nan, V),
}
SCALES = {"float64": [1.0, 1e-150, 1e-155, 1e-300, 1e140, 1e150], "float32": [1.0, 1e-15, 1e-19, 1e-30, 1e15]}


def _rows(V: F64) -> Array:
    return np.arange(len(V))[:, None]


def _of_first_entries(V: F64) -> Any:
    """A third of the entries, but never all."""
    return np.arange(V.shape[1]) < V.shape[1] // 3


def assert_saved(fold: Fold, config: FoldConfig) -> None:
    """The fold can be saved, and its model published."""
    data = bits(fold, config)
    assert checkpoints.encode(checkpoints.decode(data)) == data
    if fold.stats.learned > 1:
        published = MergedFold.from_fold(fold, config).make_published_model(config, PastScores.empty(), 1.0)
        models.decode(models.encode(published))


def take_all(fold: Fold, V: Array, config: FoldConfig) -> Fold:
    return learn(fold, V, [-1] * len(V), max(fold.position, 0) + len(V), config)[0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, FoldConfig]:
    d, dtype = draw(st.sampled_from([1, 2, 3, 7, 12])), draw(st.sampled_from(["float64", "float64", "float32"]))
    standardize = draw(st.booleans())
    gaps = draw(st.sampled_from(sorted(GAPS)))
    config = fold_config(
        half_life_messages=draw(st.sampled_from([None, None, 5.0, 300.0])),
        dimensions=d,
        components=draw(st.sampled_from([1, min(2, d), d])),
        dtype=dtype,
        standardize=standardize,
        center=standardize or draw(st.booleans()),
        impute=gaps != "none",
        factor=draw(st.sampled_from([False, False, True])),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    V = STREAMS[draw(st.sampled_from(sorted(STREAMS)))](random, d) * draw(st.sampled_from(SCALES[dtype]))
    limit = config.learning.largest_value
    V = GAPS[gaps](random, np.clip(V, -limit, limit))
    V[np.isnan(V).all(axis=1), -1] = 0.0
    return V.astype(dtype), config


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_whatever_is_learned_or_merged_can_be_saved(case: tuple[Array, FoldConfig]) -> None:
    V, config = case
    fold = Fold.empty(config.learning)
    for part in np.split(V, [7, 20, 21, 300]):
        fold = take_all(fold, part, config)
        assert_saved(fold, config)
    merger = FoldMerger(config)
    for part in np.array_split(V, 5):
        merger.append(take_all(Fold.empty(config.learning), part, config))
    merged = merger.make_fold(N)
    assert_saved(merged, config)
    assert_saved(take_all(merged, V[:300], config), config)


CORRELATED: dict[str, tuple[Callable[[Random], F64], float, float]] = {
    "triples with heavy tails": (lambda random: np.repeat(random.standard_t(3, (1500, 20)), 3, axis=1), 0.05, 0.1),
    "pairs": (lambda random: np.repeat(random.standard_normal((1500, 30)), 2, axis=1), 0.2, 0.5),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", CORRELATED)
def test_correlations_outside_the_components_are_at_most_1(kind: str, seed: int) -> None:
    """The gaps of such streams made correlations above 1, which a save refused."""
    draw, fewest, most = CORRELATED[kind]
    random = np.random.default_rng(seed)
    common = draw(random)
    V = common + 0.1 * random.standard_normal(common.shape)
    V = np.where(random.random(V.shape) < random.uniform(fewest, most), np.nan, V)
    config = fold_config(dimensions=60, components=3, oversampling=None, warm_up=None, impute=True)
    fold = Fold.empty(config.learning)
    for part in np.array_split(V, 6):
        fold = take_all(fold, part, config)
        assert_saved(fold, config)
        if fold.state.covariance is not None:
            variances = fold.state.entry_variances
            lower = np.tril_indices(60)
            largest = np.sqrt(np.outer(variances, variances))[lower]
            assert (np.abs(fold.state.covariance) <= largest * (1 + 1e-9)).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("d", range(1, 30, 4))
def test_the_largest_vectors_that_are_accepted_can_be_saved(dtype: str, d: int) -> None:
    """In float32 the largest number is rounded when it becomes pending, perhaps upwards."""
    config = fold_config(dimensions=d, components=1, oversampling=0, dtype=dtype)
    largest = config.learning.largest_value
    V = largest * np.where(np.random.default_rng(d).random((60, d)) < 0.5, -1.0, 1.0)
    assert Judge.of(config.learning).first_bad(V) is None
    fold = Fold.empty(config.learning)
    for row in V:
        fold = take_all(fold, row[None].astype(dtype), config)
    for part in (V[:7], V[:30], V):
        assert_saved(take_all(Fold.empty(config.learning), part.astype(dtype), config), config)
    assert_saved(fold, config)
