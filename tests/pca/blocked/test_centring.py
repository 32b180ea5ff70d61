"""Centring a block equals the sequential recursion, and no message counts for more than a share of the variance."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca.arrays import F64
from streampca.pca.blocked import block, centring
from streampca.pca.blocked.centring import LARGEST_SHARE, SMALLEST_REACH, UNCLIPPED_MESSAGES
from streampca.pca.state import State
from tests.pca.streams import remaining_weights


def centred(V: F64, mean: F64, total_variance: float, weights: centring.Weights) -> block.BlockResult:
    """The block without a factor."""
    return block.learn(V, np.zeros((V.shape[1], 0)), mean, total_variance, weights, 0.0, np.empty(V.shape))


def make_state(weight: float, concentration: float = 0.0, count: int = UNCLIPPED_MESSAGES) -> State:
    return replace(State.empty(1), weight=weight, concentration=concentration, count=count)


retentions = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.97, 0.999, 1.0]), min_size=1, max_size=40).map(np.array)


@given(retentions, st.floats(0, 1e6))
@settings(max_examples=100, deadline=None)
def test_weights_follow_the_recursion(retention: F64, w0: float) -> None:
    got = centring.compute_weights(make_state(w0), retention)
    w = w0
    for s, kept in enumerate(retention):
        w = kept * w + 1
        assert got.eta[s] == got.a[s] == pytest.approx(1 / w, rel=1e-14)
    assert got.total == pytest.approx(w, rel=1e-14)
    assert got.past == pytest.approx(w0 * np.prod(retention) / w, rel=1e-11, abs=1e-13)
    assert got.c == pytest.approx(remaining_weights(retention) / w, rel=1e-11, abs=1e-13)
    assert got.past + got.c.sum() == pytest.approx(1, rel=1e-12)


@given(retentions, st.integers(0, 60), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_concentration_is_the_sum_of_the_squared_shares_and_limits_are_divided_by_the_rest(
    retention: F64, first: int, center: bool
) -> None:
    """And 1 − κ is the share of a variance that is seen about the mean: so the limit is divided by it."""
    early = centring.compute_weights(State.empty(1), np.ones(first)) if first else None
    state = make_state(early.total, early.concentration, first) if early else State.empty(1)
    got = centring.compute_weights(state, retention, center)
    weights = remaining_weights(np.append(np.ones(first), retention))
    assert got.concentration == pytest.approx(np.sum((weights / weights.sum()) ** 2), rel=1e-9)
    kappa = state.concentration
    for s, eta in enumerate(got.eta):
        limit = max(LARGEST_SHARE * (1 / eta - 1), SMALLEST_REACH)
        reach = limit / (1 - kappa * center) if kappa * center < 1 else np.inf
        assert got.reach[s] == (pytest.approx(reach, rel=1e-6) if first + s >= UNCLIPPED_MESSAGES else np.inf)
        kappa = (1 - eta) ** 2 * kappa + eta**2


@given(retentions, st.floats(1, 1e4), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 30.0]), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_each_message_is_centred_and_clipped_before_the_next(
    retention: F64, w0: float, seed: int, size: float, known_share: float
) -> None:
    """By the mean and the total variance before it."""
    random = np.random.default_rng(seed)
    V, m, total = random.standard_normal((len(retention), 3)), random.standard_normal(3), 2.0
    V[::5] *= size
    kappa = 1 / w0
    weights = centring.compute_weights(make_state(w0, kappa), retention, known_share=known_share)
    got = centred(V, m, total, weights)
    for s, v in enumerate(V):
        a, y, kept = weights.a[s], v - m, 1.0
        before = 1 / weights.eta[s] - 1
        limit = max(LARGEST_SHARE * before * known_share, SMALLEST_REACH) * total / max(1 - kappa, 1e-300)
        if y @ y > limit > 0:
            kept = np.sqrt(limit / (y @ y))
        y = kept * y
        assert got.squared_distance[s] == pytest.approx(y @ y, rel=1e-9, abs=1e-11)
        assert got.kept_share[s] == pytest.approx(kept, rel=1e-9)
        assert got.Y[s] == pytest.approx(np.sqrt(weights.c[s] * (1 - a)) * y, rel=1e-9, abs=1e-10)
        m, total, kappa = m + a * y, (1 - a) * (total + a * (y @ y)), (1 - a) ** 2 * kappa + a**2
    assert got.mean == pytest.approx(m, rel=1e-9, abs=1e-10)
    assert got.total_variance == pytest.approx(total, rel=1e-9, abs=1e-11)


# The first block: it has no variance to compare with, but a median.


@pytest.mark.parametrize("size", [1e8, 1e100, 1e150])
def test_in_a_first_block_only_outliers_are_clipped(size: float) -> None:
    V = np.random.default_rng(0).standard_normal((200, 4)) + 3
    V[[7, 100]] *= size
    got = centred(V, np.zeros(4), 0.0, centring.compute_weights(State.empty(4), np.ones(200)))
    assert np.flatnonzero(got.kept_share < 1).tolist() == [7, 100]
    assert np.isfinite(got.Y).all()
    assert np.isfinite(got.squared_distance).all()
    assert got.total_variance < 20


def test_if_most_messages_are_equal_none_is_clipped() -> None:
    """As of an idle sensor: their median distance is 0."""
    V = np.zeros((200, 4))
    V[::3] = np.random.default_rng(1).standard_normal((67, 4))
    assert (centred(V, np.zeros(4), 0.0, centring.compute_weights(State.empty(4), np.ones(200))).kept_share == 1).all()
