"""Merging folds pools their covariances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.pca import axes
from streampca.pca import merge as merging
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import merge
from streampca.pca.state import State
from tests.pca.streams import close, covariance, excess, gaussian, learned, one_pass


def parts(seed: int, sizes: list[int], d: int) -> list[F64]:
    """Streams with different means and covariances."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((n, d)) * random.uniform(0.1, 3, d) + 5 * random.standard_normal(d) for n in sizes]


def folds(streams: list[F64], config: LearningConfig) -> list[State]:
    """The state of each stream."""
    return [one_pass(X, config)[0] for X in streams]


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_with_all_columns_the_pooled_covariance_is_exact(seed: int, sizes: list[int], d: int) -> None:
    streams = parts(seed, sizes, d)
    everything = np.vstack(streams)
    state = merge(folds(streams, LearningConfig(d, d)), d)
    exact = covariance(everything)
    assert np.linalg.norm(learned(state) - exact) <= 1e-10 * max(np.linalg.norm(exact), 1e-9)
    assert state.mean == pytest.approx(everything.mean(axis=0), rel=1e-10, abs=1e-10)
    assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-10, abs=1e-12)
    assert (state.weight, state.count) == (len(everything), len(everything))


@given(st.integers(0, 2**32 - 1), st.permutations(range(5)))
@settings(max_examples=30, deadline=None)
def test_neither_order_nor_grouping_matters(seed: int, order: list[int]) -> None:
    states = folds(parts(seed, [50, 300, 7, 120, 900], 4), LearningConfig(4, 4))
    plain = merge(states, 4)
    for other in (
        merge([states[i] for i in order], 4),
        merge([merge(states[:2], 4), merge(states[2:], 4)], 4),
    ):
        assert close(learned(other), learned(plain), 1e-11)
        assert other.mean == pytest.approx(plain.mean, rel=1e-11, abs=1e-11)
        assert other.total_variance == pytest.approx(plain.total_variance, rel=1e-11)


def test_with_few_columns_order_affects_only_rounding() -> None:
    states = folds([gaussian(1, 900, 1 / np.arange(1, 31.0), offset=m) for m in range(8)], LearningConfig(30, 4, 6))
    assert close(learned(merge(states[::-1], 10)), learned(merge(states, 10)), 1e-11)


def test_older_folds_have_less_weight() -> None:
    streams = parts(3, [400, 600], 3)
    state = merge(folds(streams, LearningConfig(3, 3)), 3, decay=[0.25, 1.0])
    weights = np.concatenate([np.full(400, 0.25), np.ones(600)])
    assert close(learned(state), covariance(np.vstack(streams), weights), 1e-11)
    assert state.weight == pytest.approx(700)
    assert state.count == 1000


def test_folds_without_messages_are_ignored() -> None:
    X = gaussian(2, 500, np.ones(3))
    one = one_pass(X, LearningConfig(3, 3))[0]
    state = merge([State.empty(3), one, State.empty(3)], 3)
    assert close(learned(state), learned(one), 1e-12)
    assert merge([State.empty(3)], 3).count == 0
    constant = one_pass(np.ones((10, 3)), LearningConfig(3, 3))[0]
    assert merge([constant, constant], 3).rank == 0


def test_merged_parts_are_as_accurate_as_one_pass() -> None:
    X = gaussian(4, 20_000, 1 / np.arange(1, 41) ** 0.7, offset=1.0)
    exact = covariance(X)
    config = LearningConfig(40, 5)
    for split in (np.array_split(X, 20), np.array_split(X[np.argsort(X[:, 0])], 20)):
        state = merge(folds(split, config), config.columns)
        assert excess(axes.principal(state.C, 5)[0], exact) <= 2e-3
        assert close(state.N, state.C.T @ state.C, 1e-11)
        assert state.total_variance == pytest.approx(np.trace(exact), rel=1e-9)


@pytest.mark.parametrize(("d", "n"), [(20, 30), (30, 20), (25, 25)])
def test_merging_by_gram_matrices_agrees_with_singular_values(d: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    F = np.random.default_rng(5).standard_normal((d, n)) * 10 ** np.linspace(0, -3, n)
    plain, variance = merging._leading(F, 6, np.float64)
    monkeypatch.setattr(merging, "_WIDE", 4)
    gram, same = merging._leading(F, 6, np.float64)
    assert same == pytest.approx(variance, rel=1e-9)
    assert close(gram @ gram.T, plain @ plain.T, 1e-9)
    assert close(gram.T @ gram, np.diag(same), 1e-9)


@pytest.mark.slow
def test_very_many_folds_are_merged_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [gaussian(6, 300, 1 / np.arange(1, 61.0), offset=m / 10) for m in range(30)]
    states = folds(streams, LearningConfig(60, 4, 6))
    plain = merge(states, 10)
    monkeypatch.setattr(merging, "_MOST", 40)
    exact = covariance(np.vstack(streams))
    grouped = merge(states, 10)
    assert grouped.C.shape == (60, 10)
    best = excess(axes.principal(plain.C, 4)[0], exact)
    assert excess(axes.principal(grouped.C, 4)[0], exact) <= best + 1e-3


def test_merging_wide_folds_terminates() -> None:
    """Every fold alone has more columns than the limit, so grouping cannot help."""
    random = np.random.default_rng(7)
    F = [random.standard_normal((2100, 2100)) for _ in range(1)]
    assert merging._reduced(F, 3, np.float64).shape == (2100, 2100)


def test_float32_folds_stay_float32() -> None:
    X = gaussian(8, 800, np.array([2.0, 1, 0.5])).astype(np.float32)
    config = LearningConfig(3, 3, dtype="float32")
    state = merge([one_pass(X[:300], config)[0], one_pass(X[300:], config)[0]], 3)
    assert state.C.dtype == np.float32
    assert close(learned(state), covariance(X), 1e-5)
