"""RankOnePinvUpdate: (A + c dᵀ)† from A†, in all six cases (Meyer 1973; Petersen & Pedersen, Matrix Cookbook 3.2.7).

    v = A†c    n = A†ᵀd    w = (I − AA†)c    m = (I − A†A)d    β = 1 + dᵀA†c

    case   w     m     β
     1    ≠ 0   ≠ 0    any        c and d are both outside A's ranges: the rank grows by one
     2    = 0   ≠ 0    = 0
     3    = 0   any    ≠ 0        with m = 0 this is Sherman–Morrison
     4    ≠ 0   = 0    = 0
     5    ≠ 0   = 0    ≠ 0        the only case of Algorithm 1, with v = 0 and β = 1: `algorithm1.meyer`
     6    = 0   = 0    = 0        the rank falls by one

Rounding decides what is zero: w is zero when ‖w‖ ≤ τ(‖c‖ + ‖A‖‖v‖), m when ‖m‖ ≤ τ(‖d‖ + ‖A‖‖n‖), and β when
|β| ≤ τ(1 + ‖d‖‖v‖), with τ = 1e-10 and Frobenius norms. Rounding is about κ(A)·1e-16, and real data are larger than τ.
Between the two no rule is right, because the pseudo-inverse itself jumps there.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import Array

ZERO = 1e-10


class Parts(NamedTuple):
    """The vectors and β from which every case is computed."""

    v: Array  # (q,)
    n: Array  # (p,)
    w: Array  # (p,); exactly 0 where it counts as zero
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
    updated: Array = A_pinv + _change(A_pinv, parts_of(A, A_pinv, c, d))
    return updated


def parts_of(A: Array, A_pinv: Array, c: Array, d: Array) -> Parts:
    """v, n, w, m and β, which decide the case."""
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


def _change(A_pinv: Array, parts: Parts) -> Array:
    """What the case adds to A†."""
    v, n, w, m, beta = parts
    along_v, along_n = v @ A_pinv, A_pinv @ n
    match parts.case:
        case 1:
            return -np.outer(v, _pinv(w)) - np.outer(_pinv(m), n) + beta * np.outer(_pinv(m), _pinv(w))
        case 2:
            return -np.outer(_pinv(v), along_v) - np.outer(_pinv(m), n)
        case 3:
            shrink = beta / ((v @ v) * (m @ m) + beta**2)
            far = np.outer((v @ v) / beta * m + v, (m @ m) / beta * along_v + n)
            return np.outer(m, along_v) / beta - shrink * far
        case 4:
            return -np.outer(along_n, _pinv(n)) - np.outer(v, _pinv(w))
        case 5:
            shrink = beta / ((n @ n) * (w @ w) + beta**2)
            far = np.outer((w @ w) / beta * along_n + v, (n @ n) / beta * w + n)
            return np.outer(along_n, w) / beta - shrink * far
    inner = _pinv(v) @ A_pinv @ _pinv(n)
    return -np.outer(_pinv(v), along_v) - np.outer(along_n, _pinv(n)) + inner * np.outer(v, n)


def _pinv(a: Array) -> Array:
    """The pseudo-inverse of a vector that is not zero, as a vector: a/‖a‖²."""
    return a / (a @ a)
