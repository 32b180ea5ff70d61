"""Angles between axes and subspaces, beside SciPy's; also tiny ones and right ones."""

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from streampca.pca.angles import principal_angles
from streampca.pca.arrays import F64


def axes(seed: int, n: int, d: int) -> F64:
    """Orthonormal rows (n, d)."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, n)))[0].T


@pytest.mark.parametrize(("a", "b", "d"), [(1, 1, 1), (1, 3, 3), (4, 2, 9), (5, 5, 30), (9, 9, 9), (20, 30, 40)])
def test_principal_angles_are_those_of_scipy(a: int, b: int, d: int) -> None:
    A, B = axes(1, a, d), axes(2, b, d)
    expected = np.sort(subspace_angles(A.T, B.T))
    np.testing.assert_allclose(principal_angles(A, B), expected, atol=1e-12)
    np.testing.assert_allclose(principal_angles(B, A), expected, atol=1e-12)


def test_tiny_and_right_angles_have_all_digits_whatever_axes_span_the_subspaces() -> None:
    known = np.array([0.0, 1e-9, 1e-6, 0.3, 1.2, np.pi / 2 - 1e-9, np.pi / 2])
    n = len(known)
    basis = axes(3, 2 * n, 30)
    A = basis[:n]
    B = np.cos(known)[:, None] * A + np.sin(known)[:, None] * basis[n:]
    np.testing.assert_allclose(principal_angles(axes(4, n, n) @ A, axes(5, n, n) @ B), known, atol=1e-15 * 2**6)
    for a, b, angle in zip(A, B, known, strict=True):  # of the lines along two axes: a sign says nothing
        np.testing.assert_allclose(principal_angles(a[None], -b[None]), [angle], atol=1e-15 * 2**6)


def test_a_subspace_without_axes_has_no_angles() -> None:
    assert principal_angles(np.empty((0, 5)), axes(1, 2, 5)).shape == (0,)
