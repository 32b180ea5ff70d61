"""Synthetic vectors have the axes and the loss ratio that they claim."""

import numpy as np
import pytest

from streampca.files.synthetic import LowRank


def test_the_truth_matches_the_stream() -> None:
    vectors = LowRank(dimensions=40, components=3, seed=1)
    Y = vectors.draw(60_000).astype(np.float64)
    Y -= Y.mean(axis=0)
    _, variances, axes = np.linalg.svd(Y, full_matrices=False)
    share_outside = (variances[3:] ** 2).sum() / (variances**2).sum()
    assert share_outside == pytest.approx(vectors.loss_ratio, rel=0.01)
    assert vectors.coverage(axes[:3]) > 0.99
    assert vectors.largest_angle(axes[:3]) < 10


def test_share_found_and_largest_angle() -> None:
    axes, truth = np.eye(6), LowRank(6, 2)
    truth.basis = axes[:2]
    assert truth.coverage(axes[:2]) == pytest.approx(1)
    assert truth.largest_angle(axes[:2]) == pytest.approx(0, abs=1e-6)
    assert truth.coverage(axes[[1, 3]]) == pytest.approx(0.5)
    assert truth.largest_angle(axes[[1, 3]]) == pytest.approx(90)
    tilted = np.stack([axes[0], (axes[1] + axes[2]) / np.sqrt(2)])
    assert truth.largest_angle(tilted) == pytest.approx(45)


def test_the_same_seed_gives_the_same_stream() -> None:
    assert np.array_equal(LowRank(seed=3).draw(5), LowRank(seed=3).draw(5))
