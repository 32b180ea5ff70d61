"""One pass learns the weighted covariance: exactly where K = d or K + ℓ ≥ d, and block for block as plain.py does.

Most streams here are small, and are learned twice: see the fixture `factor`.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca import axes, learning_config
from streampca.pca.arrays import F64
from streampca.pca.blocked import block
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.learning_config import (
    F_COLUMNS_WITH_COVARIANCE,
    LONG_BLOCK,
    LONGEST_BLOCK,
    OLD_WEIGHT,
    SHORT_BLOCK,
    YOUNG_WEIGHT,
)
from streampca.pca.state import Losses, State
from tests.pca import plain
from tests.pca.streams import (
    close,
    covariance,
    excess,
    find_covariance,
    gaussian,
    one_pass,
    remaining_weights,
    values_in,
    with_gaps,
)  # fmt: skip


def assert_exact_moments(state: State, X: F64, retention: F64, center: bool, tolerance: float) -> None:
    """Covariance, mean, weight and total variance are NumPy's."""
    weights = remaining_weights(retention)
    exact = covariance(X, weights, center)
    assert np.linalg.norm(find_covariance(state) - exact) <= tolerance * max(np.linalg.norm(exact), 1e-300)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=tolerance)
    assert state.weight == pytest.approx(weights.sum(), rel=1e-10)
    assert state.count == len(X)
    mean = np.average(X, axis=0, weights=weights) * center
    assert state.mean == pytest.approx(mean, rel=1e-9, abs=1e-9 * center)  # without centring, 0 exactly


@given(
    d=st.integers(1, 6),
    n=st.integers(2, 700),
    seed=st.integers(0, 2**32 - 1),
    warm_up=st.sampled_from([None, 0, 1, 17]),
    kind=st.sampled_from(["all", "half-life", "short", "mixed", "nothing"]),
    center=st.booleans(),
    offset=st.sampled_from([0.0, 3.0, 1e4]),
    of_factor=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_where_no_direction_is_left_out_the_covariance_is_exact(
    d: int, n: int, seed: int, warm_up: int | None, kind: str, center: bool, offset: float, of_factor: bool
) -> None:
    """With Σ, and with a factor of d columns."""
    random, offset = np.random.default_rng(seed), offset * center
    X = random.standard_normal((n, d)) @ random.standard_normal((d, d)) + offset
    retention = {
        "all": np.ones(n),
        "half-life": np.full(n, 2 ** (-1 / 200)),
        "short": np.full(n, 2 ** (-1 / 7)),
        "mixed": np.where(random.random(n) < 0.02, random.random(n), 0.999),
        "nothing": np.where(random.random(n) < 0.3, 0.0, 1.0),
    }[kind]
    config = LearningConfig(d, max(d - 1, 1), 1, center, warm_up=warm_up, factor=of_factor)
    state, _ = one_pass(X, config, retention)
    if remaining_weights(retention).sum() > 1.01 and not state.clipped:  # else the covariance may be rounding
        assert_exact_moments(state, X, retention, center, 1e-8 if offset < 10 else 1e-6)


def test_one_pass_comes_close_to_batch_pca_with_few_columns() -> None:
    X = gaussian(3, 20_000, 1 / np.arange(1, 101) ** 0.7, offset=2.0)
    exact = covariance(X)
    state, _ = one_pass(X, LearningConfig(100, 5, factor=True))
    assert state.rank == 55
    assert excess(axes.find_principal_axes(state, 5)[0], exact) <= 2e-4
    assert axes.find_principal_axes(state, 5)[1] == pytest.approx(np.linalg.eigvalsh(exact)[::-1][:5], rel=0.02)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-10)


CASES = ["plain", "centred", "forgetting", "outliers", "short memory", "of low rank", "new directions"]
CASES += ["missing", "late", "standardised", "standardised, missing", "standardised, late"]
CASES += ["late, then complete", "standardised, late, then complete"]


