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
    """Learn a message y (d,) by an implicit gradient step of size η on ½‖Cx − y‖², with x = C†y fixed.

    Returns the next C (d, k), its C† (k, d) by Meyer's formula, and ‖r‖².
    """
    x = C_pinv @ y  # coordinates of the message
    r = C @ x - y  # residual
    # An implicit step is C ← C − η r′ xᵀ, where r′ = r / (1 + η‖x‖²) is the residual that the next C leaves.
    h = eta / (1 + eta * (x @ x))  # η r′ = h r
    next_C = C - h * np.outer(r, x)
    next_C_pinv = _update_pinv(C_pinv, w=-h * r, x=x)  # the next C is C + w xᵀ
    return next_C, next_C_pinv, float(r @ r)


def _update_pinv(C_pinv: Array, w: Array, x: Array) -> Array:
    """Return the pseudo-inverse (k, d) of the next C, C + w xᵀ, by Meyer's formula.

        n = C†ᵀx        (C + w xᵀ)† = C† + [C†n / (1 + ‖n‖²‖w‖²)] (w − ‖w‖²n)ᵀ

    x (k,) are the coordinates of the message. w (d,) is a multiple of the residual, so w is orthogonal to all columns
    of C.
    """
    w_squared = w @ w
    if w_squared == 0:  # the message lies in the span of C, so that C stays as it is
        return C_pinv
    n = C_pinv.T @ x
    n_squared = n @ n
    return C_pinv + np.outer(C_pinv @ n / (1 + n_squared * w_squared), w - w_squared * n)


def sherman_morrison(C: Array, S: Array, y: Array, eta: float) -> tuple[Array, Array, float]:
    """Learn a message y (d,) by the same step as `meyer`, but with S = (CᵀC)⁻¹ (k, k) instead of C†.

        x ← SCᵀy        r ← Cx − y        C ← C − h r xᵀ        h = η / (1 + η‖x‖²), where η (`eta`) is the step size

    Returns the next C (d, k), the next S and ‖r‖².
    """
    x = S @ (C.T @ y)  # C†y
    r = C @ x - y
    h = eta / (1 + eta * (x @ x))
    next_C = C - h * np.outer(r, x)
    # Cᵀr is 0, so the next CᵀC is CᵀC + g x xᵀ. Sherman–Morrison gives the inverse of this sum.
    g = h**2 * (r @ r)
    u = S @ x
    next_S = S - g / (1 + g * (x @ u)) * np.outer(u, u)
    return next_C, next_S, float(r @ r)
