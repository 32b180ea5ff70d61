"""One pass over a block: messages are centred and learned by Algorithm 1, in parts that stay in the processor's cache.

A part has few messages, so that G = YYᵀ is small (recurrence.py); each part meets the C that the parts before it have
left. This equals Algorithm 1 message by message, to rounding. So the loss of a message is that of the C that it met,
‖Cx − y‖², as in the paper. Where C has more columns than are served, it is the loss of the leading ones by the C that
the part met.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring
from streampca.pca.blocked.centring import Weights, centre_rows
from streampca.pca.blocked.jit import compiled_with_free_sums, compiled_without_lock
from streampca.pca.blocked.recurrence import learn_padded

SKETCH = 8  # random combinations of a block's rows, in which new directions are looked for


class Learned(NamedTuple):
    """A block after one pass over it."""

    Y: Array  # (n, d): the rows √c·y, of which the block's share of the covariance is YᵀY
    C: Array  # (d, K), after Algorithm 1
    sketch: Array  # (d, SKETCH): sums of the rows √c·y with fixed random signs, each in one of the columns
    explained: F64  # (n,): ‖y‖² − ‖r‖² of each message by the served columns of the C that it met
    norm: F64  # (n,): ‖v − m‖² of each message
    mean: F64  # (d,), after the block
    total_variance: float  # tr Σ after the block
    shortened: int  # messages
    pinv_error: float  # the largest entry of |S CᵀC − I|, columns scaled to length one: how far S is from (CᵀC)⁻¹


class _Centring(NamedTuple):
    """The running mean and the weights of messages: as in `Weights`, and the roots of the shares c."""

    mean: F64
    a: F64
    eta: F64
    before: F64
    root: F64


class _Outputs(NamedTuple):
    """Arrays that a pass fills in."""

    Y: Array
    sketch: Array  # (SKETCH, d)
    explained: F64
    norm: F64


def learn(
    V: Array, C: Array, mean: F64, total_variance: float, weights: Weights, served: int, smallest: float
) -> Learned:
    """Learn the messages V (n, d) with the factor C (d, K), orthogonal columns; K may be 0.

    `served` columns count for the losses. A `total_variance` of at most `smallest` counts as none.
    """
    V, shortened = centring.shortened_first(V, total_variance, smallest)
    whole = C.shape[1] == len(C)  # nothing lies outside C, so that no message would move it
    C = np.array(C[:, :0] if whole else C, order="C")
    out = _Outputs(
        np.empty(V.shape, V.dtype), np.zeros((SKETCH, V.shape[1]), V.dtype), np.zeros(len(V)), np.empty(len(V))
    )
    of_messages = _Centring(mean.copy(), weights.a, weights.eta, weights.before, np.sqrt(weights.c))
    scale = (float(total_variance), float(smallest), centring.SHARE if total_variance > smallest else np.inf)
    rows = centring.read_only(V)
    total, more, S = _learn(rows, C, served, part_of(C.shape[1]), of_messages, scale, combinations(len(V)), out)
    explained = out.norm * (1 - weights.a) if whole else out.explained
    return Learned(
        out.Y, C, out.sketch.T, explained, out.norm, of_messages.mean, total, shortened + more, _inverse_error(S, C)
    )


def part_of(columns: int) -> int:
    """Messages that are learned together: products with G cost as many, and the new C costs K²/part of them."""
    return min(max(32, 1 << columns.bit_length() >> 1), 256)


@cache
def combinations(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The column of the sketch to which each of n rows is added, and the sign; the same each time."""
    random = np.random.default_rng(0)
    return random.integers(SKETCH, size=n), random.choice([-1, 1], n)


def _inverse_error(S: F64, C: Array) -> float:
    """The largest entry of |S CᵀC − I|, with columns of C scaled to length one."""
    if not C.shape[1]:
        return 0.0
    C = C.astype(np.float64, copy=False)
    length = np.linalg.norm(C, axis=0)
    unit = C / length
    error = (length[:, None] * S * length) @ (unit.T @ unit)
    return float(np.abs(error - np.eye(len(error))).max())


