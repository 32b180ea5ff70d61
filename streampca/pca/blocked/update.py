"""The blocked update: Algorithm 1 on blocks of messages, in one compiled call that releases the GIL.

A block is learned stretch by stretch. For each stretch:

    D = V − m₀, then P = YC and G = YYᵀ from DC and DDᵀ        centring.py, gemm.py
    a look at the residuals; may end the call                  watch.py
    the update of every message in turn, on P, G and S         recurrence.py
    C ← C Pi + YᵀZ                                             gemm.py

At the end of the block C may be brought into the unit gauge (gauge.py), in the same product as the last C ← C Pi + YᵀZ.
The number of blocks in one call changes no bit. `plain.py` is the same in plain NumPy: read that first.
"""

from typing import Any, NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, gauge, gemm, recurrence, watch
from streampca.pca.blocked.centring import Weights
from streampca.pca.blocked.jit import compiled_without_lock, inlined
from streampca.pca.losses import Losses


class Iterate(NamedTuple):
    """What a block changes: the factor and what is kept beside it."""

    C: Array  # (d, K)
    N: F64  # (K, K) = CᵀC
    M: F64  # (K, K): the weighted second moment of x = C†y, so that C M Cᵀ estimates the covariance
    mean: F64  # (d,): the running mean


class BlockConfig(NamedTuple):
    """How messages are cut into blocks, and what a block does beside Algorithm 1."""

    k: int  # columns of C by which messages are scored
    block: int  # messages
    stretch: int  # messages
    unit: bool  # whether each block ends in the unit gauge; M must be the identity before


def learn(V: Array, before: Iterate, weights: Weights, config: BlockConfig) -> tuple[Iterate, Losses, F64]:
    """Learn the leading blocks of V (n, d) that Algorithm 1 can learn.

    Returns the iterate after them, the scores of their messages, and for each block the weighted sum of ‖y‖². It stops
    before a block in which C would lose full rank or, in the unit gauge, in which a message weighs too much or dwarfs
    the past, or which shows what C cannot see (`learning.py` absorbs that block). The memory layout of the arrays
    changes no bit of the result.
    """
    ordinary = Iterate(*map(_ordinary, before)), Weights(*map(_ordinary, weights))
    after, (residual, norm), squares, learned = _learn(read_only(V, V.dtype), *ordinary, config)
    return after, Losses(residual[:learned], norm[:learned]), squares[: -(-learned // config.block)]


def read_only(A: Array, dtype: Any) -> Any:
    """A read-only view in C order, aligned: one type for compiled code, whatever array the caller has."""
    A = np.require(A, dtype, ["C", "A"]).view()
    A.flags.writeable = False
    return A


def _ordinary(A: Any) -> Any:
    """A writable array in C order, A itself if it is one: for any other type everything would be compiled again."""
    return A if A.flags.behaved and A.flags.c_contiguous else np.array(A, order="C")


@compiled_without_lock
def _learn(
    V: Array, before: Iterate, weights: Weights, config: BlockConfig
) -> tuple[Iterate, Losses, F64, int]:  # pragma: no cover - compiled
    """As `learn`, but returns the number of messages learned too; beyond it scores and sums are undefined."""
    (eta, a, c, past, total), (_, block, _, _) = weights, config
    residual, norm, squares = np.empty(len(V)), np.empty(len(V)), np.zeros(len(past))
    now, learned = before, 0
    for q in range(len(past)):
        i, e = q * block, min(q * block + block, len(V))
        of_block = Weights(eta[i:e], a[i:e], c[i:e], past[q : q + 1], total[q : q + 1])
        after, good = _block(V[i:e], now, of_block, config, Losses(residual[i:e], norm[i:e]))
        if not good:
            break
        now, learned = after, e
        for s in range(i, e):
            squares[q] += c[s] * norm[s]
            norm[s] /= 1.0 - a[s]
            residual[s] /= 1.0 - a[s]
    return now, Losses(residual, norm), squares, learned


@inlined
def _block(
    V: Array, before: Iterate, weights: Weights, config: BlockConfig, scores: Losses
) -> tuple[Iterate, bool]:  # pragma: no cover - compiled
    """Learn one block and fill in its scores, still of y; returns False if Algorithm 1 cannot learn it."""
    (C, N, M, mean), (eta, a, c, past, _), (residual, norm) = before, weights, scores
    (B, d), K, (k, _, stretch, unit) = V.shape, C.shape[1], config
    w, last = recurrence.width(K), recurrence.width(K - k)
    P, jump = np.empty((B, K)), 0.0
    S, good = gauge.inverse(N)
    E, well = gauge.inverse(gauge.lower_right(S, k))
    for s in range(B):
        good = good and not (unit and eta[s] > gauge.LARGEST_SHARE)
    if not (good and well):
        return before, False
    S, E, after, Pi = recurrence.resize(S, w, w), recurrence.resize(E, last, last), recurrence.resize(N, K, K), S
    D, Z = gemm.panels(0, d, V.dtype), S
    for i in range(0, B, stretch):
        b = min(stretch, B - i)
        if i:
            C = gemm.update_factor(C, Pi, D, Z)
        if D.shape[1] != b:
            D = gemm.panels(b, d, V.dtype)
        a_i = a[i : i + b]
        mean = centring.subtract_mean(V[i : i + b], mean, a_i, D)
        P_i, G_i = gemm.project_and_gram(D, C)
        p, G = recurrence.resize(P_i, b, w), recurrence.resize(G_i, b, b)
        centring.center_products(p, G, a_i)
        if unit and d > K and watch.unseen(p, G, S, c[i : i + b], N[k - 1, k - 1], float(np.finfo(V.dtype).eps)):
            return before, False
        X, Z, growth, explained, jump_i = recurrence.learn_stretch(p, G, S, E, k, eta[i : i + b])
        jump = max(jump, jump_i)
        for s in range(b):
            norm[i + s] = G[s, s]
            residual[i + s] = min(max(G[s, s] - explained[s], 0.0), G[s, s])
            for j in range(K):
                P[i + s, j] = p[s, j]
        Pi, Z = recurrence.factor_update(X, Z, growth, after)
        Z = centring.adjoint(Z, a_i)
    moment = gauge.moment(M, N, P, recurrence.resize(S, K, K), c, past[0])
    if unit:
        R, after, good = gauge.correction(moment, after)
        if not (good and jump <= gauge.LARGEST_JUMP):
            return before, False
        Pi, Z, moment = gemm.times(Pi, R), gemm.times(Z, R), recurrence.resize(M, K, K)
    return Iterate(gemm.update_factor(C, Pi, D, Z), after, moment, mean), True
