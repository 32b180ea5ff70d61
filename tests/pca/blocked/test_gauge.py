"""The unit gauge leaves the span and keeps the second moment of x at the identity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import algorithm1
from streampca.pca.blocked import gauge, update
from streampca.pca.blocked.centring import weights
from streampca.pca.blocked.update import BlockConfig, Iterate
from tests.pca.streams import close

seeds = st.integers(0, 2**32 - 1)


class Case:
    """A factor, a block of centred messages, and the result of Algorithm 1 message by message."""

    def __init__(self, seed: int, d: int = 12, k: int = 4, B: int = 32, w: float = 100.0) -> None:
        random = np.random.default_rng(seed)
        self.C = random.standard_normal((d, k))
        self.Y = random.standard_normal((B, d)) * np.linspace(2, 0.5, d)
        self.weights = weights(w, np.ones(B), B)
        C, S, view = self.C, np.linalg.inv(self.C.T @ self.C), self.C @ self.C.T
        self.P = np.zeros((B, k))
        for s, y in enumerate(self.Y):
            a, projector, self.P[s] = self.weights.eta[s], C @ np.linalg.pinv(C), C.T @ y
            view = (1 - a) * view + a * np.outer(projector @ y, projector @ y)
            C, S, _ = algorithm1.sherman_morrison(C, S, y, a)
            projector = C @ np.linalg.pinv(C)
            view = projector @ view @ projector
        self.after, self.S, self.view = C, S, view

    def learn(self, unit: bool) -> Iterate:
        """The same in one block."""
        after, scores, _ = update.learn(
            self.Y,
            Iterate(self.C, self.C.T @ self.C, np.eye(self.C.shape[1]), np.zeros(len(self.C))),
            self.weights._replace(a=np.zeros(len(self.Y))),
            BlockConfig(2, len(self.Y), 7, unit),
        )
        assert len(scores.norm) == len(self.Y)
        return after


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_the_moment_is_that_of_x_by_the_model_of_each_message(seed: int) -> None:
    """C M Cᵀ is the covariance seen by each message's model, projected into every span on the way."""
    case = Case(seed)
    N = case.C.T @ case.C
    M = gauge.moment(np.eye(4), N, case.P, case.S, case.weights.c, case.weights.past[0])
    assert close(case.after @ M @ case.after.T, case.view, 1e-8)
    free = case.learn(unit=False)
    assert close(free.C, case.after, 1e-9)
    assert close(free.M, M, 1e-8)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_after_the_gauge_the_factor_is_the_covariance_along_principal_axes(seed: int) -> None:
    case = Case(seed)
    gauged = case.learn(unit=True)
    assert close(gauged.C @ gauged.C.T, case.view, 1e-8)
    assert close(gauged.C @ np.linalg.pinv(gauged.C), case.after @ np.linalg.pinv(case.after), 1e-9)
    assert close(gauged.N, gauged.C.T @ gauged.C, 1e-10)
    assert close(gauged.N, np.diag(gauged.N.diagonal()), 1e-12)
    assert (np.diff(gauged.N.diagonal()) <= 0).all()
    assert np.array_equal(gauged.M, np.eye(4))


def test_with_all_columns_the_whitened_moment_is_one() -> None:
    case = Case(3, d=4, k=4)
    inverse = np.linalg.inv(case.learn(unit=True).C)
    past, now = inverse @ case.C, case.Y @ inverse.T
    moment = case.weights.past[0] * past @ past.T + (case.weights.c[:, None] * now).T @ now
    assert np.abs(moment - np.eye(4)).max() <= 1e-9


@pytest.mark.parametrize(("size", "declined"), [(1.0, False), (1e4, True)])
@pytest.mark.parametrize("within", [True, False])
def test_a_message_that_dwarfs_the_past_is_declined(size: float, declined: bool, within: bool) -> None:
    C, Y = np.eye(3)[:, :2], np.array([[0.3, 0.5, 0.1], [0.2, 1, 0]])
    Y[0] = size * (np.array([1.0, 0.5, 0]) if within else np.array([0.3, 0, 1]))
    share = weights(100.0, np.ones(2), 2)
    before = Iterate(C, np.eye(2), np.eye(2), np.zeros(3))
    _, scores, squares = update.learn(Y, before, share, BlockConfig(1, 2, 64, unit=True))
    assert (len(scores.norm), len(scores.residual), len(squares)) == ((0, 0, 0) if declined else (2, 2, 1))


def test_a_factor_without_full_rank_is_declined() -> None:
    C = np.ones((3, 2))
    before = Iterate(C, C.T @ C, np.eye(2), np.zeros(3))
    share = update.Weights(*np.full((3, 3), 0.01), np.array([0.97]), np.array([100.0]))
    after, scores, _ = update.learn(np.eye(3), before, share, BlockConfig(1, 3, 64, unit=False))
    assert len(scores.norm) == 0
    assert np.array_equal(after.C, C)


def test_matrices_that_are_not_positive_definite_are_reported() -> None:
    for A in (np.zeros((2, 2)), np.ones((2, 2)), np.diag([1.0, -1]), np.full((2, 2), np.nan), np.diag([1, np.inf])):
        assert not gauge.cholesky(A)[1]
        assert not gauge.inverse(A)[1]
        assert not gauge.correction(A, np.eye(2))[2]


@pytest.mark.parametrize("K", [1, 7, 40])
def test_cholesky_and_inverse_agree_with_numpy(K: int) -> None:
    graded = np.diag(10.0 ** np.linspace(5, -5, K))  # columns of very different sizes lose nothing
    for seed in range(5):
        A = np.random.default_rng(seed).standard_normal((K, K + 5))
        A = graded @ A @ A.T @ graded
        L, good = gauge.cholesky(A)
        assert good
        assert close(L, np.linalg.cholesky(A), 1e-12)
        S, good = gauge.inverse(A)
        assert good
        assert np.array_equal(S, S.T)
        assert np.abs(graded @ (S @ A - np.eye(K)) @ np.linalg.inv(graded)).max() <= 1e-8


def test_the_unit_of_the_data_changes_no_bit_of_the_correction() -> None:
    A = np.random.default_rng(0).standard_normal((5, 9))
    N = A @ A.T
    R, after, _ = gauge.correction(np.eye(5), N)
    for exponent in (-900, 900):
        scaled, other, good = gauge.correction(np.eye(5), N * 2.0**exponent)
        assert good
        assert np.array_equal(scaled, R)
        assert np.array_equal(other, after * 2.0**exponent)
