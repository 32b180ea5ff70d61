"""Functions of arrays that project vectors on the axes of a model: fill missing entries, project, and score.

With y = D(v − m), principal axes U, their variances λ and the mean variance σ² of the other d − k directions:

    z = Uᵀy        SPE = ‖y‖² − ‖z‖²        T² = Σ zᵢ²/λᵢ        score = T² + SPE/σ²

The score is −2 log-likelihood of probabilistic PCA up to a constant (Tipping & Bishop 1999). docs/mathematics.md,
sections 8, 10 and 11.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array

GEMM_ROWS = 32  # rows of one matrix product: BLAS may round a row differently by their number, and by its index
_ROUNDS = 10  # of the search for the variances of new messages
_DETERMINED = 1e-13  # share of the largest variance: of coordinates that observed entries show less, they say rounding
_FILLED_ROWS = 16  # rows that are filled at once, each by itself; more would not fit the processor's cache
_SMALL = 0.01  # share of ‖y‖²: a smaller residual is not computed as a difference, whose rounding would be too large


class Scores(NamedTuple):
    """The statistics of n vectors."""

    t2: F64  # (n,): without unit, k on average
    spe: F64  # (n,): the squared residual, in the units of y squared
    score: F64  # (n,): without unit, d on average


class Contributions(NamedTuple):
    """Contributions of dimensions of n vectors, (n, ·)."""

    t2: F64  # all d sum to T²; negative where a dimension makes the vector more ordinary
    spe: F64  # with the sign of the residual; the absolute values of all d sum to SPE


def rounding_variance(total_variance: float, dtype: Any = np.float64) -> float:
    """The variance that rounding may cause along one direction."""
    return float(max(np.finfo(dtype).eps * total_variance, np.finfo(np.float64).tiny))


def noise_variance(variance: Array, dimensions: int, total_variance: float, dtype: Any = np.float64) -> float:
    """σ², the mean variance of the directions beyond those with these variances (k,); never less than rounding."""
    others = dimensions - len(variance)
    rest = (total_variance - float(variance.sum())) / others if others > 0 else 0.0
    return max(rest, rounding_variance(total_variance, dtype))


class Spikes(NamedTuple):
    """What a learned covariance says of that of the stream: noise, and k axes with more variance than it."""

    strength: F64  # (k,): t, so that the stream has variance σ²(1 + t) along the axis that the learned one estimates
    sigma2: float  # σ², the variance in all other directions
    gamma: float  # γ, directions without more variance than noise, for each message

    @property
    def overlap(self) -> F64:
        """The squared cosine of the angle between each learned axis and the stream's, (k,); 0: it only fits noise."""
        t, edge = self.strength, np.sqrt(self.gamma)  # t = √γ of an axis that only fits noise, to the last bit
        return np.asarray((t - edge) * (t + edge) / (t * (t + self.gamma)))

    @property
    def of_new(self) -> F64:
        """The variance of messages that are not learned yet along each learned axis, (k,)."""
        t = self.strength
        return np.asarray(self.sigma2 * t * ((1 + t) / (t + self.gamma)))


def spikes(variance: F64, dimensions: int, total_variance: float, weight: float, dtype: Any = np.float64) -> Spikes:
    """What the variances (k,) along the axes of a model of this weight say of the stream.

    Axes fit the learned messages, which vary more along them than new ones. With noise of variance 1 in n directions
    and γ = n/weight, an axis with λ ≤ (1 + √γ)² fits noise alone, and one with λ = (1 + t)(1 + γ/t) is near an axis of
    the stream with variance 1 + t. The n directions are all but those of the axes with more than noise.
    docs/mathematics.md, section 10.
    """
    sigma2 = noise_variance(variance, dimensions, total_variance, dtype)
    axes = 0  # above the noise
    for _ in range(_ROUNDS):
        gamma = (dimensions - axes) / max(weight, 1.0)
        least = 2 * np.sqrt(gamma)
        b = np.maximum(variance / sigma2 - 1 - gamma, least)
        t = (b + np.sqrt(b - least) * np.sqrt(b + least)) / 2
        found = Spikes(t, sigma2, gamma)
        sigma2 = noise_variance(found.of_new, dimensions, total_variance, dtype)
        axes = int((b > least).sum())
    return found


def t2_of_new(variance: F64, new: F64, sigma2: float, dimensions: int, weight: float) -> float:
    """The mean of T² over messages that are not learned yet and have the variances `new` (k,) along the axes.

    Axes above the noise fit the learned messages together, too: by a axes, T² grows to weight/(weight − a − 1) times.
    """
    edge = sigma2 * (1 + np.sqrt(dimensions / max(weight, 1.0))) ** 2
    axes = int((variance > edge).sum())
    return float((new / variance).sum()) * weight / max(weight - axes - 1, 1.0)


