"""Estimates the variances that new messages have along learned axes, by the spiked covariance model.

Learned axes fit the messages from which they were learned, so new messages vary less along them. In this model the
stream has k axes with more variance than the noise, the spikes. docs/mathematics.md, section 10.
"""

from typing import Any, NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array

_ROUNDS = 10  # iterations of the search for the variances of new messages


def compute_rounding_variance(total_variance: float, dtype: Any = np.float64) -> float:
    """Return the variance that rounding may cause along one direction."""
    return float(max(np.finfo(dtype).eps * total_variance, np.finfo(np.float64).tiny))


def compute_noise_variance(variance: Array, dimensions: int, total_variance: float, dtype: Any = np.float64) -> float:
    """Return the noise variance σ²: the mean variance of the directions beyond the axes, or more.

    `variance` (k,) are the variances along the axes. σ² is at least the variance that rounding may cause.
    """
    directions = dimensions - len(variance)
    rounding_variance = compute_rounding_variance(total_variance, dtype)
    if directions <= 0:
        return rounding_variance
    mean = (total_variance - float(variance.sum())) / directions
    return max(mean, rounding_variance)


class Spikes(NamedTuple):
    """The estimated covariance of a stream: noise in all directions, and more variance along k axes, the spikes."""

    strength: F64  # (k,): t; the stream has the variance σ²(1 + t) along the true axis that a learned axis estimates
    sigma2: float  # σ², the variance in all other directions
    gamma: float  # γ, the number of directions with no more variance than noise, divided by the number of messages
    noise_of_new_messages: float = 0.0  # the mean variance that messages which are not learned yet have along no axis

    @property
    def overlap(self) -> F64:
        """The squared cosine between each learned axis and the true axis, (k,); 0 if the axis only fits noise."""
        t = self.strength
        smallest_t = np.sqrt(self.gamma)  # exactly the t of an axis that only fits noise
        return np.asarray((t - smallest_t) * (t + smallest_t) / (t * (t + self.gamma)))

    @property
    def variance_of_new_messages(self) -> F64:
        """The variance that messages which are not learned yet have along each learned axis, (k,)."""
        t = self.strength
        return np.asarray(self.sigma2 * t * ((1 + t) / (t + self.gamma)))


def estimate_spikes(
    variance: F64, dimensions: int, total_variance: float, weight: float, dtype: Any = np.float64
) -> Spikes:
    """Estimate the covariance of the stream from the variances λ (k,) along learned axes.

    In the spiked covariance model, all directions have noise of the variance σ², and k true axes have a larger variance
    σ²(1 + t). Three steps are repeated, because each needs the results of the others:

    1. γ is the number of directions without more variance than noise, divided by the weight.
    2. The strength t of an axis is the larger solution of λ = σ²(1 + t)(1 + γ/t). This is the equation
       t² − bt + γ = 0 with b = λ/σ² − 1 − γ.
    3. t gives the variance of new messages along each axis. The next σ² is the mean variance in all other directions.
    """
    sigma2 = compute_noise_variance(variance, dimensions, total_variance, dtype)
    axes_above_noise = 0
    for _ in range(_ROUNDS):
        gamma = (dimensions - axes_above_noise) / max(weight, 1.0)  # 1.
        # With a smaller b, no real t solves the equation: the axis fits only noise, and gets the smallest b.
        smallest_b = 2 * np.sqrt(gamma)
        b = np.maximum(variance / sigma2 - 1 - gamma, smallest_b)
        root = np.sqrt(b - smallest_b) * np.sqrt(b + smallest_b)  # √(b² − 4γ), without the overflow of b²
        t = (b + root) / 2  # 2.
        spikes = Spikes(strength=t, sigma2=sigma2, gamma=gamma)
        # 3. `spikes.variance_of_new_messages` is computed from t.
        sigma2 = compute_noise_variance(spikes.variance_of_new_messages, dimensions, total_variance, dtype)
        axes_above_noise = int((b > smallest_b).sum())
    # `spikes.sigma2` stays the σ² with which t was computed; the last σ² was computed from t.
    return spikes._replace(noise_of_new_messages=sigma2)


def expect_t2_of_new_messages(variance: F64, spikes: Spikes, dimensions: int, weight: float) -> float:
    """Return the mean of T² over messages that are not learned yet.

        E[T²] = Σ_i ν_i/λ_i · w/(w − k₁ − 1)

        λ     variances along the k axes, from the learned messages (`variance`)
        ν     variances that new messages have along the axes (`spikes.variance_of_new_messages`)
        w     weight of the learned messages
        k₁    number of axes with more variance than noise: above the Marchenko–Pastur edge σ²(1 + √(d/w))², which is
              the largest λ of an axis that fits only noise

    The last factor is that of the mean of an inverse Wishart distribution. σ² is `spikes.noise_of_new_messages`.
    """
    marchenko_pastur_edge = spikes.noise_of_new_messages * (1 + np.sqrt(dimensions / max(weight, 1.0))) ** 2
    axes_above_noise = int((variance > marchenko_pastur_edge).sum())  # k₁
    sum_of_ratios = float((spikes.variance_of_new_messages / variance).sum())
    return sum_of_ratios * weight / max(weight - axes_above_noise - 1, 1.0)
