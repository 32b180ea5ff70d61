"""What the factor cannot see is noticed, and noise is not."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import axes, learning
from streampca.pca.arrays import F64
from streampca.pca.blocked import plain, recurrence, watch
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.merge import merge
from streampca.pca.pending import Messages, UnitGauge, learn_whole_blocks
from streampca.pca.state import State
from tests.pca.streams import close, covariance, excess, gaussian, learned, one_pass


def noticed(Y: F64, C: F64, c: F64, smallest: float) -> bool:
    """The compiled rule, with the padding that it gets in a block."""
    w = recurrence.width(C.shape[1])
    p, S = recurrence.resize(Y @ C, len(Y), w), recurrence.resize(np.linalg.inv(C.T @ C), w, w)
    return bool(watch.unseen(p, Y @ Y.T, S, c, smallest, float(np.finfo(np.float64).eps)))


def stretch(seed: int, b: int, d: int, K: int, unseen: float, outlier: float) -> tuple[F64, F64]:
    """Messages Y (b, d) of variance one, with `unseen` more variance along one direction, and a factor C (d, K)."""
    random = np.random.default_rng(seed)
    Y = random.standard_normal((b, d))
    Y[:, -1] *= np.sqrt(1 + unseen)
    Y[b // 2, -2] += outlier
    return Y, np.eye(d, K) * np.linspace(2, 1, K)


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 80), st.integers(3, 60), st.floats(0, 30), st.floats(0, 30),
    st.floats(0.5, 10), st.floats(1e-6, 1e-2),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_the_compiled_rule_is_the_plain_one(
    seed: int, b: int, d: int, unseen: float, outlier: float, smallest: float, share: float
) -> None:
    """Except close to the limit, as eight steps of a power iteration find less than the largest eigenvalue."""
    Y, C = stretch(seed, b, d, max(1, d // 3), unseen, outlier)
    c = np.full(b, share)
    if noticed(Y, C, c, smallest):
        assert plain.unseen(Y, C, c, smallest * (1 - 1e-9))
    else:
        assert not plain.unseen(Y, C, c, smallest * 1.6)


@pytest.mark.parametrize("scale", [2.0**-200, 2.0**200])
def test_the_rule_does_not_depend_on_the_unit_of_the_data(scale: float) -> None:
    for unseen in np.linspace(1, 12, 30):
        Y, C = stretch(3, 64, 30, 8, float(unseen), 0.0)
        found = noticed(Y, C, np.full(64, 1e-3), 1.0)
        assert noticed(scale * Y, scale * C, np.full(64, 1e-3), scale**2) == found


@pytest.mark.parametrize(
    ("d", "k", "decay", "half_life", "dtype"),
    [(40, 4, 0.0, None, "float64"), (64, 8, 0.5, None, "float32"), (12, 1, 0.0, None, "float32"),
     (13, 2, 1.0, None, "float64"), (30, 3, 0.0, 2000.0, "float64")],
)  # fmt: skip
def test_gaussian_noise_is_never_absorbed(d: int, k: int, decay: float, half_life: float | None, dtype: str) -> None:
    """Also where all directions beyond K have the same variance as the served ones."""
    X = gaussian(d, 40_000, 1 / np.arange(1, d + 1) ** decay, offset=1.0).astype(dtype)
    config, retention = LearningConfig(d, k, dtype=dtype), 1.0 if half_life is None else 2 ** (-1 / half_life)
    state = whole(X[:5000], config, retention)
    after, _ = learn(state, X[5000:], np.full(35_000, retention), config)
    assert after.older == pytest.approx(state.older * retention**35_000 * state.weight / after.weight, rel=1e-9)
    assert after.rank == config.columns


def whole(X: F64, config: LearningConfig, retention: float) -> State:
    """The state after a stream in one call, with a first block of its own."""
    state, _, _ = learn_whole_blocks(
        UnitGauge(config), State.empty(config.dimensions, config.dtype),
        Messages(X[:0], np.zeros(0)), Messages(X[: config.start], np.full(config.start, retention)),
    )  # fmt: skip
    return learn(state, X[config.start :], np.full(len(X) - config.start, retention), config)[0]


def new_sensors(seed: int, before: int = 3000) -> F64:
    """40 sensors speak, and then only 5 others."""
    X, random = np.zeros((before + 6000, 45)), np.random.default_rng(seed)
    X[:before, :40] = random.standard_normal((before, 40))
    X[before:, 40:] = random.standard_normal((6000, 5)) * np.arange(2, 7)
    return X


def new_categories(seed: int) -> F64:
    """30 categories, and then 5 others, each message one of them."""
    random = np.random.default_rng(seed)
    return np.eye(35)[np.concatenate([random.integers(30, size=8000), random.integers(30, 35, size=16_000)])]


def device_kinds(seed: int, kinds: int = 12, own: int = 6, each: int = 1500) -> F64:
    """Kinds of device, kind after kind, each with its own sensors and units."""
    X, random = np.zeros((kinds * each, kinds * own)), np.random.default_rng(seed)
    for kind in range(kinds):
        X[each * kind :, own * kind :][:each, :own] = random.standard_normal((each, own)) * random.uniform(0.3, 3, own)
    return X


def rare_features(seed: int) -> F64:
    """Standardised columns of which most are almost always the same."""
    random = np.random.default_rng(seed)
    X = (random.random((4000, 50)) < np.logspace(-2.7, -0.5, 50)) * random.standard_normal((4000, 50))
    return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))


def heavy_tails(seed: int) -> F64:
    """Student's t with 3 degrees of freedom."""
    random = np.random.default_rng(seed)
    return np.asarray(random.standard_t(3, (8000, 40)) / np.arange(1, 41) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stream", "k", "center", "percent", "without"),
    [(new_sensors, 5, False, 0.01, 300), (new_categories, 5, True, 0.01, 0.1), (device_kinds, 8, True, 0.2, 1),
     (rare_features, 10, True, 0.1, 1), (heavy_tails, 5, False, 0.02, 0)],
)  # fmt: skip
def test_streams_that_algorithm_1_alone_is_blind_to(
    stream: Callable[[int], F64], k: int, center: bool, percent: float, without: float
) -> None:
    """The excess over batch PCA in percent, and the least that it would be if nothing were ever noticed."""
    X = stream(0)
    exact, config = covariance(X, center=center), LearningConfig(X.shape[1], k, center=center)
    state, _ = one_pass(X, config)
    assert 100 * excess(axes.principal(state.C, k)[0], exact) <= percent
    assert close(state.N, state.C.T @ state.C, 1e-11)
    blind = State.empty(config.dimensions)
    for start, end in pairwise([0, *range(config.start, len(X), learning.BLOCK)]):
        if blind.rank < config.columns:
            blind, _ = learn(blind, X[start:end], np.ones(end - start), config)
        else:
            blind, _ = plain.learn_block(blind, X[start:end], np.ones(end - start), k, center)
    assert 100 * excess(axes.principal(blind.C, k)[0], exact) >= without


