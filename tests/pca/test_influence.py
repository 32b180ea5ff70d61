"""Bounded influence: no message adds more to the variances than documented, and none is refused."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.blocked import centring
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State
from tests.pca.streams import covariance, excess, gaussian, one_pass, remaining_weights, with_gaps

SPECTRUM = 1 / np.arange(1, 81.0)


def added_at_most(state: State, rho: float, V: F64, center: bool) -> float:
    """What one message may add to a variance: 5 % of the total, or 30 ordinary messages, by the newest entry.

    Of a sample of which the largest part is one message, the variance is the larger the less it shows about the mean.
    """
    before = rho * state.weight
    eta, known = 1 / (before + 1), 1 - state.concentration if center else 1.0
    known_share = float(state.known_shares[~np.isnan(V).all(axis=0)].min(initial=1.0))
    seen = (1 - eta) * known_share + eta
    reach = max(centring.LARGEST_SHARE * before * known_share, centring.SMALLEST_REACH)
    return reach * eta / seen * state.total_variance / known


@given(
    d=st.integers(2, 6),
    n=st.integers(32, 600) | st.just(4000),
    seed=st.integers(0, 2**32 - 1),
    half_life=st.sampled_from([np.inf, np.inf, 300.0, 22.0, 3.0, 0.5]),
    pause=st.sampled_from([0.0, 1.0, 10.0, 40.0]),  # in half-lives, before the last message
    missing=st.sampled_from([0.0, 0.1, 0.4]),
    late=st.none() | st.integers(2, 300),  # messages since one entry has begun, if there are more in all
    center=st.booleans(),
    of_factor=st.booleans(),
    size=st.sampled_from([1.0, 30.0, 1e4, 1e100]),
)
@example(  # a dead sensor is predicted from an extreme message that is not clipped
    d=3, n=129, seed=3609303932, half_life=np.inf, pause=1.0, missing=0.4, late=None, center=False, of_factor=False,
    size=30.0,
)  # fmt: skip
@example(  # and from one that is clipped, after a pause
    d=3, n=366, seed=1535199316, half_life=0.5, pause=10.0, missing=0.4, late=None, center=False, of_factor=False,
    size=30.0,
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_no_message_adds_more_than_documented(
    d: int, n: int, seed: int, half_life: float, pause: float, missing: float, late: int | None, center: bool,
    of_factor: bool, size: float,
) -> None:  # fmt: skip
    """To the total variance, the explained variance or σ², whatever it lacks and however short the memory is."""
    random = np.random.default_rng(seed)
    config = LearningConfig(d, 1, 1, center, warm_up=32, impute=True, factor=of_factor)
    X = random.standard_normal((n + 1, d)) @ random.standard_normal((d, d)) + random.standard_normal(d)
    X[-1, 1:] *= size
    X = with_gaps(X, missing, seed)
    if late:
        X[: max(n - late, 0), 1] = np.nan
    state, _ = one_pass(X[:-1], config, 2 ** (-1 / half_life))
    rho = 2**-pause if np.isfinite(half_life) else 1.0
    after, _ = learn(state, X[-1:], np.array([rho]), config)
    before, now = variances(state), variances(after)
    assume(before[0] > 1e-9)
    assert (now <= before + added_at_most(state, rho, X[-1:], center) + 1e-9 * before[0]).all()


def variances(state: State) -> F64:
    """The total variance, that along the first axis, and that of all others."""
    explained = axes.find_principal_axes(axes.decompose(state, 1), 1)[1].sum()
    return np.array([state.total_variance, explained, max(state.total_variance - explained, 0.0)])


@pytest.mark.parametrize("size", [1e8, 1e100])
@pytest.mark.parametrize("where", [0, 100, 199, 200, 1000, 5000])
def test_one_huge_vector_is_clipped_and_leaves_the_axes(size: float, where: int, factor: bool) -> None:
    X = gaussian(20, 20_000, SPECTRUM, offset=1.0)
    exact = covariance(X)
    X[where] *= size
    state, _ = one_pass(X, LearningConfig(80, 5, factor=factor))
    assert state.clipped == 1
    assert excess(axes.find_principal_axes(state, 5)[0], exact) <= 0.01


@pytest.mark.parametrize("quiet", [1e-9, 1e-3, 0.0])
def test_after_a_quiet_first_block_the_axes_are_those_of_the_rest(quiet: float, factor: bool) -> None:
    X = gaussian(21, 5200, SPECTRUM)
    X[:200] *= quiet
    state, _ = one_pass(X, LearningConfig(80, 5, factor=factor))
    assert state.count == 5200
    assert excess(axes.find_principal_axes(state, 5)[0], covariance(X[200:])) <= 0.01


@pytest.mark.parametrize("d", [1, 2, 80])
def test_without_outliers_clipping_changes_no_bit(d: int, factor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, config = gaussian(22, 5000, 1 / np.arange(1, d + 1.0), offset=3.0), LearningConfig(d, min(d, 5), factor=factor)
    bounded, _ = one_pass(X, config)
    monkeypatch.setattr(centring, "LARGEST_SHARE", np.inf)
    monkeypatch.setattr(centring, "_LARGEST_IN_MEDIAN_DISTANCES", np.inf)
    free, _ = one_pass(X, config)
    assert bounded.clipped == free.clipped == 0
    assert bounded.C.tobytes() == free.C.tobytes()


@pytest.mark.parametrize("hours", [3, 24, 168])
@pytest.mark.parametrize("after", [1, 2, 5, 10, 40, 200])
def test_a_pause_clips_nothing(hours: float, factor: bool, after: int) -> None:
    """With a half-life of an hour and a message in three minutes: what follows is ordinary, although little is left."""
    X, n = gaussian(23, 4200, SPECTRUM[:20], offset=1.0), 4000
    retention = np.full(len(X), 2 ** (-1 / 20))
    retention[n] = 2.0**-hours
    state, _ = one_pass(X[: n + after], LearningConfig(20, 3, factor=factor), retention[: n + after])
    exact = covariance(X[: n + after], remaining_weights(retention[: n + after]))
    assert state.clipped == 0
    assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-8, abs=1e-12)
