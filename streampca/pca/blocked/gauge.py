"""The unit gauge: C is rescaled after each block so that the second moment of x = C†y is the identity.

Under the paper's update C only grows, and the effect of a step size depends on its scale. Multiplying C from the right
by R changes neither its span nor the projector. R is chosen so that E[x xᵀ] = I and the columns of C are principal
axes. Then 1/η is a number of messages, CCᵀ estimates the covariance in the span, C†y are whitened coordinates, and the
first k columns of C span the k leading axes. Derivation: docs/mathematics.md, section 4.
"""

import math

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.blocked.gemm import times, transposed_times
from streampca.pca.blocked.jit import compiled, compiled_with_free_sums, inlined

_EPS = float(np.finfo(np.float64).eps)
LARGEST_SHARE = 1 / 64  # of the whole weight, for one message
LARGEST_JUMP = 4.0  # growth of the variance along a direction, relative to the past; ordinary streams have 0.1 to 1.5


@compiled_with_free_sums
def cholesky(A: F64) -> tuple[F64, bool]:  # pragma: no cover - compiled
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


@compiled_with_free_sums
def inverse(A: F64) -> tuple[F64, bool]:  # pragma: no cover - compiled
    """A⁻¹, exactly symmetric, and whether A is numerically positive definite; if not, A⁻¹ is undefined."""
    L, good = cholesky(A)
    K = len(A)
    U = np.zeros((K, K))  # L⁻¹
    if not good:
        return U, False
    for i in range(K):
        for j in range(i):
            for m in range(j + 1):
                U[i, m] -= L[i, j] * U[j, m]
        for m in range(i):
            U[i, m] /= L[i, i]
        U[i, i] = 1.0 / L[i, i]
    S = transposed_times(U, U)
    _mirror(S)
    return S, True


@compiled
def lower_right(A: F64, k: int) -> F64:  # pragma: no cover - compiled
    """A without its first k rows and columns."""
    rest = np.empty((len(A) - k, len(A) - k))
    for i in range(len(rest)):
        for j in range(len(rest)):
            rest[i, j] = A[k + i, k + j]
    return rest


@compiled
def _mirror(A: F64) -> None:  # pragma: no cover - compiled
    """Make A, symmetric except for rounding, exactly symmetric."""
    for i in range(len(A)):
        for j in range(i):
            A[i, j] = A[j, i]


@inlined
def moment(before: F64, N0: F64, P: F64, S: F64, c: F64, past: float) -> F64:  # pragma: no cover - compiled
    """The weighted second moment of x after a block, (K, K), in the coordinates of the factor after it.

    `before` is the moment before the block, where CᵀC was N0; P (B, K) holds each message's p = Cᵀy for the C it met, S
    is (CᵀC)⁻¹ after the block, c (B,) and past are weights. A message changes coordinates x to C†_after C x, which is
    S_after CᵀC x, since its residual is orthogonal to C. So N M N, with N = CᵀC, is a weighted sum of p pᵀ. Rows and
    columns are divided by the diagonal of N0, so that no square of a variance is formed.
    """
    K = len(N0)
    q, scaled, T = np.empty(P.shape), np.empty((K, K)), np.empty((K, K))
    for s in range(len(P)):
        for j in range(K):
            q[s, j] = P[s, j] / N0[j, j] * math.sqrt(c[s])
    for i in range(K):
        for j in range(K):
            scaled[i, j] = N0[i, j] / N0[j, j]
            T[i, j] = S[i, j] * N0[i, i]
    H = transposed_times(scaled, times(before, scaled))
    qq = transposed_times(q, q)
    for i in range(K):
        for j in range(K):
            H[i, j] = past * H[i, j] + qq[i, j]
    M = transposed_times(T, times(H, T))
    _mirror(M)
    return M


@inlined
def correction(M: F64, N: F64) -> tuple[F64, F64, bool]:  # pragma: no cover - compiled
    """R (K, K) so that C ← C R has moment I and principal axes as columns, longest first; N = CᵀC (K, K) after it.

    Returns False if M is not a moment or has grown so much that a message must have dwarfed the past.
    """
    K = len(M)
    none = np.zeros((K, K))
    for i in range(K):
        if not M[i, i] <= LARGEST_JUMP:  # true for NaN too
            return none, none, False
    L, good = cholesky(M)
    if not good:
        return none, none, False
    W = transposed_times(L, times(N, L))
    _mirror(W)
    top = 0.0
    for i in range(K):
        top = max(top, W[i, i])
    if not 0.0 < top < np.inf:
        return none, none, False
    unit, turn = math.ldexp(1.0, -math.frexp(top)[1]), np.empty((K, K))  # a power of two changes no bit of V
    for i in range(K):
        for j in range(K):
            turn[i, j] = W[i, j] * unit
    V = np.linalg.eigh(turn)[1]
    for i in range(K):
        for j in range(K):
            turn[i, j] = V[i, K - 1 - j]
    after = transposed_times(turn, times(W, turn))
    _mirror(after)
    return times(L, turn), after, True
