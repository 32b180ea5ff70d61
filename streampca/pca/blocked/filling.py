"""Compiled: the missing entries of messages are predicted by axes, each message by itself.

With y = v − m and the observed entries O of a message:

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O          filled: m + Cx, and r/√q where observed, r = (y − Cx)_O

Cx is the prediction of `projection.fill`, compiled since whole streams pass here. docs/mathematics.md, section 11.
"""

import math
from typing import Any

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock

_ROWS = 16  # messages whose intermediate results fit the processor's cache
_EPS = float(np.finfo(np.float64).eps)


@compiled_without_lock
def fill(V: Array, mean: F64, C: F64, ridge: F64, root: F64) -> tuple[Array, F64]:
    """The messages V (B, d) with missing entries filled, and x (B, k); `root` (d,) is √q.

    x is clipped to ‖x‖² ≤ k + √2k, the mean and a standard deviation of complete Gaussian messages: where few
    entries say little, their noise would be magnified, learned, and magnified again.
    """
    (B, d), CC = V.shape, C.T @ C
    filled, X = np.empty(V.shape, V.dtype), np.zeros((B, C.shape[1]))
    added_residuals = np.empty(d)  # an observed entry is m + Cx + r, so 1/√q − 1 times r is added to it
    for j in range(d):
        added_residuals[j] = 1.0 / root[j] - 1.0
    for i in range(0, B, _ROWS):
        end = min(i + _ROWS, B)
        X[i:end] = _fill_few(V[i:end], filled[i:end], (mean, C, CC, ridge, added_residuals))
    return filled, X


@compiled_within
def _fill_few(V: Array, filled: Array, predictor: Any) -> F64:
    """Write the messages V (B, d) with missing entries filled into `filled`, and return x (B, k).

    `predictor` is the same for all messages: the mean, C, CᵀC, the ridge, and 1/√q − 1.
    """
    mean, C, CC, ridge, added_residuals = predictor
    (B, d), missing = V.shape, np.zeros(len(V), np.int64)
    Y = np.empty((B, d))  # centred messages, with 0 for missing entries
    for s in range(B):
        count = 0
        for j in range(d):  # without branches, so that it vectorises; only NaN differs from itself
            y = V[s, j] - mean[j]
            Y[s, j] = y if y == y else 0.0
            count += 0 if y == y else 1
        missing[s] = count
    X = _coordinates(V, missing, Y @ C, C, CC, ridge)
    fits = X @ C.T
    for s in range(B):
        for j in range(d):
            v, r = V[s, j], Y[s, j] - fits[s, j]
            filled[s, j] = v + r * added_residuals[j] if v == v else mean[j] + fits[s, j]
    return X


@compiled_within
def _coordinates(V: Array, missing: Any, CY: F64, C: F64, CC: F64, ridge: F64) -> F64:
    """x (B, k) of each message: (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O, where O are its observed entries.

    `missing` (B,) are the numbers of missing entries, `CY` (B, k) holds C_Oᵀy_O, and `CC` (k, k) is CᵀC.
    """
    (B, d), k = V.shape, C.shape[1]
    X = np.zeros((B, k))
    for s in range(B):
        # C_OᵀC_O is a sum over the observed rows of C, or CᵀC less the sum over the missing rows if these are fewer.
        sums_missing = missing[s] <= d - missing[s]
        summed_rows, i = np.zeros((max(1, min(missing[s], d - missing[s])), k)), 0
        for j in range(d):
            if math.isnan(V[s, j]) == sums_missing:
                for m in range(k):
                    summed_rows[i, m] = C[j, m]
                i += 1
        H = summed_rows.T @ summed_rows
        for i in range(k):
            for m in range(k):
                H[i, m] = (CC[i, m] - H[i, m] if sums_missing else H[i, m]) + (ridge[i] if i == m else 0.0)
        _solve(H, CY[s], X[s])
        _clip(X[s])
    return X


@compiled_within
def _clip(x: F64) -> None:
    """Clip x to ‖x‖² ≤ k + √2k."""
    square, limit = 0.0, len(x) + math.sqrt(2.0 * len(x))
    for i in range(len(x)):
        square += x[i] * x[i]
    scale = math.sqrt(limit / square) if square > limit else 1.0
    for i in range(len(x)):
        x[i] *= scale


@compiled_within
def _solve(H: F64, p: F64, x: F64) -> None:
    """Write H⁻¹p into x (k,), which holds zeros. If H (k, k) is not numerically positive definite, x stays zero."""
    L, is_definite = _cholesky(H)
    if not is_definite:
        return
    for i in range(len(p)):  # L z = p, with z in the place of x
        rest = p[i]
        for j in range(i):
            rest -= L[i, j] * x[j]
        x[i] = rest / L[i, i]
    for i in range(len(p) - 1, -1, -1):  # Lᵀx = z
        rest = x[i]
        for j in range(i + 1, len(p)):
            rest -= L[j, i] * x[j]
        x[i] = rest / L[i, i]


@compiled_within
def _cholesky(A: F64) -> tuple[F64, bool]:
    """Lower-triangular L with LLᵀ = A, and whether A is numerically positive definite; if not, L is undefined."""
    K = len(A)
    L = np.zeros((K, K))
    for i in range(K):
        for j in range(i + 1):
            rest = A[i, j]
            for m in range(j):
                rest -= L[i, m] * L[j, m]
            if j < i:
                L[i, j] = rest / L[j, j]
            elif rest > K * _EPS * A[i, i] and rest < np.inf:
                L[i, i] = math.sqrt(rest)
            else:  # what remains of A is rounding, or not finite
                return L, False
    return L, True
