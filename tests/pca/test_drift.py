"""How far a model has moved, beside dense covariances and SciPy's principal angles."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import orth, subspace_angles

from streampca.pca.arrays import F64
from streampca.pca.drift import Drift, drift
from streampca.pca.model import Model
from tests.pca.streams import batch_pca, gaussian, scale_of


def messages(seed: int, d: int, shift: float = 0.0) -> F64:
    """Messages (200, d) in different units; the first entry of several is constant unless the mean is shifted."""
    X = gaussian(seed, 200, np.linspace(3, 1, d)) * np.linspace(0.5, 20, d) + shift * np.arange(d)
    return np.where((np.arange(d) > 0) | (d == 1) | bool(shift), X, 7.0)


def model_of(X: F64, k: int, *, standardize: bool, dtype: type) -> Model:
    """Batch PCA of X (n, d), or of its standardised rows."""
    scale = scale_of(X) if standardize else np.ones(X.shape[1])
    model = batch_pca(X * scale, k)
    arrays = {name: getattr(model, name).astype(dtype) for name in ("components", "explained_variance")}
    return replace(model, **arrays, mean=X.mean(axis=0).astype(dtype), scale=scale if standardize else None)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize(("d", "earlier_k", "k"), [(1, 1, 1), (2, 1, 2), (9, 3, 3), (9, 2, 4), (9, 9, 4), (9, 4, 9)])
def test_drift_is_that_of_the_dense_covariances(d: int, earlier_k: int, k: int, standardize: bool, dtype: type) -> None:
    before, after = messages(1, d), messages(2, d, shift=0.3)
    earlier, newest = (
        model_of(X, size, standardize=standardize, dtype=dtype) for X, size in ((before, earlier_k), (after, k))
    )
    earlier_D, D = (scale_of(X) if standardize else np.ones(d) for X in (before, after))
    U, Q = newest.components.T.astype(np.float64), orth((D / earlier_D * earlier.components).T)
    noise = (newest.total_variance - newest.explained_variance.sum()) / max(d - k, 1)
    covariance = (U * newest.explained_variance) @ U.T + noise * (np.eye(d) - U @ U.T)
    expected = Drift(
        subspace_angles(U, Q)[0],
        np.trace(Q.T @ covariance @ Q) / np.trace(covariance),
        newest.explained_variance.sum() / np.trace(covariance),
        ((D * (after.mean(axis=0) - before.mean(axis=0))) ** 2).sum() / (D**2 * before.var(axis=0)).sum(),
    )
    assert drift(earlier, newest) == pytest.approx(expected, rel=1e-5 if dtype == np.float32 else 1e-9, abs=1e-6)


@pytest.mark.parametrize(("d", "rank", "k"), [(1, 1, 1), (9, 3, 3), (9, 9, 9), (9, 2, 5), (9, 0, 5)])
def test_arbitrary_axes_and_no_variance_are_no_drift(d: int, rank: int, k: int) -> None:
    model = model_of(messages(3, d), k, standardize=False, dtype=np.float64)
    variance = np.where(np.arange(k) < rank, model.explained_variance, 0.0)
    model = replace(model, explained_variance=variance, total_variance=float(variance.sum()))
    completion = np.linalg.svd(model.components[:rank], full_matrices=True)[2][::-1][: k - rank]
    other = replace(model, components=np.vstack([-model.components[:rank], completion]))
    share = float(rank > 0)
    assert drift(other, model)[:3] == pytest.approx((0.0, share, share), abs=1e-12)
    moved = drift(other, replace(model, mean=model.mean + 1)).mean_shift_ratio
    assert moved == (pytest.approx(d / model.total_variance) if rank else np.inf)
