"""Short half-lives where no covariance is kept: as near as a forgetting IncrementalPCA with as many columns."""

import numpy as np
import pytest

from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from tests.pca.streams import covariance, excess, gaussian, one_pass, remaining_weights

D, K, N = 300, 20, 6344
STREAMS = {
    "near-degenerate": gaussian(0, N + 800, 1 / np.sqrt(1 + 0.05 * np.arange(D))),
    "steep": gaussian(1, N + 800, 1 / np.arange(1, D + 1.0)),
    "mean jumps": gaussian(2, N + 800, 1 / np.arange(1, D + 1.0) ** 0.7)
    + np.repeat(np.random.default_rng(2).standard_normal((8, D)) / 4, 893, axis=0),  # larger ones would be clipped
    "new directions": np.vstack([gaussian(seed, 1786, 1 / np.arange(1, D + 1.0) ** 0.7) for seed in range(4)]),
}


class ForgettingIncrementalPCA:
    """The leading singular vectors of the factor so far above each batch, both weighted."""

    def __init__(self, columns: int, kept: float) -> None:
        self.columns, self.kept = columns, kept
        self.factor, self.mean, self.weight = np.zeros((0, D)), np.zeros(D), 0.0

    def partial_fit(self, V: F64) -> None:
        weights, old = self.kept ** np.arange(len(V) - 1, -1, -1.0), self.kept ** len(V) * self.weight
        new = weights.sum()
        self.weight, mean = old + new, weights @ V / new
        step = np.sqrt(old * new) / self.weight * (self.mean - mean)
        rows = np.sqrt(weights / self.weight)[:, None] * (V - mean)
        stacked = np.vstack([np.sqrt(old / self.weight) * self.factor, rows, step])
        _, sigma, axes_of_rows = np.linalg.svd(stacked, full_matrices=False)
        self.factor = (sigma[:, None] * axes_of_rows)[: self.columns]
        self.mean = (old * self.mean + new * mean) / self.weight


@pytest.mark.parametrize("half_life", [150, 500, 2000])
@pytest.mark.parametrize("name", STREAMS)
def test_forgetting_is_as_accurate_as_in_an_incremental_pca(name: str, half_life: float) -> None:
    """Also just after a block, when a model is published with a few pending messages."""
    config, kept = LearningConfig(D, K, factor=True), 2 ** (-1 / half_life)
    rival, start, worst = ForgettingIncrementalPCA(config.columns, kept), 0, np.zeros(2)
    for end in (N, N + 20, N + 200, N + 800):
        X = STREAMS[name][:end]
        while start < end:
            rival.partial_fit(X[start : min(start + 256, end)])
            start = min(start + 256, end)
        exact = covariance(X, remaining_weights(np.full(end, kept)))
        state, _ = one_pass(X, config, kept)
        ours = excess(axes.find_principal_axes(state, K)[0], exact)
        theirs = excess(np.linalg.qr(rival.factor[:K].T)[0].T, exact)
        worst = np.maximum(worst, [ours, theirs])
    assert worst[0] <= 2 * worst[1] + 1e-6
