"""EM for PCA: of all messages and without noise, and online with noise.

Without noise (Roweis 1998; the paper's batch EM, eq. 15), with fixed points whose columns span eigenvectors of Σ:

    X = C†Y          C ← YX†

Online, for probabilistic PCA, y = Cx + ν, x ∼ N(0, I), ν ∼ N(0, εI) (the paper's last M-step):

    β = Cᵀ(CCᵀ + εI)⁻¹ = (CᵀC + εI)⁻¹Cᵀ        X = βY        c = ε⁻¹/η′
    C ← (YXᵀ/N + cC)(I − βC + XXᵀ/N + cI)⁻¹

The limits: ε → 0 with c → 1/η is the implicit Krasulina update (eq. 11); then η → 0 leaves C and η → ∞ is batch EM.

Of the printed ε⁻¹/η′: in the paper's objective Δ/η′ + U both terms carry the factor ε⁻¹, so that it cancels and the
minimum has c = 1/η′. As η′ is free to depend on ε, this renames η′ and changes no limit; a test holds both to it.
"""

import numpy as np

from streampca.pca.arrays import Array


def batch_step(C: Array, Y: Array) -> Array:
    """One iteration on all messages Y (N, d): the next C (d, k). The loss of its span does not grow."""
    following: Array = Y.T @ np.linalg.pinv(np.linalg.pinv(C) @ Y.T)
    return following


def online_step(C: Array, Y: Array, eta_prime: float, epsilon: float) -> Array:
    """The next C (d, k) after messages Y (N, d), or one message (d,), with step size η′ and noise ε > 0."""
    Y = np.atleast_2d(Y)
    n, identity = len(Y), np.eye(C.shape[1])
    beta = np.linalg.solve(C.T @ C + epsilon * identity, C.T)
    X = beta @ Y.T  # (k, N)
    inertia = 1 / (epsilon * eta_prime)
    left = Y.T @ X.T / n + inertia * C
    right = identity - beta @ C + X @ X.T / n + inertia * identity
    following: Array = np.linalg.solve(right.T, left.T).T
    return following