def fill(centred: Array, components: Array, variance: F64, sigma2: float) -> tuple[F64, F64]:
    """Fill the missing entries of rows y (n, d), which are overwritten, each by itself.

    Returns what the uncertainty of the filled entries adds to T² and to SPE, (n,).
    By probabilistic PCA, with Φ = U(Λ − σ²)^½, observed entries o, missing ones m, and Ψ = (Φ_oᵀΦ_o + σ²I)⁻¹:

        E[y_m | y_o] = Φ_m Ψ Φ_oᵀy_o        Cov[y_m | y_o] = σ²(I + Φ_m Ψ Φ_mᵀ)

    Where σ² is rounding, Ψ⁻¹ is singular for every coordinate of Φ that the observed entries do not determine. So
    Φ_oᵀΦ_o = BSBᵀ is decomposed: Ψ = B(S + σ²)⁻¹Bᵀ, but 0 of such coordinates, of which σ²Ψ is 1.
    """
    t2, spe = np.zeros(len(centred)), np.zeros(len(centred))
    signal = variance > sigma2
    U, variance = components.T[:, signal].astype(np.float64), variance[signal]
    root = np.sqrt(variance - sigma2)
    Phi = U * root
    incomplete = np.flatnonzero(np.isnan(centred).any(axis=1))
    for start in range(0, len(incomplete), _FILLED_ROWS):
        rows = incomplete[start : start + _FILLED_ROWS]
        missing = np.isnan(centred[rows])
        y = np.where(missing, 0.0, centred[rows])
        S, B = np.linalg.eigh(Phi.T @ (Phi * ~missing[:, :, None]))
        determined = S + sigma2 > _DETERMINED * S.max(axis=1, initial=0.0, keepdims=True)
        inverse = np.where(determined, 1 / (S + sigma2), 0.0)
        along = inverse[:, None] * (y[:, None] @ Phi @ B)  # a product for each row: its bits depend on no other
        fits = (along @ np.swapaxes(B, 1, 2) @ Phi.T)[:, 0]
        centred[rows] = np.where(missing, fits, y)
        uncertain = (B * np.where(determined, sigma2 * inverse, 1.0)[:, None]) @ np.swapaxes(B, 1, 2)  # σ²Ψ
        U_Phi = U.T @ (Phi * missing[:, :, None])  # UᵀΦ of the missing entries
        alone = sigma2 * np.diagonal(U_Phi, axis1=1, axis2=2) / root
        along_axes = alone + np.vecdot(U_Phi @ uncertain, U_Phi)
        t2[rows] = (along_axes / variance).sum(axis=1)
        of_fits = np.vecdot(root[:, None] * U_Phi, uncertain).sum(axis=1)
        spe[rows] = np.maximum(sigma2 * missing.sum(axis=1) + of_fits - along_axes.sum(axis=1), 0.0)
    return t2, spe


def split(centred: Array, axes: Array, components: Array) -> tuple[Array, Array, Array]:
    """The coordinates, squared residuals and squared norms of rows, which are overwritten.

    `axes` (d, k) are the `components` (k, d) as columns: products with them are quicker than with a transposed view.
    """
    coordinates = in_blocks(centred, axes)
    norm = np.vecdot(centred, centred)
    residual: Array = norm - np.vecdot(coordinates, coordinates)
    is_small = ~(residual > _SMALL * norm)
    if is_small.any():
        centred -= in_blocks(coordinates, components)
        residual = np.where(is_small, np.vecdot(centred, centred), residual)
    return coordinates, residual, norm


@np.errstate(over="ignore")
def score(coordinates: Array, residual: Array, missing_t2: F64, variance: F64, sigma2: float) -> Scores:
    """Scores by principal coordinates (n, k), squared residuals (n,), and what missing entries add to T² (n,)."""
    t2: F64 = (coordinates.astype(np.float64) ** 2 / variance).sum(axis=1) + missing_t2
    return Scores(t2, residual.astype(np.float64), t2 + residual / sigma2)


def in_blocks(rows: Array, matrix: Array) -> Array:
    """rows @ matrix, in products of `GEMM_ROWS` rows and one of the others."""
    (n, d), k = rows.shape, matrix.shape[1]
    product, whole = np.empty((n, k), np.result_type(rows, matrix)), n - n % GEMM_ROWS
    if whole:
        np.matmul(rows[:whole].reshape(-1, GEMM_ROWS, d), matrix, out=product[:whole].reshape(-1, GEMM_ROWS, k))
    if whole < n:
        np.matmul(rows[whole:], matrix, out=product[whole:])
    return product


def at_indices(vectors: Array, indices: NDArray[np.int64]) -> Array:
    """Vectors (n, d) at ascending indices of whole blocks, among zeros.

    A vector with the same index modulo `GEMM_ROWS` in every batch gets the same bits from `in_blocks` in every batch.
    """
    rows = np.zeros((-(-(int(indices[-1]) + 1) // GEMM_ROWS) * GEMM_ROWS, vectors.shape[1]), vectors.dtype)
    rows[indices] = vectors
    return rows


def contributions(
    centred: Array, components: Array, variance: F64, limit: int
) -> tuple[NDArray[np.intp], Contributions]:
    """The `limit` largest contributions of each row y, by falling absolute value, (n, limit), and their dimensions.

    The dimensions (2, n, limit) belong to T² and to SPE. Takes several times the rows' memory.
    """
    coordinates = in_blocks(centred, components.T)
    residual = centred - in_blocks(coordinates, components)
    every = centred * in_blocks(coordinates / variance, components), np.copysign(residual**2, residual)
    dimensions = [np.argsort(-np.abs(values), axis=1, kind="stable")[:, :limit] for values in every]
    largest = [
        np.take_along_axis(values, of_values, axis=1) for values, of_values in zip(every, dimensions, strict=True)
    ]
    return np.stack(dimensions), Contributions(*largest)
