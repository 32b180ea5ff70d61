"""An endless stream of random vectors with a low-rank structure."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streampca.files.rows import RowChunk, Rows
from streampca.pca.arrays import F32, F64, Array

_NOISE = 0.5  # standard deviation in every direction


@dataclass(frozen=True)
class Truth:
    """The subspace of the signal, and the loss of the model that equals it."""

    basis: F64  # (k, d), orthonormal rows
    loss_ratio: float  # share of the variance that lies outside

    def coverage(self, components: Array) -> float:
        """Share of the subspace that the components (k, d) cover: the mean squared cosine of the angles between."""
        return float((self._cosines(components) ** 2).mean())

    def largest_angle(self, components: Array) -> float:
        """The largest angle between the two subspaces, in degrees."""
        return float(np.degrees(np.arccos(np.clip(self._cosines(components)[-1], 0.0, 1.0))))

    def _cosines(self, components: Array) -> F64:
        return np.asarray(np.linalg.svd(self.basis @ components.T, compute_uv=False))


class LowRank:
    """y = mean + Σ σᵢ zᵢ uᵢ + noise: k directions of decreasing variance in d dimensions of white noise.

    It takes thousands of messages to distinguish the weakest direction from the noise, so learning can be watched.
    """

    def __init__(self, dimensions: int = 128, components: int = 8, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        Q, _ = np.linalg.qr(self._random.standard_normal((dimensions, components)))
        self.basis: F64 = Q.T
        self.deviations = np.geomspace(4.0, 1.0, components)  # σ
        self.mean = 3.0 * self._random.standard_normal(dimensions)

    @property
    def dimensions(self) -> int:
        return int(self.basis.shape[1])

    @property
    def truth(self) -> Truth:
        """The loss of the best model is the noise outside the subspace."""
        k, d = self.basis.shape
        noise = _NOISE**2
        return Truth(self.basis, (d - k) * noise / (d * noise + float((self.deviations**2).sum())))

    def draw(self, n: int) -> F32:
        k, d = self.basis.shape
        signal = (self._random.standard_normal((n, k)) * self.deviations) @ self.basis
        return (self.mean + signal + _NOISE * self._random.standard_normal((n, d))).astype(np.float32)

    def rows(self) -> Rows:
        """The stream as the rows of a file that does not end."""
        return Rows(
            Path("synthetic"), self.dimensions, lambda: (RowChunk(self.draw(256), 0.0) for _ in itertools.count())
        )
