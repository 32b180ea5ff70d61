"""RankOnePinvUpdate: (A + c dᵀ)† from A†, in all six cases (Meyer 1973; Petersen & Pedersen, Matrix Cookbook 3.2.7).

    v = A†c    n = A†ᵀd    w = (I − AA†)c    m = (I − A†A)d    β = 1 + dᵀA†c

    case   w     m     β
     1    ≠ 0   ≠ 0    any        c and d both bring something new: the rank grows by one
     2    = 0   ≠ 0    = 0
     3    = 0   any    ≠ 0        with m = 0 this is Sherman–Morrison
     4    ≠ 0   = 0    = 0
     5    ≠ 0   = 0    ≠ 0        Algorithm 1 is always here, with v = 0 and β = 1: `algorithm1.meyer`
     6    = 0   = 0    = 0        the rank falls by one

What is zero is a matter of rounding: w counts as zero when ‖w‖ ≤ τ(‖c‖ + ‖A‖‖v‖), m when ‖m‖ ≤ τ(‖d‖ + ‖A‖‖n‖), β when
|β| ≤ τ(1 + ‖d‖‖v‖), with τ = 1e-10 and Frobenius norms: some κ(A)·1e-16 of rounding is below, real data are above. In
between no rule is right, as the pseudo-inverse itself jumps there.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import Array

ZERO = 1e-10


class Parts(NamedTuple):
    """What every case is written in."""

    v: Array  # (q,)
    n: Array  # (p,)
    w: Array  # (p,); exact zeros where it counts as zero
    m: Array  # (q,); likewise
    beta: float  # likewise

    @property
    def case(self) -> int:
        """1 … 6."""
        w, m, beta = self.w.any(), self.m.any(), self.beta != 0
        if w:
            return 1 if m else 5 if beta else 4
        return 3 if beta else 2 if m else 6


def rank_one_update(A: Array, A_pinv: Array, c: Array, d: Array) -> Array:
    """(A + c dᵀ)† (q, p), from A (p, q), its pseudo-inverse (q, p), c (p,) and d (q,), in O(pq)."""
    parts = parts_of(A, A_pinv, c, d)
    change = _CHANGES[parts.case](A_pinv, parts)
    updated: Array = A_pinv + change
    return updated


def parts_of(A: Array, A_pinv: Array, c: Array, d: Array) -> Parts:
    """v, n, w, m and β, and with them the case."""
    v, n = A_pinv @ c, A_pinv.T @ d
    w, m, beta = c - A @ v, d - A.T @ n, 1 + float(d @ v)
    size = np.linalg.norm(A)
    if np.linalg.norm(w) <= ZERO * (np.linalg.norm(c) + size * np.linalg.norm(v)):
        w = np.zeros_like(w)
    if np.linalg.norm(m) <= ZERO * (np.linalg.norm(d) + size * np.linalg.norm(n)):
        m = np.zeros_like(m)
    if abs(beta) <= ZERO * (1 + float(np.linalg.norm(d) * np.linalg.norm(v))):
        beta = 0.0
    return Parts(v, n, w, m, beta)


def _both_new(A_pinv: Array, p: Parts) -> Array:
    w, m = _inverse(p.w), _inverse(p.m)
    return -np.outer(p.v, w) - np.outer(m, p.n) + p.beta * np.outer(m, w)


def _columns_known_singular(A_pinv: Array, p: Parts) -> Array:
    return -np.outer(p.v, _inverse(p.v) @ A_pinv) - np.outer(_inverse(p.m), p.n)


def _columns_known(A_pinv: Array, p: Parts) -> Array:
    vv, mm, beta = p.v @ p.v, p.m @ p.m, p.beta
    vA = p.v @ A_pinv
    shrink = beta / (vv * mm + beta**2)
    return np.outer(p.m, vA) / beta - shrink * np.outer(vv / beta * p.m + p.v, mm / beta * vA + p.n)


def _rows_known_singular(A_pinv: Array, p: Parts) -> Array:
    return -np.outer(A_pinv @ p.n, _inverse(p.n)) - np.outer(p.v, _inverse(p.w))


def _rows_known(A_pinv: Array, p: Parts) -> Array:
    nn, ww, beta = p.n @ p.n, p.w @ p.w, p.beta
    An = A_pinv @ p.n
    shrink = beta / (nn * ww + beta**2)
    return np.outer(An, p.w) / beta - shrink * np.outer(ww / beta * An + p.v, nn / beta * p.w + p.n)


def _both_known_singular(A_pinv: Array, p: Parts) -> Array:
    v, n, An = _inverse(p.v), _inverse(p.n), A_pinv @ p.n
    return -np.outer(p.v, v @ A_pinv) - np.outer(An, n) + (v @ An) * np.outer(p.v, n)


_CHANGES = {
    1: _both_new,
    2: _columns_known_singular,
    3: _columns_known,
    4: _rows_known_singular,
    5: _rows_known,
    6: _both_known_singular,
}


def _inverse(a: Array) -> Array:
    """a† as a vector: a/‖a‖²; a is not zero where this is called."""
    return a / (a @ a)


def woodbury(C: Array, S: Array, y: Array, eta: float) -> tuple[Array, Array, float]:
    """The implicit step (eq. 12) with S = (CᵀC)⁻¹ kept by the Woodbury identity: the next C and S, and ‖r‖² before.

    As the paper has it (section Efficient Implementation), w = −h r and b = Cᵀw make CᵀC grow by a matrix of rank two,
    b xᵀ + x bᵀ + ‖w‖² x xᵀ = [x b] [‖w‖² 1; 1 0] [x b]ᵀ. In exact arithmetic b = 0, and
    `algorithm1.sherman_morrison` makes do with rank one.
    """
    x = S @ (C.T @ y)
    r = C @ x - y
    w = -eta / (1 + eta * (x @ x)) * r
    U = np.column_stack([x, C.T @ w])  # (k, 2)
    SU = S @ U
    inner_inverse = np.array([[0.0, 1.0], [1.0, -(w @ w)]])
    change: Array = SU @ np.linalg.solve(inner_inverse + U.T @ SU, SU.T)
    return C + np.outer(w, x), S - change, float(r @ r)
