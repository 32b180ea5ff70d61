"""Oja's and Krasulina's updates against numerical gradients of the paper's losses and against explicit formulas."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baselines import explicit
from experiments.baselines.batch import Batch
from experiments.baselines.explicit import krasulina, oja, orthonormal
from streampca.pca.arrays import F64
from tests.pca.streams import close, gaussian

seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 8)).map(
    lambda t: (max(t[:2]), min(t[:2]), t[2])
)  # d ≥ k, and N
etas = st.floats(1e-3, 10)
Step = Callable[[F64, F64, float], F64]
both = pytest.mark.parametrize("step", [oja, krasulina])


def start(d: int, k: int, n: int, seed: int) -> tuple[F64, F64]:
    random = np.random.default_rng(seed)
    return np.linalg.qr(random.standard_normal((d, k)))[0], random.standard_normal((n, d))


def gradient(f: Callable[[F64], float], C: F64) -> F64:
    """Central differences."""
    slopes = np.zeros_like(C)
    for i in np.ndindex(C.shape):
        nudge = np.zeros_like(C)
        nudge[i] = 1e-5
        slopes[i] = (f(C + nudge) - f(C - nudge)) / 2e-5
    return slopes


@given(sizes, seeds, etas)
@settings(max_examples=30, deadline=None)
def test_oja_follows_the_gradient_of_the_projected_variance(size: tuple[int, int, int], seed: int, eta: float) -> None:
    C, Y = start(*size, seed)
    slope = gradient(lambda A: -0.5 * float(np.mean(np.sum((Y @ A) ** 2, axis=1))), C)
    assert spans_agree(oja(C, Y, eta), C - eta * slope)


@given(sizes, seeds, etas)
@settings(max_examples=30, deadline=None)
def test_krasulina_follows_the_same_gradient_projected_onto_the_tangent_space(
    size: tuple[int, int, int], seed: int, eta: float
) -> None:
    C, Y = start(*size, seed)
    slope = gradient(lambda A: -0.5 * float(np.mean(np.sum((Y @ A) ** 2, axis=1))), C)
    tangent = slope - C @ (C.T @ slope)
    assert spans_agree(krasulina(C, Y, eta), C - eta * tangent)


def spans_agree(Q: F64, A: F64) -> bool:
    """Whether Q is the orthonormal basis of span(A) for which QᵀA is upper triangular with positive diagonal."""
    R = Q.T @ A
    size = np.linalg.norm(A)
    triangular = np.abs(np.tril(R, -1)).max() <= 1e-6 * size
    return bool(triangular and np.diagonal(R).min() >= -1e-6 * size and close(Q @ R, A, 1e-6))


@both
@given(size=sizes, seed=seeds, eta=etas)
@settings(max_examples=30, deadline=None)
def test_columns_are_orthonormal_and_one_message_is_a_batch_of_one(
    step: Step, size: tuple[int, int, int], seed: int, eta: float
) -> None:
    C, Y = start(*size, seed)
    after = step(C, Y, eta)
    assert np.abs(after.T @ after - np.eye(C.shape[1])).max() <= 1e-12
    assert np.array_equal(step(C, Y[0], eta), step(C, Y[:1], eta))
    assert close(step(orthonormal(C), np.zeros(len(C)), eta), orthonormal(C), 1e-12)


@both
def test_one_pass_comes_close_to_batch_pca(step: Step) -> None:
    Y = gaussian(3, 6000, np.array([3, 2, 1.5, 0.2, 0.2, 0.1]))
    C, _ = start(6, 3, 1, 4)
    for t, y in enumerate(Y, start=1):
        C = step(C, y, 1 / t**0.9)
    assert Batch.of(lambda: [Y]).excess(C.T, Y.mean(axis=0)) <= 2


def test_qr_keeps_an_orthonormal_basis_with_its_signs() -> None:
    C, _ = start(7, 4, 1, 5)
    assert close(orthonormal(orthonormal(C)), orthonormal(C), 1e-12)
    assert close(orthonormal(-np.eye(3)), -np.eye(3), 1e-12)
    R = np.triu(np.ones((4, 4)))
    assert close(orthonormal(orthonormal(C) @ R), orthonormal(C), 1e-12)


# Combination of models, eq. 17.


@given(seeds, st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_average_is_the_minimum_of_the_weighted_distances(seed: int, machines: int) -> None:
    """Eq. 17 minimises Σ αᵢ Δ(Θᵢ, Θ), for fixed ε a sum of squared distances."""
    random = np.random.default_rng(seed)
    factors, alpha = list(random.standard_normal((machines, 5, 2))), random.uniform(0.1, 3, machines)

    def objective(A: F64) -> float:
        return float(sum(a * np.sum((F - A) ** 2) for a, F in zip(alpha, factors, strict=True)))

    best = explicit.average(factors, list(alpha))
    assert np.abs(gradient(objective, best)).max() <= 1e-6
    assert close(explicit.average(factors, list(7 * alpha)), best, 1e-12)
    assert close(explicit.average(factors), np.mean(factors, axis=0), 1e-12)


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_alignment_undoes_a_rotation_and_is_the_nearest_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    C, other = random.standard_normal((2, 6, 3))
    R = np.linalg.qr(random.standard_normal((3, 3)))[0]
    assert close(explicit.aligned(C @ R, C), C, 1e-9)
    nearest = np.linalg.norm(explicit.aligned(C, other) - other)
    assert nearest <= np.linalg.norm(C @ R - other) + 1e-12
