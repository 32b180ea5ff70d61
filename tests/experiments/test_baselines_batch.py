"""Batch PCA against scikit-learn, and batch EM against its objective."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from experiments.baselines import batch, batch_em
from tests.pca.streams import close, gaussian

X = gaussian(0, 500, 1 / np.arange(1, 10.0), offset=3.0)
CENTRED = X - X.mean(axis=0)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_batch_pca_equals_scikit_learn(k: int) -> None:
    theirs = PCA(k, svd_solver="full").fit(X)
    for ours in (batch.components(X, k), batch.components_of(np.cov(X, rowvar=False), k)):
        signs = np.sign((ours * theirs.components_).sum(axis=1))
        assert ours * signs[:, None] == pytest.approx(theirs.components_, abs=1e-9)
    back = theirs.inverse_transform(theirs.transform(X))
    loss = np.mean(np.sum((X - back) ** 2, axis=1))
    cov = batch.covariance(X)
    assert batch.loss(X, theirs.components_.T) == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert batch.loss_of(cov, theirs.components_.T) == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert batch.least_loss(cov, k) == pytest.approx(loss, rel=1e-9, abs=1e-12)


@given(seeds, st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_the_loss_depends_on_the_span_only(seed: int, k: int) -> None:
    C = np.random.default_rng(seed).standard_normal((9, k))
    residuals = CENTRED.T - C @ np.linalg.lstsq(C, CENTRED.T)[0]
    expected = np.mean(np.sum(residuals**2, axis=0))
    assert batch.loss(X, C) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert batch.loss_of(batch.covariance(X), C) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert expected >= batch.least_loss(batch.covariance(X), k) * (1 - 1e-12) - 1e-12


def test_bytes_and_many_rows_give_the_same_as_floats() -> None:
    bytes_ = np.random.default_rng(0).integers(0, 256, (9000, 3)).astype(np.uint8)
    floats = bytes_.astype(np.float64)
    assert close(batch.covariance(bytes_), np.cov(floats, rowvar=False, ddof=0), 1e-12)
    C = np.array([[1.0], [2.0], [0.0]])
    assert batch.loss(bytes_, C) == pytest.approx(batch.loss(floats, C), rel=1e-12)


@given(seeds, st.integers(1, 9), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_each_em_step_minimises_given_the_coordinates_and_lowers_the_loss(seed: int, k: int, n: int) -> None:
    C = np.random.default_rng(seed).standard_normal((9, k))
    Y = CENTRED[:n]
    after = batch_em.step(C, Y)
    coordinates = np.linalg.lstsq(C, Y.T)[0]
    gradient = (after @ coordinates - Y.T) @ coordinates.T
    assert np.abs(gradient).max() <= 1e-8 * (1 + np.linalg.norm(coordinates) * np.linalg.norm(Y))
    before_loss = np.sum((Y.T - C @ coordinates) ** 2)
    after_loss = np.sum((Y.T - after @ np.linalg.lstsq(after, Y.T)[0]) ** 2)
    assert after_loss <= before_loss * (1 + 1e-9) + 1e-12


def test_em_converges_to_batch_pca() -> None:
    C = np.random.default_rng(1).standard_normal((9, 3))
    for _ in range(300):
        C = batch_em.step(C, CENTRED)
    components = batch.components(X, 3)
    assert close(C @ np.linalg.pinv(C), components.T @ components, 1e-9)
