"""EM and eq. 11 against their objectives and limits, and the paper's misprints."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from experiments.baselines import em
from experiments.baselines.batch import Batch
from experiments.baselines.explicit import krasulina
from experiments.baselines.implicit import mini_batch
from streampca.pca import algorithm1
from streampca.pca.arrays import F64
from tests.pca.streams import close, gaussian, start

seeds = st.integers(0, 2**32 - 1)
etas, epsilons = st.floats(0.05, 20), st.floats(0.01, 2)


# Eq. 11.


@given(seeds, st.integers(1, 9), st.integers(1, 9), st.integers(1, 20), etas)
@settings(max_examples=50, deadline=None)
def test_eq_11_is_least_squares_by_numpys_pseudo_inverse(seed: int, a: int, b: int, n: int, eta: float) -> None:
    """Its objective, eq. 10 for N messages, is ‖A [X/√N I/√η] − [Yᵀ/√N C/√η]‖² with X = C†Yᵀ, both pinv by SVD."""
    C, Y = start(seed, max(a, b), min(a, b), n)
    X = np.linalg.pinv(C) @ Y.T / np.sqrt(n)
    ones = np.eye(C.shape[1]) / np.sqrt(eta)
    expected = np.hstack([Y.T / np.sqrt(n), C / np.sqrt(eta)]) @ np.linalg.pinv(np.hstack([X, ones]))
    assert close(mini_batch(C, Y, eta), expected, 1e-9)


# Batch EM.


@given(seeds, st.integers(1, 9), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_each_em_step_minimises_given_the_coordinates_and_lowers_the_loss(seed: int, k: int, n: int) -> None:
    C, Y = start(seed, 9, k, n)
    after = em.batch_step(C, Y)
    coordinates = np.linalg.lstsq(C, Y.T)[0]
    gradient = (after @ coordinates - Y.T) @ coordinates.T
    assert np.abs(gradient).max() <= 1e-8 * (1 + np.linalg.norm(coordinates) * np.linalg.norm(Y))
    before_loss = np.sum((Y.T - C @ coordinates) ** 2)
    after_loss = np.sum((Y.T - after @ np.linalg.lstsq(after, Y.T)[0]) ** 2)
    assert after_loss <= before_loss * (1 + 1e-9) + 1e-12


def test_em_converges_to_batch_pca() -> None:
    Y, (C, _) = gaussian(0, 500, 1 / np.arange(1, 10.0)), start(1, 9)
    for _ in range(300):
        C = em.batch_step(C, Y)
    batch = Batch.of(lambda: [Y], center=False)
    assert batch.excess(np.linalg.qr(C)[0].T, batch.mean) == pytest.approx(0, abs=1e-9)


# Online EM.


def rate(error: Callable[[float], float], size: float) -> float:
    """The power of its argument with which an error decreases."""
    return float(np.log10(error(size) / error(size / 10)))


# A limit, η′ and ε as functions of a number that tends to 0, and such a number; the error is proportional to it.
LIMITS: dict[str, tuple[Callable[[F64, F64], F64], Callable[[float], tuple[float, float]], float]] = {
    "no noise: the implicit Krasulina update, eq. 11": (
        lambda C, Y: mini_batch(C, Y, 0.7), lambda x: (0.7 / x, x), 1e-3),
    "a small step: the factor": (lambda C, Y: C, lambda x: (x / 1e-9, 1e-9), 1e-4),
    "an infinite step without noise: batch EM": (em.batch_step, lambda x: (1 / (x * 1e-11), 1e-11), 1e-5),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_limits(name: str, seed: int) -> None:
    (C, Y), (limit_of, arguments, size) = start(seed), LIMITS[name]
    limit = limit_of(C, Y)

    def error(x: float) -> float:
        return float(np.linalg.norm(em.online_step(C, Y, *arguments(x)) - limit))

    assert error(1e-9) <= 1.1 * 1e-9 / size * error(size), "nothing but rounding is left at 0"
    assert rate(error, size) == pytest.approx(1, abs=0.05)


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_an_infinite_step_with_noise_is_em_of_probabilistic_pca(seed: int) -> None:
    """Tipping & Bishop's M-step, with the posterior moments of each message written out."""
    C, Y = start(seed)
    epsilon = 0.3
    means, second = [], np.zeros((3, 3))
    precision = C.T @ C / epsilon + np.eye(3)
    for y in Y:
        mean = np.linalg.solve(precision, C.T @ y) / epsilon
        means.append(mean)
        second += np.linalg.inv(precision) + np.outer(mean, mean)
    expected = Y.T @ np.array(means) @ np.linalg.inv(second)
    assert close(em.online_step(C, Y, 1e13, epsilon), expected, 1e-9)


# The paper's misprints. The oracle is the joint Gaussian distribution of (x, y).


