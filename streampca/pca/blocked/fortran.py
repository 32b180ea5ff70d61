"""Routines of BLAS and LAPACK that release the GIL, so that other partitions are learned while they run.

SciPy's own functions for these routines hold it, for 10 ms at the eigenvectors of 500 rows.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address


def load_routine(library: str, name: str, parameter_count: int) -> Callable[..., None]:
    """Return a function that calls a routine of SciPy's BLAS or LAPACK (`library` is "blas" or "lapack").

    The returned function takes the routine's arguments: int, float, a letter as bytes, or an array. The routine writes
    its results into the arrays. It reads an array's memory column by column, so callers must pass contiguous arrays.
    """
    address = get_cython_function_address(f"scipy.linalg.cython_{library}", name)
    routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * parameter_count)(address)  # releases the GIL during a call

    def call(*arguments: Any) -> None:
        """Call the routine, which takes a pointer to each argument."""
        arrays = []  # keeps the arguments alive during the call
        for argument in arguments:
            is_integer = isinstance(argument, int)
            # An int becomes a C int, a float a double, a letter a char. An array is not copied.
            arrays.append(np.asarray(argument, np.intc) if is_integer else np.asarray(argument))
        pointers = [array.ctypes.data for array in arrays]
        routine(*pointers)

    return call
