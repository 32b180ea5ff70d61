"""Blocks of messages learned by Algorithm 1, in one call of compiled code, for which Python's lock is not held.

A block goes by stretches. Of each, the messages are taken about the running mean (centring.py), seen from the factor
(P = YC, G = YYᵀ; products.py), learned one after the other (stretches.py), and then the factor is moved:
C ← C Pi + YᵀZ. At the end of the block, in the same product as the last move, C may be brought into the unit gauge
(gauge.py). How many blocks go into one call changes no bit.
"""

from typing import Any, NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, gauge, gemm, recurrence
from streampca.pca.blocked.jit import compiled_without_lock, inlined


class Factor(NamedTuple):
    """The factor, and what goes along with it."""

    C: Array  # (d, K)
    N: F64  # (K, K) = CᵀC
    M: F64  # (K, K): the weighted second moment of x = C†y, so that C M Cᵀ estimates the covariance
    mean: F64  # (d,): the running mean


class Weights(NamedTuple):
    """How much each of n messages counts."""

    eta: F64  # (n,): its step
    a: F64  # (n,): its weight in the running mean at its turn, zero where that is not taken off
    c: F64  # (n,): its share of the moments at its block's end
    past: F64  # (blocks,): at each block's end, the share of everything before the block


class Seen(NamedTuple):
    """What was seen of each message before it was learned: ‖v − m‖², m the running mean, and what C has missed."""

    norm: F64  # (n,): ‖v − m‖²
    residual: F64  # (n,): of it, what lies outside the span of the first k columns of C
    squares: F64  # (blocks,): the weighted sum of ‖y‖² over each block


class Steps(NamedTuple):
    """How the blocks are cut, and what is done at the end of each."""

    k: int  # columns that count as the first
    block: int  # messages
    stretch: int  # messages
    unit: bool  # whether C is brought into the unit gauge, where M has to be one before


def learn(V: Array, before: Factor, weights: Weights, steps: Steps) -> tuple[Factor, Seen]:
    """The factor after the blocks V (n, d) that can be learned, and what was seen of their messages.

    It ends before a block in which C loses full rank, or where a message weighs so much, or dwarfs the past so, that
    the unit gauge would suffer. How the arrays lie in memory does not matter to the bits of the result.
    """
    V, C = frozen(V, V.dtype), frozen(before.C, V.dtype)
    N, M, mean, eta, a, c, past = map(_ordinary, (*before[1:], *weights))
    factor, seen, learned = _learn(V, C, N, M, mean, eta, a, c, past, *steps)
    return Factor(*factor), Seen(seen[0][:learned], seen[1][:learned], seen[2][: -(-learned // steps.block)])


def frozen(A: Array, dtype: Any) -> Any:
    """A read-only view in C order, aligned: for compiled code that is a type, so that but one has to be compiled."""
    A = np.require(A, dtype, ["C", "A"]).view()
    A.flags.writeable = False
    return A


def _ordinary(A: Any) -> F64:
    """A, or a copy where it is read-only or not in C order: another type, for which all would be compiled once more."""
    return A if A.flags.writeable and A.flags.c_contiguous else np.array(A, np.float64)


@compiled_without_lock
def _learn(
    V: Array,
    C: Array,
    N: F64,
    M: F64,
    mean: F64,
    eta: F64,
    a: F64,
    c: F64,
    past: F64,
    k: int,
    block: int,
    stretch: int,
    unit: bool,
) -> tuple[tuple[Array, F64, F64, F64], tuple[F64, F64, F64], int]:  # pragma: no cover - compiled
    """The same; how many messages were learned instead of cutting off what was not seen of the others."""
    norm, residual, squares, learned = np.empty(len(V)), np.empty(len(V)), np.zeros(len(past)), 0
    for q in range(len(past)):
        i, e = q * block, min(q * block + block, len(V))
        C_after, N_after, M_after, mean_after, good = _block(
            V[i:e], C, N, M, mean, eta[i:e], a[i:e], c[i:e], past[q], k, stretch, unit, norm[i:e], residual[i:e]
        )
        if not good:
            break
        C, N, M, mean, learned = C_after, N_after, M_after, mean_after, e
        for s in range(i, e):
            squares[q] += c[s] * norm[s]
            norm[s] /= 1.0 - a[s]
            residual[s] /= 1.0 - a[s]
    return (C, N, M, mean), (norm, residual, squares), learned


@inlined
def _block(
    V: Array,
    C: Array,
    N: F64,
    M: F64,
    mean: F64,
    eta: F64,
    a: F64,
    c: F64,
    past: float,
    k: int,
    stretch: int,
    unit: bool,
    norm: F64,
    residual: F64,
) -> tuple[Array, F64, F64, F64, bool]:  # pragma: no cover - compiled
    """One block; fills in ‖y‖² and what of it lies outside the first columns. False where it could not be learned."""
    (B, d), K = V.shape, C.shape[1]
    w, last = recurrence.width(K), recurrence.width(K - k)
    P, jump = np.empty((B, K)), 0.0
    S, good = gauge.inverse(N)
    E, well = gauge.inverse(gauge.lower_right(S, k))
    for s in range(B):
        good = good and not (unit and eta[s] > gauge.LARGEST_SHARE)
    if not (good and well):
        return C, N, M, mean, False
    S, E, after, Pi = recurrence.resized(S, w, w), recurrence.resized(E, last, last), recurrence.resized(N, K, K), S
    D, Z = gemm.panels(0, d, V.dtype), S
    for i in range(0, B, stretch):
        b = min(stretch, B - i)
        if i:
            C = gemm.moved(C, Pi, D, Z)
        if D.shape[1] != b:
            D = gemm.panels(b, d, V.dtype)
        a_i = a[i : i + b]
        mean = centring.offsets(V[i : i + b], mean, a_i, D)
        P_i, G_i = gemm.seen(D, C)
        p, G = recurrence.resized(P_i, b, w), recurrence.resized(G_i, b, b)
        centring.see(p, G, a_i)
        X, Z, growth, captured, jump_i = recurrence.run(p, G, S, E, k, eta[i : i + b])
        jump = max(jump, jump_i)
        for s in range(b):
            norm[i + s] = G[s, s]
            residual[i + s] = min(max(G[s, s] - captured[s], 0.0), G[s, s])
            for j in range(K):
                P[i + s, j] = p[s, j]
        Pi, Z = recurrence.moves(X, Z, growth, after)
        Z = centring.spread(Z, a_i)
    moment = gauge.moment(M, N, P, recurrence.resized(S, K, K), c, past)
    if unit:
        R, after, good = gauge.correction(moment, after)
        if not (good and jump <= gauge.LARGEST_JUMP):
            return C, N, M, mean, False
        Pi, Z, moment = gemm.times(Pi, R), gemm.times(Z, R), recurrence.resized(M, K, K)
    return gemm.moved(C, Pi, D, Z), after, moment, mean, True
