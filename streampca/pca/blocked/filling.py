"""Compiled functions that predict the missing entries of messages from axes, each message by itself.

With y = v − m and the observed entries O of a message:

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O          filled: m + Cx, and r/√q where observed, r = (y − Cx)_O

`projection.fill_in_place` predicts the same Cx. The functions here are compiled, because they fill whole streams.
docs/mathematics.md, section 11.
"""

import math
from typing import Any

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_for_compiled_callers, compiled_without_lock

_ROWS = 16  # number of messages whose intermediate results fit the processor's cache
_EPS = float(np.finfo(np.float64).eps)


@compiled_without_lock
def fill(V: Array, mean: F64, C: F64, ridge: F64, root_q: F64) -> tuple[Array, F64]:
    """Fill the missing entries of messages V (B, d); return the filled messages, and the coordinates x (B, k).

    Each entry of a message v is predicted as m + Cx: m (d,) is the mean, C (d, k) are axes times their standard
    deviations, and x is found by ridge regression on C. A filled entry has no residual r = v − m − Cx, so filled
    messages would be too short on average. The residuals of observed entries make up for this: they are divided by √q
    (`root_q`, (d,)), where q is the share of the messages in which the entry is observed.

        missing entries (NaN):   m + Cx
        observed entries:        m + Cx + r/√q  =  v + (1/√q − 1) r
    """
    B, d = V.shape
    CC = C.T @ C
    filled = np.empty(V.shape, V.dtype)
    X = np.zeros((B, C.shape[1]))
    extra_residual_factor = np.empty(d)  # 1/√q − 1
    for j in range(d):
        extra_residual_factor[j] = 1.0 / root_q[j] - 1.0
    # Some messages at a time, so that they fit the cache. `_fill_rows` writes them to its last argument.
    for first in range(0, B, _ROWS):
        end = min(first + _ROWS, B)
        X[first:end] = _fill_rows(V[first:end], mean, C, CC, ridge, extra_residual_factor, filled[first:end])
    return filled, X


@compiled_for_compiled_callers
def _fill_rows(V: Array, mean: F64, C: F64, CC: F64, ridge: F64, extra_residual_factor: F64, filled: Array) -> F64:
    """Fill the missing entries of V (B, d) as `fill` does, and write the messages to `filled`; return x (B, k).

        missing entries (NaN):   m + Cx
        observed entries:        v + extra_residual_factor · r        r = v − m − Cx

    m (d,) is the mean, and x are the coordinates of a message on C (d, k), by ridge regression. CC is CᵀC. A filled
    entry is exactly m + Cx, so rarely observed entries would vary too little. To make up for this,
    `extra_residual_factor` (d,) enlarges the residuals r of observed entries.
    """
    B, d = V.shape
    missing_count = np.zeros(B, np.int64)
    Y = np.empty((B, d))
    for s in range(B):
        count = 0
        for j in range(d):  # without branches, so that the compiler vectorises the loop
            y = V[s, j] - mean[j]
            Y[s, j] = y if y == y else 0.0  # NaN differs from itself
            count += 0 if y == y else 1
        missing_count[s] = count
    X = _compute_coordinates(V, missing_count, Y @ C, C, CC, ridge)
    fits = X @ C.T
    for s in range(B):
        for j in range(d):
            v = V[s, j]
            r = Y[s, j] - fits[s, j]
            filled[s, j] = v + r * extra_residual_factor[j] if v == v else mean[j] + fits[s, j]
    return X


@compiled_for_compiled_callers
def _compute_coordinates(V: Array, missing_count: Any, CY: F64, C: F64, CC: F64, ridge: F64) -> F64:
    """Compute the coordinates x (B, k) of each message from its observed entries O, by ridge regression on C (d, k).

        x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O

    C_O are the rows of C for observed entries. CY (B, k) is C_Oᵀy_O of each message, and CC is CᵀC. `ridge` (k,) is
    added to the diagonal, which limits x if the observed entries hardly determine it.
    """
    B, d = V.shape
    k = C.shape[1]
    X = np.zeros((B, k))
    for s in range(B):
        # C_OᵀC_O is a sum over the observed rows of C. If fewer rows are missing, it is computed as CᵀC less the sum
        # over the missing rows. `used_rows` are the rows that are summed: missing ones, or observed ones.
        uses_missing_rows = missing_count[s] <= d - missing_count[s]
        used_count = min(missing_count[s], d - missing_count[s])
        used_rows = np.zeros((max(1, used_count), k))  # BLAS must not get an empty matrix
        used = 0
        for j in range(d):
            is_missing = math.isnan(V[s, j])
            if is_missing == uses_missing_rows:  # row j is one of the rows that are summed
                for m in range(k):
                    used_rows[used, m] = C[j, m]
                used += 1
        H = used_rows.T @ used_rows
        for i in range(k):
            if uses_missing_rows:  # so far, H is the sum over the missing rows
                for m in range(k):
                    H[i, m] = CC[i, m] - H[i, m]
            H[i, i] += ridge[i]
        _solve(H, CY[s], X[s])
        _clip(X[s])
    return X


@compiled_for_compiled_callers
def _clip(x: F64) -> None:
    """Scale the coordinates x (k,) of a message down to ‖x‖² ≤ k + √(2k).

    x is estimated from the observed entries, so x of a message with few entries is mostly noise, and often far too
    long. For complete Gaussian messages, ‖x‖² has about the mean k and the standard deviation √(2k).
    """
    square = 0.0
    limit = len(x) + math.sqrt(2.0 * len(x))
    for i in range(len(x)):
        square += x[i] * x[i]
    scale = math.sqrt(limit / square) if square > limit else 1.0
    for i in range(len(x)):
        x[i] *= scale


@compiled_for_compiled_callers
def _solve(H: F64, p: F64, x: F64) -> None:
    """Solve Hx = p for x (k,), which stays 0 if H is not positive definite."""
    L, is_definite = _cholesky(H)
    if not is_definite:
        return
    for i in range(len(p)):  # solve Lz = p; z is written to x
        rest = p[i]
        for j in range(i):
            rest -= L[i, j] * x[j]
        x[i] = rest / L[i, i]
    for i in range(len(p) - 1, -1, -1):  # solve Lᵀx = z
        rest = x[i]
        for j in range(i + 1, len(p)):
            rest -= L[j, i] * x[j]
        x[i] = rest / L[i, i]


@compiled_for_compiled_callers
def _cholesky(A: F64) -> tuple[F64, bool]:
    """Return a lower-triangular L with LLᵀ = A, and whether A is numerically positive definite."""
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
            else:  # `rest` is rounding, or not finite
                return L, False
    return L, True
