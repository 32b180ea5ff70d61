"""History PCA against the same with d × d matrices, and against their eigenvectors."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baselines import batch, history_pca
from experiments.baselines.orthonormal import orthonormal
from streampca.pca.arrays import F64
from tests.pca.streams import close, gaussian


def beginning(seed: int, d: int, k: int) -> F64:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0]


def learned(Y: F64, C: F64, size: int, iterations: int = 1) -> history_pca.HistoryState:
    state = history_pca.start(C)
    for i in range(0, len(Y), size):
        state = history_pca.step(state, Y[i : i + size], iterations)
    return state


@given(st.integers(2, 9), st.integers(1, 3), st.integers(0, 2**32 - 1), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_it_iterates_on_the_mean_of_history_and_batch(d: int, k: int, seed: int, iterations: int) -> None:
    k, size = min(k, d), 5
    Y, Q = gaussian(seed, 30, 1 / np.arange(1, d + 1.0)), beginning(seed, d, k)
    history, expected = np.zeros((d, d)), Q
    for t in range(1, 7):
        part = Y[(t - 1) * size : t * size]
        A = (t - 1) / t * history + part.T @ part / size / t
        for _ in range(iterations):
            lengths, expected = np.linalg.norm(A @ expected, axis=0), orthonormal(A @ expected)
        history = expected @ np.diag(lengths) @ expected.T
    state = learned(Y, Q, size, iterations)
    assert close((state.Q * state.variance) @ state.Q.T, history, 1e-8)
    assert state.count == len(Y)


def test_many_iterations_truncate_the_second_moment() -> None:
    """Power iterations converge to the leading eigenvectors of history plus batch."""
    Y, k = gaussian(0, 200, 4.0 ** -np.arange(6.0)), 3
    moment = np.zeros((6, 6))
    for t in range(1, 11):
        part = Y[(t - 1) * 20 : t * 20]
        variance, V = np.linalg.eigh((t - 1) / t * moment + part.T @ part / 20 / t)
        moment = (V[:, -k:] * variance[-k:]) @ V[:, -k:].T
    state = learned(Y, beginning(0, 6, k), 20, 300)
    assert close((state.Q * state.variance) @ state.Q.T, moment, 1e-9)


def test_columns_stay_orthonormal_and_come_close_to_batch_pca() -> None:
    Y = gaussian(1, 20_000, 1 / np.arange(1, 13.0))
    state = learned(Y, beginning(1, 12, 4), history_pca.BATCH)
    assert np.abs(state.Q.T @ state.Q - np.eye(4)).max() <= 1e-12
    covariance = batch.covariance(Y)
    assert batch.loss_of(covariance, state.Q) <= 1.01 * batch.least_loss(covariance, 4)
