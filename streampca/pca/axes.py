"""Principal axes: the decomposition U Λ Uᵀ of a covariance, which is C Cᵀ or is kept as such."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import eigh

from streampca.pca.arrays import F64, Array, power_of_two
from streampca.pca.model import Model
from streampca.pca.state import State

_EPS = float(np.finfo(np.float64).eps)


def tolerance(dtype: Any) -> float:
    """Singular values below this share of the largest count as rounding errors."""
    return 1000 * float(np.finfo(dtype).eps)


def smallest_singular_value(dtype: Any) -> float:
    """Singular values below this count as zero: their squares are subnormal numbers of the dtype."""
    return 2 * float(np.sqrt(np.finfo(dtype).tiny))


def leading(F: Array, limit: int, dtype: Any) -> Array:
    """C (d, r) = U diag(σ) for up to `limit` leading singular values of F (d, n) above rounding."""
    U, sigma, _ = np.linalg.svd(F.astype(np.float64, copy=False), full_matrices=False)
    r = rank(sigma, limit, dtype)
    return np.ascontiguousarray((U[:, :r] * sigma[:r]).astype(dtype))


def factor(state: State) -> Array:
    """F (d, r) with F Fᵀ the state's covariance, as far as it is known; r is at most d."""
    return state.C if state.covariance is None else turned(replace(state, C=state.C.astype(np.float64)), len(state.C)).C


def turned(state: State, components: int) -> State:
    """A state with an exact covariance, with its leading axes times their standard deviations as columns."""
    covariance = np.asarray(state.covariance)
    d, unit = len(covariance), power_of_two(float(covariance.trace()))
    variance, U = eigh(covariance / unit, subset_by_index=(d - min(components, d), d - 1))
    variance, U = variance[::-1] * unit, U[:, ::-1]
    known = variance > max(_EPS * d * variance[0], float(np.finfo(state.C.dtype).tiny))
    C = np.ascontiguousarray(U[:, known] * np.sqrt(variance[known]), state.C.dtype)
    return replace(state, C=C)


def rank(sigma: F64, limit: int, dtype: Any) -> int:
    """How many of the falling singular values are above rounding, at most `limit`."""
    return (
        min(limit, int(np.sum(sigma > max(tolerance(dtype) * sigma[0], smallest_singular_value(dtype)))))
        if len(sigma)
        else 0
    )


def principal(state: State, k: int) -> tuple[F64, F64]:
    """The k leading principal axes of a state as orthonormal rows (k, d), by falling variance, and the variances (k,).

    Beyond the rank of C the variances are 0 and the axes an arbitrary but deterministic orthonormal completion.
    """
    C = state.C if state.covariance is None else turned(state, k).C
    U, sigma, _ = np.linalg.svd(C.astype(np.float64), full_matrices=False)
    r = rank(sigma, k, np.float64)
    variance = np.zeros(k)
    variance[:r] = sigma[:r] ** 2
    return _orient(_completed(U[:, :r], k).T), variance


def _completed(U: F64, k: int) -> F64:
    """U (d, r) with k − r further orthonormal columns."""
    if U.shape[1] == k:
        return U
    extra = np.random.default_rng(0).standard_normal((U.shape[0], k - U.shape[1]))
    for _ in range(2):  # the second time against rounding errors
        extra -= U @ (U.T @ extra)
        extra = np.linalg.qr(extra)[0]
    return np.hstack([U, extra])


def _orient(components: F64) -> F64:
    """The rows with signs such that the entry of largest magnitude is positive."""
    peaks = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    return components * np.where(peaks < 0, -1.0, 1.0)[:, None]


def keep_signs(components: F64, reference: Array) -> F64:
    """Rows (k, d), each with the sign that makes its product with the most similar row of `reference` positive.

    So a coordinate does not change its sign from one version of a model to the next.
    """
    similarity = components @ reference.T
    nearest = similarity[np.arange(len(similarity)), np.abs(similarity).argmax(axis=1)]
    return components * np.where(nearest < 0, -1.0, 1.0)[:, None]


def model_of(state: State, components: int, reference: Array | None = None) -> Model:
    """The model of the k leading components of a state, with the signs of `reference` (rows of components) if given."""
    rows, variance = principal(state, components)
    if reference is not None and reference.shape[1] == rows.shape[1]:
        rows = keep_signs(rows, reference)
    return Model(rows, variance, state.mean, state.total_variance, state.weight)


def leading_model(state: State, components: int) -> Model:
    """As `model_of`, with axes of any sign, and no more than the state has at hand: it decomposes nothing."""
    C, variance = state.C[:, :components].astype(np.float64, copy=False), state.variance[:components]
    return Model((C / np.sqrt(variance)).T, variance, state.mean, state.total_variance, state.weight)


def state_of(model: Model, count: int, dtype: str, *, exact: bool) -> State:
    """A state to continue a model from that has learned `count` messages.

    A model does not know the columns beyond its components. With `exact` the covariance is that of probabilistic PCA:
    the other directions get the noise variance each.
    """
    U, variance = model.components.astype(np.float64), model.explained_variance
    known = variance > 0
    C = np.ascontiguousarray((U[known].T * np.sqrt(variance[known])), dtype)
    covariance = None
    if exact:
        covariance = model.noise_variance * np.eye(len(C)) + (U.T * (variance - model.noise_variance)) @ U
    return State(C, model.mean.astype(np.float64), model.weight, model.total_variance, count, covariance=covariance)
