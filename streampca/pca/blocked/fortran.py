"""Routines of BLAS and LAPACK that release the GIL, so that other partitions are learned while they run.

SciPy's own functions for these routines hold it, for 10 ms at the eigenvectors of 500 rows.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address


def load_routine(library: str, name: str, parameter_count: int) -> Callable[..., None]:
    """Return a function that calls a routine of SciPy's library, "blas" or "lapack".

    Its arguments are integers, numbers, letters as bytes, and arrays, whose columns are contiguous for the routine.
    Results are written into the arrays.
    """
    address = get_cython_function_address(f"scipy.linalg.cython_{library}", name)
    routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * parameter_count)(address)  # releases the GIL during a call

    def call(*arguments: Any) -> None:
        """Call the routine, which takes a pointer for each argument."""
        arrays = [np.asarray(argument, np.intc if isinstance(argument, int) else None) for argument in arguments]
        routine(*(array.ctypes.data for array in arrays))

    return call
