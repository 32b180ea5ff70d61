"""Messages with gaps: filled as dense formulas say, learned without bias, and never at the cost of those without."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn import datasets

from streampca.pca import missing as missing_entries
from streampca.pca.arrays import F64
from streampca.pca.axes import decompose, find_principal_axes, make_model
from streampca.pca.blocked import centring, triangle
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State
from tests.pca import plain
from tests.pca.streams import (
    close,
    covariance,
    excess,
    find_covariance,
    gaussian,
    merge,
    one_pass,
    values_in,
    with_gaps,
)

D, K = 12, 3
CONFIG = LearningConfig(D, K, 2, warm_up=40, impute=True)
SPECTRUM = np.array([4.0, 3.0, 2.0, *[0.5] * (D - 3)])


def stream(n: int, seed: int = 0, offset: float = 3.0) -> F64:
    return gaussian(seed, n, SPECTRUM, offset)


def filled(state: State, V: F64) -> F64:
    """The block V (B, d), filled."""
    weights = centring.compute_weights(state, np.ones(len(V)))
    return missing_entries.fill_missing_entries(state, V, weights, K, center=True).V


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.5))
@settings(max_examples=40, deadline=None)
def test_missing_entries_get_their_conditional_mean(seed: int, share: float) -> None:
    state, _ = one_pass(stream(600, seed), CONFIG)
    V = with_gaps(stream(30, seed + 1), share, seed)
    fits = plain.compute_fits(V, state.mean, state.C[:, :K], state.total_variance)
    assert filled(state, V)[np.isnan(V)] == pytest.approx(fits[np.isnan(V)], rel=1e-9, abs=1e-9)


def test_observed_residuals_are_divided_by_the_root_of_the_share_of_messages_that_show_them() -> None:
    """So squares are right on average."""
    state, _ = one_pass(stream(600), CONFIG)
    V = with_gaps(stream(100, 1), 0.3)
    V[::4] = stream(25, 2)
    c = centring.compute_weights(state, np.ones(100)).c
    root = np.sqrt(c @ ~np.isnan(V) / c.sum())
    fits = plain.compute_fits(V, state.mean, state.C[:, :K], state.total_variance)
    assert filled(state, V) == pytest.approx(np.where(np.isnan(V), fits, fits + (V - fits) / root), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("center", [True, False])
def test_the_first_block_is_learned_by_the_axes_that_em_finds(center: bool) -> None:
    V = with_gaps(stream(40, 5, offset=2.0), 0.3)
    state, _ = learn(State.empty(D), V, np.ones(40), replace(CONFIG, center=center))
    missing = np.isnan(V)
    X = np.where(missing, np.nanmean(V, axis=0) * center, V)
    for _ in range(missing_entries.EM_ITERATIONS):
        mean = X.mean(axis=0) * center
        sigma = (X - mean).T @ (X - mean) / len(X)
        fits = plain.compute_fits(V, mean, plain.axes_within(sigma, np.eye(D))[:, :K], float(np.trace(sigma)))
        X = np.where(missing, fits, V)
    f, r, shown = fits - mean, np.where(missing, 0.0, V - fits), ~missing * 1.0
    moved = (f.mean(axis=0) + r.sum(axis=0) / shown.sum(axis=0)) * center
    cross = f.T @ r / shown.sum(axis=0)
    exact = f.T @ f / 40 + cross + cross.T + r.T @ r / (shown.T @ shown) - np.outer(moved, moved)
    assert close(find_covariance(state), exact, 1e-9)
    assert state.mean == pytest.approx(mean + moved)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-9)
    assert state.known is None


def test_complete_blocks_after_blocks_with_gaps_are_learned_as_without_impute() -> None:
    """If every entry was seen from the first message on."""
    V = stream(40 + 256 * 3)
    V[1:300] = with_gaps(V[1:300], 0.3)
    state, _ = learn(State.empty(D), V[:296], np.full(296, 0.99), CONFIG)
    state, _ = learn(state, V[296:552], np.full(256, 0.99), CONFIG)
    other, _ = learn(replace(state, missing=None), V[552:], np.full(256, 0.99), replace(CONFIG, impute=False))
    after, _ = learn(state, V[552:], np.full(256, 0.99), CONFIG)
    assert values_in(replace(after, missing=None)) == values_in(other)
    past = centring.compute_weights(state, np.full(256, 0.99)).past
    assert after.missing == pytest.approx(past * state.missing)
    assert after.known is None


@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 0.99]))
@settings(max_examples=20, deadline=None)
def test_missing_and_known_shares_are_those_of_the_weighted_messages(seed: int, retention: float) -> None:
    V = with_gaps(stream(808, seed), 0.2, seed)
    V[100:400] = stream(300, seed)
    V[:296, 3] = V[:552, 5] = np.nan
    state, _ = one_pass(V, CONFIG, retention)
    weights = retention ** np.arange(807, -1, -1.0)
    weights /= weights.sum()
    assert state.missing == pytest.approx(weights @ np.isnan(V), rel=1e-9)
    known = np.where(np.arange(D) == 3, weights[296:].sum(), np.where(np.arange(D) == 5, weights[552:].sum(), 1.0))
    assert triangle.unpack(state.known, D) == pytest.approx(np.minimum.outer(known, known), rel=1e-9)


@given(st.permutations(range(4)), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_neither_order_nor_grouping_of_a_merge_matters(order: list[int], cut: int) -> None:
    streams = [stream(200 + 90 * i, i, offset=float(i)) for i in range(4)]
    states = [one_pass(with_gaps(V, 0.1 * i, i), CONFIG)[0] for i, V in enumerate(streams)]
    assert states[0].missing is None
    plain, turned = merge(states, D), [states[i] for i in order]
    grouped = merge([merge(turned[:cut], D), merge(turned[cut:], D)], D)
    W = sum(state.weight for state in states)
    shares = [(state.weight, state.missing) for state in states if state.missing is not None]
    for merged in (plain, merge(turned, D), grouped):
        assert merged.missing == pytest.approx(sum(weight * missing for weight, missing in shares) / W)
        assert close(find_covariance(merged), find_covariance(plain), 1e-10)
        assert merged.mean == pytest.approx(plain.mean, rel=1e-10)
        assert merged.total_variance == pytest.approx(plain.total_variance, rel=1e-10)


def test_with_gaps_mean_and_total_variance_are_near_those_of_the_complete_stream() -> None:
    V = gaussian(3, 20_000, np.append([6.0, 5.0, 4.0], np.ones(57)), offset=2.0)
    state, scores = one_pass(with_gaps(V, 0.3), LearningConfig(60, 3, impute=True))
    _, plain = one_pass(V, LearningConfig(60, 3))
    assert state.total_variance == pytest.approx(np.trace(covariance(V)), rel=0.01)
    assert np.abs(state.mean - V.mean(axis=0)).max() < 0.05
    assert excess(find_principal_axes(state, 3)[0], covariance(V)) < 0.002
    for name in ("residual", "norm"):
        assert getattr(scores, name).mean() == pytest.approx(getattr(plain, name).mean(), rel=0.02)


@pytest.mark.parametrize(
    ("name", "standardised", "k", "bar"),
    [
        ("digits", False, 5, 0.006),
        ("digits", False, 1, 0.002),
        ("breast_cancer", True, 2, 0.006),
        ("wine", True, 2, 0.01),
    ],
)
def test_axes_of_tables_with_gaps_are_near_those_of_the_complete_tables(
    name: str, standardised: bool, k: int, bar: float
) -> None:
    X = table(name, standardised, 4000)
    state, _ = one_pass(with_gaps(X, 0.3), LearningConfig(X.shape[1], k, impute=True))
    assert excess(find_principal_axes(state, k)[0], covariance(X)) < bar


def test_messages_with_few_entries_do_not_enlarge_the_variance() -> None:
    """40 components of 64 entries, of which 30 % are missing: without a limit the variance would grow a hundredfold."""
    X = table("digits", True, 3600)
    state, _ = one_pass(with_gaps(X, 0.3), LearningConfig(64, 40, impute=True))
    assert state.total_variance < 3 * np.trace(covariance(X))


def table(name: str, standardised: bool, rows: int) -> F64:
    X: F64 = getattr(datasets, f"load_{name}")(return_X_y=True)[0].astype(np.float64)
    if standardised:
        X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    return X[np.random.default_rng(0).integers(0, len(X), rows)]


def test_an_entry_that_is_shown_for_the_first_time_has_its_own_mean() -> None:
    V = stream(40 + 256 * 4, offset=1000.0)
    late = V.copy()
    late[: 40 + 256, 5] = np.nan
    state, _ = one_pass(late, CONFIG)
    assert state.total_variance < 1.5 * np.trace(covariance(V))
    assert state.mean[5] == pytest.approx(1000, abs=3)


@pytest.mark.parametrize("gone", [[], [4], [0, 1, 2, 3]])
@pytest.mark.parametrize("n", [1, 2, 7, 40, 300, 900])
def test_hostile_gaps_give_finite_states(n: int, gone: list[int]) -> None:
    """Entries that are never there, blocks without any complete message, constant entries, and single messages."""
    V = with_gaps(stream(n), 0.5, n)
    V[:, gone] = np.nan
    V[:, 6] = np.where(np.isnan(V[:, 6]), np.nan, 7.0)
    state, _ = one_pass(V, CONFIG)
    assert all(np.isfinite(array).all() for array in (state.C, state.mean))
    assert 0 <= state.total_variance < np.inf
    assert n < 7 or state.mean[6] == pytest.approx(7.0)


@pytest.mark.parametrize("scale", [2.0**-400, 2.0**400])
def test_scaled_data_give_the_same_bits_scaled(scale: float) -> None:
    V = with_gaps(stream(700), 0.3)
    state, scaled = one_pass(V, CONFIG)[0], one_pass(scale * V, CONFIG)[0]
    assert (scale * state.C).tobytes() == scaled.C.tobytes()
    assert (scale * state.mean).tobytes() == scaled.mean.tobytes()


SPECTRA = {"low rank": np.append(np.linspace(5, 2, 6), np.linspace(1, 0.3, 54)), "steep": 3 / np.arange(1, 61.0)}


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("starts", [300, 1500, 1900, 5000, 10_000, 16_000])
def test_sensors_that_begin_late_have_their_own_variances_and_leave_the_axes(starts: int, spectrum: str) -> None:
    """Ten of 60 entries; the axes are nearly those of the complete stream, and variances are the entries' own."""
    V = gaussian(3, 20_000, SPECTRA[spectrum], offset=10.0)
    late = V.copy()
    late[:starts, 50:] = late[: starts // 2, 40:45] = np.nan
    state, _ = one_pass(late, LearningConfig(60, 6, impute=True))
    exact = covariance(V)
    assert excess(find_principal_axes(decompose(state, 6), 6)[0], exact) <= (0.001 if spectrum == "low rank" else 0.003)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=0.01)
    assert state.entry_variances[:50] == pytest.approx(V.var(axis=0)[:50], rel=0.02)
    assert state.entry_variances[50:] == pytest.approx(V[starts:, 50:].var(axis=0), rel=0.02)


