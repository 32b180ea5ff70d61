"""Centring inside a block equals the sequential recursion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca.blocked import centring
from tests.pca.streams import covariance, remaining_weights

retentions = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.97, 0.999, 1.0]), min_size=1, max_size=40).map(np.array)


@given(retentions, st.floats(0, 1e6))
@settings(max_examples=100, deadline=None)
def test_weights_follow_the_recursion(retention: np.ndarray, w0: float) -> None:
    got = centring.weights(w0, retention, len(retention))
    w = w0
    for s, kept in enumerate(retention):
        w = kept * w + 1
        assert got.a[s] == pytest.approx(1 / w, rel=1e-14)
    assert got.total[0] == pytest.approx(w, rel=1e-14)
    assert got.past[0] == pytest.approx(w0 * np.prod(retention) / w, rel=1e-11, abs=1e-13)
    assert got.c == pytest.approx(remaining_weights(retention) / w, rel=1e-11, abs=1e-13)
    assert got.past[0] + got.c.sum() == pytest.approx(1, rel=1e-12)


@given(retentions, st.floats(0, 1e6), st.integers(1, 45))
@settings(max_examples=100, deadline=None)
def test_weights_of_many_blocks_equal_those_of_each_block_in_turn(retention: np.ndarray, w0: float, block: int) -> None:
    together, w = centring.weights(w0, retention, block), w0
    assert len(together.past) == len(together.total) == -(-len(retention) // block)
    for i, start in enumerate(range(0, len(retention), block)):
        alone = centring.weights(w, retention[start : start + block], block)
        w = alone.total[0]
        assert np.array_equal(together.eta[start : start + block], alone.eta)
        assert np.array_equal(together.c[start : start + block], alone.c)
        assert (together.past[i], together.total[i]) == (alone.past[0], alone.total[0])


@given(retentions, st.floats(0, 1e4), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_each_message_is_centred_by_the_running_mean_before_it(retention: np.ndarray, w0: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    V, m0 = random.standard_normal((len(retention), 3)), random.standard_normal(3)
    weights = centring.weights(w0, retention, len(retention))
    centred = V - m0
    centring.subtract_running_mean(centred, weights.a)
    m = m0
    for s, v in enumerate(V):
        assert centred[s] == pytest.approx(v - m, rel=1e-10, abs=1e-11)
        m = m + weights.a[s] * (v - m)
    assert m0 + weights.c @ (V - m0) == pytest.approx(m, rel=1e-10, abs=1e-11)


@given(retentions, st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_the_weighted_sum_of_messages_is_the_weighted_covariance(retention: np.ndarray, seed: int) -> None:
    """Σ c y yᵀ with y = √(1−a)(v − m) is NumPy's weighted covariance about the weighted mean."""
    V = np.random.default_rng(seed).standard_normal((len(retention), 3)) + 5
    weights = centring.weights(0.0, retention, len(retention))
    Y = V.copy()
    centring.subtract_running_mean(Y, weights.a)
    Y *= np.sqrt(1 - weights.a)[:, None]
    exact = covariance(V, remaining_weights(retention))
    assert np.abs((weights.c[:, None] * Y).T @ Y - exact).max() <= 1e-11 * (1 + np.abs(exact).max())


@given(retentions, st.floats(0, 1e4), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_products_of_centred_messages_follow_from_those_about_a_constant(
    retention: np.ndarray, w0: float, seed: int
) -> None:
    """YC, YYᵀ and YᵀZ from DC, DDᵀ and D."""
    random = np.random.default_rng(seed)
    a = centring.weights(w0, retention, len(retention)).a
    D, C, Z = (random.standard_normal(shape) for shape in ((len(a), 5), (5, 3), (len(a), 3)))
    Y = D.copy()
    centring.subtract_running_mean(Y, a)
    Y *= np.sqrt(1 - a)[:, None]
    P, G = D @ C, D @ D.T
    centring.center_products(P, G, a)
    assert pytest.approx(Y @ C, rel=1e-9, abs=1e-10) == P
    assert pytest.approx(Y @ Y.T, rel=1e-9, abs=1e-10) == G
    assert D.T @ centring.adjoint(Z, a) == pytest.approx(Y.T @ Z, rel=1e-9, abs=1e-10)
