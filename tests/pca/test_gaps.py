"""Laws of streams with gaps of every kind: what a block says of pairs, and that no pattern of gaps breaks the state."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from streampca.fold import checkpoint as files
from streampca.fold.fold import Fold, FoldConfig
from streampca.pca import axes, missing
from streampca.pca.arrays import F64
from streampca.pca.blocked import triangle
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State
from tests.pca.streams import close, find_covariance, gaussian, remaining_weights, values_in, with_gaps

N = 900
KINDS = ["complete", "random", "late", "dead", "returns", "never", "even", "odd", "once"]


def shown(kind: str, n: int, random: np.random.Generator) -> F64:
    """Which of n messages show a sensor, (n,)."""
    t = np.arange(n)
    start, end = np.sort(random.integers(0, n, 2))
    return np.asarray(
        {
            "complete": t >= 0,
            "random": random.random(n) < 0.6,
            "late": t >= start,
            "dead": t < end,
            "returns": (t < start) | (t >= end),
            "never": t < 0,
            "even": t // 50 % 2 == 0,
            "odd": t // 50 % 2 == 1,
            "once": t == start,
        }[kind]
    )


def stream(kinds: Sequence[str], seed: int, n: int = N) -> F64:
    """Correlated messages (n, d), a few with heavy tails, of which entry j is missing as `kinds[j]` says."""
    random, d = np.random.default_rng(seed), len(kinds)
    V = random.standard_t(3, (n, d)) @ random.standard_normal((d, d)) + 5 * random.standard_normal(d)
    return np.where(np.column_stack([shown(kind, n, random) for kind in kinds]), V, np.nan)


def states(V: F64, config: LearningConfig, retention: float = 1.0) -> list[State]:
    """The state after each block of the stream V (n, d)."""
    found, start = [State.empty(config.dimensions)], 0
    while start < len(V):
        end = start + config.next_block_size(found[-1].weight)
        block = V[start:end]
        found.append(learn(found[-1], block, np.full(len(block), retention), config)[0])
        start = end
    return found[1:]


def noise_shares(state: State, k: int, config: LearningConfig) -> tuple[float, float]:
    """The shares of the total variance that σ² has where the state is served, and where it fills messages."""
    model = axes.make_model(axes.decompose(state, config.columns), k)
    assert model.explained_variance_ratio.sum() <= 1 + 1e-12
    assert model.explained_variance.min() >= 0
    total = state.total_variance or 1.0
    return model.noise_variance / total, missing.make_predictor(state, k).ridge.min() / total


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=9),
    k=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    retention=st.sampled_from([1.0, 2 ** (-1 / 100), 0.5]),
    standardize=st.booleans(),
    of_factor=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_pattern_of_gaps_breaks_a_state(
    kinds: list[str], k: int, seed: int, retention: float, standardize: bool, of_factor: bool
) -> None:
    """It is finite, no correlation exceeds 1, a model explains no more than there is, and it can be saved."""
    d = len(kinds)
    config = LearningConfig(d, min(k, d), 1, warm_up=40, impute=True, standardize=standardize, factor=of_factor)
    for state in states(stream(kinds, seed), config, retention):
        assert all(np.isfinite(array).all() for array in (state.C, state.mean, state.known_shares))
        assert ((state.known_shares >= 0) & (state.known_shares <= 1 + 1e-9)).all()
        if state.covariance is not None:
            assert min(noise_shares(state, config.components, config)) >= 0
            root = np.sqrt(state.entry_variances)
            assert (np.abs(find_covariance(state)) <= np.outer(root, root) * (1 + 1e-12)).all()
        assert_survives_a_checkpoint(replace(state, pinv_error=0.0), config)


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=9),
    seed=st.integers(0, 2**32 - 1),
    retention=st.sampled_from([1.0, 2 ** (-1 / 100)]),
    standardize=st.booleans(),
    dtype=st.sampled_from(["float64", "float32"]),
    factor=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_constant_stream_with_gaps_learns_no_variance_and_what_follows_is_not_clipped(
    kinds: list[str], seed: int, retention: float, standardize: bool, dtype: str, factor: bool
) -> None:
    random, d = np.random.default_rng(seed), len(kinds)
    config = LearningConfig(d, min(2, d), impute=True, standardize=standardize, dtype=dtype, factor=factor)
    constant = (random.standard_normal(d) * 10.0 ** random.integers(-9, 9)).astype(dtype)
    is_shown = np.column_stack([shown(kind, N, random) for kind in kinds])
    quiet = np.where(is_shown, constant, np.nan)[is_shown.any(axis=1)]  # a message shows at least one entry
    after_quiet = states(quiet, config, retention)
    for state in after_quiet:
        assert (state.total_variance, state.rank, state.clipped) == (0.0, 0, 0)
        was_shown = state.known_shares > 0
        np.testing.assert_array_equal(state.mean[was_shown], constant[was_shown])
    lively = constant * random.uniform(0, 2, (N, d)).astype(dtype)
    state, _ = learn(after_quiet[-1] if after_quiet else State.empty(d), lively, np.full(N, retention), config)
    assert state.clipped == 0
    assert state.total_variance > 0


@given(
    ratio=st.integers(0, 24).map(lambda quarters: 10.0 ** (quarters / 4)),
    late=st.integers(1, 8),
    k=st.integers(1, 9),
    quiet_messages=st.sampled_from([712, 900]),  # the late entries begin with a block, or within a block
    seed=st.integers(0, 2**32 - 1),
    standardize=st.booleans(),
    dtype=st.sampled_from(["float64", "float32"]),
)
@example(ratio=316.2, late=2, k=8, quiet_messages=900, seed=446252061, standardize=False, dtype="float64")
@example(ratio=562.3, late=3, k=9, quiet_messages=900, seed=2908634007, standardize=False, dtype="float32")
@settings(max_examples=40, deadline=None)
def test_the_variance_of_a_late_entry_does_not_collapse(
    ratio: float, late: int, k: int, quiet_messages: int, seed: int, standardize: bool, dtype: str
) -> None:
    """Late entries begin when all other entries, constant so far, begin to vary.

    Each block after the first with late entries replaces only its share of their variances. So what is left is at
    least NumPy's variance in that first block, times the share of the first block.
    """
    random, d = np.random.default_rng(seed), 9
    constant = random.choice([-1, 1], d) * 10.0 ** random.uniform(-1, 0, d)
    constant[-late:] *= ratio
    V = constant * random.uniform(0, 2, (quiet_messages + N, d))
    V[:quiet_messages] = constant
    V[:quiet_messages, -late:] = np.nan
    V = V.astype(dtype)
    config = LearningConfig(d, k, impute=True, standardize=standardize, dtype=dtype)
    since_late = [state for state in states(V, config) if state.known_shares[-1] > 0]
    first, last = since_late[0], since_late[-1]
    first_variance = np.nanvar(V[: first.count, -late:].astype(np.float64), axis=0)
    share_of_first = first.weight * first.known_shares[-1] / (last.weight * last.known_shares[-1])
    assert (last.entry_variances[-late:] >= (1 - 1e-5) * share_of_first * first_variance).all()
    assert last.clipped == 0


def assert_survives_a_checkpoint(state: State, config: LearningConfig) -> None:
    fold = replace(Fold.empty(config), state=state, position=N)
    checkpoint = files.Checkpoint("topic", "id", 0, fold, FoldConfig(config, None, None).as_dict())
    assert values_in(files.decode(files.encode(checkpoint))) == values_in(checkpoint)


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("k", [1, 10, 30])
def test_the_noise_stays_above_rounding(k: int, share: float, tails: bool) -> None:
    """Of triples of sensors that are alike but for noise, where Σ of pairs with unequal weights is often indefinite."""
    random = np.random.default_rng(1)
    of_triples = random.standard_t(3, (2000, 20)) if tails else random.standard_normal((2000, 20))
    V = np.repeat(of_triples, 3, axis=1) + 0.1 * random.standard_normal((2000, 60))
    config = LearningConfig(60, k, impute=True)
    for state in states(with_gaps(V, share), config):
        assert min(noise_shares(state, k, config)) > 1e-6


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("retention", [1.0, 0.99])
def test_where_nothing_predicts_a_block_has_available_case_moments(
    center: bool, retention: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About the entries' means, by the messages that show both entries; correlations are cut to 1."""
    monkeypatch.setattr(missing, "EM_ITERATIONS", 0)
    n, d = 40, 8
    V = with_gaps(gaussian(3, n, np.append(5.0, np.full(d - 1, 0.3)), offset=2.0), 0.5)
    state, _ = learn(State.empty(d), V, np.full(n, retention), LearningConfig(d, 2, 2, center, impute=True, warm_up=n))
    c = remaining_weights(np.full(n, retention))[:, None] * ~np.isnan(V)
    mean = np.nansum(c * V, axis=0) / c.sum(axis=0) if center else np.zeros(d)
    assert state.mean == pytest.approx(mean, rel=1e-9, abs=1e-12)
    plain = np.nanmean(V, axis=0) if center else np.zeros(d)  # products are about the mean from which a block starts
    Y = np.nan_to_num(V - plain)
    S = (c * Y).T @ Y / (c.T @ ~np.isnan(V)) - np.outer(mean - plain, mean - plain)
    root = np.sqrt(S.diagonal())
    exact = np.clip(S, -np.outer(root, root), np.outer(root, root))
    assert (exact != S).any()
    assert close(find_covariance(state), exact, 1e-9)


