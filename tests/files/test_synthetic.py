"""Synthetic vectors have the axes and the loss ratio that they claim, and sensors their units and correlations."""

import numpy as np
import pytest

from streampca.files.synthetic import MACHINE, LowRank, Sensors, generate_rows
from streampca.pca.arrays import F64


def test_vectors_have_the_axes_and_the_loss_ratio_of_their_stream() -> None:
    vectors = LowRank(dimensions=40, components=3, seed=1)
    Y = vectors.draw(60_000).astype(np.float64)
    Y -= Y.mean(axis=0)
    _, variances, axes = np.linalg.svd(Y, full_matrices=False)
    assert (variances[3:] ** 2).sum() / (variances**2).sum() == pytest.approx(vectors.loss_ratio, rel=0.01)
    assert vectors.coverage(axes[:3]) > 0.99
    assert vectors.largest_angle(axes[:3]) < 10


def test_coverage_and_largest_angle_compare_subspaces() -> None:
    axes, truth = np.eye(6), LowRank(6, 2)
    truth.basis = axes[:2]
    assert truth.coverage(axes[:2]) == pytest.approx(1)
    assert truth.largest_angle(axes[:2]) == pytest.approx(0, abs=1e-6)
    assert truth.coverage(axes[[1, 3]]) == pytest.approx(0.5)
    assert truth.largest_angle(axes[[1, 3]]) == pytest.approx(90)
    assert truth.largest_angle(np.stack([axes[0], (axes[1] + axes[2]) / np.sqrt(2)])) == pytest.approx(45)


def test_sensors_follow_their_causes_and_the_last_reading_is_a_fault() -> None:
    Y = Sensors().draw(60_000)
    fault, usual = Y[-1], Y[:-1]
    mean, deviation, causes = (np.array(column) for column in zip(*MACHINE.values(), strict=True))
    np.testing.assert_allclose(usual.mean(axis=0), mean, atol=0.02 * deviation.max(), rtol=0.01)
    np.testing.assert_allclose(usual.std(axis=0), deviation, rtol=0.02)
    np.testing.assert_allclose(np.corrcoef(usual.T), correlations(causes), atol=0.02)
    predicted = np.linalg.lstsq(np.delete(usual - mean, 3, axis=1), (usual - mean)[:, 3], rcond=None)[0]
    residual = (Y - mean)[:, 3] - np.delete(Y - mean, 3, axis=1) @ predicted
    assert np.argmax(np.abs(residual)) == len(Y) - 1
    assert np.all(np.abs(np.delete(fault - mean, 3)) < 5 * np.delete(deviation, 3))


def correlations(causes: F64) -> F64:
    products = causes @ causes.T
    np.fill_diagonal(products, 1)
    return products


@pytest.mark.parametrize("names", [["speed"], ["temp", "hum", "press"], ["power", *(f"s{j}" for j in range(20))]])
def test_sensors_may_have_any_names(names: list[str]) -> None:
    rows = generate_rows(names, len(names))
    first = next(iter(rows.chunks()))
    assert (rows.names, rows.dimensions, first.vectors.shape[1]) == (list(names), len(names), len(names))
    assert {name: len(column) for name, column in first.other_columns.items()} == dict.fromkeys(("machine", "at"), 101)
    if names[0] in MACHINE:
        np.testing.assert_allclose(first.vectors[:-1, 0].mean(), MACHINE[names[0]][0], rtol=0.1)


@pytest.mark.parametrize("dimensions", [None, 1, 3, 128, 70_000])
def test_generated_vectors_have_the_dimensions_asked_for(dimensions: int | None) -> None:
    rows = generate_rows(None, dimensions)
    vectors = next(iter(rows.chunks())).vectors
    assert vectors.shape[1] == rows.dimensions == (dimensions or 128)
    assert vectors.nbytes <= 2**22
    if dimensions in (None, 128):
        assert np.array_equal(vectors, LowRank().draw(256))