@given(seeds, etas)
@settings(max_examples=20, deadline=None)
def test_slip_before_eq_12_it_is_eq_11_for_one_message_not_eq_9(seed: int, eta: float) -> None:
    C, Y = start(seed)
    expected, _, _ = algorithm1.meyer(C, np.linalg.pinv(C), Y[0], eta)
    assert close(mini_batch(C, Y[0], eta), expected, 1e-9)
    assert not close(krasulina(C, Y[0], eta), expected, 1e-3)


@given(seeds, epsilons, epsilons)
@settings(max_examples=20, deadline=None)
def test_slip_in_eq_14_half_of_d_log_epsilon_and_a_term_that_depends_on_epsilon(
    seed: int, epsilon: float, after: float
) -> None:
    (C, Y), (A, _) = start(seed), start(seed + 1)
    differences = [bound(C, Y, epsilon, A, x) - em.upper_bound(C, Y, epsilon, A, x) for x in (after, 2 * after)]
    assert differences[0] == pytest.approx(differences[1], rel=1e-9)
    assert differences[0] == pytest.approx(bound(C, Y, epsilon, C, 1) - em.upper_bound(C, Y, epsilon, C, 1), rel=1e-9)


@given(seeds, epsilons)
@settings(max_examples=20, deadline=None)
def test_slip_after_eq_14_the_noise_has_d_dimensions(seed: int, epsilon: float) -> None:
    C, _ = start(seed)
    expected = np.linalg.solve(C @ C.T + epsilon * np.eye(len(C)), C).T
    assert close(em.posterior_gain(C, epsilon), expected, 1e-9)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_slip_in_eq_15_the_gram_matrix_of_the_columns_is_inverted(seed: int) -> None:
    C, _ = start(seed)
    assert np.linalg.matrix_rank(C @ C.T) == 3, "the (d, d) matrix that is printed has no inverse"
    pinv = np.linalg.inv(C.T @ C) @ C.T
    assert close(pinv, np.linalg.pinv(C), 1e-9)
    assert close(em.posterior_gain(C, 1e-12), pinv, 1e-9)


@given(seeds, epsilons, etas)
@settings(max_examples=20, deadline=None)
def test_slip_in_the_last_m_step_the_inertia_has_no_inverse_epsilon(seed: int, epsilon: float, eta: float) -> None:
    """Relative entropy over the step plus the bound has its minimum where the printed ε⁻¹/η′ is 1/η."""
    C, Y = start(seed)
    before = joint(C, epsilon)

    def objective(A: F64) -> float:
        return relative_entropy(before, joint(A, epsilon)) / eta + bound(C, Y, epsilon, A, epsilon)

    best = em.online_step(C, Y, eta / epsilon, epsilon)
    least = objective(best)
    for i in range(6):
        nudge = np.random.default_rng(i).standard_normal(C.shape)
        slope = (objective(best + 1e-4 * nudge) - objective(best - 1e-4 * nudge)) / 2e-4
        curvature = (objective(best + 1e-2 * nudge) + objective(best - 1e-2 * nudge) - 2 * least) / 1e-4
        assert curvature > 0
        assert abs(slope) <= 1e-5 * curvature * np.linalg.norm(nudge)


@given(seeds, epsilons, epsilons)
@settings(max_examples=20, deadline=None)
def test_eq_16_is_the_relative_entropy_of_the_joints(seed: int, epsilon: float, after: float) -> None:
    (C, _), (A, _) = start(seed), start(seed + 1)
    ratio = epsilon / after
    expected = len(C) / 2 * (ratio - np.log(ratio) - 1) + np.sum((C - A) ** 2) / (2 * after)
    assert relative_entropy(joint(C, epsilon), joint(A, after)) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def joint(C: F64, epsilon: float) -> F64:
    """The covariance of (x, y)."""
    d, k = C.shape
    return np.block([[np.eye(k), C.T], [C, C @ C.T + epsilon * np.eye(d)]])


def relative_entropy(P: F64, Q: F64) -> float:
    """KL(N(0, P) ‖ N(0, Q))."""
    logs = float(np.linalg.slogdet(Q)[1] - np.linalg.slogdet(P)[1])
    return 0.5 * (float(np.trace(np.linalg.solve(Q, P))) - len(P) + logs)


def bound(C: F64, Y: F64, epsilon: float, A: F64, epsilon_after: float) -> float:
    """The mean of −log P(x, y), by the density of A and ε̃, over the posterior of x by C and ε."""
    d, k = C.shape
    gain = C.T @ np.linalg.inv(C @ C.T + epsilon * np.eye(d))
    both, Q = np.vstack([gain @ Y.T, Y.T]), joint(A, epsilon_after)
    moment = both @ both.T / len(Y)
    moment[:k, :k] += np.eye(k) - gain @ C
    return 0.5 * float(np.trace(np.linalg.solve(Q, moment)) + np.linalg.slogdet(Q)[1])
