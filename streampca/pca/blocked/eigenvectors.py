"""The leading eigenvectors of a symmetric matrix by LAPACK's `dsyevr`, which is quickest if only a few are searched."""

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.blocked.fortran import load_routine

_dsyevr = load_routine("lapack", "dsyevr", parameter_count=21)

# Rows of n numbers, as LAPACK asks for. With other work space, it forms blocks of another size and rounds otherwise.
_WORK_ROWS = 33
_INTEGER_WORK_ROWS = 10


def find_leading_eigenvectors(A: F64, count: int) -> tuple[F64, F64]:
    """Return the `count` largest eigenvalues of a symmetric matrix (n, n), ascending, and their eigenvectors.

    Has the same bits as `scipy.linalg.eigh(A, subset_by_index=(n - count, n - 1))`. Raises `ValueError` if a number is
    not finite, and `LinAlgError` if LAPACK does not find the eigenvectors.
    """
    n = len(A)
    matrix = np.array(np.asarray_chkfinite(A), order="F")  # a copy, because LAPACK overwrites it
    eigenvalues = np.empty(n)
    eigenvectors = np.empty((n, count), order="F")
    support = np.empty(2 * n, np.intc)  # where eigenvectors are not 0; not used
    work = np.empty(_WORK_ROWS * n)
    integer_work = np.empty(_INTEGER_WORK_ROWS * n, np.intc)
    found_count = np.zeros(1, np.intc)
    error = np.zeros(1, np.intc)
    first_index = n - count + 1  # LAPACK counts eigenvalues from 1, in ascending order
    column_stride = n  # numbers from one column to the next, in `matrix` and in `eigenvectors`
    unused_bound = 0.0  # eigenvalues are chosen by their indices, not by bounds
    _dsyevr(
        b"V",  # search eigenvalues and eigenvectors
        b"I",  # those with the indices below
        b"L",  # read the lower triangle
        n,
        matrix,
        column_stride,
        unused_bound,
        unused_bound,
        first_index,
        n,  # the last index
        0.0,  # tolerance: as exact as possible
        found_count,
        eigenvalues,
        eigenvectors,
        column_stride,
        support,
        work,
        work.size,
        integer_work,
        integer_work.size,
        error,
    )
    if error[0] != 0 or found_count[0] != count:
        raise np.linalg.LinAlgError(f"dsyevr found {found_count[0]} of {count} eigenvectors, error {error[0]}")
    return eigenvalues[:count], eigenvectors
