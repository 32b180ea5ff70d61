"""The paper's methods in exact blocks: the iterates of their plain steps, at the speed of matrix products.

A block Y (B, d) enters only as P = YC (B, k) and G = YYᵀ (B, B), and leaves as C ← C Pi + YᵀZ. With p = Cᵀy and
S = (CᵀC)⁻¹ every step is C ← C − h (Cx − y) vᵀ, of

    Oja          x = 0     v = p     h = η
    Krasulina    x = Sp    v = p     h = η                      eq. 9
    explicit     x = Sp    v = x     h = η                      the display after eq. 11
    implicit     x = Sp    v = x     h = η/(1 + η‖x‖²)           eq. 12, Algorithm 1

Oja's and Krasulina's steps commute with any change of basis from the right that is upper triangular with a positive
diagonal, and that is all that QR does to C; so one QR at the end of a block gives the same C as one after each message.
Tests compare each with the plain form.
"""

import numpy as np

from experiments.baselines import explicit, incremental
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled, compiled_for_compiled_callers

OJA, KRASULINA, EXPLICIT, IMPLICIT = range(4)
STEPS = {"oja": OJA, "krasulina": KRASULINA, "explicit": EXPLICIT, "implicit": IMPLICIT}
GROWTH = 1e5  # C is orthonormalised before its columns may have grown by more than this: the digits lost stay few
_LARGEST_GROWTH = 1e3  # of CᵀC within a block without QR: three digits of (CᵀC)⁻¹


def orthonormal(C: Array) -> F64:
    """QR(C), as `explicit.orthonormal`."""
    return np.asarray(explicit.orthonormal(C), np.float64)


def learn(name: str, C: F64, Y: F64, eta: F64) -> F64:
    """The next C (d, k) after a step of this kind for each message of Y (B, d), with step sizes eta (B,).

    C is orthonormal for Oja and Krasulina. For the others its columns must be independent: else `LinAlgError`.
    """
    if STEPS[name] >= EXPLICIT:
        return _without_qr(STEPS[name], C, Y, eta)
    for part in _parts(Y, eta):
        C = orthonormal(_moved(STEPS[name], C, Y[part], np.eye(C.shape[1]), eta[part]))
    return C


def increment(state: incremental.IncrementalState, Y: F64) -> incremental.IncrementalState:
    """The incremental step for each message of Y (B, d)."""
    Pi, Z, s = _increment(Y @ state.U, Y @ Y.T, state.s, state.count)
    return incremental.IncrementalState(orthonormal(state.U @ Pi + Y.T @ Z), s, state.count + len(Y))


def _moved(kind: int, C: F64, Y: F64, S: F64, eta: F64) -> F64:
    Pi, Z = _block(Y @ C, Y @ Y.T, S, eta, kind)
    return np.asarray(C @ Pi + Y.T @ Z, np.float64)


def _without_qr(kind: int, C: F64, Y: F64, eta: F64) -> F64:
    """Where CᵀC grows by many orders of magnitude, as at the start, (CᵀC)⁻¹ would lose as many digits.

    So the block is halved there, down to single messages, which are learned without it.
    """
    if len(Y) == 1:
        Q, R = np.linalg.qr(C)
        x = np.linalg.solve(R, Q.T @ Y[0])
        h = eta[0] / (1 + eta[0] * (x @ x)) if kind == IMPLICIT else eta[0]
        return np.asarray(C - h * np.outer(C @ x - Y[0], x))
    N = C.T @ C
    after = _moved(kind, C, Y, np.ascontiguousarray(np.linalg.inv(N)), eta)
    if np.trace(np.linalg.solve(N, after.T @ after)) <= _LARGEST_GROWTH:
        return after
    half = len(Y) // 2
    return _without_qr(kind, _without_qr(kind, C, Y[:half], eta[:half]), Y[half:], eta[half:])


