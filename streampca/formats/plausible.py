"""Whether raw numbers can be what their producer meant.

The bytes of a number of another type are a number too. But if bytes are read in the wrong byte order, or integers as
floats, almost all numbers lie near the smallest that a float can hold, or they span many decades. Measured numbers do
neither. Zeros, infinities and NaN are left out: they say nothing of the type.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array

_MAX_DECADES = 20  # a decade is a power of ten
_MIN_NUMBERS = 20  # of a dimension: the spread of fewer numbers says nothing
# A number is tiny below this factor times the smallest normal number of its type. Prices that were written big-endian
# and are read little-endian are just below this limit.
_TINY_FACTOR = 2.0**16
_MAX_DIMENSIONS = 4096  # that are looked at
_RUN = 8  # entries; their bytes are also whole numbers of any other type, as which they may be read


def sample_entries(vector: Array) -> Array:
    """Return a vector (d,), or a sample of at most 4,096 entries of a longer one: runs of eight at equal distances."""
    d = len(vector)
    if d <= _MAX_DIMENSIONS:
        return vector
    entries_in_runs = d - d % _RUN  # the last entries are not enough for a run
    runs = vector[:entries_in_runs].reshape(-1, _RUN)
    step = math.ceil(runs.size / _MAX_DIMENSIONS)
    return runs[::step].ravel()


def explain_problem(samples: Array, *, is_raw_format: bool, dimensions: int) -> str:
    """Say why the numbers of n vectors seem to be read as a wrong type, and how to mend it; "" if the type seems right.

    `samples` (n, s) are s entries of each vector: all entries, or a sample of the d = `dimensions` entries.
    """
    problem = find_problem(samples)
    if not problem:
        return ""
    message = f"read as {samples.dtype.name}, {problem}"
    if is_raw_format:
        formats = ", ".join(find_plausible_formats(samples, dimensions))
        # The type of a format with a byte order, such as <f4, is never tested. So setting such a format skips the test.
        return (
            f"{message}; the same bytes are plausible as {formats}: set format to the right type, or skip this test "
            f"with format={samples.dtype.str} if the numbers are right"
        )
    # In other formats, bytes are always read as little-endian floats, so that only the producer can be changed.
    samples_in_big_endian = samples.view(samples.dtype.newbyteorder(">"))
    hint = "" if find_problem(samples_in_big_endian) else " (in the other byte order they are plausible)"
    return f"{message}{hint}; the producer must write little-endian floats, or arrays of numbers instead of bytes"


@np.errstate(invalid="ignore")  # signalling NaNs would warn
def find_problem(samples: Array) -> str:
    """Say why floats look as if bytes were read as a wrong type; "" if the type seems right.

    Measured numbers are rarely all tiny, or spread over many decades. `samples` (n, s) are s entries of n vectors.
    Zeros, infinities and NaN are left out.
    """
    # Of more than `_MAX_DIMENSIONS` columns, only every step-th is looked at.
    step = math.ceil(samples.shape[1] / _MAX_DIMENSIONS)
    magnitudes = np.abs(samples[:, ::step].astype(np.float64))
    is_left_out = ~np.isfinite(magnitudes) | (magnitudes == 0)
    magnitudes[is_left_out] = np.inf  # `_max_decades` sorts infinite numbers last
    usable_counts = (~is_left_out).sum(axis=0)  # for each column, how many numbers are not left out

    tiny = np.finfo(samples.dtype).tiny  # the smallest normal number
    is_float16 = samples.dtype.itemsize == 2
    # Not for float16: `_TINY_FACTOR` would make its limit larger than many measured numbers.
    limit = tiny * (1.0 if is_float16 else _TINY_FACTOR)
    are_all_tiny = not (magnitudes[~is_left_out] >= limit).any()
    if usable_counts.any() and are_all_tiny:
        return f"all numbers but zero are below {limit:.0e}"
    decades = _max_decades(magnitudes, usable_counts)
    if decades > _MAX_DECADES:
        return f"the middle 80 % of the numbers of a dimension span {decades:.0f} decades"
    return ""


def _max_decades(magnitudes: Array, usable_counts: NDArray[np.int64]) -> float:
    """Return the largest spread of a column: the decades from its 10th to its 90th percentile.

    Column j of `magnitudes` (n, s) has `usable_counts[j]` finite numbers. The other numbers are infinite, and are left
    out. A column with too few finite numbers is left out, too. If all columns are left out, returns 0.
    """
    has_enough = usable_counts >= _MIN_NUMBERS
    ascending = np.sort(magnitudes[:, has_enough], axis=0)  # the infinite numbers are last
    last_index = usable_counts[has_enough] - 1  # of the finite numbers
    index_of_percentile_90 = last_index * 9 // 10
    # As many numbers are below percentile 10 as above percentile 90.
    index_of_percentile_10 = last_index - index_of_percentile_90
    indices = np.stack([index_of_percentile_10, index_of_percentile_90])
    numbers_at_percentiles = np.take_along_axis(ascending, indices, axis=0)
    low, high = np.log10(numbers_at_percentiles)
    return float((high - low).max(initial=0.0))


def find_plausible_formats(samples: Array, dimensions: int) -> list[str]:
    """Return the formats in which the bytes of vectors are plausible numbers.

    `samples` (n, s) were read as the configured type. They are, of each of n vectors, all d = `dimensions` entries, or
    runs of eight adjacent entries, whose bytes can be read again as numbers of any size up to 8 bytes. Formats of
    floats come first, because any bytes are plausible integers.
    """
    vector_size = samples.dtype.itemsize * dimensions  # bytes
    same_size_first = dict.fromkeys((samples.dtype.itemsize, 8, 4, 2, 1))  # without duplicates
    # A size is possible only if it divides the bytes of a vector.
    number_sizes = [size for size in same_size_first if vector_size % size == 0]
    float_sizes = [size for size in number_sizes if size > 1]
    floats = _find_plausible_floats(samples, float_sizes)
    signed = [_view_as_integers(samples, size) for size in number_sizes]
    unsigned = [integers.view(integers.dtype.str.replace("i", "u")) for integers in signed]  # <i4 becomes <u4

    dtypes = [numbers.dtype for numbers in (*floats, *signed, *unsigned)]
    return [_spell_format(dtype, vector_size // dtype.itemsize, dimensions) for dtype in dtypes]


def _spell_format(dtype: np.dtype[Any], entries: int, dimensions: int) -> str:
    """Return the settings that read vectors of this type and number of entries, such as `float64 (dimensions=4)`."""
    is_big_endian = dtype.str[0] == ">"
    name = dtype.str if is_big_endian else dtype.name
    return name if entries == dimensions else f"{name} (dimensions={entries})"


def _find_plausible_floats(samples: Array, sizes: Sequence[int]) -> list[Array]:
    """Read the bytes of samples as other types of floats with these sizes, and return the floats that are plausible."""
    plausible_floats = []
    for size in sizes:
        for order in "<>":
            floats = samples.view(f"{order}f{size}")
            is_plausible = np.isfinite(floats).all() and not find_problem(floats)
            if is_plausible and floats.dtype != samples.dtype:
                plausible_floats.append(floats)
    return plausible_floats


def _view_as_integers(samples: Array, size: int) -> NDArray[np.signedinteger[Any]]:
    """Return the bytes of samples as integers of `size` bytes, in the byte order that makes their median smaller."""
    in_both_orders = [samples.view(f"{order}i{size}") for order in "<>"]
    return min(in_both_orders, key=lambda integers: np.median(np.abs(integers.astype(np.float64))))
