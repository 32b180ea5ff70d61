"""Vectors with gaps are completed and scored as the Gaussian of probabilistic PCA says, by dense formulas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import scoring
from streampca.pca.arrays import F64
from streampca.pca.axes import model_of
from streampca.pca.model import Model
from streampca.pca.state import State
from tests.pca.streams import with_gaps

D, K, NOISE = 9, 3, 0.2
VARIANCE = np.array([5.0, 2.0, 1.0])


def a_model(seed: int) -> Model:
    random = np.random.default_rng(seed)
    U = np.linalg.qr(random.standard_normal((D, K)))[0].T
    return Model(U, VARIANCE, random.standard_normal(D), float(VARIANCE.sum() + (D - K) * NOISE), 1000.0)


def a_state(model: Model) -> State:
    C = model.components.T * np.sqrt(model.explained_variance)
    return State(np.ascontiguousarray(C), model.mean, 1000.0, model.total_variance, 1000, 0)


def covariance_of(model: Model) -> F64:
    U = model.components.T
    return np.asarray((U * (model.explained_variance - NOISE)) @ U.T + NOISE * np.eye(D))


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.5))
@settings(max_examples=30, deadline=None)
def test_completed_vectors_and_their_statistics_are_expected_values(seed: int, share: float) -> None:
    model = a_model(seed)
    sigma, U = covariance_of(model), model.components.T
    Y = with_gaps(np.random.default_rng(seed).multivariate_normal(model.mean, sigma, 20), share, seed)
    completed, scores = scoring.complete(model, Y).vectors, scoring.score(model, Y)
    of_state = scoring.score(model_of(a_state(model), K), Y)
    for i, y in enumerate(Y):
        m, o = np.isnan(y), ~np.isnan(y)
        gain = sigma[np.ix_(m, o)] @ np.linalg.inv(sigma[np.ix_(o, o)])
        mean, spread = np.where(o, y - model.mean, 0.0), np.zeros((D, D))
        mean[m] = gain @ (y - model.mean)[o]
        spread[np.ix_(m, m)] = sigma[np.ix_(m, m)] - gain @ sigma[np.ix_(o, m)]
        second = np.outer(mean, mean) + spread  # E[y yᵀ | y_O]
        t2 = np.sum(np.diag(U.T @ second @ U) / VARIANCE)
        spe = np.trace(second) - np.trace(U.T @ second @ U)
        assert completed[i] == pytest.approx(model.mean + mean, rel=1e-9, abs=1e-9)
        assert (scores.t2[i], scores.spe[i]) == pytest.approx((t2, spe), rel=1e-8, abs=1e-9)
        of_observed = (y - model.mean)[o] @ np.linalg.solve(sigma[np.ix_(o, o)], (y - model.mean)[o])
        assert scores.score[i] == pytest.approx(of_observed + m.sum(), rel=1e-8)
        assert [part[i] for part in of_state] == pytest.approx([part[i] for part in scores], rel=1e-8, abs=1e-9)


def test_a_vector_without_gaps_stays_as_it_is() -> None:
    model, Y = a_model(1), np.random.default_rng(1).standard_normal((4, D))
    completed = scoring.complete(model, Y)
    assert completed.vectors is Y
    assert not completed.t2.any()
    assert not completed.spe.any()


def test_without_any_entry_a_vector_is_the_mean_and_scores_as_expected() -> None:
    model = a_model(2)
    scores = scoring.score(model, np.full((1, D), np.nan))
    assert scoring.complete(model, np.full((1, D), np.nan)).vectors[0] == pytest.approx(model.mean)
    assert (scores.t2[0], scores.score[0]) == pytest.approx((K, D))
