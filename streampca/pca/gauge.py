"""The unit gauge: C is scaled so that whitened coordinates keep the second moment one.

C only ever grows under the paper's update, and what a step size means depends on C's scale. Multiplying C from the
right changes neither its span nor the projector; it is used to make E[x xᵀ] = I at the end of every block. Then
1/η is a number of messages, CCᵀ estimates the covariance in the span, and C†y are whitened coordinates.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from streampca.pca.blocks import Block, add, scaled_rows
from streampca.pca.compiled import compiled, compiled_with_free_sums

F64 = NDArray[np.float64]

LARGEST_JUMP = 4.0  # times the variance of the past along some direction; in ordinary streams it is 0.1 to 1.5


def inverse(N: F64) -> F64 | None:
    """(CᵀC)⁻¹ of N = CᵀC, symmetric to the bit; None when N is not positive definite to working precision."""
    factor, info = lapack.dpotrf(N, lower=1)
    if info or not np.isfinite(factor.diagonal()).all():
        return None
    lower, info = lapack.dpotri(factor, lower=1)
    if info:
        return None
    return _mirrored(lower.T)


@compiled
def _mirrored(upper: F64) -> F64:  # pragma: no cover - compiled
    """The symmetric matrix whose upper half is given."""
    K = len(upper)
    whole = np.empty((K, K))
    for i in range(K):
        for j in range(i, K):
            whole[i, j] = whole[j, i] = upper[i, j]
    return whole


def cholesky(A: F64) -> F64 | None:
    """Lower-triangular R with R Rᵀ = A; None when A is not positive definite to working precision."""
    factor, info = lapack.dpotrf(A, lower=1, clean=1)
    declined = info or not np.isfinite(factor.diagonal()).all()  # not every LAPACK reports a NaN
    return None if declined else np.ascontiguousarray(factor)


@compiled_with_free_sums
def moment(before: F64, P: F64, S: F64, c: F64, past: float) -> F64:  # pragma: no cover - compiled
    """M (K, K), the weighted second moment of x by the model at the start of a block, with the block in it.

    `before` is the moment without the block, P (B, K) and S (K, K) belong to that model; c (B,) and past are weights.
    """
    X0 = np.dot(P, S)
    M: F64 = np.dot(X0.T, scaled_rows(X0, c))
    add(M, past, before)
    return M


@compiled_with_free_sums
def carried(M: F64, block: Block, P: F64, N: F64) -> F64:  # pragma: no cover - compiled
    """T M Tᵀ, the moment M in the coordinates of the factor after the block.

    T = C†_new C_old = S_new (Πᵀ N_old + ZᵀP).
    """
    Q, Y = P.copy(), N.copy()
    add(Q, -1.0, np.dot(block.X, N))
    add(Y, 1.0, np.dot(block.Z.T, Q))
    T = np.dot(block.S, Y)
    M = np.dot(T, np.dot(M, T.T))
    for i in range(len(M)):
        for j in range(i):
            M[i, j] = M[j, i] = (M[i, j] + M[j, i]) / 2.0
    return M


def correction(block: Block, P: F64, S: F64, N: F64, c: F64, past: float) -> F64 | None:
    """R for C ← C R after a block, so that the weighted second moment of x, one before it, is one again.

    P, S and N (K, K) are those before the block; c (B,) and past are the weights. None when a message dwarfs the past:
    the model at the block's start then knows too little of it, and rounding tells besides.
    """
    M = moment(np.eye(len(N)), P, S, c, past)
    if max(block.jump, M.diagonal().max()) > LARGEST_JUMP:
        return None
    return cholesky(carried(M, block, P, N))


@compiled
def corrected(block: Block, R: F64) -> tuple[F64, F64, F64]:  # pragma: no cover - compiled
    """Pi, Z and N of a block that ends with C ← C R."""
    Z, Pi = np.dot(block.Z, R), R.copy()
    add(Pi, -1.0, np.dot(block.X.T, Z))
    return Pi, Z, np.dot(R.T, np.dot(block.N, R))