def test_a_late_sensor_that_others_determine_leaves_no_negative_variance() -> None:
    """The covariances by the messages that have both entries need not be positive: negative eigenvalues are cut."""
    V = gaussian(4, 3000, np.concatenate([[3.0, 2.0], np.full(8, 1e-3)]), offset=1.0)
    V[:2400, 5:] = np.nan
    state, _ = one_pass(V, LearningConfig(10, 4, impute=True))
    model = make_model(decompose(state, 4), 4)
    assert (model.explained_variance >= 0).all()
    assert model.noise_variance > 0
    exact = covariance(gaussian(4, 3000, np.concatenate([[3.0, 2.0], np.full(8, 1e-3)])))
    assert np.trace(model.components @ exact @ model.components.T) > 0.95 * np.trace(exact)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_variances_of_entries_are_unbiased(share: float, late: bool) -> None:
    """Where the entries' own noise differs tenfold; before an entry has begun it is not missing, it is not there."""
    random, (n, d, k) = np.random.default_rng(4), (12_000, 60, 5)
    V = (random.standard_normal((n, k)) * np.linspace(3, 1.5, k)) @ random.standard_normal((k, d)) * 0.5
    V += random.standard_normal((n, d)) * 10 ** random.uniform(-0.7, 0.5, d)
    gone = with_gaps(V, share)
    if late:
        gone[:8000, 50:] = np.nan
    state, _ = one_pass(gone, LearningConfig(d, k, impute=True))
    assert np.mean(state.entry_variances / V.var(axis=0)) == pytest.approx(1, abs=0.01)
    assert excess(find_principal_axes(decompose(state, k), k)[0], covariance(V)) < 0.004


def test_a_pause_of_many_half_lives_forgets_which_entries_were_missing() -> None:
    """What lacked entries before it has no weight."""
    V, retention = with_gaps(stream(900), 0.2), np.ones(900)
    retention[500] = 0.0
    V[500:700] = stream(200, 1)
    state, _ = one_pass(V, CONFIG, retention)
    assert np.isfinite(state.C).all()
    assert state.total_variance == pytest.approx(np.trace(covariance(stream(900))), rel=0.2)
