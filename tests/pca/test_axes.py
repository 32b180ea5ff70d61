"""Principal axes and their signs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig, learn
from tests.pca.streams import close, compute_scale, covariance, excess, find_covariance, gaussian, make_state, one_pass


def factor(d: int, r: int, seed: int) -> F64:
    """Orthogonal columns (d, r), longest first, as those of a state."""
    U, sigma, _ = np.linalg.svd(np.random.default_rng(seed).standard_normal((d, r)), full_matrices=False)
    return U * sigma


factors = st.tuples(st.integers(1, 15), st.integers(1, 15), st.integers(0, 2**32 - 1)).map(
    lambda t: factor(max(t[:2]), min(t[:2]), t[2])
)


@given(factors)
@settings(max_examples=60, deadline=None)
def test_axes_are_the_eigenvectors_of_the_covariance(C: np.ndarray) -> None:
    rows, variance = axes.find_principal_axes(make_state(C), C.shape[1])
    assert (rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)] > 0).all()
    assert np.abs(rows @ rows.T - np.eye(len(rows))).max() <= 1e-12
    assert (np.diff(variance) <= 1e-12).all()
    assert close((rows.T * variance) @ rows, C @ C.T, 1e-12)


@given(factors, st.integers(1, 15))
@settings(max_examples=60, deadline=None)
def test_a_kept_covariance_is_decomposed_to_the_last_digit(C: np.ndarray, columns: int) -> None:
    d, exact = len(C), np.linalg.eigvalsh(C @ C.T)[::-1][: min(columns, C.shape[1])]
    state = axes.decompose(replace(make_state(C[:, :0]), covariance=(C @ C.T)[np.tril_indices(d)]), columns)
    assert state.variance == pytest.approx(exact[: state.rank], rel=1e-9)
    assert state.rank == len(exact) or exact[state.rank] < 1e-10 * exact[0]
    assert np.abs(state.C.T @ state.C - np.diag(state.variance)).max() <= 1e-9 * state.variance[0]
    assert close(C @ (C.T @ state.C), state.C * state.variance, 1e-9)


@pytest.mark.parametrize("C", [np.zeros((5, 0)), np.zeros((5, 2)), np.eye(5)[:, :1], 3 * np.eye(5)[:, [4, 1]]])
def test_axes_beyond_the_rank_complete_an_orthonormal_basis(C: F64) -> None:
    rows, variance = axes.find_principal_axes(make_state(C), 5)
    assert np.abs(rows @ rows.T - np.eye(5)).max() <= 1e-12
    assert close((rows.T * variance) @ rows, C @ C.T, 1e-12)
    assert np.array_equal(rows, axes.find_principal_axes(make_state(C), 5)[0])


def test_signs_are_stable_between_versions() -> None:
    """If two entries have nearly the same size, the sign convention alone would flip between versions."""
    first = np.array([[0.6, -0.6 - 1e-9, 0.5], [0.1, 0.2, 0.97]])
    second = np.array([[0.6 + 1e-8, -0.6, 0.5], [-0.1, -0.2, -0.97]])
    own = axes.choose_signs(first)
    assert own[0, 0] < 0
    assert ((axes.choose_signs(axes.choose_signs(second), own) * own).sum(axis=1) > 0).all()


def test_signs_are_stable_when_axes_swap() -> None:
    now = np.eye(4)[[1, 0, 2]]
    assert np.array_equal(axes.choose_signs(now, -np.eye(4)[:3]), -now)


def test_the_whitened_coordinate_of_a_component_without_variance_is_zero() -> None:
    line = np.outer(np.arange(500.0), np.ones(3))
    model = axes.make_model(one_pass(line, LearningConfig(3, 2))[0], 2)
    projected = model.project(line)
    assert not projected.in_basis("whitened")[:, 1].any()
    assert projected.residual == pytest.approx(0, abs=1e-15 * 500**2)
    assert model.explained_variance[1] == 0
    assert not axes.make_model(one_pass(np.ones((9, 3)), LearningConfig(3, 2))[0], 2).explained_variance_ratio.any()


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("fitted", [True, False])
def test_a_model_is_continued_from_what_it_has_learned(factor: bool, standardize: bool, fitted: bool) -> None:
    """Without that, as published by a worker, from probabilistic PCA."""
    d, config = 80, LearningConfig(80, 4, factor=factor, standardize=standardize)
    X = gaussian(1, 6000, 1 / np.arange(1, d + 1.0), offset=2.0) * (np.logspace(-3, 3, d) if standardize else 1)
    X[:, 7], X[:, 8] = 5.0, np.sign(X[:, 9] - X[:, 9].mean())
    state, whole = one_pass(X[:3000], config)[0], one_pass(X, config)[0]
    model = axes.make_model(axes.decompose(state, 4), 4)
    left = axes.compute_covariance_or_axes(state, model.total_variance)
    again = axes.restore_state(model, left if fitted else None, None, 3000, config)
    assert (again.count, again.weight) == (3000, 3000)
    later, _ = learn(again, X[3000:], np.ones(3000), config)
    assert later.mean == pytest.approx(whole.mean, rel=1e-12)
    if standardize:
        assert later.scale == pytest.approx(whole.scale, rel=1e-6)
        assert later.total_variance == pytest.approx(d - 1)
    exact, rows = (
        covariance(X * compute_scale(X) if standardize else X),
        axes.find_principal_axes(axes.decompose(later, 4), 4)[0],
    )
    assert excess(rows, exact) <= (1e-6 if fitted else 0.01)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kind", ["never", "late", "dying", "replaced", "random"])
def test_a_continued_stream_with_gaps_is_learned_as_without_a_stop(kind: str, standardize: bool) -> None:
    """To the single precision of what a model file holds of the covariance."""
    X, random = gaussian(2, 6000, 1 / np.arange(1, 13.0), offset=50.0), np.random.default_rng(0)
    X[
        {"never": slice(3000), "late": slice(2000), "dying": slice(1000, None), "replaced": slice(1000)}.get(kind, ()),
        3,
    ] = np.nan
    if kind == "replaced":
        X[1000:, 4] = np.nan
    if kind == "random":
        X[random.random(X.shape) < 0.3] = np.nan
    config = LearningConfig(12, 4, impute=True, standardize=standardize)
    state = axes.decompose(one_pass(X[:3000], config)[0], config.columns)
    model = axes.make_model(state, 4)
    again = axes.restore_state(
        model, axes.compute_covariance_or_axes(state, model.total_variance), state.known, 3000, config
    )
    (whole, _), (later, _) = (learn(before, X[3000:], np.ones(3000), config) for before in (state, again))
    assert later.mean == pytest.approx(whole.mean, rel=1e-6)
    assert close(find_covariance(later), find_covariance(whole), 1e-5)
    assert (later.known is None) == (whole.known is None)
    if later.known is not None:
        assert later.known == pytest.approx(whole.known, abs=1e-9)


def test_gaps_before_a_stop_are_allowed_for_in_the_noise_of_a_model_of_complete_messages_after_it() -> None:
    """Σ still has negative eigenvalues. Without the correction, nearly no variance is left for the noise."""
    X = gaussian(0, 1300, 1 / np.arange(1, 13.0) ** 4, offset=5.0)
    X[:1000][np.random.default_rng(0).random((1000, 12)) < 0.5] = np.nan
    X[:500, 0] = X[500:1000, 1] = np.nan  # never known together before the stop
    config = LearningConfig(12, 4, impute=True)
    state = axes.decompose(one_pass(X[:1000], config)[0], config.columns)
    left = axes.compute_covariance_or_axes(state, axes.make_model(state, 4).total_variance)
    again = axes.restore_state(axes.make_model(state, 4), left, state.known, 1000, config)
    states = [learn(before, X[1000:], np.ones(300), config)[0] for before in (state, again)]
    assert np.linalg.eigvalsh(find_covariance(states[1]))[0] < -1e-4
    whole, later = (axes.make_model(axes.decompose(after, config.columns), 4) for after in states)
    assert later.total_variance == pytest.approx(whole.total_variance, rel=1e-5)
    assert later.noise_variance == pytest.approx(whole.noise_variance, rel=1e-3)


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize(("d", "factor"), [(12, False), (12, True), (800, False)])
def test_a_stream_that_was_constant_before_a_stop_is_learned_as_without_a_stop(
    d: int, factor: bool, standardize: bool, gaps: bool, fitted: bool
) -> None:
    """Its later messages are not clipped: their distances are not compared with a variance that there never was."""
    config = LearningConfig(d, 3, factor=factor, standardize=standardize, impute=gaps)
    X = 5 + 1e-3 * gaussian(1, 1400, 1 / np.arange(1, d + 1.0))
    X[:800] = 5.0
    if gaps:
        X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    state = axes.decompose(one_pass(X[:600], config)[0], config.columns)
    model = axes.make_model(state, 3)
    left = (axes.compute_covariance_or_axes(state, model.total_variance), state.known) if fitted else (None, None)
    again = axes.restore_state(model, *left, 600, config)
    assert again.total_variance == state.total_variance == 0
    assert not again.entry_variances.any()
    (whole, _), (later, _) = (learn(before, X[600:], np.ones(800), config) for before in (state, again))
    assert later.clipped == whole.clipped <= 2
    assert later.mean == pytest.approx(whole.mean, rel=1e-12)
    assert later.total_variance == pytest.approx(whole.total_variance, rel=1e-12)
    assert close(find_covariance(later), find_covariance(whole), 1e-12)


@pytest.mark.parametrize("constant", [11, 12])
def test_constant_entries_have_no_variance_in_the_state_that_is_restored_after_a_published_model(constant: int) -> None:
    """The model has more axes than the stream has directions, so some of its axes are arbitrary."""
    config = LearningConfig(12, 4, standardize=True)
    X = gaussian(1, 3000, np.ones(12), offset=5.0)
    X[:, :constant] = 5.0
    state = axes.decompose(one_pass(X, config)[0], config.columns)
    again = axes.restore_state(axes.make_model(state, 4), None, None, 3000, config)
    assert again.entry_variances == pytest.approx(state.entry_variances, rel=1e-9)
    assert again.total_variance == pytest.approx(12 - constant)


@pytest.mark.parametrize("fitted", [True, False])
def test_an_entry_that_a_model_has_never_seen_begins_with_the_mean_of_what_is_shown(factor: bool, fitted: bool) -> None:
    config = LearningConfig(12, 4, impute=True, factor=factor)
    X = gaussian(2, 6000, 1 / np.arange(1, 13.0), offset=50.0)
    X[:3000, 3] = np.nan
    state = one_pass(X[:3000], config)[0]
    model = axes.make_model(axes.decompose(state, 4), 4)
    learned_before = (
        (axes.compute_covariance_or_axes(state, model.total_variance), state.known) if fitted else (None, None)
    )
    again = axes.restore_state(model, *learned_before, 3000, config)
    assert again.entry_variances[3] == pytest.approx(0, abs=1e-12)
    later, _ = learn(again, X[3000:], np.ones(3000), config)
    assert later.mean[3] == pytest.approx(X[3000:, 3].mean(), abs=0.02)
    assert later.known_shares[3] == pytest.approx(0.5, abs=0.01)
