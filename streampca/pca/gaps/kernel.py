"""Fills the gaps of a block, in compiled code: each missing entry with its conditional mean, by a fixed factor.

With y = v − m, the observed entries O of a message and C_O their rows of the factor C (d, k):

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O            filled: m + Cx, and r/π more where observed, r = (y − Cx)_O

x is shortened to ‖x‖² ≤ k + √2k, the mean and a standard deviation of Gaussian messages without gaps: where few entries
say little, their noise would be magnified, learned, and magnified again. C_OᵀC_O is summed over the observed or the
missing rows of C, whichever are fewer. Derivation: docs/mathematics.md, section 11.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_with_free_sums, compiled_without_lock

_ROWS = 16  # messages whose intermediate results fit the processor's cache
_EPS = float(np.finfo(np.float64).eps)


class _Fixed(NamedTuple):
    """Values that do not change within a block."""

    mean: F64  # (d,)
    C: F64  # (d, k)
    whole: F64  # (k, k) = CᵀC
    ridge: F64  # (k,)
    more: F64  # (d,) = 1/π − 1
    growth: F64  # (d,) = 1/π² − 1/π


@compiled_without_lock
def fill(V: Array, mean: F64, C: F64, ridge: F64, shares: F64) -> tuple[Array, F64]:  # pragma: no cover - compiled
    """The messages V (B, d) without their gaps, which are NaN; a message without gaps stays as it is.

    `mean` (d,), `C` (d, k) and `ridge` (k,) predict the missing entries; `shares` (d,) are the π. Also returns the
    surplus (B,) of each squared distance from the mean: by dividing by π it has grown so much, on average.
    """
    (B, d), whole = V.shape, C.T @ C
    filled, surplus, more, growth = np.empty(V.shape, V.dtype), np.empty(B), np.empty(d), np.empty(d)
    for j in range(d):
        more[j] = 1.0 / shares[j] - 1.0
        growth[j] = more[j] * (1.0 + more[j])
    for i in range(0, B, _ROWS):
        e = min(i + _ROWS, B)
        _fill(V[i:e], filled[i:e], surplus[i:e], _Fixed(mean, C, whole, ridge, more, growth))
    return filled, surplus


@compiled_with_free_sums
def _fill(V: Array, filled: Array, surplus: F64, fixed: _Fixed) -> None:  # pragma: no cover - compiled
    """Fill a few messages."""
    mean, C, whole, ridge, more, growth = fixed
    (B, d), missing = V.shape, np.zeros(len(V), np.int64)
    Y = np.empty((B, d))
    for s in range(B):
        gone = 0
        for j in range(d):  # without branches, so that it vectorises; only NaN differs from itself
            y = V[s, j] - mean[j]
            Y[s, j] = y if y == y else 0.0
            gone += 0 if y == y else 1
        missing[s] = gone
    fits = _coordinates(V, missing, Y @ C, C, whole, ridge) @ C.T
    for s in range(B):
        total = 0.0
        if missing[s] == 0:
            for j in range(d):
                filled[s, j] = V[s, j]
        else:
            for j in range(d):
                v, r = V[s, j], Y[s, j] - fits[s, j]
                filled[s, j] = v + r * more[j] if v == v else mean[j] + fits[s, j]
            for j in range(d):  # a loop of its own: see recurrence.py
                r = Y[s, j] - fits[s, j]
                total += r * r * growth[j] if V[s, j] == V[s, j] else 0.0
        surplus[s] = total


@compiled_with_free_sums
def _coordinates(V: Array, missing: Any, P: F64, C: F64, whole: F64, ridge: F64) -> F64:  # pragma: no cover - compiled
    """x (B, k) of each message, from P = C_Oᵀy_O (B, k) and the number of its missing entries; 0 without gaps."""
    (B, d), k = V.shape, C.shape[1]
    X = np.zeros((B, k))
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
        H = part.T @ part
        for i in range(k):
            for m in range(k):
                H[i, m] = (whole[i, m] - H[i, m] if fewer else H[i, m]) + (ridge[i] if i == m else 0.0)
        _solve(H, P[s], X[s])
        _shorten(X[s])
    return X


@compiled_with_free_sums
def _shorten(x: F64) -> None:  # pragma: no cover - compiled
    """x (k,) so that ‖x‖² ≤ k + √2k."""
    square, limit = 0.0, len(x) + math.sqrt(2.0 * len(x))
    for i in range(len(x)):
        square += x[i] * x[i]
    scale = math.sqrt(limit / square) if square > limit else 1.0
    for i in range(len(x)):
        x[i] *= scale


@compiled_with_free_sums
def _solve(H: F64, p: F64, x: F64) -> None:  # pragma: no cover - compiled
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


@compiled_with_free_sums
def _cholesky(A: F64) -> tuple[F64, bool]:  # pragma: no cover - compiled
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
