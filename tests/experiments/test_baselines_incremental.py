"""The incremental update with (k + 1)-column matrices against the equivalent one with d × d matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baselines import incremental
from experiments.baselines.batch import Batch
from streampca.pca.arrays import F64
from tests.pca.streams import close, gaussian


def literally(Y: F64, k: int) -> F64:
    """Truncates the full second-moment matrix to rank k after every message."""
    moment = np.zeros((Y.shape[1], Y.shape[1]))
    for t, y in enumerate(Y, start=1):
        variance, V = np.linalg.eigh(((t - 1) * moment + np.outer(y, y)) / t)
        moment = (V[:, -k:] * variance[-k:]) @ V[:, -k:].T
    return moment


def learned(Y: F64, k: int) -> incremental.IncrementalState:
    state = incremental.start(Y.shape[1], k)
    for y in Y:
        state = incremental.step(state, y)
    return state


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_it_equals_the_truncated_second_moment(a: int, b: int, seed: int, n: int) -> None:
    d, k = max(a, b), min(a, b)
    Y = gaussian(seed, n, 1 / np.arange(1, d + 1.0))
    state = learned(Y, k)
    assert close((state.U * state.s) @ state.U.T, literally(Y, k), 1e-9)
    assert np.abs(state.U.T @ state.U - np.eye(k)).max() <= 1e-12
    assert (np.diff(state.s) <= 0).all()
    assert state.count == n


def test_low_rank_messages_and_zeros() -> None:
    Y = np.zeros((12, 5))
    Y[1::3, 2], Y[2::3, 4] = 2.0, 1.0
    state = learned(Y, 3)
    assert state.s == pytest.approx([4 * 4 / 12, 4 * 1 / 12, 0])
    assert close((state.U * state.s) @ state.U.T, Y.T @ Y / 12, 1e-12)
    assert np.abs(state.U.T @ state.U - np.eye(3)).max() <= 1e-12


def test_many_messages_leave_the_basis_orthonormal_and_close_to_batch_pca() -> None:
    Y = gaussian(1, 20_000, 1 / np.arange(1, 13.0))
    state = learned(Y, 4)
    assert np.abs(state.U.T @ state.U - np.eye(4)).max() <= 1e-10
    assert Batch.of(lambda: [Y]).excess(state.U.T, Y.mean(axis=0)) <= 2


def test_messages_almost_in_the_span_leave_the_basis_orthonormal() -> None:
    Y = gaussian(2, 400, np.array([1, 1, 1, 1e-9, 1e-9, 1e-9]))
    state = learned(Y, 4)
    assert np.abs(state.U.T @ state.U - np.eye(4)).max() <= 1e-12
