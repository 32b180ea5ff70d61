"""The gauge moves no span, and keeps the second moment of x at one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import blocks, gauge
from streampca.pca.centring import weights
from tests.pca.streams import F64, close

seeds = st.integers(0, 2**32 - 1)


def block_of(seed: int, d: int = 12, k: int = 4, B: int = 32, w: float = 100.0) -> dict[str, F64]:
    """A factor before and after a block, and what the gauge takes."""
    random = np.random.default_rng(seed)
    C, Y = random.standard_normal((d, k)), random.standard_normal((B, d)) * np.linspace(2, 0.5, d)
    N = C.T @ C
    S = np.linalg.inv(N)
    share = weights(w, np.ones(B))
    block = blocks.run(Y @ C, Y @ Y.T, S, N, share.a)
    return {"C": C, "Y": Y, "N": N, "S": S, "block": block, "weights": share, "after": C @ block.Pi + Y.T @ block.Z}  # type: ignore[dict-item]


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_the_moment_is_carried_over_to_the_new_factor(seed: int) -> None:
    """T = C†_new C_old, in numbers of size K."""
    case = block_of(seed)
    T = np.linalg.pinv(case["after"]) @ case["C"]
    M = np.cov(np.random.default_rng(seed + 1).standard_normal((4, 9)))
    assert close(gauge.carried(M, case["block"], case["Y"] @ case["C"], case["N"]), T @ M @ T.T, 1e-8)  # type: ignore[arg-type]


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_what_the_old_model_saw_keeps_its_variance_in_the_new_span(seed: int) -> None:
    """After the gauge C Cᵀ is the old model's view of the covariance, projected into the new span."""
    case = block_of(seed)
    share, C, after = case["weights"], case["C"], case["after"]
    R = gauge.correction(case["block"], case["Y"] @ C, case["S"], case["N"], share.c, share.past)  # type: ignore[attr-defined, arg-type]
    assert R is not None
    seen = case["Y"] @ np.linalg.pinv(C).T @ C.T
    view = share.past * C @ C.T + (share.c[:, None] * seen).T @ seen  # type: ignore[attr-defined]
    projector = after @ np.linalg.pinv(after)
    gauged = after @ R
    assert close(gauged @ gauged.T, projector @ view @ projector, 1e-8)
    assert close(gauged @ np.linalg.pinv(gauged), projector, 1e-9)


def test_with_all_columns_the_whitened_moment_is_one() -> None:
    case = block_of(3, d=4, k=4)
    share, C = case["weights"], case["C"]
    R = gauge.correction(case["block"], case["Y"] @ C, case["S"], case["N"], share.c, share.past)  # type: ignore[attr-defined, arg-type]
    inverse = np.linalg.inv(C @ R)  # type: ignore[operator]
    past, now = inverse @ C, case["Y"] @ inverse.T
    moment = share.past * past @ past.T + (share.c[:, None] * now).T @ now  # type: ignore[attr-defined]
    assert np.abs(moment - np.eye(4)).max() <= 1e-9


def test_a_message_that_dwarfs_the_past_is_declined() -> None:
    assert gauge.correction(*_arguments(1.0)) is not None
    assert gauge.correction(*_arguments(1e4)) is None


def _arguments(size: float) -> tuple[blocks.Block, F64, F64, F64, F64, float]:
    C, Y = np.eye(3)[:, :2], np.array([[1.0, 0.5, 0.1], [0.2, 1, 0]])
    Y[0] *= size
    share = weights(100.0, np.ones(2))
    block = blocks.run(Y @ C, Y @ Y.T, np.eye(2), np.eye(2), share.a)
    return block, Y @ C, np.eye(2), np.eye(2), share.c, share.past


def test_matrices_that_are_not_positive_definite_are_declined() -> None:
    for A in (np.zeros((2, 2)), np.ones((2, 2)), np.diag([1.0, -1]), np.full((2, 2), np.nan)):
        assert gauge.cholesky(A) is None
        assert gauge.inverse(A) is None


@pytest.mark.parametrize("seed", range(5))
def test_inverse_is_symmetric_to_the_bit(seed: int) -> None:
    A = np.random.default_rng(seed).standard_normal((7, 9))
    S = gauge.inverse(A @ A.T)
    assert S is not None
    assert np.array_equal(S, S.T)
    assert close(S @ A @ A.T, np.eye(7), 1e-8)
