"""Merging folds pools their covariances."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca import axes, pooled_rows, pooling
from streampca.pca.arrays import F64
from streampca.pca.blocked import triangle
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import StateMerger
from streampca.pca.state import State
from tests.pca.streams import close, covariance, excess, find_covariance, gaussian, merge, one_pass


def parts(seed: int, sizes: list[int], d: int) -> list[F64]:
    """Streams with different means and covariances."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((n, d)) * random.uniform(0.1, 3, d) + 5 * random.standard_normal(d) for n in sizes]


def folds(streams: list[F64], config: LearningConfig) -> list[State]:
    """The state of each stream."""
    return [one_pass(X, config)[0] for X in streams]


def state_with_even_rest(random: np.random.Generator, d: int, r: int, rest: float) -> tuple[State, F64]:
    """A state of r columns and the variance `rest` in all other directions, and its covariance (d, d)."""
    U = np.linalg.qr(random.standard_normal((d, r)))[0]
    C = U * np.sqrt(np.sort(random.uniform(rest, 10 * rest, r))[::-1])
    S = C @ C.T + rest * (np.eye(d) - U @ U.T)
    state = State(
        C=C,
        mean=random.standard_normal(d),
        weight=random.uniform(50, 500),
        total_variance=float(np.trace(S)),
        count=500,
        concentration=0.01,
    )
    return state, S


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_the_variance_outside_of_the_columns_counts_in_a_merge(seed: int, number: int) -> None:
    """The merged axes are exactly those of the sum of the covariances, of which columns alone would lose a part."""
    d, k, random = 30, 3, np.random.default_rng(seed)
    drawn = [state_with_even_rest(random, d, 4, random.uniform(0.1, 1)) for _ in range(number)]
    states, covariances = [state for state, _ in drawn], [S for _, S in drawn]
    w = np.array([state.weight for state in states])
    means = np.array([state.mean for state in states])
    pooled = np.average(covariances, axis=0, weights=w) + np.cov(means.T, bias=True, aweights=w)
    variance, U = np.linalg.eigh(pooled)
    merged = merge(states, k)
    assert merged.variance == pytest.approx(variance[: -k - 1 : -1], rel=1e-9)
    assert close(merged.C @ merged.C.T, (U[:, -k:] * variance[-k:]) @ U[:, -k:].T, 1e-7)


SPECTRA = {
    "power law": 1 / np.arange(1, 201.0),
    "slow power law": np.arange(1, 201.0) ** -0.5,
    "linear": np.linspace(1, 1 / 200, 200),
    "equal": np.ones(200),
    "spiked": np.append(np.linspace(20, 5, 5), np.ones(195)),
    "half constant": np.append(np.ones(100), np.zeros(100)),
}


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_explained_variances_are_near_batch_pca_on_every_spectrum(spectrum: str, standardize: bool) -> None:
    """Where Σ is not kept; neither larger nor much smaller, by one stream or by eight partitions."""
    X, k = gaussian(8, 4000, np.sqrt(SPECTRA[spectrum]), offset=1.0), 5
    config = LearningConfig(200, k, standardize=standardize, factor=True)
    exact = np.linalg.eigvalsh(np.corrcoef(X.T) if standardize else covariance(X))[: -k - 1 : -1]
    whole = one_pass(X, config)[0]
    for state, least in ((whole, 0.97), (merge(folds(np.array_split(X, 8), config), config.columns), 0.91)):
        ratio = axes.find_principal_axes(state, k)[1] / exact
        assert ratio.max() <= 1.002
        assert ratio.min() >= least


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_with_all_columns_the_pooled_covariance_is_exact(seed: int, sizes: list[int], d: int) -> None:
    streams = parts(seed, sizes, d)
    everything = np.vstack(streams)
    state = merge(folds(streams, LearningConfig(d, d)), d)
    exact = covariance(everything)
    assert np.linalg.norm(find_covariance(state) - exact) <= 1e-10 * max(np.linalg.norm(exact), 1e-9)
    assert state.mean == pytest.approx(everything.mean(axis=0), rel=1e-10, abs=1e-10)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-10, abs=1e-12)
    assert (state.weight, state.count) == (len(everything), len(everything))


def test_folds_without_messages_are_ignored() -> None:
    one, constant = folds([gaussian(2, 500, np.ones(3)), np.ones((10, 3))], LearningConfig(3, 3))
    assert close(find_covariance(merge([State.empty(3), one, State.empty(3)], 3)), find_covariance(one), 1e-12)
    assert merge([State.empty(3)], 3).count == 0
    assert merge([constant, constant], 3).rank == 0