def make_stream(case: str) -> tuple[F64, F64]:
    """Messages and their retention."""
    n, d = 3000, 80
    X = gaussian(5, n, 1 / np.arange(1, d + 1.0) * (np.arange(d) < 9 if case == "of low rank" else 1), offset=0.3)
    if case == "outliers" or "missing" in case:
        X[[700, 1500, 1501, 2700]] *= 1e4
    if case == "short memory":
        X[40::97] *= 1e3
    if case == "new directions":
        X[:1200, 20:] = 0
    if "standardised" in case:
        X *= np.logspace(-3, 3, d)
    complete = X
    if "missing" in case or "late" in case:
        X = with_gaps(X, 0.2)
    if "late" in case:
        X[:2300, 10:20] = X[:1000, 25:30] = np.nan
        X[[2300, 2600]] *= 1e3  # the first one is in the first block of a sensor
    if "then complete" in case:
        X[2500:] = complete[2500:]  # the last blocks have no gap, but N is below 1
    half_life = {"forgetting": 500, "missing": 2000, "short memory": 20}.get(case, np.inf)
    return X, np.full(n, 2 ** (-1 / half_life))


@pytest.mark.parametrize("case", CASES)
def test_every_block_equals_the_block_in_plain_numpy(case: str, factor: bool) -> None:
    """Message by message, with vectors of size d and without products of products."""
    X, retention = make_stream(case)
    config = LearningConfig(
        80, 4, center=case != "plain", impute="missing" in case or "late" in case, standardize="standardised" in case,
        factor=factor, warm_up=200,
    )  # fmt: skip
    state, start = State.empty(80), 0
    while start < len(X):
        end = start + config.next_block_size(state.weight)
        after, losses = learn(state, X[start:end], retention[start:end], config)
        if state.count:
            expected, of_plain = plain.learn_block(state, X[start:end], retention[start:end], config)
            assert_same(after, expected)
            assert losses.norm == pytest.approx(of_plain.norm, rel=1e-9, abs=1e-12 * of_plain.norm.max())
            assert losses.residual == pytest.approx(of_plain.residual, rel=1e-7, abs=1e-8 * of_plain.norm.max())
        assert (after.variance > 0).all()
        assert (np.diff(after.variance) <= 0).all()
        assert np.abs(after.C.T @ after.C - np.diag(after.variance)).max() <= 1e-9 * after.variance[0]
        state, start = after, end
    assert state.rank == (9 if case == "of low rank" else config.columns)
    assert (state.clipped > 0) == (case in ("outliers", "short memory") or "missing" in case or "late" in case)


def assert_same(state: State, expected: State) -> None:
    assert close(find_covariance(state), find_covariance(expected), 1e-8)
    assert close(state.C @ state.C.T, expected.C @ expected.C.T, 1e-8)
    assert state.mean == pytest.approx(expected.mean, rel=1e-10, abs=1e-10)
    assert (state.count, state.clipped) == (expected.count, expected.clipped)
    for name in ("total_variance", "weight", "concentration"):
        assert getattr(state, name) == pytest.approx(getattr(expected, name), rel=1e-10)
    for name in ("scale", "variances", "missing", "known"):
        ours, of_plain = getattr(state, name), getattr(expected, name)
        assert (ours is None) == (of_plain is None)
        assert ours is None or ours == pytest.approx(of_plain, rel=1e-9)


def test_the_covariance_is_kept_up_to_768_dimensions() -> None:
    """Not on `oversampling`."""
    for oversampling in (None, 0, 900):
        sizes = {(768, 5): True, (769, 5): False, (900, 600): True}  # for the last, [C | F] would be no smaller
        assert {size: LearningConfig(*size, oversampling).keeps_covariance for size in sizes} == sizes
    assert not LearningConfig(80, 5, factor=True).keeps_covariance


