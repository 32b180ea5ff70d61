"""Algorithm 1 as the paper states it."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca.algorithm1 import meyer, sherman_morrison
from tests.pca.streams import close, start

sizes = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 12)).map(
    lambda t: (t[0], max(t[1:]), min(t[1:]))
)  # seed, d ≥ k
etas = st.floats(1e-4, 1e3)


@given(sizes, etas)
@settings(max_examples=50, deadline=None)
def test_both_updates_of_the_pseudo_inverse_agree_with_numpy(size: tuple[int, int, int], eta: float) -> None:
    C, Y = start(*size)
    C_pinv, other, S = np.linalg.pinv(C), C, np.linalg.inv(C.T @ C)
    for y in Y:
        r = C @ (C_pinv @ y) - y
        C, C_pinv, loss = meyer(C, C_pinv, y, eta)
        other, S, same_loss = sherman_morrison(other, S, y, eta)
        assert (loss, same_loss) == pytest.approx((r @ r, r @ r), rel=1e-8, abs=1e-12)
    exact = np.linalg.pinv(C)
    assert close(other, C, 1e-9)
    assert close(C_pinv, exact, 1e-8)
    assert close(S @ other.T, exact, 1e-8)


@given(sizes, etas)
@settings(max_examples=50, deadline=None)
def test_eq_12_is_the_minimum_of_its_convex_objective(size: tuple[int, int, int], eta: float) -> None:
    """½‖A − C‖²/η + ½‖Ax − y‖², as in eq. 11: its gradient is 0."""
    C, Y = start(*size)
    x = np.linalg.pinv(C) @ Y[0]
    best, _, _ = meyer(C, np.linalg.pinv(C), Y[0], eta)
    gradient = (best - C) / eta + np.outer(best @ x - Y[0], x)
    assert np.abs(gradient).max() <= 1e-8 * (1 + np.abs(best).max() / eta)


@pytest.mark.parametrize("y", [(3.0, -1, 0, 0), (0.0, 0, 0, 0)])
def test_messages_in_the_span_do_not_change_the_factor(y: tuple[float, ...]) -> None:
    C, C_pinv = np.eye(4)[:, :2], np.eye(4)[:2]
    after, after_pinv, loss = meyer(C, C_pinv, np.array(y), 0.5)
    assert loss == 0
    assert np.array_equal(after, C)
    assert np.array_equal(after_pinv, C_pinv)
