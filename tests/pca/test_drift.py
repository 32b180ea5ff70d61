"""How far a model has moved, beside dense covariances and SciPy's principal angles."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import orth, subspace_angles

from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.drift import Drift, measure_drift
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.model import Model
from streampca.pca.spiked_covariance import compute_noise_variance
from tests.pca.streams import batch_pca, compute_scale, gaussian, one_pass


def messages(seed: int, d: int, shift: float = 0.0) -> F64:
    """Messages (200, d) in different units; the first entry of several is constant unless the mean is shifted."""
    X = gaussian(seed, 200, np.linspace(3, 1, d)) * np.linspace(0.5, 20, d) + shift * np.arange(d)
    return np.where((np.arange(d) > 0) | (d == 1) | bool(shift), X, 7.0)


def model_of(X: F64, k: int, *, standardize: bool, dtype: type) -> Model:
    """Batch PCA of X (n, d), or of its standardised rows."""
    scale = compute_scale(X) if standardize else np.ones(X.shape[1])
    model = batch_pca(X * scale, k)
    arrays = {name: getattr(model, name).astype(dtype) for name in ("components", "explained_variance")}
    return replace(model, **arrays, mean=X.mean(axis=0).astype(dtype), scale=scale if standardize else None)


def spiked(model: Model) -> tuple[float, F64, float, F64]:
    """σ², the strengths t (k,), γ, and the variances of new messages along the axes (k,), by the roots of λ(t)."""
    d, k, total = model.dimensions, model.n_components, model.total_variance
    sigma2, axes_above = compute_noise_variance(model.floored_variance, d, total, model.components.dtype), 0
    for _ in range(10):
        gamma = (d - axes_above) / model.weight
        ratio = model.floored_variance / sigma2
        above = ratio > (1 + np.sqrt(gamma)) ** 2
        roots = [
            np.roots([1, 1 + gamma - x, gamma]).real.max() if up else gamma**0.5
            for x, up in zip(ratio, above, strict=True)
        ]
        t, axes_above = np.array(roots), int(above.sum())
        new = sigma2 * t * (1 + t) / (t + gamma)
        used, sigma2 = sigma2, compute_noise_variance(new, d, total, model.components.dtype)
    assert len(t) == k
    return used, t, gamma, new


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize(("d", "earlier_k", "k"), [(1, 1, 1), (2, 1, 2), (9, 3, 3), (9, 2, 4), (9, 9, 4), (9, 4, 9)])
def test_drift_is_that_of_the_dense_covariances(d: int, earlier_k: int, k: int, standardize: bool, dtype: type) -> None:
    before, after = messages(1, d), messages(2, d, shift=0.3)
    earlier, newest = (
        model_of(X, size, standardize=standardize, dtype=dtype) for X, size in ((before, earlier_k), (after, k))
    )
    earlier_D, D = (compute_scale(X) if standardize else np.ones(d) for X in (before, after))
    U, Q = newest.components.T.astype(np.float64), orth((D / earlier_D * earlier.components).T)
    sigma2, t, gamma, new = spiked(newest)
    is_spike = t**2 > gamma * (1 + 1e-9)
    overlap = (t**2 - gamma) / (t**2 + gamma * t)
    share = np.minimum(np.diagonal(U.T @ Q @ Q.T @ U)[is_spike] / overlap[is_spike], 1)
    expected = Drift(
        subspace_angles(U, Q)[0],
        (np.sum(sigma2 * t[is_spike] * share) + sigma2 * earlier_k) / newest.total_variance,
        new.sum() / newest.total_variance,
        ((D * (after.mean(axis=0) - before.mean(axis=0))) ** 2).sum() / (D**2 * before.var(axis=0)).sum(),
    )
    assert measure_drift(earlier, newest) == pytest.approx(
        expected, rel=1e-5 if dtype == np.float32 else 1e-9, abs=1e-6
    )


@pytest.mark.parametrize(("d", "rank", "k"), [(1, 1, 1), (9, 3, 3), (9, 9, 9), (9, 2, 5), (9, 0, 5)])
def test_arbitrary_axes_and_streams_without_variance_do_not_drift(d: int, rank: int, k: int) -> None:
    model = model_of(messages(3, d), k, standardize=False, dtype=np.float64)
    variance = np.where(np.arange(k) < rank, model.explained_variance, 0.0)
    model = replace(model, explained_variance=variance, total_variance=float(variance.sum()))
    completion = np.linalg.svd(model.components[:rank], full_matrices=True)[2][::-1][: k - rank]
    other = replace(model, components=np.vstack([-model.components[:rank], completion]))
    share = float(rank > 0)
    assert measure_drift(other, model)[:3] == pytest.approx((0.0, share, share), abs=1e-12)
    moved = measure_drift(other, replace(model, mean=model.mean + 1)).mean_shift_ratio
    assert moved == (pytest.approx(d / model.total_variance) if rank else np.inf)


@pytest.mark.parametrize("standardize", [False, True])
def test_a_sensor_that_begins_does_not_shift_the_mean(standardize: bool) -> None:
    """Before its first value its mean is 0, wherever that is."""
    X = gaussian(4, 6000, np.linspace(3, 1, 8)) + 100
    X[:3000, 5] = np.nan
    config = LearningConfig(8, 3, impute=True, standardize=standardize)
    state, _ = one_pass(X[:3000], config)
    pinned = axes.make_model(axes.decompose(state, config.columns), 3)
    state, _ = learn(state, X[3000:], np.ones(3000), config)
    assert measure_drift(pinned, axes.make_model(axes.decompose(state, config.columns), 3)).mean_shift_ratio < 0.01


D = 64
SPECTRA = {
    "flat": np.ones(D),
    "i^-1/4": np.arange(1, D + 1) ** -0.25,
    "i^-1/2": np.arange(1, D + 1) ** -0.5,
    "spiked": np.append([20.0, 15, 10, 8, 6, 5, 4, 3], np.ones(D - 8)),
}


def is_outdated(before: F64, after: F64, half_life: float | None) -> bool:
    """Whether a model of the messages before is outdated, once those after are learned as well."""
    config, retention = LearningConfig(D, 8), 2 ** (-1 / half_life) if half_life else 1.0
    state, _ = one_pass(before, config, retention)
    pinned = axes.make_model(axes.decompose(state, config.columns), 8)
    state, _ = learn(state, after, np.full(len(after), retention), config)
    moved = measure_drift(pinned, axes.make_model(axes.decompose(state, config.columns), 8))
    return bool(moved.why_outdated)


@pytest.mark.parametrize(
    ("explained", "mean_shift", "causes"),
    [
        (0.9 * 0.8, 0.25, []),
        (0.72 * (1 + 1e-9), 0.0, []),
        (0.72 * (1 - 1e-9), 0.0, ["axes"]),
        (0.9, 0.25 + 1e-9, ["mean"]),
        (0.0, 1.0, ["axes", "mean"]),
        (0.8, np.inf, ["mean"]),  # the pinned model has no variance
        (0.8, np.nan, []),  # and the mean has not moved
    ],
)
def test_a_model_is_outdated_beyond_the_limits(explained: float, mean_shift: float, causes: list[str]) -> None:
    drift = Drift(
        angle_radians=1.0,
        explained_variance_ratio=explained,
        newest_explained_variance_ratio=0.8,
        mean_shift_ratio=mean_shift,
    )
    assert drift.why_outdated == causes


@pytest.mark.parametrize("half_life", [300, 1000, None])
@pytest.mark.parametrize("kind", SPECTRA)
def test_no_pin_is_outdated_while_a_stream_does_not_change(kind: str, half_life: float | None) -> None:
    for seed in range(4):
        X = gaussian(seed, 9000, np.sqrt(SPECTRA[kind]))
        assert not is_outdated(X[:4000], X[4000:], half_life)


@pytest.mark.parametrize("half_life", [300, 1000])
@pytest.mark.parametrize("change", ["rotated axes", "other variances", "moved mean"])
def test_a_pin_is_outdated_when_a_stream_has_changed(change: str, half_life: float) -> None:
    spread = np.sqrt(SPECTRA["spiked"])
    before = gaussian(0, 4000, spread)
    if change == "rotated axes":
        after = gaussian(1, 5000, spread)
    elif change == "other variances":  # along the same axes
        after = gaussian(0, 9000, spread[::-1])[4000:]
    else:
        after = gaussian(0, 9000, spread, offset=1.0)[4000:]
    assert is_outdated(before, after, half_life)