def test_the_sizes_of_batches_change_no_bit(factor: bool) -> None:
    V = stream(["complete", "random", "late", "dead", "returns", "never", "even", "odd"], 4)
    config = LearningConfig(8, 3, 2, warm_up=40, impute=True, factor=factor)
    alone = states(V, config)[-1]
    ends = [0, 40, 40 + 256, 40 + 3 * 256, N]
    state = State.empty(8)
    for start, end in itertools.pairwise(ends):
        state, _ = learn(state, V[start:end], np.ones(end - start), config)
    assert values_in(state) == values_in(alone)


@pytest.mark.parametrize("standardize", [False, True])
def test_no_entry_leaves_the_range_of_what_was_seen(standardize: bool) -> None:
    """Of heavy tails, few messages are remembered, and blocks are so small that entries often follow others."""
    for seed in range(8):
        random = np.random.default_rng(seed)
        V = np.repeat(random.standard_t(3, (1000, 1)), 3, axis=1) + 0.1 * random.standard_normal((1000, 3))
        V = np.where(random.random(V.shape) < 0.5, np.nan, V)
        V[np.isnan(V).all(axis=1), -1] = 0.0
        config, most = LearningConfig(3, 3, 0, warm_up=20, impute=True, standardize=standardize), np.nanmax(np.abs(V))
        state = State.empty(3)
        for block in np.array_split(V, 333):
            state, _ = learn(state, block, np.full(len(block), 2 ** (-1 / 5)), config)
            assert np.abs(state.mean).max() <= most
            assert state.entry_variances.max() <= most**2


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("row", [960, 1000, 1100])
def test_an_outlier_among_the_first_values_of_a_sensor_does_not_decide_its_moments(
    row: int, standardize: bool, factor: bool
) -> None:
    """It decides neither the sensor's mean nor its scale, and leaves the noise of the others."""
    V = np.random.default_rng(3).standard_normal((3000, 10))
    V[:950, 0] = np.nan
    V[row, 0] = 1e5
    state = states(V, LearningConfig(10, 2, impute=True, standardize=standardize, factor=factor))[-1]
    variance = state.entry_variances[0] if standardize or not factor else find_covariance(state)[0, 0]
    assert 0.5 <= variance <= 2
    assert abs(state.mean[0]) <= 0.1
    model = axes.make_model(state, 2)
    assert model.noise_variance * 8 / model.total_variance == pytest.approx(0.8, abs=0.06)


