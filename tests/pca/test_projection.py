"""T², SPE, score, contributions and filled entries agree with their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca.arrays import F64
from streampca.pca.model import Model
from tests.pca.streams import batch_pca, gaussian as gaussian_along, with_gaps

D, K = 7, 3
SPECTRUM = np.array([5, 4, 3, 1, 1, 0.7, 0.5])


def gaussian(n: int, seed: int) -> F64:
    return gaussian_along(seed, n, SPECTRUM, offset=3.0)


@given(st.integers(0, 100), st.sampled_from([np.float64, np.float32]))
def test_the_score_is_the_log_likelihood_of_probabilistic_pca(seed: int, dtype: type) -> None:
    X = gaussian(300, seed)
    model = batch_pca(X, K)
    model = Model(*(a.astype(dtype) for a in (model.components, model.explained_variance, model.mean)),
                  model.total_variance, model.weight)  # fmt: skip
    sigma2, U = model.noise_variance, model.components.astype(np.float64)
    covariance = U.T @ np.diag(model.explained_variance - sigma2) @ U + sigma2 * np.eye(D)
    Y = X - model.mean
    mahalanobis = np.einsum("ni,ij,nj->n", Y, np.linalg.inv(covariance), Y)
    t2, spe, both = model.project(X).scores
    np.testing.assert_allclose(both, mahalanobis, rtol=1e-9 if dtype is np.float64 else 1e-3)
    if dtype is np.float64:
        assert t2.mean() == pytest.approx(K)
        assert spe.mean() == pytest.approx(model.total_variance - model.explained_variance.sum())
        assert both.mean() == pytest.approx(D)


@given(st.integers(0, 100))
def test_contributions_of_all_dimensions_sum_to_the_scores(seed: int) -> None:
    X = gaussian(50, seed)
    projected = batch_pca(X, K).project(X)
    every, (of_t2, of_spe) = projected.contributions(D)
    assert (np.sort(every, axis=2) == np.arange(D)).all()
    np.testing.assert_allclose(of_t2.sum(axis=1), projected.scores.t2, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(np.abs(of_spe).sum(axis=1), projected.residual, rtol=1e-8, atol=1e-10)
    which, largest = projected.contributions(2)
    assert np.array_equal(which, every[:, :, :2])
    for values, parts in zip(largest, (of_t2, of_spe), strict=True):
        assert np.array_equal(values, parts[:, :2])
        assert np.array_equal(np.abs(parts), np.sort(np.abs(parts), axis=1)[:, ::-1])


def test_the_sensor_that_fails_contributes_most() -> None:
    X = gaussian(500, 1)
    broken = X[:1].copy()
    broken[0, 4] -= 50
    which, values = batch_pca(X, K).project(broken).contributions(1)
    assert which.ravel().tolist() == [4, 4]
    assert values.spe[0, 0] < 0 < values.t2[0, 0]


@pytest.mark.parametrize(("k", "rank"), [(3, 2), (3, 3), (D, D)])
def test_a_direction_without_variance_is_very_unusual_and_rounding_is_not(k: int, rank: int) -> None:
    chance = np.random.default_rng(0)
    X = chance.standard_normal((100, rank)) @ chance.standard_normal((rank, D))
    model = batch_pca(X, k)
    assert model.project(X).scores.score.max() < 1000
    if rank < D:
        outside = X[:1] + 1e-3 * np.linalg.svd(X)[2][-1]
        assert model.project(outside).scores.score[0] > 1e6


def test_scores_of_a_constant_stream_are_finite() -> None:
    model = Model(np.eye(2, 3), np.zeros(2), np.ones(3), 0.0, 10.0)
    ordinary, odd = model.project(np.array([np.ones(3), np.zeros(3)])).scores.score
    assert ordinary == 0
    assert odd > 1e100


# Vectors that lack entries are filled and scored as the Gaussian of probabilistic PCA says, by dense formulas.


VARIANCE, NOISE = np.array([5.0, 2.0, 1.0]), 0.2


def random_model(seed: int) -> Model:
    random = np.random.default_rng(seed)
    U = np.linalg.qr(random.standard_normal((D, K)))[0].T
    total = float(VARIANCE.sum() + (D - K) * NOISE)
    return Model(U, VARIANCE, random.standard_normal(D), total, 1000.0)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.5))
@settings(max_examples=30, deadline=None)
def test_filled_vectors_and_their_statistics_are_expected_values(seed: int, share: float) -> None:
    model = random_model(seed)
    U = model.components.T
    sigma = (U * (VARIANCE - NOISE)) @ U.T + NOISE * np.eye(D)
    Y = with_gaps(np.random.default_rng(seed).multivariate_normal(model.mean, sigma, 20), share, seed)
    projected = model.project(Y)
    filled, scores = projected.vectors, projected.scores
    for i, y in enumerate(Y):
        m, o = np.isnan(y), ~np.isnan(y)
        gain = sigma[np.ix_(m, o)] @ np.linalg.inv(sigma[np.ix_(o, o)])
        mean, spread = np.where(o, y - model.mean, 0.0), np.zeros((D, D))
        mean[m] = gain @ (y - model.mean)[o]
        spread[np.ix_(m, m)] = sigma[np.ix_(m, m)] - gain @ sigma[np.ix_(o, m)]
        second = np.outer(mean, mean) + spread  # E[y yᵀ | y_O]
        t2 = np.sum(np.diag(U.T @ second @ U) / VARIANCE)
        spe = np.trace(second) - np.trace(U.T @ second @ U)
        assert filled[i] == pytest.approx(model.mean + mean, rel=1e-9, abs=1e-9)
        assert (scores.t2[i], scores.spe[i]) == pytest.approx((t2, spe), rel=1e-8, abs=1e-9)
        of_observed = (y - model.mean)[o] @ np.linalg.solve(sigma[np.ix_(o, o)], (y - model.mean)[o])
        assert scores.score[i] == pytest.approx(of_observed + m.sum(), rel=1e-8)


@pytest.mark.parametrize("relation", ["none", "a constant", "a sum", "both"])
@pytest.mark.parametrize("k", range(1, 13))
def test_filled_entries_are_the_conditional_mean_for_every_k(relation: str, k: int) -> None:
    """Also where nothing is left for noise, and where sensors determine one another."""
    random = np.random.default_rng(k)
    X = random.standard_normal((400, 12)) * np.linspace(2, 0.5, 12) @ np.linalg.qr(random.standard_normal((12, 12)))[0]
    if relation in ("a constant", "both"):
        X[:, 1] = 3.0
    if relation in ("a sum", "both"):
        X[:, 2] = X[:, 3] + X[:, 4] + X[:, 5]
    model = batch_pca(X, k)
    U, noise = model.components.T, model.noise_variance
    sigma = (U * np.maximum(model.explained_variance - noise, 0)) @ U.T + noise * np.eye(12)
    projected = model.project(with_gaps(X[:20], 0.4, k))
    for y, filled in zip(with_gaps(X[:20], 0.4, k) - model.mean, projected.vectors - model.mean, strict=True):
        m, o = np.isnan(y), ~np.isnan(y)
        gain = sigma[np.ix_(m, o)] @ np.linalg.pinv(sigma[np.ix_(o, o)], rcond=1e-13, hermitian=True)
        assert filled[m] == pytest.approx(gain @ y[o], abs=1e-12)
    assert np.isfinite(projected.scores).all()


def test_a_complete_vector_stays_as_it_is() -> None:
    model, Y = random_model(1), np.random.default_rng(1).standard_normal((4, D))
    alone = model.project(Y)
    assert alone.vectors is Y
    assert not alone.missing_t2.any()
    among = model.project(np.concatenate([Y, np.full((1, D), np.nan)])).rows(slice(4))
    assert np.array_equal(among.vectors, Y)
    assert np.array_equal(among.scores, alone.scores)


def test_a_vector_without_entries_is_filled_with_the_mean_and_has_the_expected_scores() -> None:
    model = random_model(2)
    nothing = model.project(np.full((1, D), np.nan))
    assert nothing.vectors[0] == pytest.approx(model.mean)
    assert (nothing.scores.t2[0], nothing.scores.score[0]) == pytest.approx((K, D))