def test_blocks_of_a_young_stream_are_short() -> None:
    counts = (0, 1, 200, 200 + YOUNG_WEIGHT - 1, 200 + YOUNG_WEIGHT)
    for config in (LearningConfig(8, 2), LearningConfig(5000, 20)):
        assert [config.next_block_size(n) for n in counts] == [200, SHORT_BLOCK, SHORT_BLOCK, SHORT_BLOCK, LONG_BLOCK]
    assert LearningConfig(5000, 200).first_block_size == 400
    assert LearningConfig(768, 20).next_block_size(9000) == LONG_BLOCK


@pytest.mark.parametrize(
    ("d", "k", "dtype", "longest"),
    [(384, 8, "float64", LONGEST_BLOCK), (385, 8, "float64", LONG_BLOCK), (768, 20, "float32", LONGEST_BLOCK),
     (769, 20, "float32", LONG_BLOCK), (3072, 294, "float64", LONG_BLOCK), (3072, 295, "float64", LONGEST_BLOCK)],
)  # fmt: skip
def test_blocks_of_an_old_stream_are_longest_where_memory_allows(d: int, k: int, dtype: str, longest: int) -> None:
    config = LearningConfig(d, k, dtype=dtype)
    assert (config.next_block_size(OLD_WEIGHT - 1), config.next_block_size(OLD_WEIGHT)) == (LONG_BLOCK, longest)


