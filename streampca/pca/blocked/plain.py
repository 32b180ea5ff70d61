"""One block in plain NumPy: what `learning` computes, message by message, in the order of the equations.

Start reading here. A test compares the two block for block. Letters as in `streampca.pca`; sections are those of
docs/mathematics.md, equation numbers the paper's.
"""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import ritz
from streampca.pca.blocked.centring import ORDINARY, SHARE, SHORT
from streampca.pca.learning import YOUNG, LearningConfig
from streampca.pca.losses import Losses
from streampca.pca.state import State


def learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (B, d) that is not the first; `retention` (B,) holds each message's ρ."""
    w, m, total, shortened = state.weight, state.mean, state.total_variance, state.shortened
    Y, eta, residual, norm = np.empty(V.shape), np.empty(len(V)), np.empty(len(V)), np.empty(len(V))
    axes = state.C[:, : config.components]
    for s, v in enumerate(V):
        before, w = retention[s] * w, retention[s] * w + 1.0  # effective number of messages                 section 3
        y = v - m
        limit = max(SHARE * before, ORDINARY) * total  # bounded influence                                   section 5
        if y @ y > limit > 0 and before >= SHORT:
            y, shortened = y * np.sqrt(limit / (y @ y)), shortened + 1
        norm[s] = y @ y
        residual[s] = norm[s] - np.sum((axes.T @ y) ** 2 / np.vecdot(axes.T, axes.T))  # ‖r‖²                section 9
        eta[s] = 1 / w
        if config.center:
            m = m + eta[s] * y  # the running mean                                                           section 3
            y = np.sqrt(1 - eta[s]) * y
        total = (1 - eta[s]) * total + eta[s] * (y @ y)  # tr Σ                                              section 3
        Y[s] = y
    shares = eta * np.append(np.cumprod((1 - eta)[::-1])[::-1][1:], 1.0)
    after = replace(
        state, mean=m, weight=w, total_variance=float(total), count=state.count + len(V), shortened=shortened
    )
    losses = Losses(np.maximum(residual, 0.0), norm)
    if config.exact:
        assert state.covariance is not None  # noqa: S101 - the state is not empty
        return replace(after, covariance=(1 - shares.sum()) * state.covariance + (Y.T * shares) @ Y), losses
    K = min(config.columns, state.rank)
    rows = np.vstack([np.sqrt(1 - shares.sum()) * state.C.T, np.sqrt(shares)[:, None] * Y])
    limit = config.columns + ritz.SPARE
    if after.count <= YOUNG:
        U, sigma, _ = np.linalg.svd(rows.T, full_matrices=False)
        CF = (U * sigma)[:, :limit]
    else:
        CF = rayleigh_ritz(rows, algorithm1(state.C[:, :K], Y, eta), state.rank, limit)
    return replace(after, C=CF), losses


def algorithm1(C: Array, Y: F64, eta: F64) -> Array:
    """C after the messages Y (B, d) in turn, with step sizes η (B,)."""
    S = np.linalg.inv(C.T @ C)
    for y, step in zip(Y, eta, strict=True):
        x = S @ (C.T @ y)  # x = C†y                                                                       Algorithm 1
        r = C @ x - y
        h = step / (1 + step * (x @ x))
        growth = h**2 * (r @ r)  # CᵀC ← CᵀC + h²‖r‖² x xᵀ, as r ⟂ C                                         section 1
        C = C - h * np.outer(r, x)  # the update                                                                eq. 12
        u = S @ x
        S = S - growth / (1 + growth * (x @ u)) * np.outer(u, u)  # Sherman–Morrison                         section 1
    return C


def rayleigh_ritz(rows: F64, C: Array, past: int, limit: int) -> Array:
    """Up to `limit` axes, times their standard deviations, of the covariance of rows (n, d), the first `past` of old.

    Restricted to span(C) and the strongest directions outside it.                                           section 4
    """
    Q = np.linalg.qr(C)[0]
    R = rows - (rows @ Q) @ Q.T  # outside span(C)
    F, sketch = R[C.shape[1] : past].T, R[past:].T @ ritz.combinations(len(rows) - past)
    V = np.hstack([F, sketch])
    for _ in range(2):  # steps of subspace iteration
        V = R.T @ np.linalg.qr(R @ V)[0]
    U, length, _ = np.linalg.svd(V, full_matrices=False)
    E = U[:, length > 1e-7 * np.linalg.norm(rows)]  # the others are rounding
    W = np.hstack([Q, E])
    _, sigma, axes = np.linalg.svd(rows @ W, full_matrices=False)
    CF: F64 = W @ axes.T * sigma
    return CF[:, :limit]
