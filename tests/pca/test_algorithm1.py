"""Algorithm 1 as the paper states it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca.algorithm1 import meyer, sherman_morrison
from streampca.pca.arrays import F64
from tests.pca.streams import close

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
    C_pinv, other, S = np.linalg.pinv(C), C, np.linalg.inv(C.T @ C)
    for y in Y:
        C, C_pinv, loss = meyer(C, C_pinv, y, eta)
        other, S, same_loss = sherman_morrison(other, S, y, eta)
        assert loss == pytest.approx(same_loss, rel=1e-8, abs=1e-12)
    exact = np.linalg.pinv(C)
    assert close(other, C, 1e-9)
    assert close(C_pinv, exact, 1e-8)
    assert close(S @ other.T, exact, 1e-8)


@given(sizes, etas)
@settings(max_examples=50, deadline=None)
def test_invariants_of_every_step(size: tuple[int, int, int], eta: float) -> None:
    C, Y = start(*size)
    C_pinv = np.linalg.pinv(C)
    for y in Y:
        before, x = C, C_pinv @ y
        r = C @ x - y
        C, C_pinv, loss = meyer(C, C_pinv, y, eta)
        assert np.abs(before.T @ r).max() <= 1e-9 * np.linalg.norm(before) * np.linalg.norm(y)  # r ⟂ range(C)
        assert loss == pytest.approx(r @ r, rel=1e-9, abs=1e-12)
        assert np.abs(C_pinv @ C - np.eye(C.shape[1])).max() <= 1e-9  # C†C = I
        h = eta / (1 + eta * (x @ x))
        assert close(C.T @ C, before.T @ before + h**2 * (r @ r) * np.outer(x, x), 1e-9)


@given(sizes, etas)
@settings(max_examples=50, deadline=None)
def test_eq_12_is_the_minimum_of_its_convex_objective(size: tuple[int, int, int], eta: float) -> None:
    """½‖A − C‖²/η + ½‖Ax − y‖², as in eq. 11: its gradient is 0."""
    C, Y = start(*size)
    x = np.linalg.pinv(C) @ Y[0]
    best, _, _ = meyer(C, np.linalg.pinv(C), Y[0], eta)
    gradient = (best - C) / eta + np.outer(best @ x - Y[0], x)
    assert np.abs(gradient).max() <= 1e-8 * (1 + np.abs(best).max() / eta)


@given(sizes, st.floats(1e-2, 10), st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_rotating_and_scaling_the_factor_changes_only_the_step(
    size: tuple[int, int, int], eta: float, scale: float
) -> None:
    """C → s C O with orthogonal O, η → s²η: every factor is s C O, so span and projector are the same."""
    d, k, seed = size
    C, Y = start(d, k, seed)
    O = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((k, k)))[0]  # noqa: E741
    C_pinv, other, other_pinv = np.linalg.pinv(C), scale * C @ O, np.linalg.pinv(scale * C @ O)
    for y in Y:
        C, C_pinv, loss = meyer(C, C_pinv, y, eta)
        other, other_pinv, same_loss = meyer(other, other_pinv, y, eta * scale**2)
        assert loss == pytest.approx(same_loss, rel=1e-7, abs=1e-10)
    assert close(other, scale * C @ O, 1e-8)
    assert close(other @ other_pinv, C @ C_pinv, 1e-8)


def test_messages_in_the_span_do_not_change_the_factor() -> None:
    C, C_pinv = np.eye(4)[:, :2], np.eye(4)[:2]
    for y in (np.array([3.0, -1, 0, 0]), np.zeros(4)):
        after, after_pinv, loss = meyer(C, C_pinv, y, 0.5)
        assert loss == 0
        assert np.array_equal(after, C)
        assert np.array_equal(after_pinv, C_pinv)
