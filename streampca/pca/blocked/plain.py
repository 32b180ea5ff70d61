"""One block in plain NumPy: what the blocked update computes, message by message, in the order of the equations.

Start reading here. `update.learn` gives the same result to rounding, from products of matrices; a test compares the two
block for block. Letters as in `streampca.pca`; sections are those of docs/mathematics.md, equation numbers the paper's.
"""

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.update import Iterate
from streampca.pca.blocked.watch import DEVIATIONS, LARGEST_MESSAGE
from streampca.pca.losses import Losses
from streampca.pca.state import State


def learn_block(state: State, V: Array, retention: F64, k: int, center: bool = True) -> tuple[State, Losses]:
    """Learn one block V (B, d) by Algorithm 1 with η = 1/w, and end in the unit gauge.

    `retention` (B,) holds each message's ρ; messages are scored by the first k columns of C. The state needs a factor
    with K columns. Unlike the blocked update this declines no block, neither for a message that dwarfs the past nor for
    what is `unseen`.
    """
    w, weights = state.weight, np.empty(len(V))
    for s in range(len(V)):
        w = retention[s] * w + 1.0  # effective number of messages                                           section 3
        weights[s] = 1.0 / w
    before = Iterate(state.C, state.N, np.eye(state.rank), state.mean)
    after, scores = learn_messages(V, before, weights, weights, k, center)
    C, N = unit_gauge(after)
    total_variance = state.total_variance
    for a, norm in zip(weights, scores.norm, strict=True):
        total_variance = (1 - a) * total_variance + a * (1 - a if center else 1.0) * norm  # tr Σ            section 3
    return State(C, N, after.mean, w, float(total_variance), state.count + len(V), state.blocks + 1), scores


def learn_messages(
    V: Array, before: Iterate, weights: F64, eta: F64, k: int, center: bool = True
) -> tuple[Iterate, Losses]:
    """Algorithm 1 on the messages V (B, d) in turn, with weights 1/w (B,) and step sizes η (B,), without a gauge.

    Beside the factor it updates the mean, and the weighted second moment M of x in the coordinates of the factor.
    """
    C, _, M, m = before
    S = np.linalg.inv(C.T @ C)
    residual, norm = np.empty(len(V)), np.empty(len(V))
    for s, v in enumerate(V):
        a = weights[s]
        y = v - m
        norm[s] = y @ y
        residual[s] = norm[s] - np.sum((np.linalg.qr(C[:, :k])[0].T @ y) ** 2)  # ‖r‖² for k columns         section 9
        if center:
            m = m + a * y  # the running mean                                                                section 3
            y = np.sqrt(1 - a) * y
        x = S @ (C.T @ y)  # x = C†y                                                                       Algorithm 1
        r = C @ x - y
        h = eta[s] / (1 + eta[s] * (x @ x))
        growth = h**2 * (r @ r)  # CᵀC ← CᵀC + h²‖r‖² x xᵀ, as r ⟂ C                                         section 1
        C = C - h * np.outer(r, x)  # the update                                                                eq. 12
        u = S @ x
        shrink = growth / (1 + growth * (x @ u))
        S = S - shrink * np.outer(u, u)  # Sherman–Morrison                                                  section 1
        T = np.eye(len(x)) - shrink * np.outer(u, x)  # C†C_before: old coordinates in the new basis         section 4
        M = T @ ((1 - a) * M + a * np.outer(x, x)) @ T.T  # the moment of x                                  section 4
    return Iterate(C, C.T @ C, M, m), Losses(np.maximum(residual, 0.0), norm)


def unit_gauge(iterate: Iterate) -> tuple[Array, F64]:
    """C and N in the unit gauge: M becomes the identity, the columns of C principal axes, longest first (section 4)."""
    L = np.linalg.cholesky(iterate.M)  # M = LLᵀ
    variance, V = np.linalg.eigh(L.T @ iterate.N @ L)  # of (CL)ᵀ(CL)
    return iterate.C @ L @ V[:, ::-1], np.diag(variance[::-1])


def unseen(Y: F64, C: Array, c: F64, smallest: float) -> bool:
    """Whether a stretch Y (b, d) varies, outside the span of C, more than along the smallest served direction.

    c (b,) holds the messages' shares, `smallest` is λ_k, the variance along the k-th axis of C. See watch.py for the
    two rules.                                                                                           section 5
    """
    b, R = len(Y), Y - Y @ np.linalg.pinv(C).T @ C.T
    norm = np.vecdot(R, R)
    mean = norm.mean()
    if np.max(c * (norm - mean)) > LARGEST_MESSAGE * smallest:
        return True
    R = R * np.sqrt(np.minimum(1.0, mean / norm))[:, None]  # no message counts more than the mean one
    limit = (np.sqrt(smallest) * (1 + DEVIATIONS / np.sqrt(b)) + np.sqrt(np.vecdot(R, R).sum()) / b) ** 2
    return bool(np.linalg.norm(R, 2) ** 2 / b > limit)
