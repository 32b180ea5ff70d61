"""The rivals of the score, and the limits of p that anomalies.md names."""

import numpy as np
import pytest

from experiments import anomalies
from experiments.detectors import DETECTORS, ecod
from streampca.estimator.estimator import StreamingPCA
from tests.pca.streams import gaussian


def test_ecod_is_the_largest_sum_of_tail_probabilities() -> None:
    rng = np.random.default_rng(0)
    X, Z = rng.poisson([[1, 5, 9]], (40, 3)).astype(np.uint8), rng.integers(0, 15, (20, 3)).astype(np.uint8)
    X[:, 2] = 20 - X[:, 2]
    expected = []
    for z in Z:
        left, right = (-np.log((1 + counts) / 41) for counts in ((z >= X).sum(axis=0), (z <= X).sum(axis=0)))
        skewed = ((X - X.mean(axis=0)) ** 3).sum(axis=0) < 0
        expected.append(max(left.sum(), right.sum(), np.where(skewed, left, right).sum()))
    assert ecod(X)(Z) == pytest.approx(expected)


@pytest.mark.parametrize("name", DETECTORS)
def test_larger_scores_are_more_unusual(name: str) -> None:
    X = np.clip(128 + gaussian(0, 900, np.full(8, 10.0)), 0, 255).astype(np.uint8)
    score, far = DETECTORS[name](X), (X // 4).astype(np.uint8)
    assert anomalies.auc(-score(far[:100]), -score(X[:100])) > 0.95


def test_after_a_change_p_is_too_large_at_first_and_right_in_the_end() -> None:
    spectrum, half_life, pca = np.r_[np.linspace(4, 2, 8), np.full(56, 0.5)], 1000, StreamingPCA(8, half_life=1000)

    def later(seed: int, half_lives: int) -> float:
        """The share of ordinary messages with p ≤ 0.05, after some half-lives with the axes of this seed."""
        stream = gaussian(seed, half_life * half_lives + 4000, spectrum)
        pca.partial_fit(stream[4000:])
        return float(np.mean(pca.p_values(stream[:4000]) <= 0.05))

    assert later(1, 20) == pytest.approx(0.05, abs=0.01)
    assert later(2, 2) == 0
    assert later(2, 10) == pytest.approx(0.05, abs=0.01)