def test_new_directions_are_learned_beside_many_old_ones() -> None:
    """After one block they are weaker than all K + 32 old ones; some are among the strongest at the end."""
    X = device_kinds(0, kinds=20, own=10, each=1000)
    state, _ = one_pass(X, LearningConfig(200, 10))
    assert 100 * excess(axes.principal(state.C, 10)[0], covariance(X)) <= 0.1


def test_spare_columns_are_dropped_when_the_stream_has_doubled() -> None:
    X, config = new_sensors(0, 7000), LearningConfig(45, 5, 3, center=False)
    X = np.vstack([X, gaussian(1, 12_000, 1 / np.arange(1, 46.0))])
    state, ranks, shares = State.empty(45), [], []
    for end in range(200, len(X), learning.BLOCK):
        start = state.count
        state, _ = learn(state, X[start:end], np.ones(end - start), config)
        ranks.append(state.rank)
        shares.append(state.older)
    dropped = [i for i in range(1, len(ranks)) if ranks[i] < ranks[i - 1]]
    assert [ranks[i] for i in dropped] == [8, 8]  # those of the start, and later ones
    assert all(shares[i] <= 0.5 for i in dropped)
    assert (ranks[0], ranks[-1]) == (40, 8)  # C has no more columns than there are directions
    assert max(ranks[dropped[0] :]) == 8 + learning.SPARE


def test_a_merge_counts_what_is_beyond_the_columns_of_each_part() -> None:
    """A direction that is too weak for the factor of any one part, and strong in all of them together."""
    X = device_kinds(1)
    parts = [one_pass(part, LearningConfig(72, 4, 2))[0] for part in np.array_split(X, 3)]
    exact = covariance(X)
    cut = [replace(part, C=part.C[:, :6], N=part.N[:6, :6]) for part in parts]
    assert all(part.rank > 6 for part in parts)
    found, without = (100 * excess(axes.principal(merge(p, 6).C, 4)[0], exact) for p in (parts, cut))
    assert found <= min(0.5, without)


def test_the_ratio_is_zero_until_something_unseen_comes() -> None:
    """Also at the start, where there are spare columns, too."""
    X, config = new_sensors(0, 7000), LearningConfig(45, 5, 3, center=False)
    for quiet in (0, 200, 3000, 7000):
        assert learning.unseen_variance_ratio(one_pass(X[:quiet], config)[0], config) == 0
    state, _ = one_pass(X[:7600], config)
    variance = np.linalg.eigvalsh(learned(state))[::-1]
    assert learning.unseen_variance_ratio(state, config) == pytest.approx(variance[8] / variance[4])


@given(st.integers(0, 2**32 - 1), st.integers(100, 1000), st.integers(4, 60), st.floats(0, 2), st.booleans())
@settings(max_examples=12, deadline=None)
def test_a_short_stream_is_learned_as_batch_pca_would(seed: int, n: int, d: int, decay: float, center: bool) -> None:
    """Whatever its spectrum and order: a stream that ends before Algorithm 1 has converged."""
    X = gaussian(seed, n, 1 / np.arange(1, d + 1.0) ** decay, offset=1.0)
    X = X[np.argsort(X[:, 0])]
    state, _ = one_pass(X, LearningConfig(d, 3, center=center))
    exact, kept = covariance(X, center=center), axes.principal(state.C, 3)[0]
    assert excess(kept, exact) <= 1e-3
    if d <= LearningConfig(d, 3).columns + learning.SPARE:
        assert close(learned(state), exact, 1e-9)
