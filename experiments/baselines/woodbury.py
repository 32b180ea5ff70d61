"""The stochastic implicit Krasulina update (eq. 12) with S = (CᵀC)⁻¹ kept by the Woodbury identity.

As the paper has it (section Efficient Implementation), w = −h r and b = Cᵀw make CᵀC change by a matrix of rank two,

    CᵀC ← CᵀC + b xᵀ + x bᵀ + ‖w‖² x xᵀ = CᵀC + [x b] [‖w‖² 1; 1 0] [x b]ᵀ.

In exact arithmetic b = 0, and `algorithm1.sherman_morrison` makes do with rank one.
"""

import numpy as np

from streampca.pca.arrays import Array


def step(C: Array, S: Array, y: Array, eta: float) -> tuple[Array, Array, float]:
    """The next C (d, k) and S (k, k) after a message y (d,), and ‖r‖² before the step."""
    x = S @ (C.T @ y)
    r = C @ x - y
    w = -eta / (1 + eta * (x @ x)) * r
    U = np.column_stack([x, C.T @ w])  # (k, 2)
    inner_inverse = np.array([[0.0, 1.0], [1.0, -(w @ w)]])
    SU = S @ U
    change: Array = SU @ np.linalg.solve(inner_inverse + U.T @ SU, SU.T)
    return C + np.outer(w, x), S - change, float(r @ r)