@pytest.mark.parametrize("in_order", [True, False])
def test_merged_parts_are_as_accurate_as_one_pass(in_order: bool) -> None:
    X = gaussian(4, 20_000, 1 / np.arange(1, 41) ** 0.7, offset=1.0)
    exact = covariance(X)
    config = LearningConfig(40, 5)
    state = merge(folds(np.array_split(X if in_order else X[np.argsort(X[:, 0])], 20), config), config.columns)
    assert excess(axes.find_principal_axes(state, 5)[0], exact) <= 2e-3
    assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-9)


@pytest.mark.parametrize(("d", "n"), [(20, 30), (30, 20), (25, 25)])
@pytest.mark.parametrize("decades", [3, 9])
def test_merging_by_gram_matrices_agrees_with_singular_values(d: int, n: int, decades: int) -> None:
    """Also where the smallest wanted variance is far below what a Gram matrix holds."""
    F = np.random.default_rng(5).standard_normal((d, n)) * 10 ** np.linspace(0, -decades, n)
    U, sigma, _ = np.linalg.svd(F, full_matrices=False)
    plain, fast = (U * sigma)[:, :15], pooled_rows.find_leading_axes(F.T, 15)
    variance = np.vecdot(plain.T, plain.T)
    assert np.vecdot(fast.T, fast.T) == pytest.approx(variance, rel=1e-9)
    assert close(fast @ fast.T, plain @ plain.T, 1e-9)
    assert close(fast.T @ fast, np.diag(variance), 1e-9)


@pytest.mark.parametrize("alike", [True, False])
def test_cuts_lose_little_of_very_many_folds(alike: bool) -> None:
    """The cuts of 60 folds raise the loss by less than a hundredth of a percent."""
    d, k, config = 60, 4, LearningConfig(60, 4, 46, factor=True)
    spectra = [1 / np.arange(1, d + 1.0) if alike else np.roll(1 / np.arange(1, d + 1.0), m % 20) for m in range(60)]
    streams = [gaussian(m, 300, spectrum, offset=m % 7 / 10, turned=False) for m, spectrum in enumerate(spectra)]
    states, exact = folds(streams, config), covariance(np.vstack(streams))
    uncut = pooling.PooledCovariance(config.columns, uncompressed_rows=10_000)
    for state in states:
        uncut.add(state)
    best = excess(axes.find_principal_axes(uncut.state(d), k)[0], exact)
    merged = merge(states, config.columns)
    assert merged.C.shape == (d, config.columns)
    assert excess(axes.find_principal_axes(merged, k)[0], exact) <= best + 1e-4


def test_memory_does_not_grow_with_the_number_of_folds() -> None:
    d, config = 200, LearningConfig(200, 4, 46, factor=True)
    states = folds([gaussian(m, 300, np.ones(d)) for m in range(3)], config)

    def peak(count: int) -> int:
        tracemalloc.start()
        merger = StateMerger(config.columns)
        for i in range(count):
            merger.add(states[i % 3])
        merger.groups()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(320) <= 1.05 * peak(160)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_an_entry_that_a_stream_never_shows_has_the_mean_of_the_others(factor: bool, order: tuple[int, ...]) -> None:
    """Its variance is that of the streams that show it, where a covariance is kept."""
    config = LearningConfig(5, 2, impute=True, factor=factor)
    streams = parts(11, [900, 400, 700], 5)
    for stream in streams[::2]:
        stream[:, 3] = np.nan
    states = folds(streams, config)
    state = merge([states[i] for i in order], 5)
    assert state.mean[3] == pytest.approx(streams[1][:, 3].mean(), rel=1e-9)
    assert state.mean[:3] == pytest.approx(np.vstack(streams)[:, :3].mean(axis=0), rel=1e-9)
    assert state.known_shares[3] == pytest.approx(0.2)
    if not factor:
        assert state.entry_variances[3] == pytest.approx(streams[1][:, 3].var(), rel=1e-9)


def test_messages_and_shares_of_all_states_are_pooled() -> None:
    """Messages that were clipped, and the concentration of the weight."""
    streams = parts(12, [900, 400], 5)
    streams[0][500] *= 1e4
    state = merge(folds(streams, LearningConfig(5, 2)), 5, [0.5, 1.0])
    assert (state.count, state.clipped) == (1300, 1)
    weights = np.concatenate([np.full(900, 0.5), np.ones(400)])
    assert state.concentration == pytest.approx(np.sum((weights / weights.sum()) ** 2))


