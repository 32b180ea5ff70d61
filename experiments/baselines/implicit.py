"""The implicit Krasulina update for several messages at a time, and Algorithm 1 with the paper's own update of S.

    X = C†Y        C ← (YXᵀ/N + C/η)(XXᵀ/N + I/η)⁻¹                                  eq. 11

With N = 1 it is eq. 12, one step of `streampca.pca.algorithm1`.
"""

import numpy as np

from streampca.pca.arrays import Array


def mini_batch(C: Array, Y: Array, eta: float) -> Array:
    """Eq. 11: the next C (d, k), of full column rank, after messages Y (N, d), or one message (d,)."""
    Y, (Q, R) = np.atleast_2d(Y), np.linalg.qr(C)
    X = np.linalg.solve(R, Q.T @ Y.T)  # (k, N)
    moment = X @ X.T / len(Y) + np.eye(len(X)) / eta
    following: Array = np.linalg.solve(moment, X @ Y / len(Y) + C.T / eta).T
    return following


def woodbury(C: Array, S: Array, y: Array, eta: float) -> tuple[Array, Array, float]:
    """Eq. 12 with S = (CᵀC)⁻¹ updated by the Woodbury identity: the next C and S, and ‖r‖² before the step.

    In the paper (section Efficient Implementation) CᵀC grows by a matrix of rank two. With w = −h r and b = Cᵀw it is
    b xᵀ + x bᵀ + ‖w‖² x xᵀ = [x b] [‖w‖² 1; 1 0] [x b]ᵀ. In exact arithmetic b = 0, so rank one is enough for
    `algorithm1.sherman_morrison`.
    """
    x = S @ (C.T @ y)
    r = C @ x - y
    w = -eta / (1 + eta * (x @ x)) * r
    U = np.column_stack([x, C.T @ w])  # (k, 2)
    SU = S @ U
    inner_inverse = np.array([[0.0, 1.0], [1.0, -(w @ w)]])
    change: Array = SU @ np.linalg.solve(inner_inverse + U.T @ SU, SU.T)
    return C + np.outer(w, x), S - change, float(r @ r)
