"""An endless stream of random vectors with a low-rank structure."""

import itertools

import numpy as np

from streampca.files.rows import Rows, batch_of_vectors
from streampca.pca.arrays import F32, F64, Array

_NOISE = 0.5  # standard deviation in every direction


class LowRank:
    """y = mean + Σ σᵢ zᵢ uᵢ + noise: k directions of decreasing variance in d dimensions of white noise.

    It takes thousands of messages to distinguish the weakest direction from the noise, so learning can be watched.
    """

    def __init__(self, dimensions: int = 128, components: int = 8, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        Q, _ = np.linalg.qr(self._random.standard_normal((dimensions, components)))
        self.basis: F64 = Q.T  # (k, d), orthonormal rows
        self.deviations = np.geomspace(4.0, 1.0, components)  # σ
        self.mean = 3.0 * self._random.standard_normal(dimensions)

    @property
    def loss_ratio(self) -> float:
        """Share of the variance that lies outside the subspace: the loss of the best model."""
        k, d = self.basis.shape
        noise = _NOISE**2
        return float((d - k) * noise / (d * noise + (self.deviations**2).sum()))

    def coverage(self, components: Array) -> float:
        """Share of the subspace that the components (k, d) cover: the mean squared cosine of the angles between."""
        return float((self._cosines(components) ** 2).mean())

    def largest_angle(self, components: Array) -> float:
        """The largest angle between the two subspaces, in degrees."""
        return float(np.degrees(np.arccos(np.clip(self._cosines(components)[-1], 0.0, 1.0))))

    def _cosines(self, components: Array) -> F64:
        return np.asarray(np.linalg.svd(self.basis @ components.T, compute_uv=False))

    def draw(self, n: int) -> F32:
        k, d = self.basis.shape
        signal = (self._random.standard_normal((n, k)) * self.deviations) @ self.basis
        return (self.mean + signal + _NOISE * self._random.standard_normal((n, d))).astype(np.float32)

    def rows(self) -> Rows:
        """The stream as the rows of a file that does not end."""
        batches = (batch_of_vectors(self.draw(256), 0.0) for _ in itertools.count())
        return Rows("synthetic", self.basis.shape[1], lambda: batches)
