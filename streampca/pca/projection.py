"""Functions that project vectors on the axes of a model: they fill missing entries, project, and score.

With y = D(v − m), principal axes U, their variances λ and the mean variance σ² of the other d − k directions:

    z = Uᵀy        SPE = ‖y‖² − ‖z‖²        T² = Σ zᵢ²/λᵢ        score = T² + SPE/σ²

The score is −2 log-likelihood of probabilistic PCA up to a constant (Tipping & Bishop 1999). docs/mathematics.md,
sections 8, 10 and 11.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array

GEMM_ROWS = 32  # rows of one matrix product: how BLAS rounds a row may depend on their number, and on the row's index
_ROUNDS = 10  # iterations of the search for the variances of new messages
_DETERMINED = 1e-13  # share of the largest variance: a coordinate with less in the observed entries is rounding
_FILLED_ROWS = 16  # rows that are filled in one step; more would not fit the processor's cache
_SMALL = 0.01  # share of ‖y‖²: a smaller residual would lose too many digits as the difference ‖y‖² − ‖z‖²


class Scores(NamedTuple):
    """The statistics of n vectors."""

    t2: F64  # (n,): dimensionless, k on average
    spe: F64  # (n,): the squared residual, in the units of y squared
    score: F64  # (n,): dimensionless, d on average


class Contributions(NamedTuple):
    """Contributions of dimensions to the scores of n vectors, (n, ·)."""

    t2: F64  # those of all dimensions sum to T²; negative if a dimension makes the vector more ordinary
    spe: F64  # with the sign of the residual; absolute values of all dimensions sum to SPE


def rounding_variance(total_variance: float, dtype: Any = np.float64) -> float:
    """Return the variance that rounding may cause along one direction."""
    return float(max(np.finfo(dtype).eps * total_variance, np.finfo(np.float64).tiny))


def noise_variance(variance: Array, dimensions: int, total_variance: float, dtype: Any = np.float64) -> float:
    """Return σ², the mean variance of the directions beyond the axes; never less than rounding.

    `variance` (k,) are the variances along the axes.
    """
    directions = dimensions - len(variance)
    mean = (total_variance - float(variance.sum())) / directions if directions > 0 else 0.0
    return max(mean, rounding_variance(total_variance, dtype))


class Spikes(NamedTuple):
    """The covariance of a stream, as estimated from a learned one: noise, and k axes with more variance than noise."""

    strength: F64  # (k,): t; the stream has the variance σ²(1 + t) along the true axis that a learned axis estimates
    sigma2: float  # σ², the variance in all other directions
    gamma: float  # γ, the number of directions that have no more variance than noise, divided by that of messages

    @property
    def overlap(self) -> F64:
        """The squared cosine between each learned axis and the true axis, (k,); 0 if it only fits noise."""
        t = self.strength
        edge = np.sqrt(self.gamma)  # t of an axis that only fits noise, to the last bit: its overlap is exactly 0
        return np.asarray((t - edge) * (t + edge) / (t * (t + self.gamma)))

    @property
    def of_new(self) -> F64:
        """The variance of messages that are not learned yet along each learned axis, (k,)."""
        t = self.strength
        return np.asarray(self.sigma2 * t * ((1 + t) / (t + self.gamma)))


def spikes(variance: F64, dimensions: int, total_variance: float, weight: float, dtype: Any = np.float64) -> Spikes:
    """Estimate the covariance of the stream from the variances (k,) along the axes of a model of this weight.

    Axes fit the learned messages, which vary more along them than new ones. With noise of variance 1 in n directions
    and γ = n/weight, an axis with λ ≤ (1 + √γ)² fits noise alone, and one with λ = (1 + t)(1 + γ/t) is near an axis of
    the stream with variance 1 + t. The n directions are all but those of the axes with more variance than noise. The
    noise and the variances depend on each other, so they are computed in turn. docs/mathematics.md, section 10.
    """
    sigma2 = noise_variance(variance, dimensions, total_variance, dtype)
    axes_above_noise = 0
    for _ in range(_ROUNDS):
        gamma = (dimensions - axes_above_noise) / max(weight, 1.0)
        # λ/σ² = (1 + t)(1 + γ/t) is t² − bt + γ = 0, whose larger solution is t. On noise alone b is at its least.
        least = 2 * np.sqrt(gamma)
        b = np.maximum(variance / sigma2 - 1 - gamma, least)
        t = (b + np.sqrt(b - least) * np.sqrt(b + least)) / 2
        found = Spikes(strength=t, sigma2=sigma2, gamma=gamma)
        sigma2 = noise_variance(found.of_new, dimensions, total_variance, dtype)
        axes_above_noise = int((b > least).sum())
    return found


def t2_of_new(variance: F64, variance_of_new: F64, sigma2: float, dimensions: int, weight: float) -> float:
    """Return the mean of T² over messages that are not learned yet.

    Along the axes the learned messages have `variance` (k,), and new messages have `variance_of_new` (k,). T² divides
    by the variances that were fitted to the learned messages, so it is larger for new messages. The covariances between
    the a axes above the noise were fitted, too, which enlarges it by the factor weight/(weight − a − 1).
    """
    noise_edge = sigma2 * (1 + np.sqrt(dimensions / max(weight, 1.0))) ** 2  # largest variance of noise, as in `spikes`
    axes_above_noise = int((variance > noise_edge).sum())
    return float((variance_of_new / variance).sum()) * weight / max(weight - axes_above_noise - 1, 1.0)


def fill(centred: Array, components: Array, variance: F64, sigma2: float) -> tuple[F64, F64]:
    """Fill the missing entries of each row y (n, d) in place.

    Returns what the uncertainty of the filled entries adds to the expected T² and SPE, (n,) each. By probabilistic PCA,
    with Φ = U(Λ − σ²)^½, observed entries o, missing entries m, and Ψ = (Φ_oᵀΦ_o + σ²I)⁻¹:

        E[y_m | y_o] = Φ_m Ψ Φ_oᵀy_o        Cov[y_m | y_o] = σ²(I + Φ_m Ψ Φ_mᵀ)

    The covariance adds the variances U_mᵀ Cov U_m along the axes, divided by λ, to T², and the rest of its trace to
    SPE. Φ_oᵀΦ_o = BSBᵀ is decomposed, so Ψ = B(S + σ²)⁻¹Bᵀ. If σ² is rounding, Ψ⁻¹ is singular along those columns of B
    that the observed entries do not determine. Along these columns the fill takes Ψ as 0, which gives the mean, and the
    covariance takes σ²Ψ as 1, since all of their variance is uncertain.
    """
    t2 = np.zeros(len(centred))
    spe = np.zeros(len(centred))
    has_signal = variance > sigma2
    U = components.T[:, has_signal].astype(np.float64)
    variance = variance[has_signal]
    root = np.sqrt(variance - sigma2)
    Phi = U * root
    incomplete = np.flatnonzero(np.isnan(centred).any(axis=1))
    for start in range(0, len(incomplete), _FILLED_ROWS):
        rows = incomplete[start : start + _FILLED_ROWS]
        missing = np.isnan(centred[rows])
        y = np.where(missing, 0.0, centred[rows])
        S, B = np.linalg.eigh(Phi.T @ (Phi * ~missing[:, :, None]))  # (b, k), (b, k, k)
        is_determined = S + sigma2 > _DETERMINED * S.max(axis=1, initial=0.0, keepdims=True)
        inverse = np.where(is_determined, 1 / (S + sigma2), 0.0)
        # One product for each row, so that no other row changes its bits.
        coordinates = inverse[:, None] * (y[:, None] @ Phi @ B)
        fits = (coordinates @ np.swapaxes(B, 1, 2) @ Phi.T)[:, 0]  # ΦΨΦ_oᵀy_o
        centred[rows] = np.where(missing, fits, y)
        uncertain = np.where(is_determined, sigma2 * inverse, 1.0)
        sigma2_Psi = (B * uncertain[:, None]) @ np.swapaxes(B, 1, 2)
        U_Phi = U.T @ (Phi * missing[:, :, None])  # U_mᵀΦ_m
        t2[rows], spe[rows] = _compute_uncertainty(
            U_Phi=U_Phi,
            sigma2_Psi=sigma2_Psi,
            missing=missing.sum(axis=1),
            root=root,
            variance=variance,
            sigma2=sigma2,
        )
    return t2, spe


def _compute_uncertainty(
    U_Phi: F64, sigma2_Psi: F64, missing: NDArray[Any], root: F64, variance: F64, sigma2: float
) -> tuple[F64, F64]:
    """Compute what Cov = σ²(I + Φ_m Ψ Φ_mᵀ) of missing entries adds to the expected T² and SPE, (b,) each.

    `U_Phi` is U_mᵀΦ_m and `sigma2_Psi` is σ²Ψ, (b, k, k) each; `missing` (b,) is the number of missing entries of each
    row, and `root` (k,) is (Λ − σ²)^½.
    """
    noise_along_axes = sigma2 * np.diagonal(U_Phi, axis1=1, axis2=2) / root  # the diagonal of σ²U_mᵀU_m
    along_axes = noise_along_axes + np.vecdot(U_Phi @ sigma2_Psi, U_Phi)  # the diagonal of U_mᵀ Cov U_m
    trace_of_fits = np.vecdot(root[:, None] * U_Phi, sigma2_Psi).sum(axis=1)  # tr σ²Φ_m Ψ Φ_mᵀ
    trace = sigma2 * missing + trace_of_fits
    t2 = (along_axes / variance).sum(axis=1)
    spe = np.maximum(trace - along_axes.sum(axis=1), 0.0)
    return t2, spe


def project_rows(centred: Array, axes: Array, components: Array) -> tuple[Array, Array, Array]:
    """Compute the coordinates, squared residuals and squared norms of rows (n, d), which it overwrites.

    `axes` (d, k) are the `components` (k, d) as columns: products with a transposed view of these would be slower.
    """
    coordinates = multiply_in_blocks(centred, axes)
    norm = np.vecdot(centred, centred)
    residual: Array = norm - np.vecdot(coordinates, coordinates)
    is_small = ~(residual > _SMALL * norm)
    if is_small.any():
        centred -= multiply_in_blocks(coordinates, components)
        residual = np.where(is_small, np.vecdot(centred, centred), residual)
    return coordinates, residual, norm


@np.errstate(over="ignore")
def score(coordinates: Array, residual: Array, missing_t2: F64, variance: F64, sigma2: float) -> Scores:
    """Compute scores from coordinates (n, k), squared residuals (n,), and what missing entries add to T² (n,)."""
    t2: F64 = (coordinates.astype(np.float64) ** 2 / variance).sum(axis=1) + missing_t2
    return Scores(t2=t2, spe=residual.astype(np.float64), score=t2 + residual / sigma2)


def multiply_in_blocks(rows: Array, matrix: Array) -> Array:
    """Return rows @ matrix, computed in products of `GEMM_ROWS` rows, and one product of the rows that remain."""
    n, d = rows.shape
    k = matrix.shape[1]
    product = np.empty((n, k), np.result_type(rows, matrix))
    whole = n - n % GEMM_ROWS
    if whole:
        np.matmul(rows[:whole].reshape(-1, GEMM_ROWS, d), matrix, out=product[:whole].reshape(-1, GEMM_ROWS, k))
    if whole < n:
        np.matmul(rows[whole:], matrix, out=product[whole:])
    return product


def place_at_indices(vectors: Array, indices: NDArray[np.int64]) -> Array:
    """Place vectors (n, d) at ascending indices among zeros, so that they are whole blocks of `GEMM_ROWS` rows.

    A vector with the same index modulo `GEMM_ROWS` in every batch gets the same bits from `multiply_in_blocks` in every
    batch.
    """
    blocks = int(indices[-1]) // GEMM_ROWS + 1
    rows = np.zeros((blocks * GEMM_ROWS, vectors.shape[1]), vectors.dtype)
    rows[indices] = vectors
    return rows


def contributions(
    centred: Array, components: Array, variance: F64, limit: int
) -> tuple[NDArray[np.intp], Contributions]:
    """Return the dimensions with the `limit` largest contributions of each row y, (2, n, limit), and the contributions.

    The dimensions are those of T², then those of SPE, by falling absolute value. This takes several times the rows'
    memory.
    """
    coordinates = multiply_in_blocks(centred, components.T)
    residual = centred - multiply_in_blocks(coordinates, components)
    of_t2 = centred * multiply_in_blocks(coordinates / variance, components)
    of_spe = np.copysign(residual**2, residual)
    dimensions = []
    largest = []
    for values in (of_t2, of_spe):
        largest_dimensions = np.argsort(-np.abs(values), axis=1, kind="stable")[:, :limit]
        dimensions.append(largest_dimensions)
        largest.append(np.take_along_axis(values, largest_dimensions, axis=1))
    return np.stack(dimensions), Contributions(*largest)
