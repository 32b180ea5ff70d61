"""The unit gauge: C is scaled so that whitened coordinates keep the second moment one.

C only ever grows under the paper's update, and what a step size means depends on C's scale. Multiplying C from the
right changes neither its span nor the projector; it is used to make E[x xᵀ] = I at the end of every block. Then
1/η is a number of messages, CCᵀ estimates the covariance in the span, and C†y are whitened coordinates.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from streampca.pca.blocks import Block

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
    half = np.tril(lower, -1)
    symmetric: F64 = half + half.T + np.diag(np.diag(lower))
    return np.ascontiguousarray(symmetric)


def cholesky(A: F64) -> F64 | None:
    """Lower-triangular R with R Rᵀ = A; None when A is not positive definite to working precision."""
    factor, info = lapack.dpotrf(A, lower=1, clean=1)
    declined = info or not np.isfinite(factor.diagonal()).all()  # not every LAPACK reports a NaN
    return None if declined else np.ascontiguousarray(factor)


def moment(before: F64, P: F64, S: F64, c: F64, past: float) -> F64:
    """M (K, K), the weighted second moment of x by the model at the start of a block, with the block in it.

    `before` is the moment without the block, P (B, K) and S (K, K) belong to that model; c (B,) and past are weights.
    """
    X0 = P @ S
    return past * before + X0.T @ (c[:, None] * X0)


def carried(M: F64, block: Block, P: F64, N: F64) -> F64:
    """T M Tᵀ, the moment M in the coordinates of the factor after the block: T = C†_new C_old."""
    T = block.S @ (block.Pi.T @ N + block.Z.T @ P)
    M = T @ M @ T.T
    return (M + M.T) / 2


def correction(block: Block, P: F64, S: F64, N: F64, c: F64, past: float) -> F64 | None:
    """R for C ← C R after a block, so that the weighted second moment of x, one before it, is one again.

    P, S and N (K, K) are those before the block; c (B,) and past are the weights. None when a message dwarfs the past:
    the model at the block's start then knows too little of it, and rounding tells besides.
    """
    M = moment(np.eye(len(N)), P, S, c, past)
    if max(block.jump, M.diagonal().max()) > LARGEST_JUMP:
        return None
    return cholesky(carried(M, block, P, N))