def test_a_sensor_that_was_never_seen_does_not_change_the_fill() -> None:
    """What predicts missing entries is what it would be without that sensor."""
    V = with_gaps(gaussian(5, 1200, np.append([4.0, 3.0], np.ones(18)), offset=1.0), 0.2)
    wide = np.column_stack([V, np.full((1200, 10), np.nan)])
    narrow = states(V, LearningConfig(20, 2, impute=True))
    for one, other in zip(narrow, states(wide, LearningConfig(30, 2, impute=True)), strict=True):
        assert missing.make_predictor(other, 2).ridge == pytest.approx(missing.make_predictor(one, 2).ridge, rel=1e-6)
        assert close(find_covariance(other)[:20, :20], find_covariance(one), 1e-6)


def test_the_covariance_of_sensors_that_are_never_together_follows_from_sensors_that_link_them() -> None:
    """Two overlapping halves of sensors with four common causes."""
    random = np.random.default_rng(6)
    loadings = random.standard_normal((4, 24))
    V = random.standard_normal((6000, 4)) @ loadings + 0.1 * random.standard_normal((6000, 24))
    first = random.random(6000) < 0.5
    V[first, 16:] = np.nan
    V[~first, :8] = np.nan
    state = states(V, LearningConfig(24, 4, impute=True))[-1]
    known = triangle.unpack(state.known, 24)  # type: ignore[arg-type]
    assert (known[:8, 16:] == 0).all()
    assert close(find_covariance(state)[:8, 16:], loadings.T[:8] @ loadings[:, 16:], 0.1)


@pytest.mark.parametrize("scale", [1.0, 1e149])
@pytest.mark.parametrize("seed", range(10))
def test_a_covariance_that_follows_from_others_is_at_most_the_product_of_the_standard_deviations(
    seed: int, scale: float
) -> None:
    """The covariances of a few messages need not be possible together: they gave correlations of up to 1e10."""
    random = np.random.default_rng(seed)
    Y = scale * random.standard_normal((7, 12))
    shown = random.random(Y.shape) < 0.5
    counts = shown.T.astype(np.float64) @ shown
    Y[~shown] = 0.0
    is_known = counts > 0
    S = missing.complete_covariance(Y.T @ Y / np.maximum(counts, 1.0), is_known)
    assert np.isfinite(S).all()
    deviations = np.sqrt(S.diagonal())
    largest = np.outer(deviations, deviations) * (1 + 1e-12)
    assert (np.abs(S) <= largest)[~is_known].all()
