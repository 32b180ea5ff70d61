"""EM for PCA: batch EM without noise, and online EM with noise.

Without noise (Roweis 1998; eq. 15 with (CᵀC)⁻¹Cᵀ in place of (CCᵀ)⁻¹Cᵀ), the fixed points span eigenvectors of Σ:

    X = C†Y          C ← YX†

Online, for probabilistic PCA, y = Cx + ν, x ∼ N(0, I), ν ∼ N(0, εI) (the paper's last M-step):

    β = Cᵀ(CCᵀ + εI)⁻¹ = (CᵀC + εI)⁻¹Cᵀ        X = βY        c = ε⁻¹/η′
    C ← (YXᵀ/N + cC)(I − βC + XXᵀ/N + cI)⁻¹

Its limits: ε → 0 with c → 1/η is the implicit Krasulina update (eq. 11); then η → 0 leaves C as it is, and η → ∞ is
batch EM.

The paper prints c = ε⁻¹/η′. Both terms of its objective Δ/η′ + U have the factor ε⁻¹, which cancels, so the minimum has
c = 1/η′. The printed form only renames η′, which may depend on ε, and has the same limits.
"""

import numpy as np

from streampca.pca.arrays import Array


def batch_step(C: Array, Y: Array) -> Array:
    """The next C (d, k) after one iteration on all messages Y (N, d). The loss of its span does not grow."""
    following: Array = Y.T @ np.linalg.pinv(np.linalg.pinv(C) @ Y.T)
    return following


def online_step(C: Array, Y: Array, eta_prime: float, epsilon: float) -> Array:
    """The next C (d, k) after messages Y (N, d), or one message (d,), with step size η′ and noise ε > 0."""
    Y = np.atleast_2d(Y)
    n, identity = len(Y), np.eye(C.shape[1])
    beta = posterior_gain(C, epsilon)
    X = beta @ Y.T  # (k, N)
    inertia = 1 / (epsilon * eta_prime)
    left = Y.T @ X.T / n + inertia * C
    right = identity - beta @ C + X @ X.T / n + inertia * identity
    following: Array = np.linalg.solve(right.T, left.T).T
    return following


def posterior_gain(C: Array, epsilon: float) -> Array:
    """β (k, d): x given y is N(βy, I − βC)."""
    gain: Array = np.linalg.solve(C.T @ C + epsilon * np.eye(C.shape[1]), C.T)
    return gain


def upper_bound(C: Array, Y: Array, epsilon: float, A: Array, epsilon_after: float) -> float:
    """Eq. 14, the EM bound of the parameters A (d, k) and ε̃ given C and ε, up to a constant.

    (d/2) log ε̃ stands in place of the paper's d log ε̃, a misprint.
    """
    X, n = posterior_gain(C, epsilon) @ Y.T, len(Y)
    second = np.eye(C.shape[1]) - posterior_gain(C, epsilon) @ C + X @ X.T / n
    squares = np.trace(A @ second @ A.T) - 2 / n * np.trace(Y.T @ X.T @ A.T) + np.sum(Y**2) / n
    return float(squares / (2 * epsilon_after) + len(C) / 2 * np.log(epsilon_after))
