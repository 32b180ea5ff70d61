"""Incremental PCA (Arora, Cotter, Livescu & Srebro 2012): the second moment, cut to rank k after every message.

    Σ ← rank-k part of ((t−1)Σ + y yᵀ)/t,    Σ = U diag(s) Uᵀ

With p = Uᵀy, r = y − Up and ρ = ‖r‖ the bracket is [U r/ρ] Q [U r/ρ]ᵀ, Q of size k+1, so that the work is O(dk²).
There is no step size, and no promise either: what is cut off each time is lost.
"""

from dataclasses import dataclass

import numpy as np

from streampca.pca.arrays import F64

_ROUNDING = 1e-12  # a residual below this share of its message is rounding and has no direction


@dataclass(frozen=True, eq=False)
class IncrementalState:
    """The rank-k second moment U diag(s) Uᵀ of `count` messages."""

    U: F64  # (d, k), orthonormal columns
    s: F64  # (k,), falling
    count: int


def start(d: int, k: int) -> IncrementalState:
    """Nothing seen: no variance along the first k axes."""
    return IncrementalState(np.eye(d, k), np.zeros(k), 0)


def step(state: IncrementalState, y: F64) -> IncrementalState:
    """The state after one more message y (d,)."""
    U, s, k, t = state.U, state.s, len(state.s), state.count + 1
    p, r = _split(U, y)
    rho = float(np.linalg.norm(r))
    if rho > _ROUNDING * float(np.linalg.norm(y)):
        basis, p = np.column_stack([U, r / rho]), np.append(p, rho)
        s = np.append(s, 0.0)
    else:
        basis = U
    variance, V = np.linalg.eigh(((t - 1) * np.diag(s) + np.outer(p, p)) / t)
    return IncrementalState(basis @ V[:, ::-1][:, :k], np.maximum(variance[::-1][:k], 0.0), t)


def _split(U: F64, y: F64) -> tuple[F64, F64]:
    """y = Up + r with r ⟂ U; taken twice, so that U stays orthonormal over many messages."""
    p = U.T @ y
    r = y - U @ p
    again = U.T @ r
    return p + again, r - U @ again
