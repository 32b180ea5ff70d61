"""Online EM for probabilistic PCA: it minimises its objective and has the paper's three limits."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca.arrays import F64
from tests.experiments import em
from tests.pca.streams import close, mini_batch

seeds = st.integers(0, 2**32 - 1)


def start(seed: int, d: int = 7, k: int = 3, n: int = 12) -> tuple[F64, F64]:
    """A well-conditioned factor (d, k), and messages (n, d)."""
    random = np.random.default_rng(seed)
    C = np.linalg.qr(random.standard_normal((d, k)))[0] * random.uniform(0.7, 2, k)
    return C, random.standard_normal((n, d))


def rate(error: Callable[[float], float], size: float) -> float:
    """The power of its argument with which an error decreases."""
    return float(np.log10(error(size) / error(size / 10)))


# A limit, the parameter 1/η′ε and ε for a number that tends to 0, and such a number; the error is proportional to it.
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

    assert error(1e-9) <= 1e-7
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


@given(seeds, st.floats(0.01, 2), st.floats(0.05, 20))
@settings(max_examples=20, deadline=None)
def test_it_is_the_minimum_of_the_online_em_objective(seed: int, epsilon: float, eta: float) -> None:
    """Relative entropy over the step plus the EM bound, both of the Gaussian model with the noise ε.

    In it ε⁻¹ is a factor of both terms: the weight of the inertia, which the paper prints as ε⁻¹/η′, is 1/η. The step
    of the printed formula for η′ = η/ε is the minimum.
    """
    C, Y = start(seed)
    d = len(C)
    before = joint(C, epsilon)
    gain = C.T @ np.linalg.inv(C @ C.T + epsilon * np.eye(d))
    rest = np.eye(3) - gain @ C

    def objective(A: F64) -> float:
        bound = np.mean([expected_energy(A, y, gain @ y, rest, epsilon) for y in Y])
        return relative_entropy(before, joint(A, epsilon)) / eta + float(bound)

    best = em.online_step(C, Y, eta / epsilon, epsilon)
    least = objective(best)
    for i in range(6):
        nudge = np.random.default_rng(i).standard_normal(C.shape)
        slope = (objective(best + 1e-4 * nudge) - objective(best - 1e-4 * nudge)) / 2e-4
        curvature = (objective(best + 1e-2 * nudge) + objective(best - 1e-2 * nudge) - 2 * least) / 1e-4
        assert curvature > 0
        assert abs(slope) <= 1e-5 * curvature * np.linalg.norm(nudge)


def joint(C: F64, epsilon: float) -> F64:
    """Covariance of (x, y)."""
    d, k = C.shape
    return np.block([[np.eye(k), C.T], [C, C @ C.T + epsilon * np.eye(d)]])


def relative_entropy(P: F64, Q: F64) -> float:
    """KL(N(0, P) ‖ N(0, Q))."""
    logs = float(np.linalg.slogdet(Q)[1] - np.linalg.slogdet(P)[1])
    return 0.5 * (float(np.trace(np.linalg.solve(Q, P))) - len(P) + logs)


def expected_energy(A: F64, y: F64, mean: F64, rest: F64, epsilon: float) -> float:
    """E ‖y − Ax‖²/(2ε) over the posterior N(mean, rest): the part of −log P(x, y) that depends on A."""
    return float(np.sum((y - A @ mean) ** 2) + np.trace(A @ rest @ A.T)) / (2 * epsilon)
