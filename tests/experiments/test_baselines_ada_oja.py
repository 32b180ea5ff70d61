"""AdaOja against Oja's update with step sizes that are computed from a d × d covariance, and its laws."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baselines import ada_oja, batch, oja
from streampca.pca.arrays import F64
from tests.pca.streams import close, gaussian


def learned(Y: F64, C: F64, size: int) -> ada_oja.AdaOjaState:
    state = ada_oja.start(C)
    for i in range(0, len(Y), size):
        state = ada_oja.step(state, Y[i : i + size])
    return state


def beginning(seed: int, d: int, k: int) -> F64:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0]


@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_one_column_follows_oja_with_adagrads_step_sizes(d: int, seed: int, size: int) -> None:
    Y, C = gaussian(seed, 40, 1 / np.arange(1, d + 1.0)), beginning(seed, d, 1)
    expected, squares = C, ada_oja.SMALL**2
    for i in range(0, len(Y), size):
        part = Y[i : i + size]
        squares += float(np.sum((np.mean([np.outer(y, y) for y in part], axis=0) @ expected) ** 2))
        expected = oja.step(expected, part, squares**-0.5)
    state = learned(Y, C, size)
    assert close(state.C, expected, 1e-9)
    assert np.isclose(state.b[0] ** 2, squares)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1e3))
@settings(max_examples=20, deadline=None)
def test_the_scale_of_the_messages_does_not_matter(seed: int, scale: float) -> None:
    Y, C = gaussian(seed, 60, 1 / np.arange(1, 8.0)), beginning(seed, 7, 3)
    assert close(learned(scale * Y, C, 10).C, learned(Y, C, 10).C, 1e-4)  # but for the first b


def test_columns_stay_orthonormal_and_come_close_to_batch_pca() -> None:
    Y = gaussian(1, 20_000, 1 / np.arange(1, 13.0))
    state = learned(Y, beginning(1, 12, 4), ada_oja.BATCH)
    assert np.abs(state.C.T @ state.C - np.eye(4)).max() <= 1e-12
    covariance = batch.covariance(Y)
    assert batch.loss_of(covariance, state.C) <= 1.01 * batch.least_loss(covariance, 4)


def test_messages_of_zero_change_nothing() -> None:
    C = beginning(2, 6, 2)
    assert close(learned(np.zeros((20, 6)), C, 10).C, C, 1e-12)