@compiled_without_lock
def _learn(
    V: Array,
    C: Array,
    served: int,
    part: int,
    of_messages: _Centring,
    scale: tuple[float, float, float],
    combinations: tuple[Any, Any],
    out: _Outputs,
) -> tuple[float, int, F64]:  # pragma: no cover - compiled
    """Fill in `out`, update the mean and C; also returns tr Σ, the number of shortened messages and S."""
    mean, a, eta, before, root = of_messages
    (Y, sketch, explained, norm), (column, sign) = out, combinations
    (n, d), K, (total, smallest, share) = V.shape, C.shape[1], scale
    N, S, shortened = np.zeros((K, K)), np.zeros((K, K)), 0
    for j in range(d):
        for m in range(K):
            N[m, m] += np.float64(C[j, m]) * np.float64(C[j, m])
    for m in range(K):
        S[m, m] = 1.0 / N[m, m]
    for i in range(0, n, part):
        e = min(i + part, n)
        total, more = centre_rows(
            V[i:e], mean, a[i:e], eta[i:e], before[i:e], (total, smallest, share), Y[i:e], norm[i:e]
        )
        shortened += more
        if K:
            S = _learn_part(Y[i:e], C, eta[i:e], N, S, served, explained[i:e])
        for s in range(i, e):
            for j in range(d):
                Y[s, j] *= root[s]
                sketch[column[s], j] += sign[s] * Y[s, j]
    return total, shortened, S


@compiled_with_free_sums
def _learn_part(
    Y: Array, C: Array, eta: F64, N: F64, S: F64, served: int, explained: F64
) -> F64:  # pragma: no cover - compiled
    """Learn the messages Y (b, d): update C and N = CᵀC, fill in `explained`, and return S."""
    K = C.shape[1]
    P, G = _double(Y @ C), _double(Y @ Y.T)
    if served < K:
        _explain(P, N, served, explained)
    X, Z, p, growth, wide = learn_padded(P, G, S, eta)
    if served >= K:
        for s in range(len(Y)):
            for j in range(K):
                explained[s] += X[s, j] * p[s, j]
    weighted = np.empty((len(Y), K))
    for s in range(len(Y)):
        for j in range(K):
            weighted[s, j] = growth[s] * X[s, j]
    X, Z = np.ascontiguousarray(X[:, :K]), np.ascontiguousarray(Z[:, :K])
    grown = X.T @ weighted
    for i in range(K):
        for j in range(K):
            N[i, j] += grown[i, j]
    lost, learned = C @ _like(X.T @ Z, C), Y.T @ _like(Z, C)
    for i in range(C.shape[0]):
        for j in range(K):
            C[i, j] += learned[i, j] - lost[i, j]
    return np.ascontiguousarray(wide[:K, :K])


@compiled_with_free_sums
def _explain(P: F64, N: F64, k: int, explained: F64) -> None:  # pragma: no cover - compiled
    """‖y‖² − ‖r‖² of messages by the first k columns: p N⁻¹ p, with columns scaled to length one."""
    unit, scaled, products = np.empty(k), np.empty((len(P), k)), np.empty((k, k))
    for j in range(k):
        unit[j] = 1.0 / np.sqrt(N[j, j])
    for i in range(k):
        for j in range(k):
            products[i, j] = N[i, j] * unit[i] * unit[j]
    for s in range(len(P)):
        for j in range(k):
            scaled[s, j] = P[s, j] * unit[j]
    solved = scaled @ np.linalg.inv(products)
    for s in range(len(P)):
        for j in range(k):
            explained[s] += solved[s, j] * scaled[s, j]


@compiled_with_free_sums
def _double(A: Array) -> F64:  # pragma: no cover - compiled
    """A in double precision."""
    double = np.empty(A.shape)
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            double[i, j] = A[i, j]
    return double


@compiled_with_free_sums
def _like(A: F64, other: Array) -> Array:  # pragma: no cover - compiled
    """A in the other's precision."""
    same = np.empty(A.shape, other.dtype)
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            same[i, j] = A[i, j]
    return same
