"""T², SPE and score agree with their definitions, and p-values with the share of messages that score as high."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from streampca.pca import scoring
from streampca.pca.arrays import F64
from streampca.pca.model import Model
from streampca.pca.scoring import BINS, WINDOW, Calibration, Scores, largest_contributions, score
from tests.pca.streams import gaussian as gaussian_along
from tests.pca.streams import with_gaps

D, K = 7, 3
SPECTRUM = np.array([5, 4, 3, 1, 1, 0.7, 0.5])


def gaussian(n: int, seed: int) -> F64:
    return gaussian_along(seed, n, SPECTRUM, offset=3.0)


def fitted(X: F64, k: int = K) -> Model:
    """Batch PCA as scikit-learn has it, with variances about n instead of n − 1."""
    pca = PCA(k).fit(X)
    shrink = (len(X) - 1) / len(X)
    return Model(pca.components_, shrink * pca.explained_variance_, pca.mean_, float(X.var(axis=0).sum()), len(X))


def scores_of(values: F64) -> Scores:
    return Scores(values, values, values)


@given(st.integers(0, 100), st.sampled_from([np.float64, np.float32]))
def test_the_score_is_the_log_likelihood_of_probabilistic_pca(seed: int, dtype: type) -> None:
    X = gaussian(300, seed)
    model = fitted(X)
    model = Model(*(a.astype(dtype) for a in (model.components, model.explained_variance, model.mean)),
                  model.total_variance, model.weight)  # fmt: skip
    sigma2, U = model.noise_variance, model.components.astype(np.float64)
    covariance = U.T @ np.diag(model.explained_variance - sigma2) @ U + sigma2 * np.eye(D)
    Y = X - model.mean
    mahalanobis = np.einsum("ni,ij,nj->n", Y, np.linalg.inv(covariance), Y)
    t2, spe, both = score(model, X)
    np.testing.assert_allclose(both, mahalanobis, rtol=1e-9 if dtype is np.float64 else 1e-3)
    if dtype is np.float64:
        assert t2.mean() == pytest.approx(K)
        assert spe.mean() == pytest.approx(model.total_variance - model.explained_variance.sum())
        assert both.mean() == pytest.approx(D)


@given(st.integers(0, 100))
def test_contributions_add_up(seed: int) -> None:
    X = gaussian(50, seed)
    model = fitted(X)
    t2, spe, _ = score(model, X)
    every, (of_t2, of_spe) = largest_contributions(model, X, D)
    assert (np.sort(every, axis=2) == np.arange(D)).all()
    np.testing.assert_allclose(of_t2.sum(axis=1), t2, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(np.abs(of_spe).sum(axis=1), spe, rtol=1e-8, atol=1e-10)
    which, largest = largest_contributions(model, X, 2)
    assert np.array_equal(which, every[:, :, :2])
    for values, parts in zip(largest, (of_t2, of_spe), strict=True):
        assert np.array_equal(values, parts[:, :2])
        assert np.array_equal(np.abs(parts), np.sort(np.abs(parts), axis=1)[:, ::-1])


def test_the_sensor_that_fails_contributes_most() -> None:
    X = gaussian(500, 1)
    broken = X[:1].copy()
    broken[0, 4] -= 50
    which, values = largest_contributions(fitted(X), broken, 1)
    assert which.ravel().tolist() == [4, 4]
    assert values.spe[0, 0] < 0 < values.t2[0, 0]


@pytest.mark.parametrize(("k", "rank"), [(3, 2), (3, 3), (D, D)])
def test_a_direction_without_variance_is_very_unusual_and_rounding_is_not(k: int, rank: int) -> None:
    chance = np.random.default_rng(0)
    X = chance.standard_normal((100, rank)) @ chance.standard_normal((rank, D))
    model = fitted(X, k)
    assert score(model, X).score.max() < 1000
    if rank < D:
        outside = X[:1] + 1e-3 * np.linalg.svd(X)[2][-1]
        assert score(model, outside).score[0] > 1e6


def test_a_constant_stream_has_scores() -> None:
    model = Model(np.eye(2, 3), np.zeros(2), np.ones(3), 0.0, 10.0)
    assert score(model, np.ones((1, 3))).score[0] == 0
    assert score(model, np.zeros((1, 3))).score[0] > 1e100


positive = st.floats(1e-9, 1e18)


@given(st.lists(positive, min_size=1, max_size=40), st.lists(positive, max_size=40))
def test_p_is_the_share_of_past_scores_that_are_at_least_as_high(asked: list[float], past: list[float]) -> None:
    """To the width of a bin, 2.2 %."""
    calibration = Calibration.empty().with_scores(scores_of(np.array(past)), 1.0)
    width, weight = 2 ** (1 / 32) * (1 + 1e-9), 1 + len(past)
    for value, p in zip(asked, calibration.p_values(scores_of(np.array(asked)), 1.0).score, strict=True):
        fewest, most = (sum(score * slack >= value for score in past) for slack in (1 / width, width))
        assert (1 + fewest) / weight <= p + 1e-12
        assert p <= (1 + most) / weight + 1e-12


def test_without_past_scores_nothing_is_unusual() -> None:
    assert Calibration.empty().p_values(scores_of(np.array([0.0, 1e300, np.inf])), 1.0).score.tolist() == [1, 1, 1]


def test_p_of_a_gaussian_stream_is_uniform() -> None:
    X = gaussian(20_000, 3)
    model = fitted(X[:5000])
    sigma2 = model.noise_variance
    calibration = Calibration.empty()
    for i in range(5000, 15_000, 100):
        calibration = calibration.with_scores(score(model, X[i : i + 100]), sigma2)
    for p in calibration.p_values(score(model, X[15_000:]), sigma2):
        for level in (0.5, 0.1, 0.05, 0.01):
            assert np.mean(p <= level) == pytest.approx(level, abs=4 * np.sqrt(1.5 * level / 5000))


def test_old_scores_are_forgotten() -> None:
    old = Calibration.empty().with_scores(scores_of(np.full(1000, 100.0)), 1.0)
    assert old.with_scores(scores_of(np.ones(10)), 1.0, kept=0.0).weight == 10
    assert old.with_scores(scores_of(np.ones(10)), 1.0, kept=0.5).weight == pytest.approx(510, rel=1e-3)
    for _ in range(10):
        old = old.with_scores(scores_of(np.ones(WINDOW)), 1.0)
    assert old.weight < 2 * WINDOW
    assert old.p_values(scores_of(np.array([50.0])), 1.0).score[0] < 2 / WINDOW


def test_the_squared_error_is_counted_in_units_of_the_noise() -> None:
    """A version whose σ² is another gives the same p to the same multiple of it."""
    one = Calibration.empty().with_scores(scores_of(np.arange(1.0, 100)), 4.0)
    other = one.p_values(Scores(np.ones(1), np.array([8.0 * 50]), np.ones(1)), 8.0).spe
    assert other == one.p_values(scores_of(np.array([4.0 * 50])), 4.0).spe


@given(st.lists(st.floats(0, 1e300), max_size=20))
def test_a_table_holds_all(past: list[float]) -> None:
    calibration = Calibration.empty().with_scores(scores_of(np.array(past)), 1.0)
    assert np.array_equal(Calibration.from_table(calibration.table()).weights, calibration.weights)


@pytest.mark.parametrize(
    "table",
    [
        np.zeros(3),
        np.zeros((1, 2)),
        np.array([[0, 0, 0.0]]),
        np.array([[0, 0, -1.0]]),
        np.array([[0, 0, np.nan]]),
        np.array([[3, 0, 1.0]]),
        np.array([[-1, 0, 1.0]]),
        np.array([[0, BINS, 1.0]]),
        np.array([[0, 0.5, 1.0]]),
        np.array([[0, 1e300, 1.0]]),
        np.array([[0, 1, 1.0], [0, 1, 1.0]]),
        np.array([[0, 1, 1.0]], np.float32),
        np.array([["a", "b", "c"]]),
    ],
)
def test_a_wrong_table_is_refused(table: F64) -> None:
    with pytest.raises(ValueError, match=r"rows of a histogram|out of range"):
        Calibration.from_table(table)


class TestGaps:
    """Vectors with gaps are completed and scored as the Gaussian of probabilistic PCA says, by dense formulas."""

    variance, noise = np.array([5.0, 2.0, 1.0]), 0.2

    def model(self, seed: int) -> Model:
        random = np.random.default_rng(seed)
        U = np.linalg.qr(random.standard_normal((D, K)))[0].T
        total = float(self.variance.sum() + (D - K) * self.noise)
        return Model(U, self.variance, random.standard_normal(D), total, 1000.0)

    @given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.5))
    @settings(max_examples=30, deadline=None)
    def test_completed_vectors_and_their_statistics_are_expected_values(self, seed: int, share: float) -> None:
        model = self.model(seed)
        U = model.components.T
        sigma = (U * (self.variance - self.noise)) @ U.T + self.noise * np.eye(D)
        Y = with_gaps(np.random.default_rng(seed).multivariate_normal(model.mean, sigma, 20), share, seed)
        completed, scores = scoring.complete(model, Y).vectors, score(model, Y)
        for i, y in enumerate(Y):
            m, o = np.isnan(y), ~np.isnan(y)
            gain = sigma[np.ix_(m, o)] @ np.linalg.inv(sigma[np.ix_(o, o)])
            mean, spread = np.where(o, y - model.mean, 0.0), np.zeros((D, D))
            mean[m] = gain @ (y - model.mean)[o]
            spread[np.ix_(m, m)] = sigma[np.ix_(m, m)] - gain @ sigma[np.ix_(o, m)]
            second = np.outer(mean, mean) + spread  # E[y yᵀ | y_O]
            t2 = np.sum(np.diag(U.T @ second @ U) / self.variance)
            spe = np.trace(second) - np.trace(U.T @ second @ U)
            assert completed[i] == pytest.approx(model.mean + mean, rel=1e-9, abs=1e-9)
            assert (scores.t2[i], scores.spe[i]) == pytest.approx((t2, spe), rel=1e-8, abs=1e-9)
            of_observed = (y - model.mean)[o] @ np.linalg.solve(sigma[np.ix_(o, o)], (y - model.mean)[o])
            assert scores.score[i] == pytest.approx(of_observed + m.sum(), rel=1e-8)

    def test_a_vector_without_gaps_stays_as_it_is(self) -> None:
        Y = np.random.default_rng(1).standard_normal((4, D))
        vectors, t2, spe = scoring.complete(self.model(1), Y)
        assert vectors is Y
        assert not t2.any()
        assert not spe.any()

    def test_without_any_entry_a_vector_is_the_mean_and_scores_as_expected(self) -> None:
        model, nothing = self.model(2), np.full((1, D), np.nan)
        assert scoring.complete(model, nothing).vectors[0] == pytest.approx(model.mean)
        assert (score(model, nothing).t2[0], score(model, nothing).score[0]) == pytest.approx((K, D))
