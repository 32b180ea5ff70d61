"""Principal axes of a factor C: the decomposition C Cᵀ = U Λ Uᵀ, and the rotation C ← C V that makes C = U Λ^½."""

from typing import Any

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import watch
from streampca.pca.blocked.gauge import cholesky
from streampca.pca.model import Model
from streampca.pca.state import State

_EPS = float(np.finfo(np.float64).eps)


def tolerance(dtype: Any) -> float:
    """Singular values below this share of the largest count as rounding errors."""
    return 1000 * float(np.finfo(dtype).eps)


def smallest_singular_value(dtype: Any) -> float:
    """Singular values below this count as zero: their squares are subnormal numbers of the dtype."""
    return 2 * float(np.sqrt(np.finfo(dtype).tiny))


def leading(F: Array, limit: int, dtype: Any) -> tuple[Array, F64]:
    """C (d, r) = U diag(σ) for up to `limit` leading singular values of F (d, n) above rounding, and σ² (r,)."""
    return leading_and_new(F, 0, limit, 0, 0.0, dtype)


def leading_and_new(F: Array, past: int, limit: int, new: int, smallest: float, dtype: Any) -> tuple[Array, F64]:
    """The `limit` leading directions of F (d, n), and up to `new` others that its columns from `past` on show.

    These are directions with more variance than the served one with the smallest, λ_k = `smallest`; see watch.py. C Cᵀ
    is F Fᵀ projected onto all of them; C (d, r) has orthogonal columns, whose squared lengths (r,) are returned too.
    """
    U, sigma, Vt = np.linalg.svd(F.astype(np.float64, copy=False), full_matrices=False)
    r = rank(sigma, len(sigma), dtype)
    if new and r > limit:
        rest = sigma[limit:r, None] * Vt[limit:r]  # F's coordinates outside the leading directions
        W = watch.unseen_directions(rest[:, past:], new, smallest)
        turned, variation, _ = np.linalg.svd(W.T @ rest, full_matrices=False)
        U = np.hstack([U[:, :limit], U[:, limit:r] @ (W @ turned)])
        sigma = np.concatenate([sigma[:limit], variation])
    r = rank(sigma, limit + new, dtype)
    return np.ascontiguousarray((U[:, :r] * sigma[:r]).astype(dtype)), sigma[:r] ** 2


def turn(C: Array) -> tuple[Array, F64]:
    """C V = U diag(σ), columns by falling σ without those that are only rounding, and σ² (r,).

    V is computed from the K×K Cholesky factor of CᵀC, which stays accurate for columns of very different sizes.
    """
    wide = C.astype(np.float64, copy=False)
    R, good = cholesky(wide.T @ wide)
    if not good:  # a column has vanished
        return leading(C, C.shape[1], C.dtype)
    _, sigma, Vt = np.linalg.svd(R.T)
    r = rank(sigma, len(sigma), C.dtype)
    return np.ascontiguousarray(C @ Vt[:r].T.astype(C.dtype)), sigma[:r] ** 2


def explained_squares(P: F64, N: F64, limit: int) -> F64:
    """‖Uᵀy‖² (B,) for up to `limit` leading axes U of C, from P = YC (B, r) and N = CᵀC alone.

    With N = V Λ Vᵀ the axes are U = C V Λ^−½.
    """
    variance, V = of_gram(N, limit)
    squares: F64 = ((P @ V / np.sqrt(variance)) ** 2).sum(axis=1)
    return squares


def of_gram(N: F64, limit: int) -> tuple[F64, F64]:
    """Up to `limit` leading eigenvalues (r,) of N above rounding, descending, and their eigenvectors as columns."""
    variance, V = np.linalg.eigh(N)
    variance, V = variance[::-1][:limit], V[:, ::-1][:, :limit]
    known = variance > _EPS * variance.max(initial=0.0)
    return variance[known], V[:, known]


def rank(sigma: F64, limit: int, dtype: Any) -> int:
    """How many of the falling singular values are above rounding, at most `limit`."""
    return (
        min(limit, int(np.sum(sigma > max(tolerance(dtype) * sigma[0], smallest_singular_value(dtype)))))
        if len(sigma)
        else 0
    )


def principal(C: Array, k: int) -> tuple[F64, F64]:
    """The k leading principal axes of C Cᵀ as orthonormal rows (k, d), by falling variance, and the variances (k,).

    Beyond the rank of C the variances are 0 and the axes an arbitrary but deterministic orthonormal completion.
    """
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
    rows, variance = principal(state.C, components)
    if reference is not None and reference.shape[1] == rows.shape[1]:
        rows = keep_signs(rows, reference)
    return Model(rows, variance, state.mean, state.total_variance, state.weight)


def leading_model(state: State, components: int) -> Model:
    """As `model_of`, with axes of any sign, and no more than the state has: quicker, without an SVD of size d."""
    C, variance = turn(state.C.astype(np.float64, copy=False))
    C, variance = C[:, :components], variance[:components]
    return Model((C / np.sqrt(variance)).T, variance, state.mean, state.total_variance, state.weight)
