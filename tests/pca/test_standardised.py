"""`standardize` gives the PCA of rows standardised by scikit-learn's StandardScaler, in one pass, in any units."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State
from tests.pca.streams import (
    close,
    compute_scale,
    covariance,
    excess,
    gaussian,
    jackknife,
    merge,
    one_pass,
    remaining_weights,
    values_in,
    with_gaps,
)

EXACT = 1e-8  # of the excess: 1e-6 %


def sensors(n: int, d: int, k: int, seed: int = 0, units: float = 4.0) -> F64:
    """Messages (n, d) with k common causes, in units over 10^(2·units), with large means."""
    random = np.random.default_rng(seed)
    V = (random.standard_normal((n, k)) * np.linspace(2, 0.7, k)) @ random.standard_normal((k, d))
    V += random.standard_normal((n, d))
    return np.asarray(V * 10 ** random.uniform(-units, units, d) + 10 ** random.uniform(-2, 3, d))


def assert_exact(
    state: State, X: F64, k: int, retention: F64 | float = 1.0, most: float = EXACT, tolerance: float = 1e-7
) -> None:
    """Axes, variances and D are those of batch PCA of the weighted, standardised rows."""
    weights = remaining_weights(np.ones(len(X)) * retention)
    D = compute_scale(X, weights)
    assert state.scale == pytest.approx(D, rel=tolerance)
    exact = covariance(X * D, weights)
    state = axes.decompose(state, k)
    rows, variance = axes.find_principal_axes(state, k)
    assert excess(rows, exact) <= most
    assert variance == pytest.approx(np.linalg.eigvalsh(exact)[::-1][:k], rel=max(tolerance, 100 * most))
    assert state.total_variance == pytest.approx(np.trace(exact), rel=tolerance)
    assert state.clipped == 0


def ordered(name: str, n: int = 6000, d: int = 30) -> F64:
    """A stream in an order that a scaler with a memory would mind."""
    X = sensors(n, d, 4)
    if name == "sorted":
        X = X[np.argsort(X[:, 3])]
    if name == "regimes":
        X += np.repeat(np.arange(3.0), n // 3)[:, None] * 2 * X.std(axis=0)
    if name == "constant at first":
        X[: n // 2, 5:8] = X[:, 5:8].mean(axis=0)
    if name == "off at first":
        X[: n // 2, 5:8] = 0
    return X


ORDERS = ["random", "sorted", "regimes", "constant at first", "off at first"]


@pytest.mark.parametrize(
    ("name", "half_life", "n", "d"),
    [
        *((name, half_life, 6000, 30) for name in ORDERS for half_life in (np.inf, 700.0, 60.0)),
        *(("random", np.inf, 1500, d) for d in (3, 300, 768)),
        *((name, np.inf, 6000, 1000) for name in ("random", "sorted", "constant at first")),
    ],
)
def test_equals_batch_pca_in_any_order_and_at_any_half_life(name: str, half_life: float, n: int, d: int) -> None:
    """In 1,000 dimensions with a factor, elsewhere with a covariance."""
    X, k, kept = ordered(name, n, d), min(4, d - 1), 2 ** (-1 / half_life)
    state, _ = one_pass(X, LearningConfig(d, k, standardize=True), kept)
    assert_exact(state, X, k, kept, most=EXACT if d < 1000 else 1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(40, 900), st.sampled_from([1.0, 0.995]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_equals_batch_pca_of_any_stream(seed: int, d: int, n: int, kept: float, of_factor: bool) -> None:
    """Also with a factor of all columns."""
    X, k = sensors(n, d, 2, seed), d - 1
    state, _ = one_pass(X, LearningConfig(d, k, standardize=True, factor=of_factor), kept)
    assert_exact(state, X, k, kept, tolerance=1e-6)


def test_standardised_float32_is_exact_to_single_precision(factor: bool) -> None:
    X = sensors(6000, 30, 4, units=3.0).astype(np.float32)
    state, _ = one_pass(X, LearningConfig(30, 4, standardize=True, dtype="float32", factor=factor))
    assert state.C.dtype == np.float32
    assert_exact(state, X, 4, most=1e-6, tolerance=1e-4)


def test_merged_partitions_in_other_units_equal_batch_pca(factor: bool) -> None:
    """Some in other units, some with dimensions that are constant there, and so many that factors are cut."""
    config = LearningConfig(30, 4, standardize=True, factor=factor)
    X = ordered("random")
    X[:4000, 5:9] = X[0, 5:9]
    X[:1000] *= 1e-3
    states = [one_pass(part, config)[0] for part in np.array_split(X, 12)]
    assert_exact(merge(states, config.columns), X, 4)
    decay = list(np.linspace(0.1, 1, 12))
    retention = np.ones(len(X))
    retention[500::500] = np.divide(decay[:-1], decay[1:])
    assert_exact(merge(states, config.columns, decay), X, 4, retention)


def test_the_error_of_merged_partitions_does_not_depend_on_units(factor: bool) -> None:
    config, X = LearningConfig(12, 3, standardize=True, factor=factor), gaussian(1, 4000, 1 / np.arange(1, 13.0))
    units = np.logspace(-4, 4, 12)

    def error(parts: Sequence[F64]) -> F64:
        found = jackknife([one_pass(part, config)[0] for part in parts], 3, config.columns)
        return np.array([found.subspace_square, *found.axis_angles])

    parts = np.array_split(X, 5)
    assert error([part * units for part in parts]) == pytest.approx(error(parts), rel=1e-6)
    assert error(parts) == pytest.approx(jackknife_of_rows(parts), rel=1e-5)


def jackknife_of_rows(parts: Sequence[F64]) -> F64:
    """The errors of three axes, of the subspace and of each, by batch PCA: each part is left out once, even of D."""

    def standardised_axes(X: F64) -> F64:
        return np.linalg.eigh(covariance(X * compute_scale(X)))[1][:, :-4:-1]

    rows = np.concatenate(parts)
    subspace, squares = 0.0, np.zeros(3)
    for j, part in enumerate(parts):
        cosines = standardised_axes(rows).T @ standardised_axes(np.concatenate([*parts[:j], *parts[j + 1 :]]))
        factor = (len(rows) / len(part) - 1) / len(parts)
        subspace += factor * (3 - np.square(cosines).sum())
        squares += factor * (1 - np.square(cosines.diagonal()))
    return np.array([subspace, *np.arcsin(np.sqrt(squares))])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_constant_dimensions_are_those_of_scikit_learn(dtype: str, factor: bool) -> None:
    """0, 5, a huge number, and a number with rounding of a large mean."""
    X = sensors(3000, 12, 3, units=1.0)
    X[:, 2:6] = 0.0, 5.0, 1e8, 0.1
    X[:, 6] = 1e9 + 1e-8 * np.random.default_rng(0).standard_normal(3000)
    X = X.astype(dtype)
    state, _ = one_pass(X, LearningConfig(12, 3, standardize=True, factor=factor, dtype=dtype))
    assert (state.scale[2:7] == 1).all()
    assert state.total_variance == pytest.approx(7, rel=1e-6)
    assert state.scale == pytest.approx(compute_scale(X), rel=1e-5 if dtype == "float32" else 1e-9)
    rows = axes.find_principal_axes(axes.decompose(state, 3), 3)[0]
    assert np.abs(rows[:, 2:7]).max() <= 1e-6
    assert excess(rows, covariance(X * compute_scale(X))) <= (1e-5 if dtype == "float32" else 1e-6)


def test_a_constant_stream_has_no_variance() -> None:
    state, _ = one_pass(np.full((1000, 4), 3.3), LearningConfig(4, 2, standardize=True))
    assert (state.rank, state.total_variance) == (0, 0)
    assert (state.scale == 1).all()


@pytest.mark.parametrize("constant", [0.0, 7.0])
@pytest.mark.parametrize("n", [1000, 2400, 3000])
def test_filling_makes_no_constant_entry_vary(constant: float, factor: bool, n: int) -> None:
    X = sensors(3000, 12, 3)
    X[:, 4], X[:, 5] = constant, np.where(np.arange(3000) < 2500, np.nan, X[:, 5])
    gone = with_gaps(X, 0.3)
    config = LearningConfig(12, 3, standardize=True, impute=True, factor=factor)
    state, _ = one_pass(gone[:n], config)
    assert (state.scale[4:6] == 1).tolist() == [True, n < 2500]
    assert state.total_variance == pytest.approx(10 + (n > 2500), rel=1e-6)


def test_with_gaps_and_late_sensors_axes_are_near_those_of_the_complete_stream(factor: bool) -> None:
    """As of the complete, standardised rows, to what gaps cost without."""
    X = gaussian(5, 20_000, np.concatenate([[6.0, 5.0, 4.0], np.ones(57)])) * np.logspace(-4, 4, 60) + 1
    D = compute_scale(X)
    gone = with_gaps(X, 0.3)
    if not factor:
        gone[:6000, 50:] = np.nan
    state, _ = one_pass(gone, LearningConfig(60, 3, standardize=True, impute=True, factor=factor))
    assert state.scale == pytest.approx(D, rel=0.05)
    assert state.total_variance == pytest.approx(60, rel=1e-9)
    assert excess(axes.find_principal_axes(axes.decompose(state, 3), 3)[0], covariance(X * D)) <= 0.002


@pytest.mark.parametrize("impute", [False, True])
def test_the_sizes_of_batches_change_no_bit(factor: bool, impute: bool) -> None:
    config = LearningConfig(30, 4, standardize=True, factor=factor, impute=impute)
    X = ordered("constant at first", 4000)
    X = with_gaps(X, 0.2) if impute else X
    whole, _ = one_pass(X, config)
    first = config.first_block_size
    ends = [first, first + 256, first + 5 * 256, first + 9 * 256, len(X)]
    state, _ = learn(State.empty(30), X[:first], np.ones(first), config)
    for start, end in itertools.pairwise(ends):
        state, _ = learn(state, X[start:end], np.ones(end - start), config)
    assert values_in(state) == values_in(whole)


def test_units_change_no_bit_of_the_standardised_axes() -> None:
    X = gaussian(2, 3000, 1 / np.arange(1, 21.0), offset=1.0)
    units = 2.0 ** np.arange(-40, 40, 4)
    config = LearningConfig(20, 3, standardize=True)
    one, other = one_pass(X, config)[0], one_pass(X * units, config)[0]
    assert one.C.tobytes() == other.C.tobytes()
    assert np.array_equal(one.scale, other.scale * units)
    assert close(one.mean * units, other.mean, 1e-15)


def test_standardize_without_center_is_refused() -> None:
    with pytest.raises(ValueError, match="center must be true"):
        LearningConfig(3, 2, center=False, standardize=True)