def _parts(Y: F64, eta: F64) -> list[slice]:
    """Pieces of the block in which no column can grow by more than GROWTH; at least a message each."""
    steps = np.log1p(eta * np.einsum("ij,ij->i", Y, Y))
    parts, start, grown = [], 0, 0.0
    for i, step in enumerate(steps):
        if i > start and grown + step > np.log(GROWTH):
            parts.append(slice(start, i))
            start, grown = i, 0.0
        grown += step
    return [*parts, slice(start, len(Y))]


@compiled_for_compiled_callers
def _dot(a: F64, b: F64) -> float:  # pragma: no cover - compiled
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compiled_for_compiled_callers
def _add(a: F64, factor: float, b: F64) -> None:  # pragma: no cover - compiled
    for i in range(len(a)):
        a[i] += factor * b[i]


@compiled
def _block(P: F64, G: F64, S: F64, eta: F64, kind: int) -> tuple[F64, F64]:  # pragma: no cover - compiled
    """Pi and Z after a step for each message."""
    B, k = P.shape
    P, S = P.copy(), S.copy()
    Pi, Z, x, u = np.eye(k), np.zeros((B, k)), np.zeros(k), np.zeros(k)
    for s in range(B):
        p, h = P[s].copy(), eta[s]
        if kind != OJA:
            for i in range(k):
                x[i] = _dot(S[i], p)
        v = p if kind <= KRASULINA else x.copy()
        if kind == IMPLICIT:
            h /= 1.0 + h * _dot(x, x)
        for t in range(s + 1, B):
            _add(P[t], h * (G[s, t] - _dot(P[t], x)), v)
        for i in range(k):
            Z[s, i] = h * v[i]
        if kind == OJA:
            continue
        for t in range(s):
            _add(Z[t], -h * _dot(Z[t], x), v)
        for t in range(k):
            _add(Pi[t], -h * _dot(Pi[t], x), v)
            u[t] = _dot(S[t], v)
        growth = h * h * max(G[s, s] - _dot(x, p), 0.0)
        shrink = growth / (1.0 + growth * _dot(v, u))
        for t in range(k):
            _add(S[t], -shrink * u[t], u)
    return Pi, Z


@compiled
def _increment(P: F64, G: F64, variance: F64, count: int) -> tuple[F64, F64, F64]:  # pragma: no cover - compiled
    """Pi, Z and the next variances. Column k of the extended arrays is the residual's direction."""
    B, k = P.shape
    ahead = np.zeros((B, k + 1))  # the messages' coordinates along [U r/ρ]
    ahead[:, :k] = P
    made = np.zeros((k + B, k + 1))  # [U r/ρ] in terms of the block's first U and its messages
    made[:k, :k] = np.eye(k)
    variance = variance.copy()
    for s in range(B):
        p = ahead[s, :k].copy()
        rho = np.sqrt(max(G[s, s] - p @ p, 0.0))
        n = k
        if rho > 1e-8 * np.sqrt(G[s, s]):
            n = k + 1
            for t in range(s + 1, B):
                ahead[t, k] = (G[s, t] - ahead[t, :k] @ p) / rho
            for t in range(k + s + 1):
                made[t, k] = -(made[t, :k] @ p) / rho
            made[k + s, k] += 1.0 / rho
        moment = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                moment[i, j] = (p[i] if i < k else rho) * (p[j] if j < k else rho) / (count + s + 1)
        for i in range(k):
            moment[i, i] += variance[i] * (count + s) / (count + s + 1)
        values, V = np.linalg.eigh(moment)
        Q = np.ascontiguousarray(V[:, ::-1][:, :k])
        for i in range(k):
            variance[i] = max(values[n - 1 - i], 0.0)
        ahead[s + 1 :, :k] = np.ascontiguousarray(ahead[s + 1 :, :n]) @ Q
        made[: k + s + 1, :k] = np.ascontiguousarray(made[: k + s + 1, :n]) @ Q
    return made[:k, :k].copy(), made[k:, :k].copy(), variance
