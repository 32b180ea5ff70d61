"""Algorithm 1 as the paper states it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import algorithm1
from streampca.pca.algorithm1 import Factor
from streampca.pca.arrays import F64
from tests.pca.streams import close, mini_batch

sizes = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1)).map(
    lambda t: (max(t[0], t[1]), min(t[0], t[1]), t[2])
)  # d ≥ k, seed
etas = st.floats(1e-4, 1e3)


def start(d: int, k: int, seed: int) -> tuple[F64, F64]:
    """A well-conditioned factor (d, k), and messages (20, d)."""
    random = np.random.default_rng(seed)
    C = np.linalg.qr(random.standard_normal((d, k)))[0] @ np.diag(random.uniform(0.3, 3, k))
    return C, random.standard_normal((20, d))


@given(sizes, etas)
@settings(max_examples=50, deadline=None)
def test_both_updates_of_the_pseudo_inverse_agree_with_numpy(size: tuple[int, int, int], eta: float) -> None:
    C, Y = start(*size)
    factor, other, S = Factor.of(C), C, np.linalg.inv(C.T @ C)
    for y in Y:
        factor, loss = algorithm1.meyer(factor, y, eta)
        other, S, same_loss = algorithm1.sherman_morrison(other, S, y, eta)
        assert loss == pytest.approx(same_loss, rel=1e-8, abs=1e-12)
    exact = np.linalg.pinv(factor.C)
    assert close(other, factor.C, 1e-9)
    assert close(factor.C_pinv, exact, 1e-8)
    assert close(S @ other.T, exact, 1e-8)


@given(sizes, etas)
@settings(max_examples=50, deadline=None)
def test_invariants_of_every_step(size: tuple[int, int, int], eta: float) -> None:
    C, Y = start(*size)
    factor = Factor.of(C)
    for y in Y:
        before = factor
        factor, loss = algorithm1.meyer(factor, y, eta)
        x = before.C_pinv @ y
        r = before.C @ x - y
        assert np.abs(before.C.T @ r).max() <= 1e-9 * np.linalg.norm(before.C) * np.linalg.norm(y)  # r ⟂ range(C)
        assert loss == pytest.approx(r @ r, rel=1e-9, abs=1e-12)
        assert np.abs(factor.C_pinv @ factor.C - np.eye(C.shape[1])).max() <= 1e-9  # C†C = I
        h = eta / (1 + eta * (x @ x))
        assert close(factor.C.T @ factor.C, before.C.T @ before.C + h**2 * (r @ r) * np.outer(x, x), 1e-9)


@given(sizes, etas)
@settings(max_examples=50, deadline=None)
def test_eq_12_is_eq_11_for_one_message(size: tuple[int, int, int], eta: float) -> None:
    C, Y = start(*size)
    one, _ = algorithm1.meyer(Factor.of(C), Y[0], eta)
    assert close(mini_batch(C, Y[:1], eta), one.C, 1e-9)


@given(sizes, etas, st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_eq_11_is_the_minimum_of_its_objective(size: tuple[int, int, int], eta: float, n: int) -> None:
    C, Y = start(*size)
    Y = Y[:n]
    X = Y @ np.linalg.pinv(C).T

    def objective(A: F64) -> float:
        return 0.5 * (np.sum((A - C) ** 2) / eta + np.mean(np.sum((X @ A.T - Y) ** 2, axis=1)))

    best = mini_batch(C, Y, eta)
    gradient = (best - C) / eta + (X @ best.T - Y).T @ X / n
    assert np.abs(gradient).max() <= 1e-8 * (1 + np.abs(best).max() / eta)
    for seed in range(5):
        nudge = 1e-2 * np.random.default_rng(seed).standard_normal(C.shape)
        assert objective(best) < objective(best + nudge)


@given(sizes, st.floats(1e-2, 10), st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_rotating_and_scaling_the_factor_changes_only_the_step(
    size: tuple[int, int, int], eta: float, scale: float
) -> None:
    """C → s C O with orthogonal O, η → s²η: every factor is s C O, so span and projector are the same."""
    d, k, seed = size
    C, Y = start(d, k, seed)
    O = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((k, k)))[0]  # noqa: E741
    plain, other = Factor.of(C), Factor.of(scale * C @ O)
    for y in Y:
        plain, loss = algorithm1.meyer(plain, y, eta)
        other, same_loss = algorithm1.meyer(other, y, eta * scale**2)
        assert loss == pytest.approx(same_loss, rel=1e-7, abs=1e-10)
    assert close(other.C, scale * plain.C @ O, 1e-8)
    assert close(other.C @ other.C_pinv, plain.C @ plain.C_pinv, 1e-8)


def test_messages_in_the_span_do_not_change_the_factor() -> None:
    factor = Factor.of(np.eye(4)[:, :2])
    for y in (np.array([3.0, -1, 0, 0]), np.zeros(4)):
        after, loss = algorithm1.meyer(factor, y, 0.5)
        assert loss == 0
        assert np.array_equal(after.C, factor.C)
        assert np.array_equal(after.C_pinv, factor.C_pinv)


def test_an_infinite_step_interpolates_the_message() -> None:
    """η → ∞: C_new x = y, which needs h → 1/‖x‖² (the norm squared)."""
    C, Y = start(6, 3, 1)
    after, _ = algorithm1.meyer(Factor.of(C), 5 * Y[0], 1e12)
    x = np.linalg.pinv(C) @ (5 * Y[0])
    assert close(after.C @ x, 5 * Y[0], 1e-9)
