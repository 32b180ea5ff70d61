"""A watch over the residual: does a stretch show variance that the factor cannot see?

C only moves along r xᵀ. A message orthogonal to C has x = 0, so Algorithm 1 learns nothing of it: new sensors, rare
categories and heavy tails look like that. The residuals' Gram matrix R = G − P S Pᵀ shows it, from products that the
block needs anyway. With λ_k the smallest served variance and t the mean ‖r‖² of the b messages, a stretch is unseen if

- one message weighs as much as ¼ of a served direction, c_s (‖r_s‖² − t) > λ_k/4, or
- the residuals have more variance along some direction than sampling explains. For b Gaussian vectors with variances of
  at most λ and trace t, the largest is (√λ (1 + 3/√b) + √(t/b))² with near certainty. Here no ‖r_s‖² counts more
  than t, so that single outliers, which the first rule weighs, do not look like a direction.

`plain.unseen` is the same in plain NumPy.
"""

import math

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.blocked.gemm import times
from streampca.pca.blocked.jit import inlined

LARGEST_MESSAGE = 0.25  # share of λ_k that one message may add outside the span
DEVIATIONS = 3.0  # of the largest singular value of b Gaussian vectors, each about √λ
_ROUNDING = 64  # less than so many eps of a message is no residual
_STEPS = 8  # of the power iteration


def unseen_directions(R: F64, most: int, smallest: float) -> F64:
    """W (r, n): the at most `most` directions along which the residuals R (r, b) have more variance by rule 2.

    Each column of R is a message's residual times √c_s, and `smallest` is λ_k times the sum of the shares c_s.
    """
    squares, b = np.vecdot(R.T, R.T), R.shape[1]
    mean = squares.mean()
    R = R * np.sqrt(mean / (np.maximum(squares, mean) + float(np.finfo(np.float64).tiny)))
    limit = (np.sqrt(smallest) * (1.0 + DEVIATIONS / np.sqrt(b)) + np.sqrt(np.sum(R**2) / b)) ** 2
    variance, W = np.linalg.eigh(R @ R.T)
    return np.asarray(W[:, variance > limit][:, -most:])


@inlined
def unseen(p: F64, G: F64, S: F64, c: F64, smallest: float, eps: float) -> bool:  # pragma: no cover - compiled
    """Whether the messages of a stretch vary, outside the span of C, more than along the smallest served direction.

    p (b, w) holds each message's Cᵀy for the C before the stretch, G (b, b) = YYᵀ, S (w, w) = (CᵀC)⁻¹, c (b,) the
    shares, `smallest` is λ_k, `eps` the relative rounding error of p and G.
    """
    (b, w), X, norm, mean = p.shape, times(p, S), np.empty(len(p)), 0.0
    for s in range(b):
        explained = 0.0
        for j in range(w):
            explained += X[s, j] * p[s, j]
        norm[s] = max(G[s, s] - explained, 0.0)
        mean += norm[s] / b
        smallest = max(smallest, _ROUNDING * eps * G[s, s])
    heavy, scale, trace = False, np.empty(b), 0.0
    for s in range(b):
        heavy = heavy or c[s] * (norm[s] - mean) > LARGEST_MESSAGE * smallest
        scale[s] = 1.0 / math.sqrt(max(norm[s], mean)) if mean > 0.0 else 0.0
        trace += norm[s] * scale[s] * scale[s] / b
    limit = 1.0
    if mean > 0.0:
        limit = (math.sqrt(smallest / mean) * (1.0 + DEVIATIONS / math.sqrt(b)) + math.sqrt(trace / b)) ** 2
    if heavy or not limit < trace:  # no variance is larger than the trace: most stretches end here
        return heavy
    variance: float = _largest_eigenvalue(p, G, X, scale) / b
    return variance > limit


@inlined
def _largest_eigenvalue(p: F64, G: F64, X: F64, scale: F64) -> float:  # pragma: no cover - compiled
    """Of diag(scale) (G − X pᵀ) diag(scale), from below, by power iteration from a fixed vector."""
    (b, w), v, v_scaled, largest = p.shape, np.empty(len(p)), np.empty(len(p)), 0.0
    for s in range(b):
        v[s] = math.cos(1.0 + s * s)
    for _ in range(_STEPS):
        length = 0.0
        for s in range(b):
            length += v[s] * v[s]
        length = math.sqrt(length)
        pv, largest = np.zeros(w), 0.0
        for s in range(b):
            v_scaled[s] = v[s] / length * scale[s] if length > 0.0 else 0.0
            for j in range(w):
                pv[j] += p[s, j] * v_scaled[s]
        for s in range(b):
            product = 0.0
            for t in range(b):
                product += G[s, t] * v_scaled[t]
            for j in range(w):
                product -= X[s, j] * pv[j]
            v[s] = scale[s] * product
            largest += v[s] * v[s]
        largest = math.sqrt(largest)
    return largest
