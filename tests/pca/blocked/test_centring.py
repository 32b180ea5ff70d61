"""Centring a block equals the sequential recursion, and no message counts for more than a share of the variance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca.arrays import F64
from streampca.pca.blocked import block, centring
from streampca.pca.blocked.centring import ORDINARY, SHARE, SHORT
from tests.pca.streams import remaining_weights


def centred(V: F64, mean: F64, total_variance: float, weights: centring.Weights) -> block.BlockResult:
    """The block without a factor."""
    return block.learn(V, np.zeros((V.shape[1], 0)), mean, total_variance, weights, 1, 0.0, np.empty(V.shape))


retentions = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.97, 0.999, 1.0]), min_size=1, max_size=40).map(np.array)


@given(retentions, st.floats(0, 1e6))
@settings(max_examples=100, deadline=None)
def test_weights_follow_the_recursion(retention: F64, w0: float) -> None:
    got = centring.weights(w0, retention)
    w = w0
    for s, kept in enumerate(retention):
        assert got.before[s] == pytest.approx(kept * w, rel=1e-14)
        w = kept * w + 1
        assert got.eta[s] == got.a[s] == pytest.approx(1 / w, rel=1e-14)
    assert got.total == pytest.approx(w, rel=1e-14)
    assert got.past == pytest.approx(w0 * np.prod(retention) / w, rel=1e-11, abs=1e-13)
    assert got.c == pytest.approx(remaining_weights(retention) / w, rel=1e-11, abs=1e-13)
    assert got.past + got.c.sum() == pytest.approx(1, rel=1e-12)


@given(retentions, st.floats(0, 1e4), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 30.0]))
@settings(max_examples=100, deadline=None)
def test_each_message_is_centred_and_shortened_before_the_next(
    retention: F64, w0: float, seed: int, size: float
) -> None:
    """By the mean and the total variance before it."""
    random = np.random.default_rng(seed)
    V, m, total = random.standard_normal((len(retention), 3)), random.standard_normal(3), 2.0
    V[::5] *= size
    weights = centring.weights(w0, retention)
    got, clipped = centred(V, m, total, weights), 0
    for s, v in enumerate(V):
        a, y = weights.a[s], v - m
        limit = max(SHARE * weights.before[s], ORDINARY) * total
        if y @ y > limit > 0 and weights.before[s] >= SHORT:
            y, clipped = y * np.sqrt(limit / (y @ y)), clipped + 1
        assert got.norm[s] == pytest.approx(y @ y, rel=1e-9, abs=1e-11)
        assert got.Y[s] == pytest.approx(np.sqrt(weights.c[s] * (1 - a)) * y, rel=1e-9, abs=1e-10)
        m, total = m + a * y, (1 - a) * (total + a * (y @ y))
    assert got.mean == pytest.approx(m, rel=1e-9, abs=1e-10)
    assert (got.total_variance, got.clipped) == (pytest.approx(total, rel=1e-9, abs=1e-11), clipped)


class TestTheFirstBlock:
    """It has no variance to compare with, but a median."""

    @pytest.mark.parametrize("size", [1e8, 1e100, 1e150])
    def test_no_message_is_farther_than_ten_medians(self, size: float) -> None:
        V = np.random.default_rng(0).standard_normal((200, 4)) + 3
        V[[7, 100]] *= size
        got = centred(V, np.zeros(4), 0.0, centring.weights(0.0, np.ones(200)))
        assert got.clipped == 2
        assert np.isfinite(got.Y).all()
        assert np.isfinite(got.norm).all()
        assert got.total_variance < 20

    def test_messages_that_are_alike_say_nothing(self) -> None:
        """As of an idle sensor: their median distance is 0."""
        V = np.zeros((200, 4))
        V[::3] = np.random.default_rng(1).standard_normal((67, 4))
        assert centred(V, np.zeros(4), 0.0, centring.weights(0.0, np.ones(200))).clipped == 0
