"""The gaps of a block, filled: each missing entry by its conditional mean, by a factor that is frozen meanwhile.

With y = v − m, the observed entries O of a message and C_O their rows of the factor C (d, k):

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O            filled: m + Cx, and r/π more where observed, r = (y − Cx)_O

x is shortened to ‖x‖² ≤ k + √2k, the mean and a standard deviation of Gaussian messages without gaps: where few entries
say little, their noise would be magnified, learned, and magnified again. C_OᵀC_O is summed over the observed or the
missing rows of C, whichever are fewer. Derivation: docs/mathematics.md, section 11.
"""

import math
from typing import Any

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.gauge import cholesky
from streampca.pca.blocked.gemm import times, times_transposed, transposed_times
from streampca.pca.blocked.jit import compiled_with_free_sums, compiled_without_lock


@compiled_without_lock
def fill(V: Array, mean: F64, C: F64, ridge: F64, shares: F64) -> tuple[Array, F64]:  # pragma: no cover - compiled
    """The messages V (B, d) without their gaps, which are NaN; a message without gaps stays as it is.

    `mean` (d,), `C` (d, k) and `ridge` (k,) predict the missing entries; `shares` (d,) are the π. Also returns the
    surplus (B,) of each squared distance from the mean: by dividing by π it has grown so much, on average.
    """
    (B, d), Y = V.shape, np.zeros(V.shape)
    missing = np.zeros(B, np.int64)
    for s in range(B):
        for j in range(d):
            if math.isnan(V[s, j]):
                missing[s] += 1
            else:
                Y[s, j] = V[s, j] - mean[j]
    X = _coordinates(V, missing, times(Y, C), C, ridge)
    fits, filled, surplus = times_transposed(X, C), np.empty(V.shape, V.dtype), np.zeros(B)
    for s in range(B):
        for j in range(d):
            if missing[s] == 0:
                filled[s, j] = V[s, j]
            elif math.isnan(V[s, j]):
                filled[s, j] = mean[j] + fits[s, j]
            else:
                r, more = Y[s, j] - fits[s, j], 1.0 / shares[j] - 1.0
                filled[s, j] = V[s, j] + r * more
                surplus[s] += r * r * more * (1.0 + more)
    return filled, surplus


@compiled_with_free_sums
def _coordinates(V: Array, missing: Any, P: F64, C: F64, ridge: F64) -> F64:  # pragma: no cover - compiled
    """x (B, k) of each message, from P = C_Oᵀy_O (B, k) and the number of its missing entries; 0 without gaps."""
    (B, d), k = V.shape, C.shape[1]
    whole, X = transposed_times(C, C), np.zeros((B, k))
    for s in range(B):
        if missing[s] == 0:
            continue
        fewer = missing[s] <= d - missing[s]  # whether those of C that are missing are fewer than the others
        part, i = np.zeros((max(1, min(missing[s], d - missing[s])), k)), 0
        for j in range(d):
            if math.isnan(V[s, j]) == fewer:
                for m in range(k):
                    part[i, m] = C[j, m]
                i += 1
        H = transposed_times(part, part)
        for i in range(k):
            for m in range(k):
                H[i, m] = (whole[i, m] - H[i, m] if fewer else H[i, m]) + (ridge[i] if i == m else 0.0)
        _solve(H, P[s], X[s])
        _shorten(X[s])
    return X


@compiled_with_free_sums
def _shorten(x: F64) -> None:  # pragma: no cover - compiled
    """x (k,) so that ‖x‖² ≤ k + √2k."""
    square, most = 0.0, len(x) + math.sqrt(2.0 * len(x))
    for i in range(len(x)):
        square += x[i] * x[i]
    scale = math.sqrt(most / square) if square > most else 1.0
    for i in range(len(x)):
        x[i] *= scale


@compiled_with_free_sums
def _solve(H: F64, p: F64, x: F64) -> None:  # pragma: no cover - compiled
    """x = H⁻¹p; 0 if H is not numerically positive definite."""
    L, good = cholesky(H)
    if not good:
        return
    for i in range(len(p)):
        left = p[i]
        for j in range(i):
            left -= L[i, j] * x[j]
        x[i] = left / L[i, i]
    for i in range(len(p) - 1, -1, -1):
        left = x[i]
        for j in range(i + 1, len(p)):
            left -= L[j, i] * x[j]
        x[i] = left / L[i, i]
