"""One block in plain NumPy: what `learning` computes, message by message, in the order of docs/mathematics.md.

Start reading here. A test compares the two block for block.
"""

import numpy as np

from streampca.pca import algorithm1, learning
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import block, triangle
from streampca.pca.blocked.centring import ORDINARY, SHARE, SHORT
from streampca.pca.learning import LearningConfig
from streampca.pca.state import Losses, State


def learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (B, d) that is not the first; `retention` (B,) holds each message's ρ."""
    w, m, total, clipped = state.weight, state.mean, state.total_variance, state.clipped
    k, K, part = config.components, min(config.columns, state.rank), block.part_of(min(config.columns, state.rank))
    Y, eta, residual, norm = np.empty(V.shape), np.empty(len(V)), np.empty(len(V)), np.empty(len(V))
    C: Array = state.C[:, :K].astype(np.float64)
    S = np.linalg.inv(C.T @ C)
    for s, v in enumerate(V):
        before, w = retention[s] * w, retention[s] * w + 1.0  # effective number of messages                 section 3
        y = v - m
        limit = max(SHARE * before, ORDINARY) * total  # bounded influence                                   section 5
        if y @ y > limit > 0 and before >= SHORT:
            y, clipped = y * np.sqrt(limit / (y @ y)), clipped + 1
        norm[s], eta[s] = y @ y, 1 / w
        if s % part == 0 or k >= K:
            served = np.linalg.qr(C[:, :k])[0]  # of the C that is met: by this message, or by its part      section 9
        residual[s] = norm[s] - np.sum((served.T @ y) ** 2)  # ‖r‖²
        if config.center:
            m = m + eta[s] * y  # the running mean                                                           section 3
            y = np.sqrt(1 - eta[s]) * y
        total = (1 - eta[s]) * total + eta[s] * (y @ y)  # tr Σ                                              section 3
        C, S = (C, S) if config.dimensions == K else algorithm1.sherman_morrison(C, S, y, eta[s])[:2]  # section 1
        Y[s] = y
    shares = eta * np.append(np.cumprod((1 - eta)[::-1])[::-1][1:], 1.0)
    rows, past, F, after = np.sqrt(shares)[:, None] * Y, 1 - shares.sum(), state.C[:, K:], state.count + len(V)
    if config.keeps_covariance:
        before_block = triangle.square(state.covariance, config.dimensions)  # type: ignore[arg-type]
        covariance = past * before_block + rows.T @ rows  #                                                  section 4
        basis = np.hstack([C, F, sketch(rows)])
        basis = covariance @ (basis / np.linalg.norm(basis, axis=0))
        packed = covariance[np.tril_indices(len(covariance))]
    else:
        covariance, packed = past * state.C @ state.C.T + rows.T @ rows, None
        whole = after <= learning.WHOLE_UNTIL or past < learning.SHORT_MEMORY or state.rank < config.columns
        basis = np.eye(config.dimensions) if whole else subspace(covariance, C, F, rows)
    CF = axes_within(covariance, basis)[:, : config.limits.columns]
    return State(CF, m, w, float(total), after, clipped, state.missing, packed), Losses(np.maximum(residual, 0.0), norm)


def sketch(rows: F64) -> F64:
    """Combinations of the rows (B, d), as columns (d, SKETCH)."""
    column, sign = block.combinations(len(rows)).T
    return np.asarray(rows.T @ (np.eye(block.SKETCH)[column] * sign[:, None]))


def subspace(covariance: F64, C: Array, F: Array, rows: F64) -> F64:
    """A basis of span(C) and of the strongest directions outside it, by subspace iteration from F and a sketch."""
    Q = np.linalg.qr(C)[0]
    outside = np.eye(len(C)) - Q @ Q.T
    return np.hstack([Q, outside @ covariance @ outside @ np.hstack([F, covariance @ sketch(rows)])])


def axes_within(covariance: F64, basis: F64) -> F64:
    """Rayleigh–Ritz: the axes of a covariance within a subspace, times their standard deviations, longest first."""
    U, length, _ = np.linalg.svd(basis / np.maximum(np.linalg.norm(basis, axis=0), 1e-300), full_matrices=False)
    U = U[:, length > 1e-13 * length[0]]
    variance, W = np.linalg.eigh(U.T @ covariance @ U)
    return np.asarray((U @ W * np.sqrt(np.maximum(variance, 0.0)))[:, variance > 1e-13 * variance[-1]][:, ::-1])
