"""Batch PCA against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from experiments.baselines.batch import Batch
from tests.pca.streams import gaussian

X = gaussian(0, 500, 1 / np.arange(1, 10.0), offset=3.0)
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
