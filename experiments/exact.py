"""The paper's methods in exact blocks: the same as their plain steps, at the speed of matrix products.

As in streampca/pca/blocked/recurrence.py a block Y (B, d) enters only as P = YC (B, k) and G = YYᵀ (B, B), and leaves
as C ← C Pi + YᵀZ. Oja's and Krasulina's steps commute with any change of basis from the right that is upper triangular
with a positive diagonal, and that is all that QR does to C; so one QR at the end of a block gives the same C as one
after each message. Tests compare each with the plain form in experiments/baselines.
"""

import numpy as np

from experiments.baselines import incremental
from experiments.baselines.orthonormal import orthonormal
from streampca.pca import algorithm1
from streampca.pca.arrays import F64
from streampca.pca.blocked import recurrence
from streampca.pca.blocked.jit import compiled

GROWTH = 1e5  # C is orthonormalised before its columns may have grown by more than this: the digits lost stay few
_LARGEST_GROWTH = 1e3  # of CᵀC within a block of the implicit update: three digits of (CᵀC)⁻¹


def implicit(C: F64, Y: F64, eta: F64) -> F64:
    """The implicit update (eq. 12, Algorithm 1) for each message of Y (B, d): the next C (d, k), of any scale.

    Where the data is large beside C, as at the start, CᵀC grows by many orders of magnitude in a few messages. Then
    (CᵀC)⁻¹ loses as many digits, and messages are learned one by one, by the paper's own update of C†, which does not.
    Raises `LinAlgError` if the columns of C are linearly dependent.
    """
    N = C.T @ C
    X, Z, *_ = recurrence.learn(Y @ C, Y @ Y.T, np.asarray(np.linalg.inv(N)), eta)
    after = C @ (np.eye(len(N)) - X.T @ Z) + Y.T @ Z
    if np.trace(np.linalg.solve(N, after.T @ after)) <= _LARGEST_GROWTH:
        return np.asarray(after)
    Q, R = np.linalg.qr(C)
    factor = algorithm1.Factor(C, np.linalg.solve(R, Q.T))
    for y, step in zip(Y, eta, strict=True):
        factor, _ = algorithm1.meyer(factor, y, step)
    return np.asarray(factor.C, np.float64)


def oja(C: F64, Y: F64, eta: F64) -> F64:
    """Oja's step for each message of Y (B, d), with step sizes eta (B,): the next orthonormal C (d, k)."""
    for part in _parts(Y, eta):
        y = Y[part]
        C = _orthonormal(C + y.T @ _oja(y @ C, y @ y.T, eta[part]))
    return C


def krasulina(C: F64, Y: F64, eta: F64) -> F64:
    """Krasulina's step (eq. 9) for each message of Y (B, d): the next orthonormal C (d, k)."""
    for part in _parts(Y, eta):
        y = Y[part]
        Pi, Z = _krasulina(y @ C, y @ y.T, eta[part])
        C = _orthonormal(C @ Pi + y.T @ Z)
    return C


def increment(state: incremental.IncrementalState, Y: F64) -> incremental.IncrementalState:
    """The incremental step for each message of Y (B, d)."""
    Pi, Z, s = _increment(Y @ state.U, Y @ Y.T, state.s, state.count)
    return incremental.IncrementalState(_orthonormal(state.U @ Pi + Y.T @ Z), s, state.count + len(Y))


def _orthonormal(C: F64) -> F64:
    return np.asarray(orthonormal(C), np.float64)


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


@compiled
def _oja(P: F64, G: F64, eta: F64) -> F64:  # pragma: no cover - compiled
    """Z of C ← C + YᵀZ: z_s = η_s (p_s + Σ_{j<s} G_sj z_j)."""
    B, k = P.shape
    Z = P.copy()
    for s in range(B):
        for j in range(s):
            for i in range(k):
                Z[s, i] += G[s, j] * Z[j, i]
        for i in range(k):
            Z[s, i] *= eta[s]
    return Z


@compiled
def _krasulina(P: F64, G: F64, eta: F64) -> tuple[F64, F64]:  # pragma: no cover - compiled
    """Pi and Z after C ← C − η (CSp − y) pᵀ for each message, where S = (CᵀC)⁻¹ starts as I and p = Cᵀy."""
    B, k = P.shape
    P = P.copy()
    S, Pi = np.eye(k), np.eye(k)
    Z = np.zeros((B, k))
    for s in range(B):
        p = P[s].copy()
        x = S @ p
        xp = x @ p
        residual = max(G[s, s] - xp, 0.0)
        for t in range(s + 1, B):
            P[t] += eta[s] * (G[s, t] - P[t] @ x) * p
        for t in range(s):
            Z[t] -= eta[s] * (Z[t] @ x) * p
        Z[s] = eta[s] * p
        for t in range(k):
            Pi[t] -= eta[s] * (Pi[t] @ x) * p
        growth = eta[s] ** 2 * residual
        shrink = growth / (1.0 + growth * xp)
        for t in range(k):
            S[t] -= shrink * x[t] * x
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
