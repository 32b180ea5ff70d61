"""Compiled: what a block with gaps changes in Σ, pair of entries by pair, each row of the lower triangle in turn.

`gaps.py` has the formulas and the numbers of their steps, and says what is done for the entries.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import triangle
from streampca.pca.blocked.jit import compiled_without_lock
from streampca.pca.blocked.recurrence import T, product

_TILE = 32  # rows of the products with C, which stay in the processor's cache


class Fits(NamedTuple):
    """Moments of the fits f = Cx and the residuals r of a block's rows, (d, K) each."""

    C: F64
    squares: F64  # with row i of it, Σc f_i f_j is the product with row j of C
    residuals: F64  # row i of C times row j of it is Σc f_i r_j


class Entries(NamedTuple):
    """What is known of the entries, (d,) each."""

    shown: F64  # n_jj: weight of the block's messages that show the entry
    before: F64  # c₀N_jj: weight for which it was known before the block
    root: F64  # √q_j


@compiled_without_lock
def estimate(rows: Array, moved: F64, fits: Fits, entries: Entries, shown: F64, new: float) -> F64:
    """B (d, d), what the block says of each product of two entries (steps 1 and 6); its lower triangle.

    `rows` is the lower triangle (d, d) of the rows' second moments about their mean, which is `moved` (d,) away from
    the one before the block; `shown` that of n_ij. The block has the share `new`.
    """
    d = len(moved)
    B, of_entry = np.empty((d, d)), np.empty(d)
    for j in range(d):
        of_entry[j] = entries.root[j] / entries.shown[j] if entries.shown[j] > 0 else 0.0
    for first in range(0, d, _TILE):
        end = min(first + _TILE, d)
        FF = product(fits.squares[first:end], fits.C[:end], T)
        FR = product(fits.C[first:end], fits.residuals[:end], T)
        RF = product(fits.residuals[first:end], fits.C[:end], T)
        for i in range(first, end):
            i_begins = entries.before[i] <= 0
            for j in range(i + 1):
                ff, fr, rf = FF[i - first, j], FR[i - first, j], RF[i - first, j]
                if shown[i, j] > 0:
                    rr = (rows[i, j] + moved[i] * moved[j] - ff - fr - rf) * entries.root[i] * entries.root[j]
                    B[i, j] = ff / new + fr * of_entry[j] + rf * of_entry[i] + rr / shown[i, j]
                elif i_begins or entries.before[j] <= 0:  # no fits of that entry fill in for the pair
                    B[i, j] = ff / new + fr * of_entry[j] + rf * of_entry[i]
                else:
                    B[i, j] = (ff + fr * entries.root[j] + rf * entries.root[i]) / new
    return B


@compiled_without_lock
def move(
    B: F64, covariance: F64, scale: F64, known: F64, entries: Entries, shown: F64, past: float, few: float
) -> tuple[F64, F64]:
    """Put Δ in the place of B (d, d), and return E and N′, packed (steps 2, 3 and 6).

    `covariance` and `known` are Σ and N before the block, packed; Σ is in units in which one of B is `scale` (d,).
    A block that shows a pair in less than the share `few` counts for less than a block.
    """
    new, d, n = 1.0 - past, len(B), 0
    share, after = np.empty(len(known)), np.empty(len(known))
    weight = np.empty(d)  # for which an entry is known, with this block
    for j in range(d):
        weight[j] = entries.before[j] + (new if entries.shown[j] > 0 else 0.0)
    for i in range(d):
        i_is_shown, i_begins = entries.shown[i] > 0, entries.before[i] <= 0
        for j in range(i + 1):
            before = past * known[n + j]
            if shown[i, j] > 0:
                counts = min(new, shown[i, j] / few)
                after[n + j] = before + counts
                share[n + j] = counts / after[n + j]
            else:
                after[n + j] = before + new if before > 0 else 0.0
                least = min(weight[i], weight[j])
                moves = (i_is_shown and entries.shown[j] > 0) or i_begins or entries.before[j] <= 0
                share[n + j] = new / max(new, least) if moves and least > 0 else 0.0
            B[i, j] = share[n + j] * (B[i, j] - covariance[n + j] * (scale[i] * scale[j]))
        n += i + 1
    return share, after


class Said(NamedTuple):
    """What the entries with an ordinary step say of the others (step 4), as row i of C times row j of `change`."""

    C: F64  # (d, K)
    change: F64  # (d, K)
    follows: F64  # (d,): 1 of the others


@compiled_without_lock
def next_covariance(
    before: F64, change: F64, share: F64, said: Said, moved: F64, variance: F64, new: float, scale: F64, square: Array,
    after: F64,
) -> F64:  # fmt: skip
    """Σ′ packed: Σ + Δ − δδᵀ with what other entries say, correlations cut (steps 4 and 5).

    Σ `before` is packed, in units in which one of Δ, the lower triangle of `change` (d, d), is `scale` (d,), as is Σ′.
    `share` is E, packed; `moved` δ (d,), and `variance` (d,) the diagonal of Σ′ in the units of Δ. Fills in `square`
    (d, d), Σ′ in units in which one is `after` (d,).
    """
    d, K, n = len(change), said.C.shape[1], 0
    total, root = np.empty(len(before)), np.empty(d)
    for j in range(d):
        root[j] = np.sqrt(variance[j])
    for i in range(d):
        for j in range(i + 1):
            value = before[n + j] * (scale[i] * scale[j]) + change[i, j] - moved[i] * moved[j]
            if said.follows[i] > 0 or said.follows[j] > 0:
                one, other = (i, j) if said.follows[i] > 0 else (j, i)
                added = 0.0
                for m in range(K):
                    added += said.C[one, m] * said.change[other, m]
                value += (1.0 - share[n + j] / new) * added
            largest = root[i] * root[j]
            value = min(max(value, -largest), largest)
            if i == j:  # where rounding is left of it, the sum above would differ from what cuts the others
                value = variance[i]
            total[n + j] = value / (scale[i] * scale[j])
            square[i, j] = total[n + j] * (after[i] * after[j])
        n += i + 1
    triangle.mirror(square)
    return total
