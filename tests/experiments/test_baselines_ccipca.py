"""CCIPCA against weighted averages written out, and against the eigenvectors that it must find."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baselines import ccipca
from streampca.pca.arrays import F64
from tests.pca.streams import close, gaussian


def learned(Y: F64, k: int, amnesic: float = ccipca.AMNESIC) -> list[ccipca.CcipcaState]:
    """The states before and after each message."""
    states = [ccipca.start(Y.shape[1], k)]
    for y in Y:
        states.append(ccipca.step(states[-1], y, amnesic))
    return states


@given(st.integers(2, 8), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 2.0, 4.0]))
@settings(max_examples=30, deadline=None)
def test_each_component_is_the_weighted_mean_of_what_the_ones_before_it_leave(
    d: int, seed: int, amnesic: float
) -> None:
    """The definition, with the d × d projectors and all weights from the products of the shares."""
    Y, k, n = gaussian(seed, 25, 1 / np.arange(1, d + 1.0)), min(3, d), 25
    states = learned(Y, k, amnesic)
    shares = np.array([(1 + amnesic * (t > amnesic + 1)) / t for t in range(1, n + 1)])
    left = Y.copy()  # what each message has left for the next component
    for i in range(k):
        start = i  # the message that starts component i, whose weight is all of it
        weights = np.append(np.cumprod((1 - shares)[:start:-1])[::-1], 1.0)
        weights[1:] *= shares[start + 1 :]
        terms = [left[start]]
        for t in range(start + 1, n):
            v = states[t].V[i]
            terms.append(np.outer(left[t], left[t]) @ v / np.linalg.norm(v))
        assert close(states[-1].V[i], weights @ np.array(terms), 1e-9)
        for t in range(start, n):
            v = states[t + 1].V[i]
            left[t] = (np.eye(d) - np.outer(v, v) / (v @ v)) @ left[t]


def test_it_finds_eigenvectors_and_eigenvalues() -> None:
    scales = np.array([5.0, 3.0, 2.0, 0.3, 0.2, 0.1])
    Y = np.random.default_rng(0).standard_normal((20_000, 6)) * scales
    V = learned(Y, 3, 0.0)[-1].V
    assert np.linalg.norm(V, axis=1) == pytest.approx(scales[:3] ** 2, rel=0.03)
    directions = np.abs(V / np.linalg.norm(V, axis=1, keepdims=True))
    assert np.diagonal(directions).min() >= 0.999


def test_messages_along_one_line_are_exact() -> None:
    line = np.array([3.0, 0.0, 4.0]) / 5
    steps = np.array([1.0, -2.0, 3.0, -4.0])
    V = learned(steps[:, None] * line, 1, 0.0)[-1].V
    # The first message starts the component as it is; the others come in as squares.
    assert close(V[0], (1 + 4 + 9 + 16) / 4 * line, 1e-12)


def test_messages_of_zero_are_harmless() -> None:
    Y = np.vstack([np.zeros((3, 4)), np.eye(4)])
    assert np.isfinite(learned(Y, 2)[-1].V).all()
