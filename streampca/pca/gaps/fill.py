"""Messages with gaps: a block's missing entries are filled, and then it is learned like any other block.

With the k leading axes U, their variances Λ and the mean variance σ² of the other directions, as they are before the
block, Φ = U(Λ − σ²)^½ is the factor of probabilistic PCA (Tipping & Bishop 1999). Of a message with the observed
entries O, the others are filled with their conditional mean:

    z = (Φ_OᵀΦ_O + σ²I)⁻¹ Φ_Oᵀy_O            ŷ = Φz, and + r_j/π_j where observed, r = (y − Φz)_O

π_j is the running share of messages with gaps that have entry j: as inverse propensities do, it makes up for residuals
that are not seen, so that ŷ has the mean of y, and the products of its entries the means of theirs, but for squares:
those are too large by r_j²(1/π_j² − 1/π_j), which the total variance and the scores are corrected by.

The first block is filled by EM: fill, refit, repeat. Derivation, and what is not covered: docs/mathematics.md,
section 11.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import ritz
from streampca.pca.blocked.centring import Weights
from streampca.pca.blocked.ritz import Limits
from streampca.pca.gaps import kernel
from streampca.pca.state import Gaps, State

Entries = NDArray[np.bool_]

FILLS = 30  # of the first block
_MIN_SHARE = 0.3  # a residual counts at most 1/0.3-fold
_MIN_NOISE = 1e-10  # σ², of the largest variance: keeps C_OᵀC_O + ridge regular
_ROUNDING = 1e-13  # share of the largest variance
_UNSEEN = 0.5  # messages: an entry that fewer have shown has no mean yet


class Filled(NamedTuple):
    """A block without gaps, and what the gaps change."""

    V: Array  # (n, d)
    surplus: F64  # (n,): of each squared distance from the mean, due to π
    gaps: Gaps  # after the block


class Predictor(NamedTuple):
    """Coefficients that fill gaps: C_O x with x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O is Φ_O z."""

    mean: F64  # (d,)
    C: F64  # (d, n) = U Λ^½
    ridge: F64  # (n,) = σ²λ/(λ − σ²)

    @classmethod
    def of(cls, mean: F64, C: Array, variance: F64, total_variance: float) -> "Predictor":
        """From the leading axes times their standard deviations C (d, k), and their variances (k,)."""
        d, k = C.shape
        noise = (total_variance - variance.sum()) / (d - k) if d > k else 0.0
        noise = max(noise, _MIN_NOISE * variance.max(initial=0.0))
        signal = variance > noise
        if not signal.any():  # nothing to predict by: the mean
            return cls(mean, np.zeros((d, 1)), np.ones(1))
        C, variance = C[:, signal].astype(np.float64), variance[signal]
        return cls(mean, np.ascontiguousarray(C), noise / (1 - noise / variance))


def fill(state: State, V: Array, weights: Weights, components: int, center: bool) -> Filled:
    """The block V (n, d) without its gaps; `weights` are those of its messages."""
    missing = np.isnan(V)
    before = (state.gaps or Gaps(0.0, np.zeros(V.shape[1]))).times(float(weights.past))
    gaps = before.plus(Gaps(float(weights.c @ missing.any(axis=1)), weights.c @ missing))
    shares = np.maximum(1.0 - gaps.entries / gaps.messages, _MIN_SHARE)
    if state.count:
        k = min(components, state.rank)
        predictor = Predictor.of(state.mean, state.C[:, :k], state.variance[:k], state.total_variance)
    else:
        predictor = _by_em(V, missing, components, center)
    filled, surplus = kernel.fill(V, *predictor, shares)
    return Filled(filled, surplus, gaps)


def initialise_new_means(state: State, V: Array) -> State:
    """The state in which entries that the block V (n, d) shows for the first time have the block's mean."""
    if state.gaps is None or not state.count:
        return state
    missing = np.isnan(V)
    new = ((1.0 - state.gaps.entries) * state.weight < _UNSEEN) & ~missing.all(axis=0)
    return replace(state, mean=np.where(new, _observed_mean(V, missing), state.mean)) if new.any() else state


def _observed_mean(V: Array, missing: Entries) -> F64:
    """The mean of the observed entries, (d,); 0 without any."""
    sums = np.where(missing, 0.0, V).sum(axis=0)
    return np.asarray(sums / np.maximum((~missing).sum(axis=0), 1))


def _by_em(V: Array, missing: Entries, components: int, center: bool) -> Predictor:
    """The predictor of the first block, which starts from the block's mean and is refitted to the filled block."""
    n, d = V.shape
    mean, whole = _observed_mean(V, missing) if center else np.zeros(d), np.ones(d)
    predictor = Predictor.of(mean, np.zeros((d, 1)), np.zeros(1), 0.0)
    for _ in range(FILLS):
        filled, _ = kernel.fill(V, *predictor, whole)
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        Y = (filled - mean) / np.sqrt(n)
        C = ritz.strongest(Y, Limits(components, _ROUNDING, 0.0))
        predictor = Predictor.of(mean, C, np.vecdot(C.T, C.T), float(np.vdot(Y, Y)))
    return predictor
