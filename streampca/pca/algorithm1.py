"""Algorithm 1, the stochastic implicit Krasulina update, as the paper states it: one message at a time.

    x ← C†y                                         Algorithm 1
    r ← Cx − y
    h ← η / (1 + η‖x‖²)
    C ← C − h r xᵀ                                  eq. 12
    C† ← RankOnePinvUpdate(C, C†, h r, x)

`meyer` updates C† by Meyer's rank-one formula; `sherman_morrison` updates S = (CᵀC)⁻¹ instead. Both take O(dk). The
faster code of this package must equal them to rounding.
"""

import numpy as np

from streampca.pca.arrays import Array


def meyer(C: Array, C_pinv: Array, y: Array, eta: float) -> tuple[Array, Array, float]:
    """Learn a message y (d,): return the next C (d, k), the next C† (k, d), and ‖r‖² before the step.

    C† is updated by Meyer's formula.
    """
    x = C_pinv @ y
    r = C @ x - y
    h = eta / (1 + eta * (x @ x))
    next_C = C - h * np.outer(r, x)
    next_C_pinv = _update_pinv(C_pinv, -h * r, x)  # C grows by (−h r) xᵀ
    return next_C, next_C_pinv, float(r @ r)


def _update_pinv(C_pinv: Array, w: Array, x: Array) -> Array:
    """Return (C + w xᵀ)† from C†, where w ⟂ range(C) and C has full column rank.

    Of the six cases of Meyer's formula only this one occurs here, because the residual is orthogonal to range(C).
    """
    ww = w @ w
    if ww == 0:  # the message lies in the span, so C does not change
        return C_pinv
    n = C_pinv.T @ x
    nn = n @ n
    return C_pinv + np.outer(C_pinv @ n / (1 + nn * ww), w - ww * n)


def sherman_morrison(C: Array, S: Array, y: Array, eta: float) -> tuple[Array, Array, float]:
    """Learn a message y (d,) with S = (CᵀC)⁻¹ instead of C†: return the next C and S, and ‖r‖² before the step.

    Since r ⟂ range(C), CᵀC grows by exactly h²‖r‖² x xᵀ. This has rank one; the paper's update has rank two.
    """
    x = S @ (C.T @ y)
    r = C @ x - y
    h = eta / (1 + eta * (x @ x))
    growth = h**2 * (r @ r)
    u = S @ x
    next_C = C - h * np.outer(r, x)
    next_S = S - growth / (1 + growth * (x @ u)) * np.outer(u, u)
    return next_C, next_S, float(r @ r)
