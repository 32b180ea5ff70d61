"""Frequent Directions keeps its promise, whatever the rows and their order."""

import numpy as np
import pytest

from experiments.baselines.frequent_directions import FrequentDirections


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [3, 8, 20])
def test_the_error_is_within_the_bound(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((400, 15)) * np.linspace(4, 0.5, 15)
    if seed % 2:
        A = A[np.argsort(np.abs(A[:, 0]))]
    sketch = FrequentDirections(15, rows)
    for piece in np.array_split(A, 13):
        sketch.add(piece)
    error = np.linalg.eigvalsh(A.T @ A - sketch.sketch.T @ sketch.sketch)
    assert error[0] > -1e-9 * error[-1] - 1e-9  # never more than the truth
    squares = np.linalg.svd(A, compute_uv=False) ** 2
    bounds = [squares[k:].sum() / (rows - k) for k in range(min(rows, 15))]
    assert error[-1] <= min(bounds) * (1 + 1e-9) + 1e-9


def test_with_as_many_rows_as_dimensions_it_is_exact() -> None:
    A = np.random.default_rng(0).standard_normal((100, 6))
    sketch = FrequentDirections(6, 6)
    sketch.add(A)
    np.testing.assert_allclose(sketch.sketch.T @ sketch.sketch, A.T @ A, rtol=1e-10, atol=1e-10)
