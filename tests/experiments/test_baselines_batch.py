"""Batch PCA against scikit-learn, and batch EM against its objective."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from experiments.baselines.batch import Batch
from tests.experiments import em
from tests.pca.streams import gaussian

X = gaussian(0, 500, 1 / np.arange(1, 10.0), offset=3.0)
CENTRED = X - X.mean(axis=0)
BATCH = Batch.of(lambda: np.array_split(X, 7))
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("k", [1, 4, 8])
def test_batch_pca_equals_scikit_learn(k):
    theirs = PCA(k, svd_solver="full").fit(X)
    back = theirs.inverse_transform(theirs.transform(X))
    assert BATCH.loss(k) == pytest.approx(np.mean(np.sum((X - back) ** 2, axis=1)), rel=1e-9)
    assert BATCH.excess(theirs.components_, theirs.mean_) == pytest.approx(0, abs=1e-7)


@given(seeds, st.integers(1, 8), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_excess_is_that_of_the_mean_squared_residual(seed, k, center):
    random = np.random.default_rng(seed)
    components = np.linalg.qr(random.standard_normal((9, k)))[0].T
    batch, mean = Batch.of(lambda: [X[:100], X[100:]], center), random.standard_normal(9)
    if not center:
        mean = np.zeros(9)
    away = X - mean
    loss = np.mean(np.sum((away - away @ components.T @ components) ** 2, axis=1))
    assert batch.excess(components, mean) == pytest.approx(100 * (loss / batch.loss(k) - 1), rel=1e-9, abs=1e-9)
    assert batch.excess(components, mean) >= -1e-9


@given(seeds, st.integers(1, 9), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_each_em_step_minimises_given_the_coordinates_and_lowers_the_loss(seed: int, k: int, n: int) -> None:
    C = np.random.default_rng(seed).standard_normal((9, k))
    Y = CENTRED[:n]
    after = em.batch_step(C, Y)
    coordinates = np.linalg.lstsq(C, Y.T)[0]
    gradient = (after @ coordinates - Y.T) @ coordinates.T
    assert np.abs(gradient).max() <= 1e-8 * (1 + np.linalg.norm(coordinates) * np.linalg.norm(Y))
    before_loss = np.sum((Y.T - C @ coordinates) ** 2)
    after_loss = np.sum((Y.T - after @ np.linalg.lstsq(after, Y.T)[0]) ** 2)
    assert after_loss <= before_loss * (1 + 1e-9) + 1e-12


def test_em_converges_to_batch_pca() -> None:
    C = np.random.default_rng(1).standard_normal((9, 3))
    for _ in range(300):
        C = em.batch_step(C, CENTRED)
    Q = np.linalg.qr(C)[0]
    assert BATCH.excess(Q.T, BATCH.mean) == pytest.approx(0, abs=1e-9)
