"""The conditional mean and variance of a vector's gaps, given its observed entries.

With Φ = U(Λ − σ²)^½, as in probabilistic PCA (Tipping & Bishop 1999), the observed entries o and the missing ones m,
and Ψ = (Φ_oᵀΦ_o + σ²I)⁻¹:

    E[y_m | y_o] = Φ_m Ψ Φ_oᵀy_o        Cov[y_m | y_o] = σ²(I + Φ_m Ψ Φ_mᵀ)

So the expected T² and squared prediction error of a vector with gaps are those of the filled vector, and more for what
is not known. docs/mathematics.md, section 11.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.gaps import rows_with_gaps


class Completed(NamedTuple):
    """Vectors without gaps, and what the uncertainty of the filled entries adds to their statistics."""

    vectors: Array  # (n, d)
    t2: F64  # (n,); 0 without gaps
    spe: F64  # (n,)


def complete(Y: Array, mean: Array, U: Array, variance: F64, sigma2: float) -> Completed:
    """Fill the gaps of vectors (n, d), each by itself. Vectors without gaps stay as they are.

    `mean` (d,), axes `U` (d, k), their `variance` (k,), and `sigma2`, the mean variance of the other d − k directions.
    """
    t2, spe = np.zeros(len(Y)), np.zeros(len(Y))
    if not rows_with_gaps(Y).any():
        return Completed(Y, t2, spe)
    gaps = np.isnan(Y)
    filled, signal = np.array(Y, np.float64), variance > sigma2
    U, variance = U[:, signal].astype(np.float64), variance[signal]
    Phi = U * np.sqrt(variance - sigma2)
    for i in np.flatnonzero(gaps.any(axis=1)):
        missing, observed = gaps[i], ~gaps[i]
        Psi = np.linalg.inv(Phi[observed].T @ Phi[observed] + sigma2 * np.eye(len(variance)))
        z = Psi @ (Phi[observed].T @ (filled[i, observed] - mean[observed]))
        filled[i, missing] = mean[missing] + Phi[missing] @ z
        U_Phi = U[missing].T @ Phi[missing]
        spread = sigma2 * (np.square(U[missing]).sum(axis=0) + np.vecdot(U_Phi @ Psi, U_Phi))  # of Uᵀy, along each axis
        t2[i] = (spread / variance).sum()
        of_all = sigma2 * (missing.sum() + np.vdot(Phi[missing].T @ Phi[missing], Psi))
        spe[i] = max(of_all - spread.sum(), 0.0)
    return Completed(filled.astype(Y.dtype, copy=False), t2, spe)
