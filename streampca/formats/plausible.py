"""Whether raw numbers can be what their producer meant.

The bytes of a number of another type are a number too. But if bytes are read in the wrong byte order, or integers as
floats, almost all numbers lie near the smallest that a float can hold, or they span many decades. Measured numbers do
neither. Zeros, infinities and NaN are left out: they say nothing of the type.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array

_MAX_DECADES = 20
_MIN_NUMBERS = 20  # of a dimension: the spread of fewer numbers says nothing
_TINY = 2.0**16  # times the smallest normal number: big-endian prices, read as little-endian, are just below
_MAX_DIMENSIONS = 4096  # that are looked at
_RUN = 8  # entries; their bytes are also whole numbers of any other type, as which they may be read


def sample_entries(vector: Array) -> Array:
    """Return at most 4,096 entries of a vector (d,), in runs of eight at equal distances."""
    d = len(vector)
    if d <= _MAX_DIMENSIONS:
        return vector
    runs = vector[: d - d % _RUN].reshape(-1, _RUN)
    step = math.ceil(runs.size / _MAX_DIMENSIONS)
    return runs[::step].ravel()


def explain_problem(rows: Array, *, raw: bool, dimensions: int) -> str:
    """Say what is odd about vectors of floats (n, d), and what to do about it; "" if nothing is odd.

    The rows may be samples of vectors; `dimensions` is the number of entries of whole vectors. With `raw` a value is
    the bytes of its numbers, which may have another type. In all other formats, such as bytes in Avro, floats must be
    little-endian.
    """
    problem = find_problem(rows)
    if not problem:
        return ""
    problem = f"read as {rows.dtype.name}, {problem}"
    if raw:
        formats = ", ".join(find_plausible_formats(rows, dimensions))
        return (
            f"{problem}; the same bytes are plausible as {formats}: correct format, or skip this test with "
            f"format={rows.dtype.str} if the numbers are right"
        )
    in_other_order = rows.view(rows.dtype.newbyteorder(">"))
    hint = "" if find_problem(in_other_order) else " (in the other byte order they are plausible)"
    return f"{problem}{hint}; the producer must write little-endian floats, or arrays of numbers instead of bytes"


@np.errstate(invalid="ignore")  # signalling NaNs would warn
def find_problem(rows: Array) -> str:
    """Say what is odd about vectors (n, d) of floats, in their type on the wire; "" if nothing is odd."""
    step = math.ceil(rows.shape[1] / _MAX_DIMENSIONS)
    magnitudes = np.abs(rows[:, ::step].astype(np.float64))
    is_left_out = ~np.isfinite(magnitudes) | (magnitudes == 0)
    magnitudes[is_left_out] = np.inf  # these come last when the numbers of a dimension are sorted
    counts = (~is_left_out).sum(axis=0)  # of the numbers of each dimension

    has_room = rows.dtype.itemsize > 2  # float16 holds too few magnitudes for a higher limit
    tiny = np.finfo(rows.dtype).tiny * (_TINY if has_room else 1.0)
    if counts.any() and not (magnitudes[~is_left_out] >= tiny).any():
        return f"all numbers but zero are below {tiny:.0e}"

    has_enough = counts >= _MIN_NUMBERS
    ascending = np.sort(magnitudes[:, has_enough], axis=0)
    last = counts[has_enough] - 1
    percentile_10 = -(-last // 10)  # rounded up
    percentile_90 = last * 9 // 10
    low, high = np.log10(np.take_along_axis(ascending, np.stack([percentile_10, percentile_90]), axis=0))
    decades = (high - low).max(initial=0.0)
    if decades > _MAX_DECADES:
        return f"the middle 80 % of the numbers of a dimension span {decades:.0f} decades"
    return ""


def find_plausible_formats(rows: Array, dimensions: int) -> list[str]:
    """Return the formats in which the bytes of vectors (n, d), or of samples of vectors, are plausible numbers.

    `dimensions` is the number of entries of whole vectors. Floats come first, since any bytes are plausible integers.
    """
    vector_size = rows.dtype.itemsize * dimensions
    widths = [width for width in (rows.dtype.itemsize, 8, 4, 2, 1) if vector_size % width == 0]  # bytes of a number
    floats = []
    for width in widths:
        if width == 1:  # no float is so small
            continue
        for order in "<>":
            numbers = rows.view(f"{order}f{width}")
            is_plausible = np.isfinite(numbers).all() and not find_problem(numbers)
            if is_plausible and numbers.dtype != rows.dtype:
                floats.append(numbers)
    signed = [_read_in_likely_order(rows, width) for width in widths]
    unsigned = [integers.view(integers.dtype.str.replace("i", "u")) for integers in signed]

    formats = dict[str, None]()  # each once, in this order
    for numbers in (*floats, *signed, *unsigned):
        is_big_endian = numbers.dtype.str[0] == ">"
        name = numbers.dtype.str if is_big_endian else numbers.dtype.name
        entries = vector_size // numbers.dtype.itemsize
        formats[name if entries == dimensions else f"{name} (dimensions={entries})"] = None
    return list(formats)


def _read_in_likely_order(rows: Array, width: int) -> NDArray[np.signedinteger[Any]]:
    """Read the bytes of vectors as integers of `width` bytes, in the byte order that makes their median smaller."""
    in_both_orders = [rows.view(f"{order}i{width}") for order in "<>"]
    return min(in_both_orders, key=lambda integers: np.median(np.abs(integers.astype(np.float64))))