@pytest.mark.parametrize(("d", "k"), [(64, 8), (128, 8), (768, 20), (784, 20), (3072, 20)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_algorithm_1_sees_every_message_after_the_first_block(
    d: int, k: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Algorithm 1 learns with k columns, and the losses come from the C before each message."""
    n, seen = 2000, []

    def spy(V: F64, C: F64, **others: Any) -> block.BlockResult:
        learned = block_learn(V, C, **others)
        if C.shape[1]:
            seen.append(len(V))
            assert C.shape[1] == learned.C.shape[1] == k
            assert not np.array_equal(C, learned.C)
            assert 0 < learned.pinv_error < 1e4 * np.finfo(dtype).eps  # variances of columns differ by a factor of 1e5
        return learned

    block_learn = block.learn
    monkeypatch.setattr(block, "learn", spy)
    random, config = np.random.default_rng(0), LearningConfig(d, k, dtype=dtype)
    X = random.standard_normal((n, d)) * 1.2 ** -np.minimum(np.arange(d), 60.0)
    state, losses = one_pass(X, config)
    assert sum(seen) == n - config.first_block_size == len(losses.norm)
    exact = (
        np.linalg.eigh(find_covariance(state))[1][:, ::-1][:, :k].T
        if d < 1000
        else axes.find_principal_axes(state, k)[0]
    )
    assert k - np.sum((axes.find_principal_axes(state, k)[0] @ exact.T) ** 2) <= 1e-6


# Degenerate and extreme streams.


@pytest.mark.parametrize("value", [0.0, 5.0, -3e-9, 1e150, 1e-150])
@pytest.mark.parametrize("center", [True, False])
def test_a_constant_stream_has_its_mean_and_no_variance(value: float, center: bool, factor: bool) -> None:
    state, losses = one_pass(np.full((1000, 4), value), LearningConfig(4, 2, center=center, factor=factor))
    assert state.mean == pytest.approx(np.full(4, value if center else 0.0), rel=1e-12)
    assert state.total_variance == pytest.approx(0.0 if center else 4 * value**2, rel=1e-12, abs=1e-29 * value**2)
    assert np.isfinite(state.C).all()
    assert np.isfinite(losses.residual).all()
    if not center and value:
        assert state.rank == 1


def test_a_single_message_gives_a_mean_and_no_axis(factor: bool) -> None:
    state, losses = one_pass(np.array([[1.0, 2.0]]), LearningConfig(2, 1, factor=factor))
    assert state.mean == pytest.approx([1, 2])
    assert (state.rank, state.total_variance, state.count) == (0, 0.0, 1)
    assert len(losses.residual) == 0


@pytest.mark.parametrize(("parts", "rank"), [(1, 2), (2, 7)])
def test_the_rank_follows_the_directions_of_the_data(parts: int, rank: int) -> None:
    """The rank grows with the data, and new directions lose nothing."""
    random = np.random.default_rng(2)
    X = np.vstack([random.standard_normal((1500, r)) @ random.standard_normal((r, 80)) for r in (2, 5)][:parts])
    state, _ = one_pass(X, LearningConfig(80, 3, 5, factor=True))
    assert state.rank == rank
    assert_exact_moments(state, X, np.ones(len(X)), True, 1e-9)


KINDS_OF_SENSORS = ["independent", "constant", "alike", "a sum of others"]


@pytest.mark.parametrize("kind", KINDS_OF_SENSORS)
@pytest.mark.parametrize("k", [1, 2, 10, 18, 19, 20])
@pytest.mark.parametrize("oversampling", [None, 0, 1])
def test_the_rank_never_falls_below_the_rank_of_the_data(
    k: int, kind: str, oversampling: int | None, factor: bool
) -> None:
    """And a loss is that of the C which the message met: none where C spans all dimensions."""
    d, n = 20, 1000  # more than there are random sums of rows, which would make up for those that are lost
    X = gaussian(1, n, 1 / np.arange(1, d + 1.0), offset=1.0)
    if kind == "constant":
        X[:, 2] = 3.0
    if kind == "alike":
        X[:, 2] = X[:, 5]
    if kind == "a sum of others":
        X[:, 2] = X[:, 4] + X[:, 5]
    rank = d - (kind != "independent")
    config = LearningConfig(d, k, oversampling, factor=factor)
    state, start = State.empty(d), 0
    while start < n:
        end = start + config.next_block_size(state.weight)
        after, losses = learn(state, X[start:end], np.ones(len(X[start:end])), config)
        assert after.rank == min(rank, config.columns)
        if state.count:
            expected, of_plain = plain.learn_block(state, X[start:end], np.ones(len(X[start:end])), config)
            assert close(after.C @ after.C.T, expected.C @ expected.C.T, 1e-8)
            assert losses.norm == pytest.approx(of_plain.norm, rel=1e-9)
            assert losses.residual == pytest.approx(of_plain.residual, rel=1e-7, abs=1e-8 * of_plain.norm.max())
        state, start = after, end


@pytest.mark.parametrize("scale", [1e-150, 1e-100, 1e100, 1e150])
def test_very_large_and_very_small_data_are_learned_exactly(scale: float, factor: bool) -> None:
    X = gaussian(4, 1500, np.array([1, 0.3, 0.1, 0.03]))
    plain, _ = one_pass(X, LearningConfig(4, 2, factor=factor))
    state, _ = one_pass(X * scale, LearningConfig(4, 2, factor=factor))
    assert close(find_covariance(state) / scale / scale, find_covariance(plain), 1e-11)
    assert state.total_variance == pytest.approx(plain.total_variance * scale**2, rel=1e-11)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_vectors_of_the_largest_value_do_not_overflow(dtype: str, factor: bool) -> None:
    config = LearningConfig(50, 3, dtype=dtype, factor=factor)
    X = config.largest_value * np.sign(gaussian(5, 1000, np.ones(50)))
    state, losses = one_pass(X.astype(dtype), config)
    assert np.isfinite(state.C).all()
    assert np.isfinite([state.total_variance, losses.norm.sum()]).all()


def test_a_stream_whose_squares_underflow_counts_as_constant(factor: bool) -> None:
    state, _ = one_pass(1e-170 * gaussian(6, 500, np.ones(3)), LearningConfig(3, 2, factor=factor))
    assert (state.rank, state.total_variance) == (0, 0)


@pytest.mark.parametrize("turned", [True, False])
def test_features_with_scales_a_million_times_apart_keep_their_covariances(turned: bool, factor: bool) -> None:
    """A direction is accurate to about eps·(σ₁/σ)², here 1e-4."""
    sizes = np.array([1e3, 1, 1e-3, 30, 0.03])
    X = gaussian(7, 20_000, np.ones(5))
    X = (X @ np.random.default_rng(1).standard_normal((5, 5)) if turned else X) * sizes
    state, _ = one_pass(X, LearningConfig(5, 4, factor=factor))
    exact = covariance(X)
    assert close(find_covariance(state), exact, 1e-10)
    unit = np.sqrt(np.diag(exact))
    assert np.abs((find_covariance(state) - exact) / np.outer(unit, unit)).max() <= 1e-3


def test_a_direction_that_vanishes_and_returns_is_learned_exactly(factor: bool) -> None:
    X = gaussian(9, 45_000, np.array([2.0, 1, 1, 0.5]), turned=False)
    X[3000:40_000, 0] = 0
    retention = np.full(len(X), 2 ** (-1 / 100))
    state, _ = one_pass(X, LearningConfig(4, 3, factor=factor), retention)
    assert_exact_moments(state, X, retention, True, 1e-10)


def test_a_stream_that_becomes_zero_decays_to_zero(factor: bool) -> None:
    X = gaussian(10, 40_000, np.ones(3))
    X[1000:] = 0
    state, losses = one_pass(X, LearningConfig(3, 2, factor=factor), 2 ** (-1 / 20))
    assert state.rank == 0
    assert np.isfinite(losses.residual).all()
    again, _ = one_pass(np.vstack([X, X[:500]]), LearningConfig(3, 2, factor=factor), 2 ** (-1 / 20))
    assert close(find_covariance(again), covariance(X[:500], remaining_weights(np.full(500, 2 ** (-1 / 20)))), 1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_a_large_offset_costs_no_precision_at_the_start(dtype: str, tolerance: float, factor: bool) -> None:
    X = (gaussian(11, 150, np.array([1.0, 0.1, 0.01])) + 1024).astype(dtype)
    state, _ = one_pass(X, LearningConfig(3, 2, dtype=dtype, factor=factor))
    exact = covariance(X)
    assert close(find_covariance(state), exact, tolerance)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=tolerance)


# The factor in single precision, small matrices in double.


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_float32_is_exact_to_single_precision(scale: float, factor: bool) -> None:
    X = (scale * gaussian(0, 5000, np.array([3.0, 1, 0.3, 0.1]), offset=1.0)).astype(np.float32)
    state, _ = one_pass(X, LearningConfig(4, 3, dtype="float32", factor=factor))
    assert state.C.dtype == np.float32
    assert_exact_moments(state, X, np.ones(5000), True, 100 * 2.0**-23)


def test_float32_is_as_accurate_as_double_precision() -> None:
    X = gaussian(2, 10_000, 10 ** np.linspace(0, -3, 100))
    exact = covariance(X)
    losses = [
        excess(
            axes.find_principal_axes(one_pass(X.astype(t), LearningConfig(100, 8, dtype=t, factor=True))[0], 8)[0],
            exact,
        )
        for t in ("float64", "float32")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.05, abs=1e-6)


def test_after_many_blocks_of_float32_the_columns_are_still_orthogonal() -> None:
    X = gaussian(12, 100_000, 1 / np.arange(1, 61.0)).astype(np.float32)
    state, _ = one_pass(X, LearningConfig(60, 3, 2, dtype="float32", factor=True), 2 ** (-1 / 500))
    unit = state.C / np.sqrt(state.variance)
    assert np.abs(unit.T @ unit - np.eye(state.rank)).max() <= 1e-3


# The same messages give the same bits.


STREAM = gaussian(13, 1500, 1 / np.arange(1, 78.0), offset=0.5)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bits_are_the_same_for_any_memory_layout(center: bool, dtype: str, factor: bool) -> None:
    X = STREAM.astype(dtype)
    config = LearningConfig(77, 5, 6, center, dtype, factor=factor)
    plain = one_pass(X, config)
    size = X.itemsize
    raw = bytearray(X.nbytes + 64)
    for shift in (1, size, 3 * size):  # the first is not aligned to the element size
        copy = np.frombuffer(raw, dtype, X.size, shift).reshape(X.shape)
        copy[:] = X
        assert_same_bits(one_pass(copy, config), plain)
    wide = np.zeros((len(X), 90), dtype)
    wide[:, 3:80] = X
    for other in (np.asfortranarray(X), wide[:, 3:80], X[::-1].copy()[::-1], np.repeat(X, 2, axis=0)[::2]):
        assert_same_bits(one_pass(other, config), plain)


def assert_same_bits(one: tuple[State, Losses], other: tuple[State, Losses]) -> None:
    assert values_in(one[0]) == values_in(other[0])
    assert np.array_equal(one[1], other[1])


@pytest.mark.parametrize("case", ["plain", "outliers", "forgetting", "of low rank"])
def test_bits_are_the_same_for_any_number_of_blocks_at_once(
    case: str, factor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all lengths, with a partial last one."""
    monkeypatch.setattr(learning_config, "OLD_WEIGHT", 7000)
    n, ends = 200 + 40 * SHORT_BLOCK + 17, [200]
    X = gaussian(8, n, 1 / np.arange(1, 61.0) * (np.arange(60) < 7 if case == "of low rank" else 1), offset=1.0)
    retention, config = np.ones(n), LearningConfig(60, 4, 4, factor=factor)
    if case == "outliers":
        X[[300, 3000, 3001, 9000]] *= 1e6
    if case == "forgetting":
        retention[2000:2600], retention[5000] = 0.97, 0.0
    alone = one_pass(X, config, retention)
    while (end := ends[-1] + config.next_block_size(ends[-1])) < n:
        ends.append(end)
    for cut in (1, 3, 7, 100):
        state = learn(State.empty(60), X[:200], retention[:200], config)[0]
        losses = []
        for start, end in itertools.pairwise([*ends[::cut], n]):
            state, together = learn(state, X[start:end], retention[start:end], config)
            losses.append(together)
        assert_same_bits((state, Losses(*map(np.concatenate, zip(*losses, strict=True)))), alone)


def test_learning_does_not_modify_its_arguments(factor: bool) -> None:
    config = LearningConfig(77, 5, factor=factor)
    state, _ = one_pass(STREAM, config)
    before, V = values_in(state), STREAM[:SHORT_BLOCK].copy()
    learn(state, V, np.ones(SHORT_BLOCK), config)
    assert values_in(state) == before
    assert np.array_equal(V, STREAM[:SHORT_BLOCK])


def test_the_mean_loss_is_the_remaining_variance(factor: bool) -> None:
    X = gaussian(15, 5000, np.array([3.0, 2, 1, 0.5, 0.5, 0.1] + 54 * [0.01]))
    _, losses = one_pass(X, LearningConfig(60, 2, factor=factor))
    assert losses.residual.mean() == pytest.approx(np.linalg.eigvalsh(covariance(X))[:-2].sum(), rel=0.03)


@pytest.mark.parametrize(("k", "columns"), [(1, 51), (5, 55), (16, 66), (20, 72), (50, 120), (100, 200), (190, 344)])
def test_the_default_oversampling_grows_with_the_components(k: int, columns: int) -> None:
    """Where no covariance is kept."""
    assert LearningConfig(900, k).columns == columns
    assert LearningConfig(300, k).columns == k + F_COLUMNS_WITH_COVARIANCE
    for d in (900, 300):
        assert [LearningConfig(d, k, n).columns for n in (0, 7, d)] == [k, k + 7, d]