def test_float32_folds_stay_float32() -> None:
    X = gaussian(8, 800, np.array([2.0, 1, 0.5])).astype(np.float32)
    state = merge(folds([X[:300], X[300:]], LearningConfig(3, 3, dtype="float32")), 3)
    assert state.C.dtype == np.float32
    assert close(find_covariance(state), covariance(X), 1e-5)


GAPS: dict[str, tuple[tuple[slice, list[int]], ...]] = {
    "never": ((slice(None), [0, 1]),),
    "late": ((slice(None, 700), [0, 1]),),
    "dying": ((slice(700, None), [0, 1]),),
    "in turn": ((slice(0, None, 2), [0, 1]), (slice(1, None, 2), [4, 5])),
    "replaced": ((slice(None, 700), [0, 1]), (slice(700, None), [4, 5])),
    "once": ((slice(None, 5), [0, 1]), (slice(6, None), [0, 1])),
}


def with_gaps_of(kind: str, seed: int = 3) -> F64:
    X = gaussian(seed, 1500, np.array([5.0, 3, 1, 0.5, 0.4, 0.3]), offset=4.0)
    for rows, entries in GAPS[kind]:
        X[rows, entries] = np.nan
    return X


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kind", GAPS)
def test_a_merge_with_nothing_changes_no_bit(kind: str, standardize: bool, factor: bool) -> None:
    config = LearningConfig(6, 2, impute=True, standardize=standardize, factor=factor)
    (state,) = folds([with_gaps_of(kind)], config)
    merged = merge([State.empty(6), state, State.empty(6)], config.columns)
    for name in ("mean", "covariance", "known", "missing", "variances", "weight", "count"):
        one, other = getattr(state, name), getattr(merged, name)
        assert np.array_equal(one, other) if one is not None else other is None, name


@pytest.mark.parametrize("first", GAPS)
@pytest.mark.parametrize("second", GAPS)
def test_pairs_are_pooled_about_the_pooled_means_by_the_weight_that_knows_them(first: str, second: str) -> None:
    """Moments of two states are those of two streams, the entries of each drawn from the messages that know them."""
    config = LearningConfig(6, 2, impute=True)
    states = folds([with_gaps_of(first), with_gaps_of(second, 8)[:1200] + 2], config)
    merged = merge(states, 6)
    N, S = (np.stack([square_of(getattr(s, name), 6) for s in states]) for name in ("known", "covariance"))
    weights = np.array([s.weight for s in states])[:, None, None]
    for w, state in zip(N, states, strict=True):
        shown = np.minimum(1.0, ((1 - state.missing) / 0.1) ** 2)
        np.minimum(w, np.minimum.outer(shown, shown), out=w)
    means = np.stack([s.mean for s in states])
    entries = (weights * N).diagonal(axis1=1, axis2=2)
    mean = np.sum(entries * means, axis=0) / np.maximum(entries.sum(axis=0), 1e-300)
    assert merged.mean == pytest.approx(mean, rel=1e-9)
    about = S + np.stack([np.outer(m - mean, m - mean) for m in means])
    pairs = (weights * N).sum(axis=0)
    exact = (weights * N * about).sum(axis=0) / np.maximum(pairs, 1e-300)
    root = np.sqrt(exact.diagonal())
    exact = np.clip(exact, -np.outer(root, root), np.outer(root, root))
    assert square_of(merged.covariance, 6)[pairs > 1e-6] == pytest.approx(exact[pairs > 1e-6], rel=1e-9, abs=1e-9)


def square_of(packed: F64 | None, d: int) -> F64:
    return np.ones((d, d)) if packed is None else triangle.unpack(packed, d)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_entries_that_no_stream_has_met_together_follow_from_what_has_met_both(order: tuple[int, int]) -> None:
    """One factor determines all entries, so the missing covariance is known."""
    X = np.outer(np.random.default_rng(0).standard_normal(3000), np.arange(1, 7.0))
    X += 1e-3 * np.random.default_rng(1).standard_normal(X.shape)
    halves = X[:1500].copy(), X[1500:].copy()
    halves[0][:, :2], halves[1][:, 4:] = np.nan, np.nan
    states = folds(list(halves), LearningConfig(6, 1, impute=True))
    merged = merge([states[i] for i in order], 6)
    assert (square_of(merged.known, 6)[:2, 4:] == 0).all()
    assert square_of(merged.covariance, 6)[:2, 4:] == pytest.approx(covariance(X)[:2, 4:], rel=0.1)
