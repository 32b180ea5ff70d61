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
    (B, d), whole = V.shape, C.T @ C
    filled, X, more = np.empty(V.shape, V.dtype), np.zeros((B, C.shape[1])), np.empty(d)
    for j in range(d):
        more[j] = 1.0 / root[j] - 1.0
    for i in range(0, B, _ROWS):
        e = min(i + _ROWS, B)
        X[i:e] = _fill_few(V[i:e], filled[i:e], (mean, C, whole, ridge, more))
    return filled, X


@compiled_within
def _fill_few(V: Array, filled: Array, fixed: Any) -> F64:
    """Fill a few messages. `fixed`: the mean, C, CᵀC, the ridge and 1/√q − 1."""
    mean, C, whole, ridge, more = fixed
    (B, d), missing = V.shape, np.zeros(len(V), np.int64)
    Y = np.empty((B, d))
    for s in range(B):
        gone = 0
        for j in range(d):  # without branches, so that it vectorises; only NaN differs from itself
            y = V[s, j] - mean[j]
            Y[s, j] = y if y == y else 0.0
            gone += 0 if y == y else 1
        missing[s] = gone
    X = _coordinates(V, missing, Y @ C, C, whole, ridge)
    fits = X @ C.T
    for s in range(B):
        for j in range(d):
            v, r = V[s, j], Y[s, j] - fits[s, j]
            filled[s, j] = v + r * more[j] if v == v else mean[j] + fits[s, j]
    return X


@compiled_within
def _coordinates(V: Array, missing: Any, P: F64, C: F64, whole: F64, ridge: F64) -> F64:
    """x (B, k) of each message, from P = C_Oᵀy_O (B, k) and the number of its missing entries."""
    (B, d), k = V.shape, C.shape[1]
    X = np.zeros((B, k))
    for s in range(B):
        fewer = missing[s] <= d - missing[s]  # sum over the missing rows of C, if they are fewer, or the observed ones
        part, i = np.zeros((max(1, min(missing[s], d - missing[s])), k)), 0
        for j in range(d):
            if math.isnan(V[s, j]) == fewer:
                for m in range(k):
                    part[i, m] = C[j, m]
                i += 1
        H = part.T @ part
        for i in range(k):
            for m in range(k):
                H[i, m] = (whole[i, m] - H[i, m] if fewer else H[i, m]) + (ridge[i] if i == m else 0.0)
        _solve(H, P[s], X[s])
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
    """x = H⁻¹p; 0 if H is not numerically positive definite."""
    L, good = _cholesky(H)
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


@compiled_within
def _cholesky(A: F64) -> tuple[F64, bool]:
    """Lower-triangular L with LLᵀ = A, and whether A is numerically positive definite; if not, L is undefined."""
    K = len(A)
    L = np.zeros((K, K))
    for i in range(K):
        for j in range(i + 1):
            left = A[i, j]
            for m in range(j):
                left -= L[i, m] * L[j, m]
            if j < i:
                L[i, j] = left / L[j, j]
            elif left > K * _EPS * A[i, i] and left < np.inf:  # else the rest of the column is rounding
                L[i, i] = math.sqrt(left)
            else:
                return L, False
    return L, True
