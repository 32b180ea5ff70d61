"""A block of messages learned by Algorithm 1, in one call of compiled code, for which Python's lock is not held.

It goes by stretches. Of each, the messages are taken about the running mean (centring.py), seen from the factor
(P = YC, G = YYᵀ; products.py), learned one after the other (stretches.py), and then the factor is moved:
C ← C Pi + YᵀZ. At the end of the block, in the same product as the last move, C may be brought into the unit gauge
(gauge.py).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca import centring, gauge, products, stretches
from streampca.pca.compiled import compiled_without_lock

Array = NDArray[np.floating[Any]]
F64 = NDArray[np.float64]


class Factor(NamedTuple):
    """The factor, and what goes along with it."""

    C: Array  # (d, K)
    N: F64  # (K, K) = CᵀC
    M: F64  # (K, K): the weighted second moment of x = C†y, so that C M Cᵀ estimates the covariance
    mean: F64  # (d,): the running mean


class Seen(NamedTuple):
    """What was seen of each message y of a block before it was learned."""

    norm: F64  # (B,): ‖y‖²
    captured: F64  # (B,): of it, by the span of the first k columns of C


class Weights(NamedTuple):
    """How much each message counts."""

    eta: F64  # (B,): its step
    a: F64  # (B,): its weight in the running mean at its turn, zero where that is not taken off
    c: F64  # (B,): its share of the moments at the block's end
    past: float  # that of everything before the block


def learn(V: Array, before: Factor, weights: Weights, k: int, stretch: int, unit: bool) -> tuple[Factor, Seen] | None:
    """The factor after a block V (B, d), with `unit` in the unit gauge (where before M must be one).

    None when C has lost full rank, or where a message dwarfs the past and the unit gauge would suffer. How the arrays
    lie in memory does not matter to the bits of the result.
    """
    V, C = frozen(V, V.dtype), frozen(before.C, V.dtype)
    N, M, mean, eta, a, c = map(_ordinary, (*before[1:], *weights[:3]))
    factor, seen, good = _learn(V, C, N, M, mean, eta, a, c, weights.past, k, stretch, unit)
    return (Factor(*factor), Seen(*seen)) if good else None


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
    past: float,
    k: int,
    stretch: int,
    unit: bool,
) -> tuple[tuple[Array, F64, F64, F64], tuple[F64, F64], bool]:  # pragma: no cover - compiled
    """The same; False with nothing of use in place of None."""
    (B, d), K = V.shape, C.shape[1]
    w = stretches.width(K)
    P, norm, captured, jump = np.empty((B, K)), np.empty(B), np.empty(B), 0.0
    S, good = gauge.inverse(N)
    E, well = gauge.inverse(gauge.lower_right(S, k))
    nothing = (np.empty((0, 0), C.dtype), S, S, norm), (norm, captured), False
    if not (good and well):
        return nothing
    last = stretches.width(K - k)
    S, E, after, Pi = stretches.resized(S, w, w), stretches.resized(E, last, last), stretches.resized(N, K, K), S
    D, Z = products.panels(0, d, V.dtype), S
    for i in range(0, B, stretch):
        b = min(stretch, B - i)
        if i:
            C = products.moved(C, Pi, D, Z)
        if D.shape[1] != b:
            D = products.panels(b, d, V.dtype)
        a_i = a[i : i + b]
        mean = centring.offsets(V[i : i + b], mean, a_i, D)
        P_i, G_i = products.seen(D, C)
        p, G = stretches.resized(P_i, b, w), stretches.resized(G_i, b, b)
        centring.see(p, G, a_i)
        X, Z, growth, of_norm, jump_i = stretches.run(p, G, S, E, k, eta[i : i + b])
        jump = max(jump, jump_i)
        for s in range(b):
            norm[i + s], captured[i + s] = G[s, s], of_norm[s]
            for j in range(K):
                P[i + s, j] = p[s, j]
        Pi, Z = stretches.moves(X, Z, growth, after)
        Z = centring.spread(Z, a_i)
    moment = gauge.moment(M, N, P, stretches.resized(S, K, K), c, past)
    if unit:
        R, after, good = gauge.correction(moment, after)
        if not (good and jump <= gauge.LARGEST_JUMP):
            return nothing
        Pi, Z, moment = products.times(Pi, R), products.times(Z, R), stretches.resized(M, K, K)
    return (products.moved(C, Pi, D, Z), after, moment, mean), (norm, captured), True
