"""What BLAS and LAPACK compute without the GIL equals what SciPy's and NumPy's own functions compute."""

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from scipy.linalg import eigh

from streampca.pca.blocked import triangle
from streampca.pca.blocked.eigenvectors import find_leading_eigenvectors


@given(n=st.integers(1, 60), rank=st.integers(0, 60), count=st.integers(1, 60), seed=st.integers(0, 99))
@example(n=1, rank=1, count=1, seed=0)
@example(n=60, rank=60, count=60, seed=0)
@example(n=40, rank=0, count=3, seed=0)  # all eigenvalues are equal
@settings(max_examples=100, deadline=None)
def test_leading_eigenvectors_are_those_of_scipy(n: int, rank: int, count: int, seed: int) -> None:
    count = min(count, n)
    B = np.random.default_rng(seed).standard_normal((n, rank))
    A = B @ B.T
    before = A.copy()
    eigenvalues, U = find_leading_eigenvectors(A, count)
    expected, expected_U = eigh(A, subset_by_index=(n - count, n - 1))
    np.testing.assert_allclose(eigenvalues, expected, rtol=1e-12, atol=1e-12 * np.trace(A))
    np.testing.assert_allclose(U.T @ U, np.eye(count), atol=1e-12)
    np.testing.assert_allclose(A @ U, U * eigenvalues, atol=1e-12 * max(np.trace(A), 1.0))
    assert U.shape == expected_U.shape
    np.testing.assert_array_equal(A, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_matrix_with_a_number_that_is_not_finite_is_refused(bad: float) -> None:
    A = np.eye(9)
    A[4, 2] = bad
    with pytest.raises(ValueError, match="infs or NaNs"):
        find_leading_eigenvectors(A, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(n=st.integers(0, 40), d=st.integers(1, 40), step=st.integers(1, 3), by_columns=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_lower_triangle_of_a_gram_matrix(dtype: type, n: int, d: int, step: int, by_columns: bool) -> None:
    Y = np.random.default_rng(n).standard_normal((n * step, d)).astype(dtype)[::step]
    got = triangle.gram(np.asfortranarray(Y) if by_columns else Y)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, np.tril(Y.T @ Y), rtol=0, atol=40 * np.finfo(dtype).eps * max(n, 1))


@given(d=st.integers(1, 40), m=st.integers(1, 40), factor=st.floats(-9, 9), by_columns=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_symmetric_matrix_is_multiplied_by_its_lower_triangle(
    d: int, m: int, factor: float, by_columns: bool
) -> None:
    random = np.random.default_rng(d)
    S, B = random.standard_normal((d, d)), random.standard_normal((d, m))
    symmetric = np.tril(S) + np.tril(S, -1).T
    got = triangle.multiply_symmetric(factor, S, np.asfortranarray(B) if by_columns else B)
    np.testing.assert_allclose(got, factor * symmetric @ B, atol=1e-11)
