"""Squares of numbers in single precision are summed in double, so that lengths and variances have its digits."""

import math
from dataclasses import replace

import numpy as np

from streampca.pca.blocked import ritz
from streampca.pca.state import State


def test_variances_are_sums_in_double_precision() -> None:
    C = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    exact = [math.fsum(float(value) ** 2 for value in column) for column in C.T]
    state = replace(State.empty(4000, "float32"), C=C)
    np.testing.assert_allclose(state.variance, exact, rtol=1e-14)


def test_columns_are_scaled_to_length_one_however_short_they_are() -> None:
    """The square of the second is below the smallest number of single precision."""
    A = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32) * np.array([1, 2.0**-90, 0], np.float32)
    lengths = np.linalg.norm(ritz._normalise_columns(A).astype(np.float64), axis=0)
    np.testing.assert_allclose(lengths, [1, 1, 0], rtol=1e-6)
