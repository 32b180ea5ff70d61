"""The jackknife estimates how far the axes of a merged model are from those of the stream's distribution."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.jackknife import SamplingError
from streampca.pca.learning import LearningConfig
from streampca.pca.merge import FEWEST_GROUPS
from streampca.pca.state import State
from tests.pca.streams import covariance, gaussian, jackknife, merge, one_pass

MOST = 8  # groups


def stream_state(seed: int, n: int, spectrum: F64, config: LearningConfig) -> State:
    """The state after n Gaussian vectors with standard deviations `spectrum` along the coordinates."""
    return one_pass(gaussian(seed, n, spectrum, turned=False), config)[0]


def squared_sines(rows: F64, others: F64) -> tuple[float, F64]:
    """Σ sin² of the principal angles between the spans of orthonormal rows, and sin² between rows of one index."""
    cosines = rows @ others.T
    return len(rows) - float(np.sum(cosines**2)), 1 - np.diag(cosines) ** 2


def pooled_by_definition(model: F64, models: list[F64], weights: F64) -> SamplingError:
    """The error from the axes (k, d) of the model, and those of the models without group j, of shares `weights`."""
    factors = (1 / weights - 1) / len(models)
    sines = [squared_sines(model, other) for other in models]
    subspace = sum(f * total for f, (total, _) in zip(factors, sines, strict=True))
    of_axes = sum(f * squares for f, (_, squares) in zip(factors, sines, strict=True))
    return SamplingError(min(subspace, len(model)), np.arcsin(np.sqrt(np.clip(of_axes, 0, 1))))


def principal(matrix: F64, k: int) -> F64:
    """The k leading eigenvectors as rows."""
    return np.linalg.eigh(matrix)[1][:, ::-1][:, :k].T


def same(one: SamplingError, other: SamplingError, tolerance: float) -> None:
    assert one.subspace_square == pytest.approx(other.subspace_square, rel=tolerance, abs=1e-12)
    assert one.axis_angles == pytest.approx(other.axis_angles, rel=tolerance, abs=1e-6)


@given(
    st.integers(0, 2**32 - 1), st.lists(st.integers(30, 300), min_size=FEWEST_GROUPS, max_size=MOST), st.integers(1, 4),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_agrees_with_eigenvectors_of_the_covariance_of_all_messages_but_a_group(
    seed: int, sizes: list[int], k: int, faded: bool
) -> None:
    d, random = 5, np.random.default_rng(seed)
    streams = [random.standard_normal((n, d)) * 3.0 ** -np.arange(d) + random.standard_normal(d) for n in sizes]
    decay = random.uniform(0.2, 1, len(sizes)) if faded else np.ones(len(sizes))
    weights = [np.full(n, share) for n, share in zip(sizes, decay, strict=True)]

    def of(chosen: list[int]) -> F64:
        return principal(
            covariance(np.vstack([streams[i] for i in chosen]), np.hstack([weights[i] for i in chosen])), k
        )

    every = list(range(len(sizes)))
    without = [of([i for i in every if i != j]) for j in every]
    total = decay * sizes
    expected = pooled_by_definition(of(every), without, total / total.sum())
    same(jackknife([one_pass(X, LearningConfig(d, d))[0] for X in streams], k, d, list(decay)), expected, 1e-6)


@pytest.mark.parametrize("partitions", [4, 7, 8, 9, 20])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_agrees_with_merging_all_but_one_group(partitions: int, dtype: str) -> None:
    """Group j consists of the partitions j, j + 8, j + 16 …, of which K columns count."""
    config = LearningConfig(25, 3, 5, dtype=dtype)
    states = [stream_state(p, 200 + 30 * p, 1 / np.arange(1, 26.0), config) for p in range(partitions)]
    groups = [merge(states[j::MOST], config.columns) for j in range(min(partitions, MOST))]

    def of(chosen: list[State]) -> F64:
        return axes.find_principal_axes(merge(chosen, config.columns), 3)[0]

    without = [of([*groups[:j], *groups[j + 1 :]]) for j in range(len(groups))]
    weights = np.array([group.weight for group in groups])
    expected = pooled_by_definition(of(groups), without, weights / weights.sum())
    same(jackknife(states, 3, config.columns), expected, 1e-9 if dtype == "float64" else 1e-3)


SPECTRA = {"spiked": np.append([12.0, 6.0, 3.0], np.full(17, 0.05)), "power law": 1 / np.arange(1, 21.0)}


def squared_errors(
    seed: int, kind: str, partitions: int, *, standardize: bool = False, late: bool = False, factor: bool = False
) -> F64:
    """The squares of the realised errors (4,) of the subspace and of three axes, above those of the estimated ones.

    All seeds draw from one distribution, with random axes and, if it is standardised, units from 1/50 to 50. If `late`,
    a quarter of the entries begins in the middle of each partition.
    """
    of_distribution, variance, k = np.random.default_rng(0), SPECTRA[kind], 3
    d = len(variance)
    units = np.exp(of_distribution.uniform(-4, 4, d)) if standardize else np.ones(d)
    root = np.linalg.qr(of_distribution.standard_normal((d, d)))[0] * np.sqrt(variance) * units[:, None]
    true = root @ root.T
    D = 1 / np.sqrt(true.diagonal()) if standardize else np.ones(d)
    X = np.random.default_rng(seed).standard_normal((400 * partitions, d)) @ root.T + units
    parts = np.array_split(X, partitions)
    if late:
        for part in parts:
            part[: len(part) // 2, : d // 4] = np.nan
    config = LearningConfig(d, k, 5, warm_up=50, impute=late, standardize=standardize, factor=factor)
    states = [one_pass(part, config)[0] for part in parts]
    merged = axes.find_principal_axes(merge(states, config.columns), k)[0]
    total, squares = squared_sines(merged, principal(true * np.outer(D, D), k))
    error = jackknife(states, k, config.columns)
    assert error
    return np.array([[total, *np.arcsin(np.sqrt(squares)) ** 2], [error.subspace_square, *error.axis_angles**2]])


@pytest.mark.parametrize(
    ("kind", "partitions", "options"),
    [
        ("spiked", 12, {}),
        ("power law", 4, {}),
        ("spiked", 4, {"standardize": True}),
        ("power law", 8, {"standardize": True}),
        ("spiked", 4, {"late": True}),
        ("power law", 4, {"late": True, "standardize": True}),
        ("power law", 8, {"factor": True}),
        ("spiked", 4, {"factor": True, "standardize": True}),
    ],
)
def test_the_estimate_is_near_the_realised_error(kind: str, partitions: int, options: dict[str, bool]) -> None:
    """By root mean squares over 40 streams. No factor has late entries here: these would bias all groups alike."""
    squares = [squared_errors(seed, kind, partitions, **options) for seed in range(40)]
    realised, estimated = np.sqrt(np.mean(squares, axis=0))
    ratio = estimated / realised
    assert (ratio >= 0.8).all()
    assert (ratio <= 1.3).all()


def test_without_variance_or_with_fewer_than_four_streams_there_is_no_error_estimate() -> None:
    config = LearningConfig(4, 2)
    states = [stream_state(seed, 50, np.ones(4), config) for seed in range(FEWEST_GROUPS)]
    assert jackknife(states, 2, 4) is not None
    assert jackknife(states[1:], 2, 4) is None
    assert jackknife([*states[1:], State.empty(4), State.empty(4)], 2, 4) is None
    assert jackknife(states, 2, 4, [1.0, 1.0, 0.0, 1.0]) is None
    assert jackknife([one_pass(np.ones((10, 4)), config)[0]] * FEWEST_GROUPS, 2, 4) is None


def test_equal_streams_have_no_error_and_axes_without_variance_are_unknown() -> None:
    line = one_pass(np.outer(np.arange(60.0), [3.0, 4.0, 0.0]), LearningConfig(3, 2))[0]
    error = jackknife([line] * 5, 2, 3)
    assert error.subspace_square == pytest.approx(0, abs=1e-12)
    assert error.axis_angles == pytest.approx([0, np.pi / 2], abs=1e-6)


@pytest.mark.parametrize("factor", [False, True], ids=["with Σ", "without Σ"])
@pytest.mark.parametrize("exponent", [-480, 480])
def test_the_scale_of_the_data_does_not_change_the_error(exponent: int, factor: bool) -> None:
    config = LearningConfig(6, 2, 2, factor=factor)
    states = [stream_state(seed, 300, 0.7 ** np.arange(6), config) for seed in range(10)]
    unit = 2.0**exponent
    scaled = [
        replace(
            s, C=unit * s.C, mean=unit * s.mean, total_variance=unit**2 * s.total_variance,
            covariance=None if s.covariance is None else unit**2 * s.covariance,
        )
        for s in states
    ]  # fmt: skip
    assert all((s.covariance is None) == factor for s in states)
    same(jackknife(scaled, 2, config.columns), jackknife(states, 2, config.columns), 1e-12)
