"""Checks the arrays of a checkpoint: wrong arrays show that a file is damaged, or that a worker has learned nonsense.

`Checkpoints.save` decodes a checkpoint before it writes, so each rule must hold for every state that can be learned or
merged. If such a state were refused, the worker would stop, read the same records at its next start, and stop again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DamagedFileError
from streampca.pca.arrays import find_packed_diagonal, find_unusable_entries

Arrays = Mapping[str, NDArray[Any]]
Settings = Mapping[str, Any]  # those in the header of the checkpoint

_MARGIN = 16  # largest entry of an array, in lengths of the longest vector: no array that was learned has a larger one


def refuse_wrong_arrays(arrays: Arrays, settings: Settings, *, has_learned: bool) -> None:
    """Raise `DamagedFileError` for arrays that no release with this format can have written."""
    actual = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    expected = _expect_shapes_and_dtypes(arrays, settings, has_learned=has_learned)
    have_usual_layout = all(array.dtype.isnative and array.flags.c_contiguous for array in arrays.values())
    if actual != expected or not have_usual_layout:
        raise DamagedFileError("the arrays of the checkpoint fit neither each other nor the settings")
    may_have_gaps = settings.get("missing") == "impute"
    for name, array in arrays.items():
        if find_unusable_entries(array, impute=may_have_gaps and name == "pending").any():
            raise DamagedFileError(f"{name} holds values that are not finite")
    _refuse_values_out_of_range(arrays)


def _expect_shapes_and_dtypes(arrays: Arrays, settings: Settings, *, has_learned: bool) -> dict[str, Any]:
    """Return the shape and dtype that each array must have."""
    d = settings.get("dimensions")
    dtype = settings.get("dtype")
    # If `dimensions`, `C` or `pending` is missing or malformed, the length is taken as 0. The file is refused in any
    # case, because `C` or `pending` does not have the shape below.
    pair_count = d * (d + 1) // 2 if isinstance(d, int) else 0
    column_count = arrays["C"].shape[-1] if "C" in arrays and arrays["C"].ndim else 0
    pending_count = len(arrays["pending"]) if "pending" in arrays and arrays["pending"].ndim else 0
    one_per_dimension = ((d,), "float64")
    one_per_pair = ((pair_count,), "float64")
    expected: dict[str, Any] = {
        "C": ((d, column_count), dtype),
        "C_pinv": ((column_count, d), dtype),  # only for people who read the file
        "mean": one_per_dimension,
        "pending": ((pending_count, d), dtype),
        "pending_retention": ((pending_count,), "float64"),
    }
    if "missing" in arrays:
        expected["missing"] = one_per_dimension
    keeps_covariance = "covariance" in arrays
    if keeps_covariance:
        expected["covariance"] = one_per_pair
    if "known" in arrays:  # the share of the weight for which each pair was known, or without Σ, each entry
        expected["known"] = one_per_pair if keeps_covariance else one_per_dimension
    if settings.get("standardize") and has_learned:  # the first block sets the scale
        expected["scale"] = one_per_dimension
        if not keeps_covariance:  # otherwise the variances are the diagonal of Σ
            expected["variances"] = one_per_dimension
    return expected


def _refuse_values_out_of_range(arrays: Arrays) -> None:
    """Raise `DamagedFileError` for numbers that cannot have been learned."""
    largest_number = float(np.finfo(arrays["C"].dtype).max)
    # The length of a vector whose d entries all are `LearningConfig.largest_value`, √(largest number / (2¹⁴ d))
    longest_vector = np.sqrt(largest_number) / 128
    largest_entry = _MARGIN * longest_vector
    largest_covariance = 0.0
    covariance = arrays.get("covariance")
    if covariance is not None:
        variances = covariance[find_packed_diagonal(len(arrays["mean"]))]
        limit_by_variances = 1.01 * float(variances.max())  # 1 % for rounding
        limit_by_entries = largest_entry**2  # does not overflow: with 16²/128², it is 1/64 of the largest number
        largest_covariance = min(limit_by_variances, limit_by_entries)
    ranges = {
        "C": (-largest_entry, largest_entry),
        "C_pinv": (-np.inf, np.inf),  # large if C is small
        "mean": (-largest_entry, largest_entry),
        "pending": (-largest_entry, largest_entry),
        "pending_retention": (0.0, 1.0),
        "missing": (0.0, 1.0 + 1e-6),  # a share, but merging rounds it
        "known": (0.0, 1.0 + 1e-6),  # likewise
        "scale": (np.nextafter(0.0, 1.0), np.inf),
        "variances": (0.0, np.inf),
        "covariance": (-largest_covariance, largest_covariance),
    }
    for name, array in arrays.items():
        low, high = ranges[name]
        if ((array < low) | (array > high)).any():
            raise DamagedFileError(f"{name} holds values outside {low:g} … {high:g}, which cannot have been learned")
