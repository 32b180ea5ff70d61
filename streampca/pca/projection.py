"""Projects vectors on the axes of a model, scores them, and fills missing entries.

With y = D(v − m), principal axes U, their variances λ and the mean variance σ² of the other d − k directions:

    z = Uᵀy        SPE = ‖y‖² − ‖z‖²        T² = Σ zᵢ²/λᵢ        score = T² + SPE/σ²

The score is −2 log-likelihood of probabilistic PCA up to a constant (Tipping & Bishop 1999). docs/mathematics.md,
sections 8, 10 and 11.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array

GEMM_ROWS = 32  # rows in a matrix product, always the same: how BLAS rounds a row may depend on this and on its index
_SMALLEST_EIGENVALUE_SHARE = 1e-13  # of the largest eigenvalue: a smaller eigenvalue is only rounding
_FILLED_ROWS = 16  # rows that are filled at a time; more would not fit the processor's cache
_SMALLEST_ACCURATE_SHARE = 0.01  # of ‖y‖²: a smaller residual, as the difference ‖y‖² − ‖z‖², has too few digits left


class Scores(NamedTuple):
    """The statistics of n vectors."""

    t2: F64  # (n,): dimensionless, k on average
    spe: F64  # (n,): the squared residual, in the units of y squared
    score: F64  # (n,): dimensionless, d on average


class Contributions(NamedTuple):
    """Contributions of dimensions to the scores of n vectors, (n, ·)."""

    t2: F64  # those of all dimensions sum to T²; negative if a dimension makes the vector more ordinary
    spe: F64  # with the sign of the residual; absolute values of all dimensions sum to SPE


def fill_in_place(centred: Array, components: Array, variance: F64, sigma2: float) -> tuple[F64, F64]:
    """Fill the missing entries, NaN, of each row y of `centred` (n, d) with expected values, in place.

    U are the axes (`components`, transposed), Λ the variances along them, σ² the noise variance, and Φ = U(Λ − σ²)^½.
    Φ_m and Φ_o are the rows of Φ for the missing entries m and the observed entries o of y. By probabilistic PCA:

        E[y_m | y_o] = Φ_m Ψ Φ_oᵀy_o        Ψ = (Φ_oᵀΦ_o + σ²I)⁻¹

    The true values vary about these expected values. The variation raises the expected T² and the expected SPE of a
    row. Returns by how much, for each row: (n,) for T², and (n,) for SPE.
    """
    added_t2 = np.zeros(len(centred))
    added_spe = np.zeros(len(centred))
    has_signal = variance > sigma2  # an axis with no more variance than noise predicts nothing
    signal_variance = variance[has_signal]  # Λ
    U = components.T[:, has_signal].astype(np.float64)
    Phi = U * np.sqrt(signal_variance - sigma2)
    incomplete_rows = np.flatnonzero(np.isnan(centred).any(axis=1))
    for start in range(0, len(incomplete_rows), _FILLED_ROWS):  # some rows at a time
        rows = incomplete_rows[start : start + _FILLED_ROWS]
        missing = np.isnan(centred[rows])
        observed = np.where(missing, 0.0, centred[rows])
        expected, posterior_covariance = _predict_entries(observed, missing, Phi, sigma2)
        centred[rows] = np.where(missing, expected, observed)
        added_t2[rows], added_spe[rows] = _compute_uncertainty(
            missing, posterior_covariance, U, Phi, signal_variance, sigma2
        )
    return added_t2, added_spe


def _predict_entries(observed: F64, missing: NDArray[np.bool_], Phi: F64, sigma2: float) -> tuple[F64, F64]:
    """Predict all entries of rows from their `observed` entries (b, d), which are 0 where an entry is missing.

    By probabilistic PCA, y is Φz plus noise, with the columns Φ (d, k). Given the observed entries o of a row, its
    coordinates z have

        mean ΨΦ_oᵀy_o        covariance σ²Ψ        Ψ = (Φ_oᵀΦ_o + σ²I)⁻¹

    Returns Φ · mean (b, d), and the covariances (b, k, k). Products are made for each row by itself, so that its
    rounding does not depend on other rows.
    """
    S, B = np.linalg.eigh(Phi.T @ (Phi * ~missing[:, :, None]))  # Φ_oᵀΦ_o = B diag(S) Bᵀ: S (b, k), B (b, k, k)
    # If an eigenvalue is only rounding, and there is hardly any noise σ² beside it, the observed entries do not
    # determine the coordinate along its eigenvector. Like any z without data, it is predicted as 0, with variance 1.
    is_determined = S + sigma2 > _SMALLEST_EIGENVALUE_SHARE * S.max(axis=1, initial=0.0, keepdims=True)
    Psi_eigenvalues = np.where(is_determined, 1 / (S + sigma2), 0.0)  # Ψ = B diag(Psi_eigenvalues) Bᵀ
    posterior_eigenvalues = np.where(is_determined, sigma2 * Psi_eigenvalues, 1.0)  # of σ²Ψ, the covariance of z
    B_transposed = np.swapaxes(B, 1, 2)
    Phi_y = observed[:, None] @ Phi  # (b, 1, k): Φ_oᵀy_o of each row, because missing entries are 0
    mean_in_B = Psi_eigenvalues[:, None] * (Phi_y @ B)  # (b, 1, k): ΨΦ_oᵀy_o in the basis B
    expected = (mean_in_B @ B_transposed @ Phi.T)[:, 0]  # Φ ΨΦ_oᵀy_o
    posterior_covariance = (B * posterior_eigenvalues[:, None]) @ B_transposed
    return expected, posterior_covariance


def _compute_uncertainty(
    missing: NDArray[np.bool_], posterior_covariance: F64, U: F64, Phi: F64, variance: F64, sigma2: float
) -> tuple[F64, F64]:
    """Compute what the uncertainty of filled entries adds to the expected T² and SPE of each row, (b,).

    In each row, `missing` (b, d) says which entries m were filled. By probabilistic PCA, they are Φ_m z plus noise of
    the variance σ², where the coordinates z have the covariance P (k, k), one of `posterior_covariance` (b, k, k). So
    the covariance of the filled entries is

        Cov = σ²I + Φ_m P Φ_mᵀ

    The variances q (k,) of the filled entries along the axes, and the trace of Cov, each have a part from the noise and
    a part from z:

        q = σ² diag(U_mᵀU_m) + diag(U_mᵀΦ_m P Φ_mᵀU_m)
        tr Cov = σ² · number of filled entries + tr(Φ_mᵀΦ_m P)

    T² grows by Σ q_i/λ_i, where λ (k,) are the variances along the axes, and SPE grows by tr Cov − Σ q_i.
    """
    root = np.sqrt(variance - sigma2)  # Φ is U diag(root), so U_mᵀU_m and Φ_mᵀΦ_m follow from U_mᵀΦ_m
    U_Phi = U.T @ (Phi * missing[:, :, None])  # U_mᵀΦ_m, (b, k, k)
    Phi_Phi = root[:, None] * U_Phi  # Φ_mᵀΦ_m, (b, k, k)
    noise_along_axes = sigma2 * np.diagonal(U_Phi, axis1=1, axis2=2) / root  # σ² diag(U_mᵀU_m), (b, k)
    # `np.vecdot(A, B)` is the diagonal of ABᵀ, for each row.
    signal_along_axes = np.vecdot(U_Phi @ posterior_covariance, U_Phi)  # diag(U_mᵀΦ_m P Φ_mᵀU_m), (b, k)
    along_axes = noise_along_axes + signal_along_axes  # q of each row, (b, k)
    signal_trace = np.vecdot(Phi_Phi, posterior_covariance).sum(axis=1)  # tr(Φ_mᵀΦ_m P), because P is symmetric
    trace = sigma2 * missing.sum(axis=1) + signal_trace  # tr Cov, (b,)
    added_t2 = (along_axes / variance).sum(axis=1)
    added_spe = np.maximum(trace - along_axes.sum(axis=1), 0.0)  # rounding may make the difference negative
    return added_t2, added_spe


def project_rows(centred: Array, axes: Array, components: Array) -> tuple[Array, Array, Array]:
    """Compute coordinates, squared residuals and squared norms of centred rows (n, d), which may be overwritten.

    `components` has the axes as rows (k, d), and `axes` has them as columns (d, k), so that no product must transpose.
    A residual is the difference of two squares. If they are nearly equal, too few digits are left, so the residual is
    computed from the row without its part along the axes.
    """
    coordinates = multiply_in_tiles(centred, axes)
    norm = np.vecdot(centred, centred)
    residual: Array = norm - np.vecdot(coordinates, coordinates)
    is_accurate = residual > _SMALLEST_ACCURATE_SHARE * norm  # also False where the residual is NaN
    if not is_accurate.all():
        centred -= multiply_in_tiles(coordinates, components)
        residual = np.where(is_accurate, residual, np.vecdot(centred, centred))
    return coordinates, residual, norm


@np.errstate(over="ignore")
def compute_scores(coordinates: Array, residual: Array, missing_t2: F64, variance: F64, sigma2: float) -> Scores:
    """Compute T², SPE and score from coordinates (n, k), squared residuals (n,), and what missing entries add to T²."""
    t2: F64 = (coordinates.astype(np.float64) ** 2 / variance).sum(axis=1) + missing_t2
    return Scores(t2=t2, spe=residual.astype(np.float64), score=t2 + residual / sigma2)


def multiply_in_tiles(rows: Array, matrix: Array) -> Array:
    """Return rows @ matrix, computed in tiles of `GEMM_ROWS` rows.

    So the rounding of a row in a whole tile does not depend on how many rows there are.
    """
    n, d = rows.shape
    k = matrix.shape[1]
    product = np.empty((n, k), np.result_type(rows, matrix))
    in_tiles = n - n % GEMM_ROWS
    if in_tiles:
        tiles = rows[:in_tiles].reshape(-1, GEMM_ROWS, d)
        np.matmul(tiles, matrix, out=product[:in_tiles].reshape(-1, GEMM_ROWS, k))
    if in_tiles < n:
        np.matmul(rows[in_tiles:], matrix, out=product[in_tiles:])
    return product


def place_at_indices(vectors: Array, indices: NDArray[np.int64]) -> Array:
    """Return a matrix with the vectors (n, d) in the rows at these ascending indices, and zeros in all other rows.

    The matrix consists of whole tiles of `GEMM_ROWS` rows. So when the matrix is multiplied, the rounding of a vector's
    product depends only on the row in which the vector is, and not on the number of vectors.
    """
    tile_count = int(indices[-1]) // GEMM_ROWS + 1
    rows = np.zeros((tile_count * GEMM_ROWS, vectors.shape[1]), vectors.dtype)
    rows[indices] = vectors
    return rows


def find_largest_contributions(
    centred: Array, components: Array, variance: F64, limit: int
) -> tuple[NDArray[np.intp], Contributions]:
    """Find the `limit` dimensions that contribute most to T² of each row, and to SPE.

    Returns the dimensions (2, n, limit), those for T² first, and their contributions, by falling absolute value.
    """
    coordinates = multiply_in_tiles(centred, components.T)
    residual = centred - multiply_in_tiles(coordinates, components)
    t2 = centred * multiply_in_tiles(coordinates / variance, components)
    spe = np.copysign(residual**2, residual)  # the sign says whether the entry is above or below its reconstruction
    t2_dimensions = np.argsort(-np.abs(t2), axis=1, kind="stable")[:, :limit]
    spe_dimensions = np.argsort(-np.abs(spe), axis=1, kind="stable")[:, :limit]
    largest_t2 = np.take_along_axis(t2, t2_dimensions, axis=1)
    largest_spe = np.take_along_axis(spe, spe_dimensions, axis=1)
    largest = Contributions(t2=largest_t2, spe=largest_spe.astype(np.float64, copy=False))
    return np.stack([t2_dimensions, spe_dimensions]), largest
